//! Commands that took too long, and interrupts that never came.

use prometheus::proto::MetricFamily;

use super::Part;
use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::host::topology::Topology;
use crate::snapshot::probes::Counted;
use crate::snapshot::{DiskLosses, LossCounts, Losses};

pub(super) fn add(
    topology: &Topology,
    losses: &Losses,
    part: Part,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let by_controller = |name, help| CounterFamily::new(name, help, Unit::One, ["controller"]);
    let by_disk = |name, help| CounterFamily::new(name, help, Unit::One, ["controller", "disk"]);
    let total = |name, help| CounterFamily::new(name, help, Unit::One, []);
    let mut timeouts = by_controller(
        "vmdtrace_timeouts_total",
        "NVMe commands that were not done in time, by the controller their disk is behind.",
    );
    let mut lost = by_controller(
        "vmdtrace_lost_interrupts_total",
        "Of vmdtrace_timeouts_total, commands that the disk had finished: their interrupt did \
         not come.",
    );
    let mut disk_timeouts = by_disk(
        "vmdtrace_disk_timeouts_total",
        "vmdtrace_timeouts_total by disk.",
    );
    let mut disk_lost = by_disk(
        "vmdtrace_disk_lost_interrupts_total",
        "vmdtrace_lost_interrupts_total by disk.",
    );
    let mut unassigned_timeouts = total(
        "vmdtrace_unassigned_timeouts_total",
        "NVMe commands that were not done in time and whose disk could not be told.",
    );
    let mut unassigned_lost = total(
        "vmdtrace_unassigned_lost_interrupts_total",
        "Lost interrupts of disks that could not be told.",
    );

    for controller in &topology.controllers {
        let key = [controller_value(Some(&controller.address))];
        timeouts.add(key, 0);
        lost.add(key, 0);
    }
    for disk in &topology.disks {
        let controller = controller_value(disk.controller.as_ref());
        match part {
            Part::Sums => {
                timeouts.add([controller], 0);
                lost.add([controller], 0);
            }
            Part::Disks => {
                disk_timeouts.add([controller, &disk.name], 0);
                disk_lost.add([controller, &disk.name], 0);
            }
        }
    }
    let Losses { disks, unassigned } = losses;
    for DiskLosses {
        controller,
        disk,
        counts,
    } in disks
    {
        let controller = controller_value(controller.as_ref());
        let LossCounts {
            timeouts: late,
            lost_interrupts,
        } = counts;
        timeouts.add([controller], *late);
        lost.add([controller], *lost_interrupts);
        disk_timeouts.add([controller, disk], *late);
        disk_lost.add([controller, disk], *lost_interrupts);
    }
    unassigned_timeouts.add([], unassigned.timeouts);
    unassigned_lost.add([], unassigned.lost_interrupts);

    match part {
        Part::Sums => {
            if counted.timeouts {
                timeouts.push_to(families);
                unassigned_timeouts.push_to(families);
            }
            if counted.lost_interrupts {
                lost.push_to(families);
                unassigned_lost.push_to(families);
            }
        }
        Part::Disks => {
            if counted.timeouts {
                disk_timeouts.push_to(families);
            }
            if counted.lost_interrupts {
                disk_lost.push_to(families);
            }
        }
    }
}
