//! The counters of interrupt lines, by disk, by controller, by line and by
//! watched name, and what the CPUs' banks counted.
//!
//! Each table names the families with one set of labels: what a family counts of
//! a line, and where that means anything. The families by line are the others
//! taken apart: the sum over the lines of a disk is that disk's series.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prometheus::proto::MetricFamily;

use super::Detail;
use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::host::topology::{DiskPath, PciAddress, Topology};
use crate::snapshot::probes::Counted;
use crate::snapshot::{CpuCounts, LineCounts, LineKind, RunCounts};

/// A family of counters of `T`.
struct Counter<T> {
    name: &'static str,
    help: &'static str,
    unit: Unit,
    /// Whether something counts it.
    counted: fn(Counted) -> bool,
    /// What it counts of one `T`; None: that one has no series in it.
    value: fn(&T) -> Option<u64>,
}

type OfLine = Counter<LineCounts>;
type OfCpu = Counter<CpuCounts>;

impl<T> Counter<T> {
    const fn new(
        name: &'static str,
        help: &'static str,
        counted: fn(Counted) -> bool,
        value: fn(&T) -> Option<u64>,
    ) -> Self {
        Self {
            name,
            help,
            unit: Unit::One,
            counted,
            value,
        }
    }

    const fn seconds(name: &'static str, help: &'static str, value: fn(&T) -> Option<u64>) -> Self {
        Self {
            unit: Unit::Nanoseconds,
            ..Self::new(name, help, |counted| counted.handler_time, value)
        }
    }
}

