//! What the driver of a VMD does to the interrupts of its children
//! (drivers/pci/controller/vmd.c), and what becomes of the controllers' own
//! vectors (arch/x86/kernel/apic/vector.c).

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{
    macros::{fentry, kprobe, raw_tracepoint},
    programs::{FEntryContext, ProbeContext, RawTracePointContext},
};
use vmdtrace_common::{
    cells::{kind, state},
    msi::{Message, Operation, OperationKey},
};

use crate::{kernel, maps::MSI_MESSAGES};

/// Counts `times` operations, and tells of them if that is not too often.
#[inline(always)]
fn count(operation: Operation, mut key: OperationKey, times: u64, irq: u32, to_cpu: u32) {
    key.operation = operation as u32;
    let Some(totals) = kernel::msi_totals() else {
        return;
    };
    match kernel::operations(&key) {
        Some(counter) => {
            kernel::add(counter, times);
            kernel::add_one(&mut totals.changes);
        }
        None => kernel::add(&mut totals.unassigned, times),
    }
    let bucket = &mut totals.buckets[operation as usize];
    if !bucket.take(kernel::clock()) {
        kernel::add_one(&mut bucket.left_out);
        return;
    }
    let message = Message {
        key,
        irq,
        cpu: kernel::cpu(),
        to_cpu,
    };
    if MSI_MESSAGES.output(message, 0).is_err() {
        kernel::add_one(&mut totals.lost_messages);
    }
}

/// An operation on the `struct irq_data` of a child.
#[inline(always)]
fn on_child(operation: Operation, context: &ProbeContext) -> u32 {
    if let Some(data) = context.arg::<u64>(0) {
        let (key, irq) = kernel::domain_of_child(data);
        count(operation, key, 1, irq, 0);
    }
    0
}

/// vmd_irq_enable(struct irq_data *data), or vmd_pci_msi_enable(...) since 6.17
#[kprobe]
pub(crate) fn msi_enable(context: ProbeContext) -> u32 {
    on_child(Operation::Enable, &context)
}

/// vmd_irq_disable(struct irq_data *data), or vmd_pci_msi_disable(...) since 6.17
#[kprobe]
pub(crate) fn msi_disable(context: ProbeContext) -> u32 {
    on_child(Operation::Disable, &context)
}

/// vmd_pci_msi_startup(struct irq_data *data)
#[kprobe]
pub(crate) fn msi_startup(context: ProbeContext) -> u32 {
    on_child(Operation::Startup, &context)
}

/// vmd_pci_msi_shutdown(struct irq_data *data)
#[kprobe]
pub(crate) fn msi_shutdown(context: ProbeContext) -> u32 {
    on_child(Operation::Shutdown, &context)
}

/// vmd_compose_msi_msg(struct irq_data *data, struct msi_msg *msg)
#[kprobe]
pub(crate) fn msi_compose(context: ProbeContext) -> u32 {
    on_child(Operation::Compose, &context)
}

/// An operation on a `struct irq_domain` that a VMD made. Up to 6.16 it is about
/// one interrupt: (domain, info, virq, ...); since then about several: (domain,
/// virq, nr_irqs, ...). No interrupt number is as large as an address.
#[inline(always)]
fn on_domain(operation: Operation, context: &ProbeContext) -> u32 {
    let (Some(domain), Some(second), Some(third)) = (
        context.arg::<u64>(0),
        context.arg::<u64>(1),
        context.arg::<u64>(2),
    ) else {
        return 0;
    };
    let (irq, times) = if second > u64::from(u32::MAX) {
        (third as u32, 1)
    } else {
        (second as u32, third & 0xffff_ffff)
    };
    count(operation, kernel::domain(domain), times, irq, 0);
    0
}

/// vmd_msi_init(struct irq_domain *domain, ...), or vmd_msi_alloc(...) since 6.17
#[kprobe]
pub(crate) fn msi_allocate(context: ProbeContext) -> u32 {
    on_domain(Operation::Allocate, &context)
}

/// vmd_msi_free(struct irq_domain *domain, ...)
#[kprobe]
pub(crate) fn msi_free(context: ProbeContext) -> u32 {
    on_domain(Operation::Free, &context)
}

/// pci_write_config_word(const struct pci_dev *dev, int where, u16 val): the only
/// way the driver switches remapping (vmd_set_msi_remapping). The bit means the
/// opposite of its name, VMCONFIG_MSI_REMAP.
#[fentry]
pub(crate) fn pci_write_config_word(context: FEntryContext) -> i32 {
    const VMCONFIG: u32 = 0x44;
    const BYPASS: u32 = 0x2;
    if context.arg::<u32>(1) != VMCONFIG {
        return 0;
    }
    let Some(key) = kernel::vmd_address(context.arg::<u64>(0)) else {
        return 0;
    };
    let operation = if context.arg::<u32>(2) & BYPASS == 0 {
        Operation::RemapOn
    } else {
        Operation::RemapOff
    };
    count(operation, key, 1, 0, 0);
    0
}

/// vector_update(irq, vector, cpu, prev_vector, prev_cpu): only a vector that
/// had an interrupt since the start is known to be a controller's.
#[raw_tracepoint(tracepoint = "vector_update")]
pub(crate) fn vector_update(context: RawTracePointContext) -> i32 {
    let irq: u32 = context.arg(0);
    let (cpu, previous_vector, previous_cpu): (u32, u32, u32) =
        (context.arg(2), context.arg(3), context.arg(4));
    if previous_vector == 0 || cpu == previous_cpu {
        return 0;
    }
    let Some(line) = kernel::line(irq) else {
        return 0;
    };
    if line.state == state::ASSIGNED && line.kind == kind::VMD_VECTOR {
        let key = OperationKey {
            irq,
            ..OperationKey::default()
        };
        count(Operation::Move, key, 1, irq, cpu);
    }
    0
}

#[inline(always)]
fn allocated(result: i32) {
    if result < 0
        && let Some(totals) = kernel::msi_totals()
    {
        kernel::add_one(&mut totals.allocation_failures);
    }
}

/// vector_alloc(irq, vector, reserved, ret)
#[raw_tracepoint(tracepoint = "vector_alloc")]
pub(crate) fn vector_alloc(context: RawTracePointContext) -> i32 {
    allocated(context.arg(3));
    0
}

/// vector_alloc_managed(irq, vector, ret)
#[raw_tracepoint(tracepoint = "vector_alloc_managed")]
pub(crate) fn vector_alloc_managed(context: RawTracePointContext) -> i32 {
    allocated(context.arg(2));
    0
}
