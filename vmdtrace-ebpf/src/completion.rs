//! Raw tracepoint nvme_sq: the NVMe PCI driver took a completion from its queue
//! (drivers/nvme/host/pci.c, nvme_handle_cqe), in a handler, a poll, a timeout
//! or a reset. It does not see what the driver handles without a request:
//! asynchronous events. And block_rq_complete, for the ends of those that are
//! sampled.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use vmdtrace_common::{
    CompletionWorld, LineCell, placement,
    samples::{self, DiskSamples, Pending, SampleWorld},
};

use crate::{kernel, loss};

/// The kernel, as the accounting of one completion sees it.
struct Kernel {
    cpu: u32,
    request: u64,
}

impl CompletionWorld for Kernel {
    #[inline(always)]
    fn distance(&mut self) -> u64 {
        if !kernel::tells_placement() {
            return placement::distance::LOCAL;
        }
        placement::from_here(self.cpu, kernel::submitter(self.request), kernel::place)
    }

    #[inline(always)]
    fn samples(&mut self) -> bool {
        kernel::samples_times()
    }

    #[inline(always)]
    fn cell(&mut self, slot: u32) -> Option<&mut LineCell> {
        kernel::cell(slot)
    }

    #[inline(always)]
    fn add_one(&mut self, counter: &mut u64) {
        kernel::add(counter, 1);
    }
}

/// The kernel, as sampling sees it.
struct Sampler;

impl SampleWorld for Sampler {
    #[inline(always)]
    fn now(&mut self) -> u64 {
        kernel::now()
    }

    #[inline(always)]
    fn start_of(&mut self, request: u64) -> u64 {
        kernel::start_of(request)
    }

    #[inline(always)]
    fn disk(&mut self, index: u32) -> Option<&mut DiskSamples> {
        kernel::disk_samples(index)
    }

    #[inline(always)]
    fn pending(&mut self, request: u64) -> Option<&mut Pending> {
        kernel::pending(request)
    }

    #[inline(always)]
    fn add(counter: &mut u64, count: u64) {
        kernel::add(counter, count);
    }
}

/// nvme_sq(struct request *req, __le16 sq_head, int sq_tail)
#[raw_tracepoint(tracepoint = "nvme_sq")]
pub(crate) fn nvme_sq(context: RawTracePointContext) -> i32 {
    let cpu = kernel::cpu();
    let Some(bank) = kernel::bank(cpu) else {
        return 0;
    };
    let request: u64 = context.arg(0);
    if bank.depth == 0 {
        loss::completed_outside_handlers(request);
        kernel::count_outside(&kernel::disk_of_request(request));
    }
    if let Some(disk) = vmdtrace_common::completion(bank, &mut Kernel { cpu, request }) {
        samples::completed(&mut Sampler, request, disk);
    }
    0
}

/// block_rq_complete(struct request *rq, error, unsigned int nr_bytes): parts of
/// a request end, or all of it (block/blk-mq.c, blk_update_request and
/// blk_complete_request). NVMe's end at once.
#[raw_tracepoint(tracepoint = "block_rq_complete")]
pub(crate) fn block_rq_complete(context: RawTracePointContext) -> i32 {
    samples::ended(&mut Sampler, context.arg(0));
    0
}
