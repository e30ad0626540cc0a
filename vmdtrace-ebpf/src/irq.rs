//! Raw tracepoints irq_handler_entry and irq_handler_exit.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use aya_log_ebpf::warn;
use vmdtrace_common::{LineCell, Name, Taken, World};

use crate::{kernel, maps::FREE_SLOTS};

/// The kernel, as the accounting sees it.
struct Kernel<'a> {
    context: &'a RawTracePointContext,
    cpu: u32,
}

impl World for Kernel<'_> {
    #[inline(always)]
    fn now(&mut self) -> u64 {
        kernel::now()
    }

    #[inline(always)]
    fn cpu(&mut self) -> u32 {
        self.cpu
    }

    #[inline(always)]
    fn irqs_sum(&mut self) -> Option<u64> {
        kernel::irqs_sum(self.cpu)
    }

    #[inline(always)]
    fn name(&mut self, action: u64) -> Option<Name> {
        kernel::action_name(action)
    }

    #[inline(always)]
    fn classify(&mut self, name: &Name) -> u32 {
        kernel::name_table().map_or(0, |table| table.classify(name))
    }

    #[inline(always)]
    fn take_slot(&mut self) -> Taken {
        match FREE_SLOTS.pop() {
            Ok(Some(slot)) => Taken::Slot(slot),
            Ok(None) => Taken::Empty,
            Err(_) => Taken::Busy,
        }
    }

    #[inline(always)]
    fn cell(&mut self, slot: u32) -> Option<&mut LineCell> {
        kernel::cell(slot)
    }

    #[inline(always)]
    fn no_slot(&mut self, irq: u32, _: &Name) {
        warn!(
            self.context,
            "no free slot for interrupt {}: its runs are counted as unassigned", irq
        );
    }
}

/// irq_handler_entry(int irq, struct irqaction *action)
#[raw_tracepoint(tracepoint = "irq_handler_entry")]
pub(crate) fn irq_handler_entry(context: RawTracePointContext) -> i32 {
    let irq: u32 = context.arg(0);
    let action: u64 = context.arg(1);
    let cpu = kernel::cpu();
    let Some(bank) = kernel::bank(cpu) else {
        return 0;
    };
    let Some(line) = kernel::line(irq) else {
        bank.out_of_range_runs += 1;
        return 0;
    };
    vmdtrace_common::enter(
        bank,
        line,
        &mut Kernel {
            context: &context,
            cpu,
        },
        irq,
        action,
    );
    0
}

/// irq_handler_exit(int irq, struct irqaction *action, int ret)
#[raw_tracepoint(tracepoint = "irq_handler_exit")]
pub(crate) fn irq_handler_exit(context: RawTracePointContext) -> i32 {
    let irq: u32 = context.arg(0);
    let action: u64 = context.arg(1);
    let returned: u32 = context.arg(2);
    let cpu = kernel::cpu();
    let Some(bank) = kernel::bank(cpu) else {
        return 0;
    };
    let Some(line) = kernel::line(irq) else {
        return 0;
    };
    // IRQ_NONE is 0 (include/linux/irqreturn.h).
    vmdtrace_common::exit(
        bank,
        line,
        &mut Kernel {
            context: &context,
            cpu,
        },
        irq,
        action,
        returned != 0,
    );
    0
}
