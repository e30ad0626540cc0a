//! Raw tracepoint nvme_sq: the NVMe PCI driver took a completion from its queue
//! (drivers/nvme/host/pci.c, nvme_handle_cqe), in a handler, a poll, a timeout
//! or a reset. It does not see what the driver handles without a request:
//! asynchronous events.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};

use crate::{kernel, loss};

/// nvme_sq(struct request *req, __le16 sq_head, int sq_tail)
#[raw_tracepoint(tracepoint = "nvme_sq")]
pub(crate) fn nvme_sq(context: RawTracePointContext) -> i32 {
    let Some(bank) = kernel::bank(kernel::cpu()) else {
        return 0;
    };
    if vmdtrace_common::completion(bank) {
        kernel::add_one(&mut bank.completions_outside);
        loss::completed_outside_handlers(context.arg(0));
    }
    0
}
