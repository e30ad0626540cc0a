//! Raw tracepoints irq_handler_entry and irq_handler_exit.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use aya_log_ebpf::warn;
use vmdtrace_common::{CpuBank, LineCell, LineEntry, Name, Taken, World, shares::Share};

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
    fn zero(&mut self) -> u32 {
        kernel::zero()
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
    fn publish(&mut self, slot: u32) {
        // A look-up of its own: what was written before it stays before it.
        if let Some(cell) = kernel::cell(slot) {
            cell.ready = 1;
        }
    }

    #[inline(always)]
    fn counts_shares(&mut self) -> bool {
        kernel::counts_shares()
    }

    #[inline(always)]
    fn owner(&mut self, slot: u32) -> u8 {
        kernel::owner(slot)
    }

    #[inline(always)]
    fn share(&mut self, owner: u32) -> Option<&mut Share> {
        kernel::share(self.cpu, owner)
    }

    #[inline(always)]
    fn no_slot(&mut self, irq: u32) {
        warn!(
            self.context,
            "interrupt {} has no slot (none is free, or it has had too many names): its runs are counted as unassigned",
            irq
        );
    }
}

/// Runs `work` with this CPU's bank and the line's entry. None if the number is
/// beyond the table.
#[inline(always)]
fn with_line(
    context: &RawTracePointContext,
    work: impl FnOnce(&mut CpuBank, &mut LineEntry, &mut Kernel<'_>, u32, u64),
) -> Option<()> {
    let irq: u32 = context.arg(0);
    let action: u64 = context.arg(1);
    let cpu = kernel::cpu();
    let bank = kernel::bank(cpu)?;
    let line = kernel::line(irq)?;
    work(bank, line, &mut Kernel { context, cpu }, irq, action);
    Some(())
}

/// irq_handler_entry(int irq, struct irqaction *action)
#[raw_tracepoint(tracepoint = "irq_handler_entry")]
pub(crate) fn irq_handler_entry(context: RawTracePointContext) -> i32 {
    let done = with_line(&context, |bank, line, kernel, irq, action| {
        vmdtrace_common::enter(bank, line, kernel, irq, action);
    });
    if done.is_none()
        && let Some(bank) = kernel::bank(kernel::cpu())
    {
        bank.out_of_range_runs += 1;
        if bank.out_of_range_runs == 1 {
            let irq: u32 = context.arg(0);
            warn!(
                &context,
                "interrupt {} is beyond the line table: restart vmdtrace to make a larger one", irq
            );
        }
    }
    0
}

/// irq_handler_exit(int irq, struct irqaction *action, int ret)
#[raw_tracepoint(tracepoint = "irq_handler_exit")]
pub(crate) fn irq_handler_exit(context: RawTracePointContext) -> i32 {
    let returned: u32 = context.arg(2);
    // IRQ_NONE is 0 (include/linux/irqreturn.h).
    let _beyond_the_table = with_line(&context, |bank, line, kernel, irq, action| {
        vmdtrace_common::exit(bank, line, kernel, irq, action, returned != 0);
    });
    0
}

/// Arms this CPU. User space runs it on every CPU, in task context or by an
/// inter-processor interrupt: neither is inside a device's handler, which runs
/// with interrupts off. Its tracepoint does not exist: it is never attached.
#[raw_tracepoint(tracepoint = "arm")]
pub(crate) fn arm(_: RawTracePointContext) -> i32 {
    if let Some(bank) = kernel::bank(kernel::cpu()) {
        bank.armed = 1;
    }
    0
}
