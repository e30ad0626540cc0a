//! Completions outside any handler, by disk.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::host::topology::Topology;
use crate::snapshot::OutsideCompletions;
use crate::snapshot::probes::Counted;

pub(super) fn add(
    topology: &Topology,
    outside: &[OutsideCompletions],
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    // Without the handlers nobody knows which are outside them.
    if !(counted.completions && counted.interrupts) {
        return;
    }
    let mut by_disk = CounterFamily::new(
        "vmdtrace_disk_completions_outside_handler_total",
        "vmdtrace_completions_outside_handler_total by disk, as far as the disk can be told.",
        Unit::One,
        ["controller", "disk"],
    );
    for disk in &topology.disks {
        by_disk.add([controller_value(disk.controller.as_ref()), &disk.name], 0);
    }
    for OutsideCompletions {
        controller,
        disk,
        count,
    } in outside
    {
        by_disk.add([controller_value(controller.as_ref()), disk], *count);
    }
    by_disk.push_to(families);
}
