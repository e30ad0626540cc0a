//! Probes, with what each needs and what to do where one is not attached.

use super::checks::HIDDEN_SYMBOLS;
use super::facts::{Facts, names};
use super::report::ProbeReport;
use crate::host::Capability;
use crate::snapshot::probes::{BIO_CONTEXT, HANDLER_TIME, REPEATED_RUNS};
use crate::snapshot::{Probe, ProbeState};

/// Whatever probes there are.
pub(super) fn reports(probes: &[Probe], facts: &Facts) -> Vec<ProbeReport> {
    probes.iter().map(|probe| report(probe, facts)).collect()
}

fn report(probe: &Probe, facts: &Facts) -> ProbeReport {
    let Probe {
        name,
        state,
        mechanism,
        reason,
        missed_runs: _,
        runs: _,
    } = probe;
    let needed = needed(probe, facts);
    ProbeReport {
        name: name.clone(),
        state: *state,
        mechanism: mechanism.clone(),
        reason: reason.clone(),
        remedy: remedy(probe, facts, &needed),
        needs: names(&needed),
        lacks: facts.lacks(&needed).map(|lacking| names(&lacking)),
    }
}

/// Capabilities that the probe's mechanism needs.
fn needed(probe: &Probe, facts: &Facts) -> Vec<Capability> {
    let mut needed = if probe.mechanism.contains("kprobe") {
        facts.for_kprobes()
    } else {
        facts.for_programs()
    };
    if [REPEATED_RUNS, BIO_CONTEXT].contains(&probe.name.as_str()) {
        needed.push(Capability::Syslog);
    }
    needed
}

fn remedy(probe: &Probe, facts: &Facts, needed: &[Capability]) -> Option<String> {
    let reason = probe.reason.as_deref().unwrap_or_default();
    match probe.state {
        ProbeState::Attached => None,
        ProbeState::NotApplicable if probe.name == HANDLER_TIME => {
            Some("leave out --level counters".to_owned())
        }
        // It attaches by itself when there is something to observe.
        ProbeState::NotApplicable => None,
        ProbeState::Unsupported => Some("another kernel: this one lacks it".to_owned()),
        ProbeState::Blocked
            if facts
                .layout
                .per_cpu_offset
                .as_ref()
                .is_err_and(|hidden| hidden.reason == reason) =>
        {
            Some(HIDDEN_SYMBOLS.to_owned())
        }
        ProbeState::Blocked => Some(facts.refusers(needed, reason).join("; ")),
        ProbeState::Broken if !facts.has_object => {
            Some("build it with `cargo xtask build`".to_owned())
        }
        ProbeState::Broken => Some(
            "where the reason names nothing of this host, it is a fault of vmdtrace: report it with \
             the output of `vmdtrace doctor --output json`"
                .to_owned(),
        ),
    }
}
