//! Commands whose time is over, and interrupts that never came.
//!
//! The driver's time-out handler (drivers/nvme/host/pci.c, nvme_timeout) first
//! looks into the command's queue, in task context. If the command's completion
//! is taken there, by that task and in no interrupt handler, its interrupt was
//! lost. What the task takes later, after it gave the controller up
//! (nvme_dev_disable), had its interrupt switched off.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::kprobe, programs::ProbeContext};

use crate::{kernel, maps::TIMING_OUT};

/// nvme_timeout(struct request *req, ...)
#[kprobe]
pub(crate) fn nvme_timeout(context: ProbeContext) -> u32 {
    let Some(request) = context.arg::<u64>(0) else {
        return 0;
    };
    let Some(totals) = kernel::loss_totals() else {
        return 0;
    };
    // Before the count that lets completions look for it.
    let _dropped_if_no_room = TIMING_OUT.insert(kernel::task(), request, 0);
    kernel::add_one(&mut totals.timeouts);
    match kernel::losses(&kernel::disk_of_request(request)) {
        Some(losses) => {
            kernel::add_one(&mut losses.timeouts);
            kernel::add_one(&mut totals.changes);
        }
        None => kernel::add_one(&mut totals.unassigned_timeouts),
    }
    0
}

/// nvme_dev_disable(struct nvme_dev *dev, bool shutdown)
#[kprobe]
pub(crate) fn nvme_dev_disable(_: ProbeContext) -> u32 {
    let _was_in_no_timeout = TIMING_OUT.remove(kernel::task());
    0
}

/// A completion was taken outside any interrupt handler.
#[inline(always)]
pub(crate) fn completed_outside_handlers(request: u64) {
    let Some(totals) = kernel::loss_totals() else {
        return;
    };
    // Polling takes every completion here.
    if totals.timeouts == 0 {
        return;
    }
    let task = kernel::task();
    if kernel::request_timing_out(task) != Some(request) {
        return;
    }
    let _there = TIMING_OUT.remove(task);
    match kernel::losses(&kernel::disk_of_request(request)) {
        Some(losses) => {
            kernel::add_one(&mut losses.lost_interrupts);
            kernel::add_one(&mut totals.changes);
        }
        None => kernel::add_one(&mut totals.unassigned_lost_interrupts),
    }
}
