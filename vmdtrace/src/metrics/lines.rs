//! The counters of interrupt lines, by disk, by watched line and by CPU.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::host::topology::{DiskPath, PciAddress, Topology};
use crate::snapshot::probes::Counted;
use crate::snapshot::{CpuCounts, LineCounts, LineKind};

const BY_DISK: [&str; 3] = ["controller", "disk", "path"];

fn by_disk(name: &'static str, help: &'static str, unit: Unit) -> CounterFamily<3> {
    CounterFamily::new(name, help, unit, BY_DISK)
}

/// Lines of controllers and disks, added up per disk.
pub(super) fn add_disks(
    topology: &Topology,
    lines: &[LineCounts],
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let mut hardware_interrupts = by_disk(
        "vmdtrace_hardware_interrupts_total",
        "Handler runs on behalf of a hardware interrupt of the line itself. Behind a remapping \
         controller only its own vectors (disk=\"\") have them.",
        Unit::One,
    );
    let mut repeated = by_disk(
        "vmdtrace_handler_repeated_total",
        "Of the hardware interrupts, runs the kernel repeated without a new interrupt: \
         vmdtrace_hardware_interrupts_total less these is what the kernel counts. Absent where it \
         cannot be told.",
        Unit::One,
    );
    let mut runs = by_disk(
        "vmdtrace_handler_runs_total",
        "Runs of the disk's interrupt handlers, whether for an interrupt of its own or inside the \
         handler of a controller's vector.",
        Unit::One,
    );
    let mut unhandled = by_disk(
        "vmdtrace_handler_unhandled_total",
        "Of the handler runs, those that found nothing to do (IRQ_NONE).",
        Unit::One,
    );
    let mut resent = by_disk(
        "vmdtrace_handler_resent_total",
        "Of the handler runs, those of a remapped disk outside its vector's handler: sent again \
         by software.",
        Unit::One,
    );
    let mut seconds = by_disk(
        "vmdtrace_handler_seconds_total",
        "Time in interrupt handlers without the handlers that ran inside them, so that it adds \
         up. disk=\"\" is the controller's own handler and its children that are not disks.",
        Unit::Nanoseconds,
    );
    let mut completions = by_disk(
        "vmdtrace_completions_total",
        "NVMe completions reaped inside the disk's interrupt handlers.",
        Unit::One,
    );
    let mut other_runs = CounterFamily::new(
        "vmdtrace_controller_other_handler_runs_total",
        "Handler runs of the controller's children that are not NVMe disks: ports, hot-plug, \
         error reports.",
        Unit::One,
        ["controller"],
    );
    let mut other_unhandled = CounterFamily::new(
        "vmdtrace_controller_other_handler_unhandled_total",
        "Of vmdtrace_controller_other_handler_runs_total, those that found nothing to do \
         (IRQ_NONE).",
        Unit::One,
        ["controller"],
    );

    for controller in &topology.controllers {
        let PciAddress(address) = &controller.address;
        let key = own_vectors(address);
        for family in [
            &mut hardware_interrupts,
            &mut repeated,
            &mut seconds,
            &mut completions,
        ] {
            family.add(key, 0);
        }
        other_runs.add([address], 0);
        other_unhandled.add([address], 0);
    }
    for disk in &topology.disks {
        let controller = controller_value(disk.controller.as_ref());
        let key = [controller, disk.name.as_str(), disk.path.as_str()];
        for family in [
            &mut hardware_interrupts,
            &mut repeated,
            &mut runs,
            &mut unhandled,
            &mut resent,
            &mut seconds,
            &mut completions,
        ] {
            family.add(key, 0);
        }
    }

    for line in lines {
        let LineCounts {
            irq: _,
            action: _,
            kind,
            controller,
            disk,
            path,
            parent_irq: _,
            depth0_runs: _,
            nested_runs: _,
            unhandled_runs,
            repeated_runs,
            inclusive_ns: _,
            self_ns,
            completions: line_completions,
            // The same runs are counted by the children's own lines.
            child_runs: _,
            child_unhandled_runs: _,
            child_completions: _,
        } = line;
        let address = controller_value(controller.as_ref());
        let key = match kind {
            LineKind::Watched => continue,
            LineKind::VmdVector | LineKind::OtherChild => own_vectors(address),
            LineKind::Nvme => {
                let unknown = match controller {
                    Some(_) => DiskPath::VmdUnknown,
                    None => DiskPath::Direct,
                };
                [
                    address,
                    disk.as_deref().unwrap_or(""),
                    path.unwrap_or(unknown).as_str(),
                ]
            }
        };
        seconds.add(key, *self_ns);
        completions.add(key, *line_completions);
        match kind {
            LineKind::VmdVector => {
                hardware_interrupts.add(key, line.hardware_interrupts());
                repeated.add(key, repeated_runs.unwrap_or(0));
            }
            LineKind::OtherChild => {
                other_runs.add([address], line.runs());
                other_unhandled.add([address], *unhandled_runs);
            }
            LineKind::Nvme => {
                hardware_interrupts.add(key, line.hardware_interrupts());
                runs.add(key, line.runs());
                unhandled.add(key, *unhandled_runs);
                resent.add(key, line.resent_runs());
                // A re-sent run moves no interrupt count either, but it is no
                // hardware interrupt to begin with.
                let repeats = if line.is_remapped_child() {
                    None
                } else {
                    *repeated_runs
                };
                repeated.add(key, repeats.unwrap_or(0));
            }
            LineKind::Watched => {}
        }
    }

    if counted.interrupts {
        hardware_interrupts.push_to(families);
        runs.push_to(families);
        unhandled.push_to(families);
        resent.push_to(families);
        other_runs.push_to(families);
        other_unhandled.push_to(families);
    }
    if counted.repeated_runs {
        repeated.push_to(families);
    }
    if counted.handler_time {
        seconds.push_to(families);
    }
    if counted.interrupts && counted.completions {
        completions.push_to(families);
    }
}

