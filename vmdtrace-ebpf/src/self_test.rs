//! For the self-test of `vmdtrace doctor`, which alone attaches it: calls of
//! vmd_irq by interrupt number, seen by another mechanism than what is tested.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::kprobe, programs::ProbeContext};

use crate::kernel;

/// vmd_irq(int irq, void *data) (drivers/pci/controller/vmd.c)
#[kprobe]
pub(crate) fn vmd_irq(context: ProbeContext) -> u32 {
    if let Some(irq) = context.arg::<u32>(0)
        && let Some(calls) = kernel::vmd_irq_calls(irq)
    {
        *calls += 1;
    }
    0
}
