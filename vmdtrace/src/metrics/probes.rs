//! What each probe does, and what it costs.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, GaugeFamily, Unit};
use crate::snapshot::{Probe, ProbeState};

pub(super) fn add(probes: &[Probe], families: &mut Vec<MetricFamily>) {
    let mut info = GaugeFamily::new(
        "vmdtrace_probe_info",
        "What each probe is attached by, the state it is in and why.",
        ["probe", "mechanism", "state", "reason"],
    );
    let mut attached = GaugeFamily::new(
        "vmdtrace_probe_attached",
        "Whether the probe is attached and counting.",
        ["probe"],
    );
    let mut missed = CounterFamily::new(
        "vmdtrace_probe_missed_total",
        "Runs of the probe that the kernel skipped; absent where the kernel does not count them.",
        Unit::One,
        ["probe"],
    );
    let mut runs = CounterFamily::new(
        "vmdtrace_probe_runs_total",
        "Runs of the probe; only while the kernel's BPF statistics are on.",
        Unit::One,
        ["probe"],
    );
    for Probe {
        name,
        state,
        mechanism,
        reason,
        missed_runs,
        runs: runs_counted,
    } in probes
    {
        info.set(
            [
                name,
                mechanism,
                state.as_str(),
                reason.as_deref().unwrap_or(""),
            ],
            1.0,
        );
        attached.set([name], f64::from(u8::from(*state == ProbeState::Attached)));
        if let Some(count) = missed_runs {
            missed.add([name], *count);
        }
        if let Some(count) = runs_counted {
            runs.add([name], *count);
        }
    }
    info.push_to(families);
    attached.push_to(families);
    missed.push_to(families);
    runs.push_to(families);
}