/// The families of a table, with a series for each key of `counts`.
fn add<'a, T: 'a, const N: usize, const M: usize>(
    table: &[Counter<T>; M],
    labels: [&'static str; N],
    counts: impl Iterator<Item = &'a T>,
    key: fn(&'a T) -> [Cow<'a, str>; N],
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    // Summed before there are series: a key is made once, not for each family, and
    // borrows what it can.
    let mut sums: BTreeMap<[Cow<'a, str>; N], [Option<u64>; M]> = BTreeMap::new();
    for one in counts {
        let sums = sums.entry(key(one)).or_insert([None; M]);
        for (sum, counter) in sums.iter_mut().zip(table) {
            if let Some(count) = (counter.value)(one) {
                *sum = Some(sum.unwrap_or(0).saturating_add(count));
            }
        }
    }
    for (index, counter) in table.iter().enumerate() {
        if !(counter.counted)(counted) {
            continue;
        }
        let mut family = CounterFamily::new(counter.name, counter.help, counter.unit, labels);
        for (key, sums) in &sums {
            if let Some(count) = sums[index] {
                family.add(key.each_ref().map(AsRef::as_ref), count);
            }
        }
        family.push_to(families);
    }
}

fn interrupts(counted: Counted) -> bool {
    counted.interrupts
}

fn repeated_runs(counted: Counted) -> bool {
    counted.repeated_runs
}

/// Without the handlers nobody knows which completions are outside them.
fn completions(counted: Counted) -> bool {
    counted.interrupts && counted.completions
}

/// A value of lines of one kind only.
fn of(line: &LineCounts, kind: LineKind, value: u64) -> Option<u64> {
    (line.kind == kind).then_some(value)
}

const BY_DISK: [OfLine; 6] = [
    Counter::new(
        "vmdtrace_hardware_interrupts_total",
        "Handler runs for a hardware interrupt of the line itself. Behind a remapping controller \
         only its own vectors (disk=\"\") have them; its disks have no series.",
        interrupts,
        |line| (!line.is_remapped_child()).then(|| line.hardware_interrupts()),
    ),
    Counter::new(
        "vmdtrace_handler_repeated_total",
        "Of the hardware interrupts, runs the kernel repeated without a new one: it counts the \
         others. Absent where it cannot be told.",
        repeated_runs,
        |line| (!line.is_remapped_child()).then(|| line.repeated_interrupts()),
    ),
    Counter::new(
        "vmdtrace_handler_runs_total",
        "Runs of the disk's handlers, for an interrupt of its own or inside the handler of a \
         controller's vector.",
        interrupts,
        |line| of(line, LineKind::Nvme, line.runs()),
    ),
    Counter::new(
        "vmdtrace_handler_unhandled_total",
        "Of the handler runs, those that found nothing to do (IRQ_NONE).",
        interrupts,
        |line| of(line, LineKind::Nvme, line.counts.unhandled_runs),
    ),
    Counter::seconds(
        "vmdtrace_handler_seconds_total",
        "Time in handlers without the handlers that ran inside them. disk=\"\" is the controller's \
         own handler and its children that are not disks.",
        |line| Some(line.counts.self_ns),
    ),
    Counter::new(
        "vmdtrace_completions_total",
        "NVMe completions reaped inside the disk's interrupt handlers.",
        completions,
        |line| Some(line.counts.completions),
    ),
];

const BY_CONTROLLER: [OfLine; 3] = [
    Counter::new(
        "vmdtrace_handler_resent_total",
        "Of the handler runs of the controller's disks, those outside its vectors' handlers: sent \
         again by software.",
        interrupts,
        |line| of(line, LineKind::Nvme, line.resent_runs()),
    ),
    Counter::new(
        "vmdtrace_controller_other_handler_runs_total",
        "Handler runs of the controller's children that are not NVMe disks: ports, error reports.",
        interrupts,
        |line| of(line, LineKind::OtherChild, line.runs()),
    ),
    Counter::new(
        "vmdtrace_controller_other_handler_unhandled_total",
        "Of vmdtrace_controller_other_handler_runs_total, those that found nothing to do \
         (IRQ_NONE).",
        interrupts,
        |line| of(line, LineKind::OtherChild, line.counts.unhandled_runs),
    ),
];

const BY_LINE: [OfLine; 8] = [
    Counter::new(
        "vmdtrace_line_hardware_interrupts_total",
        "vmdtrace_hardware_interrupts_total by interrupt line; 0 for a line behind a remapping \
         controller. A line that never ran has no series.",
        interrupts,
        |line| Some(line.hardware_interrupts()),
    ),
    Counter::new(
        "vmdtrace_line_handler_repeated_total",
        "vmdtrace_handler_repeated_total by interrupt line. Absent where it cannot be told. A \
         line that never ran has no series.",
        repeated_runs,
        |line| Some(line.repeated_interrupts()),
    ),
    Counter::new(
        "vmdtrace_line_handler_runs_total",
        "vmdtrace_handler_runs_total and vmdtrace_controller_other_handler_runs_total by \
         interrupt line. A controller's own vectors are left out: their runs are their hardware \
         interrupts. A line that never ran has no series.",
        interrupts,
        |line| (line.kind != LineKind::VmdVector).then(|| line.runs()),
    ),
    Counter::new(
        "vmdtrace_line_handler_unhandled_total",
        "Of vmdtrace_line_handler_runs_total, those that found nothing to do (IRQ_NONE). A line \
         that never ran has no series.",
        interrupts,
        |line| (line.kind != LineKind::VmdVector).then_some(line.counts.unhandled_runs),
    ),
    Counter::new(
        "vmdtrace_line_handler_resent_total",
        "vmdtrace_handler_resent_total by interrupt line of an NVMe queue. A line that never ran \
         has no series.",
        interrupts,
        |line| of(line, LineKind::Nvme, line.resent_runs()),
    ),
    Counter::seconds(
        "vmdtrace_line_handler_seconds_total",
        "vmdtrace_handler_seconds_total by interrupt line: time in its handler without the \
         handlers that ran inside it. A line that never ran has no series.",
        |line| Some(line.counts.self_ns),
    ),
    Counter::new(
        "vmdtrace_line_completions_total",
        "vmdtrace_completions_total by interrupt line. A line that never ran has no series.",
        completions,
        |line| Some(line.counts.completions),
    ),
    Counter::new(
        "vmdtrace_line_child_runs_total",
        "Handler runs of children inside the handler of a controller's vector, by vector. The \
         children count the same runs in vmdtrace_line_handler_runs_total. A vector that never \
         ran has no series.",
        interrupts,
        |line| of(line, LineKind::VmdVector, line.counts.child_runs),
    ),
];

const BY_WATCHED_NAME: [OfLine; 5] = [
    Counter::new(
        "vmdtrace_watched_hardware_interrupts_total",
        "Handler runs of the watched line (named by its action) on behalf of a hardware \
         interrupt.",
        interrupts,
        |line| Some(line.hardware_interrupts()),
    ),
    Counter::new(
        "vmdtrace_watched_handler_runs_total",
        "Runs of the watched line's handler.",
        interrupts,
        |line| Some(line.runs()),
    ),
    Counter::new(
        "vmdtrace_watched_handler_unhandled_total",
        "Of the watched line's handler runs, those that found nothing to do (IRQ_NONE).",
        interrupts,
        |line| Some(line.counts.unhandled_runs),
    ),
    Counter::new(
        "vmdtrace_watched_handler_repeated_total",
        "Of the watched line's hardware interrupts, runs the kernel repeated without a new \
         interrupt. Absent where it cannot be told.",
        repeated_runs,
        |line| Some(line.repeated_interrupts()),
    ),
    Counter::seconds(
        "vmdtrace_watched_handler_seconds_total",
        "Time in the watched line's handler without the handlers that ran inside it.",
        |line| Some(line.counts.self_ns),
    ),
];

const BY_CPU: [OfCpu; 1] = [Counter::seconds(
    "vmdtrace_cpu_interrupt_seconds_total",
    "Time each CPU spent in interrupt handlers of controllers, disks and watched lines.",
    |cpu| Some(cpu.interrupt_ns),
)];

/// Of all CPUs together.
const UNATTRIBUTED: [OfCpu; 8] = [
    Counter::new(
        "vmdtrace_completions_outside_handler_total",
        "NVMe completions reaped outside any interrupt handler: polled, after a time-out, or \
         while a queue was shut down.",
        completions,
        |cpu| Some(cpu.completions_outside),
    ),
    Counter::new(
        "vmdtrace_unassigned_runs_total",
        "Handler runs of lines that found no free slot and are counted nowhere else.",
        interrupts,
        |cpu| Some(cpu.unassigned_runs),
    ),
    Counter::new(
        "vmdtrace_lost_frames_total",
        "Handler runs whose end was never seen; their time is missing.",
        interrupts,
        |cpu| Some(cpu.lost_frames),
    ),
    Counter::new(
        "vmdtrace_unmatched_exits_total",
        "Ends of handler runs whose start was never seen.",
        interrupts,
        |cpu| Some(cpu.unmatched_exits),
    ),
    Counter::new(
        "vmdtrace_overflowed_runs_total",
        "Handler runs nested too deep to be followed.",
        interrupts,
        |cpu| Some(cpu.overflowed_runs),
    ),
    Counter::new(
        "vmdtrace_unreadable_actions_total",
        "Handler runs whose name could not be read.",
        interrupts,
        |cpu| Some(cpu.unreadable_actions),
    ),
    Counter::new(
        "vmdtrace_out_of_range_runs_total",
        "Handler runs of interrupt numbers beyond the table made at start: restart vmdtrace to \
         make a larger one.",
        interrupts,
        |cpu| Some(cpu.out_of_range_runs),
    ),
    Counter::new(
        "vmdtrace_unassigned_completions_total",
        "NVMe completions inside handler runs that found no free slot.",
        completions,
        |cpu| Some(cpu.unassigned_completions),
    ),
];

/// Lines of controllers and disks, added up per disk and per controller.
pub(super) fn add_owned<'a>(
    all: impl Iterator<Item = &'a LineCounts> + Clone,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let labels = ["controller", "disk", "path"];
    add(&BY_DISK, labels, all.clone(), disk_key, counted, families);
    let key = |line| [controller_of(line)];
    add(&BY_CONTROLLER, ["controller"], all, key, counted, families);
}

/// Each line of controllers and disks by itself, or each vector only.
pub(super) fn add_lines(
    lines: &[LineCounts],
    detail: Detail,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    // An interrupt number is used again after a change of devices, so the action
    // is part of the key.
    let labels = ["controller", "disk", "irq", "action"];
    let chosen = owned(lines).filter(|line| detail.lines || line.kind == LineKind::VmdVector);
    add(&BY_LINE, labels, chosen, line_key, counted, families);
}

/// Lines of controllers and disks.
pub(super) fn owned(lines: &[LineCounts]) -> impl Iterator<Item = &LineCounts> + Clone {
    lines.iter().filter(|line| line.kind != LineKind::Watched)
}

/// Everything in the topology has its series from the first scrape: a line of
/// each kind that it may have, without counts.
pub(super) fn lines_at_rest(topology: &Topology) -> Vec<LineCounts> {
    let line = |kind, controller: Option<&PciAddress>| LineCounts {
        irq: 0,
        action: String::new(),
        kind,
        controller: controller.cloned(),
        disk: None,
        path: None,
        parent_irq: None,
        counts: RunCounts::default(),
    };
    let of_controllers = topology.controllers.iter().flat_map(|controller| {
        [LineKind::VmdVector, LineKind::OtherChild]
            .map(|kind| line(kind, Some(&controller.address)))
    });
    let of_disks = topology.disks.iter().map(|disk| LineCounts {
        disk: Some(disk.name.clone()),
        path: Some(disk.path),
        ..line(LineKind::Nvme, disk.controller.as_ref())
    });
    of_controllers.chain(of_disks).collect()
}

pub(super) fn controller_of(line: &LineCounts) -> Cow<'_, str> {
    controller_value(line.controller.as_ref()).into()
}

