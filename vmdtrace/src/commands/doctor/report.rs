//! What doctor found, as its JSON has it (docs/doctor.md), and the exit status
//! that follows from it.

use serde::Serialize;

use crate::host::topology::{Mode, PciAddress};
use crate::snapshot::ProbeState;

/// Changes when a field changes its meaning or goes; new fields and new ids may
/// come at any time.
pub(super) const FORMAT: u32 = 1;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) format: u32,
    pub(super) version: &'static str,
    pub(super) exit_status: u8,
    pub(super) checks: Vec<Check>,
    pub(super) probes: Vec<ProbeReport>,
    pub(super) controllers: Vec<ControllerReport>,
    /// NVMe disks, behind a controller or not.
    pub(super) disks: usize,
    /// Absent unless asked for.
    pub(super) self_test: Option<SelfTest>,
}

/// A fact of the kernel, the host or this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) id: &'static str,
    pub(super) state: CheckState,
    /// What was found.
    pub(super) found: String,
    pub(super) remedy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CheckState {
    /// Nothing in the way.
    Good,
    /// Something cannot be measured or done because of it.
    Limiting,
    /// No program can be loaded because of it.
    Blocking,
    /// It cannot be seen from here.
    Unknown,
}

/// A probe of the Snapshot, and what doctor adds to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ProbeReport {
    pub(super) name: String,
    pub(super) state: ProbeState,
    pub(super) mechanism: String,
    pub(super) reason: Option<String>,
    pub(super) remedy: Option<String>,
    /// Capabilities that its mechanism needs.
    pub(super) needs: Vec<&'static str>,
    /// Of those, what this process lacks; none where that cannot be told.
    pub(super) lacks: Option<Vec<&'static str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ControllerReport {
    pub(super) address: PciAddress,
    pub(super) mode: Mode,
    pub(super) vectors: usize,
    pub(super) child_interrupts: u32,
}

/// What the self-test measured.
#[derive(Debug, Serialize)]
pub(super) struct SelfTest {
    /// Length of the window that was asked for.
    pub(super) seconds: u64,
    pub(super) checks: Vec<TestResult>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct TestResult {
    pub(super) id: &'static str,
    pub(super) outcome: Outcome,
    /// What was found, or why nothing was.
    pub(super) found: String,
    pub(super) remedy: Option<String>,
    /// Interrupt lines that were compared.
    pub(super) lines: usize,
    /// What both sides say of all of them; none where nothing was compared.
    pub(super) totals: Option<Totals>,
    /// The first lines that do not agree.
    pub(super) wrong: Vec<WrongLine>,
}

/// Our count, and what the other source allows it to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Totals {
    pub(super) ours: u64,
    pub(super) at_least: u64,
    /// None: nothing bounds it, since repeated runs cannot be told.
    pub(super) at_most: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct WrongLine {
    pub(super) irq: u32,
    pub(super) action: String,
    /// None: the count went back.
    pub(super) ours: Option<u64>,
    pub(super) at_least: u64,
    pub(super) at_most: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Passed,
    Failed,
    NotMeasured,
    NotApplicable,
    Blocked,
}

/// The exit status: 2 if interrupts are not accounted, 1 if anything is blocked,
/// broken or wrong, else 0.
#[must_use]
pub(super) fn exit_status(
    counts_interrupts: bool,
    probes: &[ProbeReport],
    self_test: Option<&SelfTest>,
) -> u8 {
    let hurt =
        |probe: &ProbeReport| matches!(probe.state, ProbeState::Blocked | ProbeState::Broken);
    let wrong = |test: &TestResult| matches!(test.outcome, Outcome::Failed | Outcome::Blocked);
    if !counts_interrupts {
        2
    } else if probes.iter().any(hurt) || self_test.is_some_and(|test| test.checks.iter().any(wrong))
    {
        1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(state: ProbeState) -> ProbeReport {
        ProbeReport {
            name: "x".to_owned(),
            state,
            mechanism: "fentry".to_owned(),
            reason: None,
            remedy: None,
            needs: Vec::new(),
            lacks: None,
        }
    }

    #[test]
    fn the_exit_status_follows_the_states() {
        for (state, expected) in [
            (ProbeState::Attached, 0),
            (ProbeState::Unsupported, 0),
            (ProbeState::NotApplicable, 0),
            (ProbeState::Blocked, 1),
            (ProbeState::Broken, 1),
        ] {
            let probes = [probe(ProbeState::Attached), probe(state)];
            assert_eq!(exit_status(true, &probes, None), expected, "{state}");
            assert_eq!(exit_status(false, &probes, None), 2, "{state}");
        }
        for (outcome, expected) in [
            (Outcome::Passed, 0),
            (Outcome::NotMeasured, 0),
            (Outcome::NotApplicable, 0),
            (Outcome::Failed, 1),
            (Outcome::Blocked, 1),
        ] {
            let test = SelfTest {
                seconds: 1,
                checks: vec![TestResult {
                    id: "x",
                    outcome,
                    found: String::new(),
                    remedy: None,
                    lines: 0,
                    totals: None,
                    wrong: Vec::new(),
                }],
            };
            assert_eq!(exit_status(true, &[], Some(&test)), expected, "{outcome:?}");
        }
    }
}
