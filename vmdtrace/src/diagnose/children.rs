//! Whether the interrupts of a remapping controller's children are enabled, by
//! what was counted.
//!
//! A vector's handler calls every child that is on its list (`vmd_irq` in
//! drivers/pci/controller/vmd.c). One that never ran while its vector was
//! interrupted is on no list: it was not enabled.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use vmdtrace_common::msi::Operation;

use super::isolation::Cpus;
use super::thresholds::Thresholds;
use crate::host::NumberList;
use crate::host::topology::{Controller, Disk, Line};
use crate::snapshot::window::{Change, Window};
use crate::snapshot::{Detail, LineKind, probes};

/// What is known of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Children {
    /// Interrupts that were allocated in the window, and how often one was
    /// enabled. Absent where that is not counted.
    pub allocated: Option<u64>,
    pub enabled: Option<u64>,
    /// Lines that should be enabled and that their vectors did not call. Absent
    /// where lines are not told apart.
    pub silent: Option<Vec<String>>,
    /// Lines of which that can be told.
    pub told: u32,
}

impl Children {
    pub(super) fn of(
        window: &Window,
        controller: &Controller,
        disks: &[&Disk],
        thresholds: &Thresholds,
    ) -> Self {
        let counts = |name: &str| {
            let mut probes = window.probes.iter();
            probes.any(|it| it.name == name && it.state == crate::snapshot::ProbeState::Attached)
        };
        let operations = |wanted: Operation| {
            let operations = window.counters.msi.operations.iter();
            let ours = operations
                .filter(|it| it.controller == controller.address && it.operation == wanted);
            ours.fold(0, |sum: u64, it| sum.saturating_add(it.count))
        };
        let enabled = operations(Operation::Enable).saturating_add(operations(Operation::Startup));
        let is_counted = counts(probes::MSI_ALLOCATE) && counts(probes::MSI_ENABLE);
        let silent = silent(window, controller, disks, thresholds);
        Self {
            allocated: is_counted.then(|| operations(Operation::Allocate)),
            enabled: is_counted.then_some(enabled),
            told: silent.as_ref().map_or(0, |(_, told)| *told),
            silent: silent.map(|(lines, _)| lines),
        }
    }
}

/// Whether the disk, or another of its name, was not there at the begin.
pub(super) fn came(window: &Window, disk: &Disk) -> bool {
    let mut changes = window.changes.iter();
    changes.any(|change| matches!(change, Change::DiskCame(name) if *name == disk.name))
}

/// Lines that are not called by the vectors that should, and of how many lines
/// that can be told.
fn silent(
    window: &Window,
    controller: &Controller,
    disks: &[&Disk],
    thresholds: &Thresholds,
) -> Option<(Vec<String>, u32)> {
    if window.detail != Detail::Lines || !window.counted.interrupts {
        return None;
    }
    let mut interrupts: BTreeMap<u32, u64> = BTreeMap::new();
    let mut ran = BTreeSet::new();
    for line in &window.counters.lines {
        if line.controller.as_ref() != Some(&controller.address) {
            continue;
        }
        if line.kind == LineKind::VmdVector {
            let count = interrupts.entry(line.irq).or_default();
            *count = count.saturating_add(line.hardware_interrupts());
        } else if line.runs() > 0 {
            ran.insert(line.irq);
        }
    }
    let calls = |irq: u32| {
        let count = interrupts.get(&irq).copied().unwrap_or(0);
        count as f64 >= thresholds.calls_children
    };
    let vectors = controller.vectors.iter();
    let mut serving = vectors.filter(|it| it.used_for.serves_nvme()).peekable();
    let all_call = serving.peek().is_some() && serving.all(|it| calls(it.irq));
    let online = Cpus::of(&window.topology.machine)?.online;
    let (mut silent, mut told) = (Vec::new(), 0);
    // One that came in the window may have been enabled at its end.
    for disk in disks.iter().filter(|disk| !came(window, disk)) {
        for line in disk
            .lines
            .iter()
            .filter(|line| is_wanted(disk, line, &online))
        {
            // Which vector it is on, sysfs tells up to 6.16. After that: on
            // whichever it is, it is called where all of them are interrupted.
            if !line.parent_irq.map_or(all_call, calls) {
                continue;
            }
            told += 1;
            if !ran.contains(&line.irq) {
                let name = line.actions.first().map_or("", String::as_str);
                silent.push(format!("{} ({name})", line.irq));
            }
        }
    }
    Some((silent, told))
}

/// Whether the driver holds the line, and a CPU that is online submits to its
/// queue: the kernel does not enable a managed interrupt without one
/// (`__irq_startup_managed` in kernel/irq/chip.c). The admin queue's is left out.
fn is_wanted(disk: &Disk, line: &Line, online: &BTreeSet<u32>) -> bool {
    let mut queues = disk.queues.iter().filter(|it| it.irq == Some(line.irq));
    let is_used = queues.any(|queue| {
        let list = queue.submit_cpus.as_deref().map(NumberList::parse);
        list.is_some_and(|list| {
            list.is_ok_and(|list| list.numbers().any(|cpu| online.contains(&cpu)))
        })
    });
    is_used && !line.actions.is_empty()
}