/// The disk of an NVMe line; "" for a controller's own.
pub(super) fn disk_of(line: &LineCounts) -> Cow<'_, str> {
    match line.kind {
        LineKind::Nvme => line.disk.as_deref().unwrap_or(""),
        LineKind::VmdVector | LineKind::OtherChild | LineKind::Watched => "",
    }
    .into()
}

fn disk_key(line: &LineCounts) -> [Cow<'_, str>; 3] {
    let path = match line.kind {
        LineKind::Nvme => line.path.unwrap_or(match line.controller {
            Some(_) => DiskPath::VmdUnknown,
            None => DiskPath::Direct,
        }),
        // A controller's own vectors exist only where it remaps.
        LineKind::VmdVector | LineKind::OtherChild | LineKind::Watched => DiskPath::VmdRemap,
    };
    [controller_of(line), disk_of(line), path.as_str().into()]
}

fn line_key(line: &LineCounts) -> [Cow<'_, str>; 4] {
    [
        controller_of(line),
        disk_of(line),
        line.irq.to_string().into(),
        line.action.as_str().into(),
    ]
}

fn action_key(line: &LineCounts) -> [Cow<'_, str>; 1] {
    [line.action.as_str().into()]
}

/// Lines asked for by name. Several lines of one name are one series.
pub(super) fn add_watched(
    lines: &[LineCounts],
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let watched = lines.iter().filter(|line| line.kind == LineKind::Watched);
    add(
        &BY_WATCHED_NAME,
        ["line"],
        watched,
        action_key,
        counted,
        families,
    );
}

/// Time per CPU, and what the accounting could not attribute.
pub(super) fn add_cpus(cpus: &[CpuCounts], counted: Counted, families: &mut Vec<MetricFamily>) {
    let key = |cpu: &CpuCounts| [cpu.cpu.to_string().into()];
    add(&BY_CPU, ["cpu"], cpus.iter(), key, counted, families);
    // There also where no CPU has a bank.
    let none = CpuCounts::default();
    let all = std::iter::once(&none).chain(cpus);
    add(&UNATTRIBUTED, [], all, |_| [], counted, families);
}
