//! Where completions land, seen from the CPUs that made the requests, and how
//! long sampled ones take.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prometheus::proto::MetricFamily;

use super::Part;
use super::family::{CounterFamily, HistogramFamily, Unit};
use super::host::controller_value;
use super::lines::{controller_of, disk_of};
use crate::host::topology::{Disk, Topology};
use crate::snapshot::probes::Counted;
use crate::snapshot::{Counters, LineCounts, LineKind, Remote, SampleCounts};

/// Bounds of latencies: 16 and 66 µs, 131, 262 µs, 1.05, 4.2 and 34 ms.
const LATENCY_BOUNDS: [u32; 7] = [14, 16, 17, 18, 20, 22, 25];

/// Bounds of handling: 1, 4, 16, 131 µs and 1.05 ms.
const HANDLING_BOUNDS: [u32; 5] = [10, 12, 14, 17, 20];

/// By controller, or by disk. `lines` has a line at
/// rest for everything in the topology.
pub(super) fn add<'a>(
    topology: &Topology,
    counters: &Counters,
    lines: impl Iterator<Item = &'a LineCounts> + Clone,
    part: Part,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    if counted.placement {
        add_remote(counters, lines, part, families);
    }
    if counted.latency {
        add_times(topology, counters, part, counted, families);
    }
}

fn add_remote<'a>(
    counters: &Counters,
    lines: impl Iterator<Item = &'a LineCounts> + Clone,
    part: Part,
    families: &mut Vec<MetricFamily>,
) {
    match part {
        Part::Sums => add_remote_sums(counters, lines, families),
        Part::Disks => add_remote_of_disks(lines, families),
    }
}

fn add_remote_sums<'a>(
    counters: &Counters,
    lines: impl Iterator<Item = &'a LineCounts>,
    families: &mut Vec<MetricFamily>,
) {
    let mut by_controller = CounterFamily::new(
        "vmdtrace_remote_completions_total",
        "Of vmdtrace_completions_total, those on another CPU than the request was made on: \
         same-cache shares its last-level cache, other-cache its NUMA node only, other-node \
         neither.",
        Unit::One,
        ["controller", "distance"],
    );
    // Summed before there are labels, which are copied.
    let mut sums: BTreeMap<Cow<'_, str>, Remote> = BTreeMap::new();
    for line in lines {
        let sum = sums.entry(controller_of(line)).or_default();
        *sum = sum.combine(&line.counts.remote, u64::saturating_add);
    }
    for (controller, remote) in &sums {
        for (distance, count) in remote.by_distance() {
            by_controller.add([controller, distance], count);
        }
    }
    let mut outside = CounterFamily::new(
        "vmdtrace_remote_completions_outside_handler_total",
        "Of vmdtrace_completions_outside_handler_total, those on another CPU than the request was \
         made on.",
        Unit::One,
        ["distance"],
    );
    for cpu in &counters.cpus {
        for (distance, count) in cpu.remote_outside.by_distance() {
            outside.add([distance], count);
        }
    }
    by_controller.push_to(families);
    outside.push_to(families);
}

fn add_remote_of_disks<'a>(
    lines: impl Iterator<Item = &'a LineCounts>,
    families: &mut Vec<MetricFamily>,
) {
    let mut by_disk = CounterFamily::new(
        "vmdtrace_disk_remote_completions_total",
        "vmdtrace_remote_completions_total by disk.",
        Unit::One,
        ["controller", "disk", "distance"],
    );
    for line in lines {
        let (controller, disk) = (controller_of(line), disk_of(line));
        for (distance, count) in line.counts.remote.by_distance() {
            // A controller's own vectors take no completions.
            if line.kind == LineKind::Nvme || count > 0 {
                by_disk.add([&controller, &disk, distance], count);
            }
        }
    }
    by_disk.push_to(families);
}

fn add_times(
    topology: &Topology,
    counters: &Counters,
    part: Part,
    counted: Counted,
    families: &mut Vec<MetricFamily>,
) {
    let mut latency = HistogramFamily::new(
        "vmdtrace_completion_latency_seconds",
        "From the start of a request to its completion, for 1 in 64 of the completions in \
         handlers of each queue.",
        &LATENCY_BOUNDS,
        ["controller"],
    );
    let mut handling = HistogramFamily::new(
        "vmdtrace_completion_handling_seconds",
        "From the completion of a request to the request's end, for the same 1 in 64.",
        &HANDLING_BOUNDS,
        ["controller"],
    );
    let mut disk_latency = HistogramFamily::new(
        "vmdtrace_disk_completion_latency_seconds",
        "vmdtrace_completion_latency_seconds by disk.",
        &LATENCY_BOUNDS,
        ["controller", "disk"],
    );
    let mut disk_handling = HistogramFamily::new(
        "vmdtrace_disk_completion_handling_seconds",
        "vmdtrace_completion_handling_seconds by disk.",
        &HANDLING_BOUNDS,
        ["controller", "disk"],
    );
    let mut outside_latency = HistogramFamily::new(
        "vmdtrace_completion_latency_outside_handler_seconds",
        "vmdtrace_completion_latency_seconds of completions outside any handler.",
        &LATENCY_BOUNDS,
        [],
    );
    let mut outside_handling = HistogramFamily::new(
        "vmdtrace_completion_handling_outside_handler_seconds",
        "vmdtrace_completion_handling_seconds of completions outside any handler.",
        &HANDLING_BOUNDS,
        [],
    );
    let mut without_start = CounterFamily::new(
        "vmdtrace_samples_without_start_total",
        "Sampled completions without a latency: the kernel did not note the request's start.",
        Unit::One,
        [],
    );

    let Counters {
        lines: _,
        cpus: _,
        losses: _,
        outside: _,
        msi: _,
        bio: _,
        samples,
        other_samples,
        shares: _,
    } = counters;
    let nothing = SampleCounts::default();
    for controller in &topology.controllers {
        let key = [controller_value(Some(&controller.address))];
        latency.add(key, &nothing.latency);
        handling.add(key, &nothing.handling);
    }
    let at_rest = topology.disks.iter().map(|disk| {
        let Disk {
            name, controller, ..
        } = disk;
        (name, controller, &nothing)
    });
    let sampled = samples
        .iter()
        .map(|of_disk| (&of_disk.disk, &of_disk.controller, &of_disk.counts));
    for (disk, controller, counts) in at_rest.chain(sampled) {
        let controller = controller_value(controller.as_ref());
        match part {
            Part::Sums => {
                latency.add([controller], &counts.latency);
                handling.add([controller], &counts.handling);
                without_start.add([], counts.without_start);
            }
            Part::Disks => {
                disk_latency.add([controller, disk], &counts.latency);
                disk_handling.add([controller, disk], &counts.handling);
            }
        }
    }
    outside_latency.add([], &other_samples.latency);
    outside_handling.add([], &other_samples.handling);
    without_start.add([], other_samples.without_start);

    match part {
        Part::Sums => {
            latency.push_to(families);
            outside_latency.push_to(families);
            without_start.push_to(families);
            if counted.handling {
                handling.push_to(families);
                outside_handling.push_to(families);
            }
        }
        Part::Disks => {
            disk_latency.push_to(families);
            if counted.handling {
                disk_handling.push_to(families);
            }
        }
    }
}
