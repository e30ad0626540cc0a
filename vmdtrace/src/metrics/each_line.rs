//! The counters of every interrupt line by itself, for `--metrics.lines`.
//!
//! Each family here is one of the sums per disk taken apart: the sum over the
//! lines of a (controller, disk) is that disk's series. Watched lines have
//! families of their own.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, Unit};
use super::host::controller_value;
use crate::snapshot::probes::Counted;
use crate::snapshot::{LineCounts, LineKind};

/// An interrupt number is used again after a change of devices, so the action
/// is part of the key.
const BY_LINE: [&str; 4] = ["controller", "disk", "irq", "action"];

fn by_line(name: &'static str, help: &'static str, unit: Unit) -> CounterFamily<4> {
    CounterFamily::new(name, help, unit, BY_LINE)
}

/// Controllers' vectors, NVMe queues and other children, each line by itself.
pub(super) fn add(lines: &[LineCounts], counted: Counted, families: &mut Vec<MetricFamily>) {
    let mut hardware_interrupts = by_line(
        "vmdtrace_line_hardware_interrupts_total",
        "vmdtrace_hardware_interrupts_total by interrupt line; 0 for a line behind a remapping \
         controller. A line that never ran has no series.",
        Unit::One,
    );
    let mut repeated = by_line(
        "vmdtrace_line_handler_repeated_total",
        "vmdtrace_handler_repeated_total by interrupt line. Absent where it cannot be told. A \
         line that never ran has no series.",
        Unit::One,
    );
    let mut runs = by_line(
        "vmdtrace_line_handler_runs_total",
        "vmdtrace_handler_runs_total and vmdtrace_controller_other_handler_runs_total by \
         interrupt line. A controller's own vectors are left out: their runs are their hardware \
         interrupts. A line that never ran has no series.",
        Unit::One,
    );
    let mut unhandled = by_line(
        "vmdtrace_line_handler_unhandled_total",
        "Of vmdtrace_line_handler_runs_total, those that found nothing to do (IRQ_NONE). A line \
         that never ran has no series.",
        Unit::One,
    );
    let mut seconds = by_line(
        "vmdtrace_line_handler_seconds_total",
        "vmdtrace_handler_seconds_total by interrupt line: time in its handler without the \
         handlers that ran inside it. A line that never ran has no series.",
        Unit::Nanoseconds,
    );
    let mut completions = by_line(
        "vmdtrace_line_completions_total",
        "vmdtrace_completions_total by interrupt line. A line that never ran has no series.",
        Unit::One,
    );
    let mut child_runs = by_line(
        "vmdtrace_line_child_runs_total",
        "Handler runs of children inside the handler of a controller's vector, by vector. The \
         children count the same runs in vmdtrace_line_handler_runs_total. A vector that never \
         ran has no series.",
        Unit::One,
    );

    for line in lines {
        let LineCounts {
            irq,
            action,
            kind,
            controller,
            disk,
            path: _,
            parent_irq: _,
            depth0_runs: _,
            nested_runs: _,
            unhandled_runs,
            repeated_runs,
            inclusive_ns: _,
            self_ns,
            completions: line_completions,
            child_runs: line_child_runs,
            child_unhandled_runs: _,
            child_completions: _,
        } = line;
        if *kind == LineKind::Watched {
            continue;
        }
        let irq = irq.to_string();
        // The same value as in the sums per disk: only an NVMe line has a disk.
        let disk = match kind {
            LineKind::Nvme => disk.as_deref().unwrap_or(""),
            LineKind::VmdVector | LineKind::OtherChild | LineKind::Watched => "",
        };
        let key = [controller_value(controller.as_ref()), disk, &irq, action];
        hardware_interrupts.add(key, line.hardware_interrupts());
        // A re-sent run moves no interrupt count either, but it is no hardware
        // interrupt to begin with.
        let repeats = if line.is_remapped_child() {
            None
        } else {
            *repeated_runs
        };
        repeated.add(key, repeats.unwrap_or(0));
        seconds.add(key, *self_ns);
        completions.add(key, *line_completions);
        if *kind == LineKind::VmdVector {
            child_runs.add(key, *line_child_runs);
        } else {
            runs.add(key, line.runs());
            unhandled.add(key, *unhandled_runs);
        }
    }

    if counted.interrupts {
        hardware_interrupts.push_to(families);
        runs.push_to(families);
        unhandled.push_to(families);
        child_runs.push_to(families);
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