/// A controller's own vectors exist only where it remaps.
fn own_vectors(controller: &str) -> [&str; 3] {
    [controller, "", DiskPath::VmdRemap.as_str()]
}

/// Lines asked for by name. Several lines of one name are one series.
pub(super) fn add_watched(
    lines: &[LineCounts],
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let watched = |name, help, unit| CounterFamily::new(name, help, unit, ["line"]);
    let mut hardware_interrupts = watched(
        "vmdtrace_watched_hardware_interrupts_total",
        "Handler runs of the watched line (named by its action) on behalf of a hardware \
         interrupt.",
        Unit::One,
    );
    let mut repeated = watched(
        "vmdtrace_watched_handler_repeated_total",
        "Of the watched line's hardware interrupts, runs the kernel repeated without a new \
         interrupt. Absent where it cannot be told.",
        Unit::One,
    );
    let mut runs = watched(
        "vmdtrace_watched_handler_runs_total",
        "Runs of the watched line's handler.",
        Unit::One,
    );
    let mut unhandled = watched(
        "vmdtrace_watched_handler_unhandled_total",
        "Of the watched line's handler runs, those that found nothing to do (IRQ_NONE).",
        Unit::One,
    );
    let mut seconds = watched(
        "vmdtrace_watched_handler_seconds_total",
        "Time in the watched line's handler without the handlers that ran inside it.",
        Unit::Nanoseconds,
    );
    for line in lines.iter().filter(|line| line.kind == LineKind::Watched) {
        let key = [line.action.as_str()];
        hardware_interrupts.add(key, line.hardware_interrupts());
        repeated.add(key, line.repeated_runs.unwrap_or(0));
        runs.add(key, line.runs());
        unhandled.add(key, line.unhandled_runs);
        seconds.add(key, line.self_ns);
    }
    if counted.interrupts {
        hardware_interrupts.push_to(families);
        runs.push_to(families);
        unhandled.push_to(families);
    }
    if counted.repeated_runs {
        repeated.push_to(families);
    }
    if counted.handler_time {
        seconds.push_to(families);
    }
}

/// Time per CPU, and what the accounting could not attribute.
pub(super) fn add_cpus(cpus: &[CpuCounts], counted: Counted, families: &mut Vec<MetricFamily>) {
    let total = |name, help| {
        let mut family = CounterFamily::new(name, help, Unit::One, []);
        family.add([], 0);
        family
    };
    let mut seconds = CounterFamily::new(
        "vmdtrace_cpu_interrupt_seconds_total",
        "Time each CPU spent in interrupt handlers of controllers, disks and watched lines.",
        Unit::Nanoseconds,
        ["cpu"],
    );
    let mut outside = total(
        "vmdtrace_completions_outside_handler_total",
        "NVMe completions reaped outside any interrupt handler: polled, after a time-out, or \
         while a queue was shut down.",
    );
    let mut unassigned_runs = total(
        "vmdtrace_unassigned_runs_total",
        "Handler runs of lines that found no free slot and are counted nowhere else.",
    );
    let mut unassigned_completions = total(
        "vmdtrace_unassigned_completions_total",
        "NVMe completions inside handler runs that found no free slot.",
    );
    let mut lost = total(
        "vmdtrace_lost_frames_total",
        "Handler runs whose end was never seen; their time is missing.",
    );
    let mut unmatched = total(
        "vmdtrace_unmatched_exits_total",
        "Ends of handler runs whose start was never seen.",
    );
    let mut overflowed = total(
        "vmdtrace_overflowed_runs_total",
        "Handler runs nested too deep to be followed.",
    );
    let mut unreadable = total(
        "vmdtrace_unreadable_actions_total",
        "Handler runs whose name could not be read.",
    );
    let mut out_of_range = total(
        "vmdtrace_out_of_range_runs_total",
        "Handler runs of interrupt numbers beyond the table made at start, watched or not: \
         restart vmdtrace to make a larger one.",
    );
    for bank in cpus {
        let CpuCounts {
            cpu,
            interrupt_ns,
            // The same runs are counted by the lines.
            depth0_runs: _,
            completions_outside,
            unassigned_runs: bank_unassigned_runs,
            unassigned_completions: bank_unassigned_completions,
            lost_frames,
            unmatched_exits,
            overflowed_runs,
            unreadable_actions,
            out_of_range_runs,
        } = bank;
        seconds.add([&cpu.to_string()], *interrupt_ns);
        outside.add([], *completions_outside);
        unassigned_runs.add([], *bank_unassigned_runs);
        unassigned_completions.add([], *bank_unassigned_completions);
        lost.add([], *lost_frames);
        unmatched.add([], *unmatched_exits);
        overflowed.add([], *overflowed_runs);
        unreadable.add([], *unreadable_actions);
        out_of_range.add([], *out_of_range_runs);
    }
    if counted.handler_time {
        seconds.push_to(families);
    }
    // Without the handlers nobody knows what is outside them.
    if counted.interrupts && counted.completions {
        outside.push_to(families);
    }
    if counted.interrupts {
        for family in [
            unassigned_runs,
            lost,
            unmatched,
            overflowed,
            unreadable,
            out_of_range,
        ] {
            family.push_to(families);
        }
        if counted.completions {
            unassigned_completions.push_to(families);
        }
    }
}
