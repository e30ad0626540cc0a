//! The report for people.

use std::fmt::Write as _;

use super::report::{
    Check, CheckState, ControllerReport, Outcome, ProbeReport, Report, SelfTest, TestResult,
};

/// Width of the column of names.
const NAMES: usize = 32;
/// Width of the column of states.
const STATES: usize = 14;

pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    section(&mut text, "kernel, process and files");
    for check in &report.checks {
        check_line(&mut text, check);
    }
    section(&mut text, "probes");
    for probe in &report.probes {
        probe_line(&mut text, probe);
    }
    section(&mut text, "controllers");
    for controller in &report.controllers {
        controller_line(&mut text, controller);
    }
    if report.controllers.is_empty() {
        line(&mut text, "VMD", "none", "no VMD controller found");
    }
    let disks = format!("{} found, behind a controller or not", report.disks);
    line(&mut text, "NVMe disks", "", &disks);
    if let Some(test) = &report.self_test {
        self_test(&mut text, test);
    }
    text.push('\n');
    text.push_str(match report.exit_status {
        0 => "Nothing is blocked, broken or wrong.",
        1 => "Interrupts are accounted, but something is blocked, broken or wrong: see above.",
        _ => "Interrupts are not accounted: see above.",
    });
    text.push_str(" The programs were doctor's own; they are gone with it.\n");
    text
}

fn section(text: &mut String, title: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(title);
    text.push('\n');
}

fn line(text: &mut String, name: &str, state: &str, found: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  {name:<NAMES$} {state:<STATES$} {found}");
}

fn remedy(text: &mut String, remedy: Option<&str>) {
    if let Some(remedy) = remedy {
        line(text, "", "", &format!("remedy: {remedy}"));
    }
}

fn check_line(text: &mut String, check: &Check) {
    let state = match check.state {
        CheckState::Good => "good",
        CheckState::Limiting => "limiting",
        CheckState::Blocking => "blocking",
        CheckState::Unknown => "unknown",
    };
    line(text, check.id, state, &check.found);
    remedy(text, check.remedy.as_deref());
}

fn probe_line(text: &mut String, probe: &ProbeReport) {
    let found = match &probe.reason {
        Some(reason) => format!("{}: {reason}", probe.mechanism),
        None => probe.mechanism.clone(),
    };
    line(text, &probe.name, probe.state.as_str(), &found);
    match &probe.lacks {
        Some(lacking) if lacking.is_empty() => {}
        Some(lacking) => {
            let found = format!(
                "needs {}, lacks {}",
                probe.needs.join(" and "),
                lacking.join(" and ")
            );
            line(text, "", "", &found);
        }
        None => line(
            text,
            "",
            "",
            &format!("needs {}", probe.needs.join(" and ")),
        ),
    }
    remedy(text, probe.remedy.as_deref());
}

fn controller_line(text: &mut String, controller: &ControllerReport) {
    let ControllerReport {
        address,
        mode,
        vectors,
        child_interrupts,
    } = controller;
    let found = format!("{vectors} vectors, {child_interrupts} interrupt lines of NVMe disks");
    line(text, &address.0, mode.as_str(), &found);
}

fn self_test(text: &mut String, test: &SelfTest) {
    section(text, &format!("self-test, {} s", test.seconds));
    for check in &test.checks {
        test_line(text, check);
    }
}

fn test_line(text: &mut String, check: &TestResult) {
    let outcome = match check.outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::NotMeasured => "not-measured",
        Outcome::NotApplicable => "not-applicable",
        Outcome::Blocked => "blocked",
    };
    line(text, check.id, outcome, &check.found);
    if let Some(totals) = check.totals {
        let found = format!(
            "ours {}, the other {}",
            totals.ours,
            range(totals.at_least, totals.at_most)
        );
        line(text, "", "", &found);
    }
    for wrong in &check.wrong {
        let ours = wrong
            .ours
            .map_or_else(|| "went back".to_owned(), |ours| ours.to_string());
        let found = format!(
            "interrupt {} ({}): ours {ours}, the other {}",
            wrong.irq,
            wrong.action,
            range(wrong.at_least, wrong.at_most)
        );
        line(text, "", "", &found);
    }
    remedy(text, check.remedy.as_deref());
}

fn range(at_least: u64, at_most: Option<u64>) -> String {
    match at_most {
        Some(at_most) if at_most == at_least => at_least.to_string(),
        Some(at_most) => format!("{at_least} to {at_most}"),
        None => format!("{at_least} or more"),
    }
}
