//! What each CPU does for each controller.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::snapshot::probes::Counted;
use crate::snapshot::{CpuShare, ShareCounts, ShareOwner};

/// A family: its name, what it tells, its unit, whether something counts it, and what.
type Share = (
    &'static str,
    &'static str,
    Unit,
    fn(Counted) -> bool,
    fn(&ShareCounts) -> u64,
);

const FAMILIES: [Share; 3] = [
    (
        "vmdtrace_cpu_controller_hardware_interrupts_total",
        "vmdtrace_hardware_interrupts_total by the CPU that served them. Watched lines are \
         \"watched\"; what ran before it was known whose it is is \"unassigned\".",
        Unit::One,
        |counted| counted.interrupts,
        ShareCounts::hardware_interrupts,
    ),
    (
        "vmdtrace_cpu_controller_interrupt_seconds_total",
        "vmdtrace_cpu_interrupt_seconds_total by controller: the CPU's time in its handlers and \
         in those of its disks.",
        Unit::Nanoseconds,
        |counted| counted.handler_time,
        |counts| counts.interrupt_ns,
    ),
    (
        "vmdtrace_cpu_controller_completions_total",
        "vmdtrace_completions_total by the CPU whose handlers reaped them, with \
         vmdtrace_unassigned_completions_total.",
        Unit::One,
        |counted| counted.interrupts && counted.completions,
        |counts| counts.completions,
    ),
];

pub(super) fn add(shares: &[CpuShare], counted: Counted, families: &mut Vec<MetricFamily>) {
    for (name, help, unit, is_counted, value) in FAMILIES {
        if !is_counted(counted) {
            continue;
        }
        let mut family = CounterFamily::new(name, help, unit, ["cpu", "controller"]);
        for share in shares {
            let cpu = share.cpu.to_string();
            family.add([&cpu, owner(&share.owner)], value(&share.counts));
        }
        family.push_to(families);
    }
}

/// The label `controller`; the words are no PCI addresses.
fn owner(owner: &ShareOwner) -> &str {
    match owner {
        ShareOwner::Unassigned => "unassigned",
        ShareOwner::Watched => "watched",
        ShareOwner::Other => "other",
        ShareOwner::Direct => controller_value(None),
        ShareOwner::Controller(address) => controller_value(Some(address)),
    }
}
