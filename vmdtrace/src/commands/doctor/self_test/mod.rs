//! The self-test: our counts against two independent ones, while the host works.
//!
//! - the kernel's count of a remapped child's line is 0;
//! - the kernel's count of every other line rises as ours does;
//! - a kprobe on the vmd driver's handler sees the runs that we see.

mod bracket;
mod lines;

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use self::bracket::Reading;
use self::lines::{Line, Lines};
use super::facts::{Facts, names};
use super::report::{Outcome, SelfTest, TestResult, Totals, WrongLine};
use crate::host::{self, HostError, PossibleCpus, Roots};
use crate::probes::vmd_irq::{NotCounting, VmdIrqCounter};
use crate::snapshot::source::{SnapshotError, SnapshotSource};
use crate::snapshot::{LineKind, ProbeState, Snapshot};

const CHILDREN: &str = "self_test.children_uncounted";
const LINES: &str = "self_test.lines_equal_kernel";
const KPROBE: &str = "self_test.vectors_equal_kprobe";
const IDS: [&str; 3] = [CHILDREN, LINES, KPROBE];

/// Lines that disagree and are shown; the rest is counted.
const MOST_SHOWN: usize = 20;

/// Measures for so many seconds.
///
/// # Errors
/// If no Snapshot can be taken.
pub(super) fn run(
    source: &dyn SnapshotSource,
    roots: &Roots,
    facts: &Facts,
    seconds: u64,
) -> Result<SelfTest, SnapshotError> {
    let lines = Lines::of(&source.snapshot()?.topology);
    let kprobe = attach_kprobe(roots, &lines);
    let cpus = PossibleCpus::read(roots);
    let read = || Readings::take(source, roots, &cpus, &lines, kprobe.as_ref().ok());
    let first = read()?;
    thread::sleep(Duration::from_secs(seconds));
    let second = read()?;
    Ok(SelfTest {
        seconds,
        checks: vec![
            children(roots, &cpus, &lines),
            by_kernel(&first, &second, &lines),
            by_kprobe(&first, &second, &lines, kprobe.as_ref().err(), facts),
        ],
    })
}

/// Where no program could be loaded.
pub(super) fn not_measured(seconds: u64, reason: &str) -> SelfTest {
    SelfTest {
        seconds,
        checks: IDS
            .iter()
            .map(|id| result(id, Outcome::NotMeasured, reason))
            .collect(),
    }
}

fn attach_kprobe(roots: &Roots, lines: &Lines) -> Result<VmdIrqCounter, NotCounting> {
    match lines.vectors.iter().map(|line| line.irq).max() {
        None => Err(NotCounting {
            state: ProbeState::NotApplicable,
            reason: "no controller remaps: the vmd driver handles no interrupts".to_owned(),
        }),
        Some(highest) => VmdIrqCounter::attach(roots, highest.saturating_add(1)),
    }
}

/// A line's own counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ours {
    /// Handler runs at depth 0.
    runs: u64,
    /// Of those, runs that the kernel repeated; none where it hides that.
    repeated: Option<u64>,
}

/// All counts at one moment, the others' read before and after ours.
struct Readings {
    /// By interrupt number, as the lines are in [`Lines::counted`].
    kernel: [Vec<Result<u32, HostError>>; 2],
    /// As the lines are in [`Lines::vectors`].
    kprobe: [Vec<u32>; 2],
    /// Runs that the kprobe did not see.
    kprobe_missed: u64,
    ours: HashMap<u32, Ours>,
    /// Runs that are known to be in no line's count.
    unattributed: u64,
    repeats_known: bool,
}

impl Readings {
    fn take(
        source: &dyn SnapshotSource,
        roots: &Roots,
        cpus: &Result<PossibleCpus, HostError>,
        lines: &Lines,
        kprobe: Option<&VmdIrqCounter>,
    ) -> Result<Self, SnapshotError> {
        let kernel = || -> Vec<_> {
            let count = |cpus: PossibleCpus| {
                let all = lines.counted.iter();
                all.map(|line| host::line_count(roots, line.irq, cpus))
                    .collect()
            };
            cpus.as_ref()
                .map_or_else(|_| Vec::new(), |cpus| count(*cpus))
        };
        let calls = || -> Vec<_> {
            let Some(kprobe) = kprobe else {
                return Vec::new();
            };
            let all = lines.vectors.iter();
            // The rule knows counters of 32 bits; differences are far smaller.
            all.map(|line| kprobe.calls(line.irq).unwrap_or_default() as u32)
                .collect()
        };
        let (kernel_before, kprobe_before) = (kernel(), calls());
        let snapshot = source.snapshot()?;
        let (kprobe_after, kernel_after) = (calls(), kernel());
        Ok(Self {
            kernel: [kernel_before, kernel_after],
            kprobe: [kprobe_before, kprobe_after],
            kprobe_missed: kprobe.map_or(0, VmdIrqCounter::missed),
            ours: ours(&snapshot),
            unattributed: unattributed(&snapshot),
            repeats_known: snapshot.counted().repeated_runs,
        })
    }

    fn ours(&self, irq: u32) -> Ours {
        // A line that is not known yet has not run.
        let never = Ours {
            runs: 0,
            repeated: Some(0),
        };
        self.ours.get(&irq).copied().unwrap_or(never)
    }
}

fn ours(snapshot: &Snapshot) -> HashMap<u32, Ours> {
    let mut by_irq: HashMap<u32, Ours> = HashMap::new();
    for line in &snapshot.counters.lines {
        if !matches!(line.kind, LineKind::VmdVector | LineKind::Nvme) {
            continue;
        }
        // A number may have had several owners.
        let sum = by_irq.entry(line.irq).or_insert(Ours {
            runs: 0,
            repeated: Some(0),
        });
        sum.runs = sum.runs.saturating_add(line.hardware_interrupts());
        sum.repeated = match (sum.repeated, line.counts.repeated_runs) {
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            _ => None,
        };
    }
    by_irq
}

fn unattributed(snapshot: &Snapshot) -> u64 {
    let cpus = snapshot.counters.cpus.iter();
    cpus.map(|cpu| {
        cpu.unassigned_runs
            + cpu.lost_frames
            + cpu.unmatched_exits
            + cpu.overflowed_runs
            + cpu.unreadable_actions
            + cpu.out_of_range_runs
    })
    .sum()
}

fn children(roots: &Roots, cpus: &Result<PossibleCpus, HostError>, lines: &Lines) -> TestResult {
    let cpus = match cpus {
        Ok(cpus) => *cpus,
        Err(error) => return result(CHILDREN, Outcome::NotMeasured, error.to_string()),
    };
    if lines.children.is_empty() {
        return result(
            CHILDREN,
            Outcome::NotApplicable,
            "no controller remaps, so there is no line that the kernel does not count",
        );
    }
    let mut comparison = Comparison::default();
    for line in &lines.children {
        match host::line_count(roots, line.irq, cpus) {
            Ok(count) => comparison.add(line, Some(0), u64::from(count), Some(count.into())),
            Err(error) => comparison.unmeasured(&error),
        }
    }
    let lines_said = format!(
        "the kernel's count is 0 for each of {} lines behind remapping controllers",
        comparison.lines
    );
    comparison.result(
        CHILDREN,
        &lines_said,
        "the kernel counts lines behind a controller that is taken for remapping: the mode is \
         wrong (see `vmdtrace topology`)",
    )
}

fn by_kernel(first: &Readings, second: &Readings, lines: &Lines) -> TestResult {
    if lines.counted.is_empty() {
        return result(
            LINES,
            Outcome::NotApplicable,
            "there is no controller that remaps, and no NVMe disk",
        );
    }
    if first.kernel[0].is_empty() {
        return result(
            LINES,
            Outcome::NotMeasured,
            "how many CPUs the kernel counts for is not known",
        );
    }
    let repeats_known = first.repeats_known && second.repeats_known;
    let mut comparison = Comparison::default();
    for (index, line) in lines.counted.iter().enumerate() {
        let reading = |readings: &Readings| -> Result<Reading, String> {
            let count = |moment: usize| match readings.kernel[moment].get(index) {
                Some(Ok(count)) => Ok(*count),
                Some(Err(error)) => Err(error.to_string()),
                None => Err(format!("line {} was not read", line.irq)),
            };
            let Ours { runs, repeated } = readings.ours(line.irq);
            Ok(Reading {
                before: count(0)?,
                ours: runs.saturating_sub(repeated.unwrap_or_default()),
                after: count(1)?,
            })
        };
        match (reading(first), reading(second)) {
            (Ok(first), Ok(second)) => {
                let (ours, allowed) = bracket::compare(first, second);
                let at_most = repeats_known.then_some(allowed.at_most);
                comparison.add(line, ours, allowed.at_least, at_most);
            }
            (Err(error), _) | (_, Err(error)) => comparison.unmeasured(&error),
        }
    }
    if comparison.is_idle() {
        return comparison.idle(LINES);
    }
    let mut found = format!(
        "{} lines rose as the kernel's count of them did{}",
        comparison.lines,
        if repeats_known {
            ""
        } else {
            ", or more: repeated handler runs cannot be told"
        }
    );
    if lines.left_out > 0 {
        found.push_str(&format!("; {} more lines were left out", lines.left_out));
    }
    let lost = second.unattributed.saturating_sub(first.unattributed);
    comparison.result(
        LINES,
        &found,
        &format!("{lost} runs could not be attributed to any line meanwhile"),
    )
}

fn by_kprobe(
    first: &Readings,
    second: &Readings,
    lines: &Lines,
    not_counting: Option<&NotCounting>,
    facts: &Facts,
) -> TestResult {
    if let Some(NotCounting { state, reason }) = not_counting {
        let outcome = match state {
            ProbeState::NotApplicable => Outcome::NotApplicable,
            ProbeState::Blocked => Outcome::Blocked,
            ProbeState::Broken => Outcome::Failed,
            ProbeState::Attached | ProbeState::Unsupported => Outcome::NotMeasured,
        };
        let needed = facts.for_kprobes();
        let remedy = (outcome == Outcome::Blocked).then(|| {
            format!(
                "{}; a kprobe needs {}",
                facts.refusers(&needed, reason).join("; "),
                names(&needed).join(" and ")
            )
        });
        return TestResult {
            remedy,
            ..result(KPROBE, outcome, reason.as_str())
        };
    }
    let missed = second.kprobe_missed.saturating_sub(first.kprobe_missed);
    let mut comparison = Comparison::default();
    for (index, line) in lines.vectors.iter().enumerate() {
        let reading = |readings: &Readings| {
            let [before, after] = &readings.kprobe;
            Some(Reading {
                before: *before.get(index)?,
                // The handler is called for repeated runs, too.
                ours: readings.ours(line.irq).runs,
                after: *after.get(index)?,
            })
        };
        let (Some(first), Some(second)) = (reading(first), reading(second)) else {
            comparison.unmeasured(&format!("line {} was not read", line.irq));
            continue;
        };
        let (ours, allowed) = bracket::compare(first, second);
        let at_most = allowed.at_most.saturating_add(missed);
        comparison.add(line, ours, allowed.at_least, Some(at_most));
    }
    if comparison.is_idle() {
        return comparison.idle(KPROBE);
    }
    let found = format!(
        "{} vectors rose as a kprobe on vmd_irq saw, which the kernel skipped {missed} times",
        comparison.lines
    );
    comparison.result(
        KPROBE,
        &found,
        "too many by our count: a kprobe is skipped while another program of that kind runs on \
         its CPU, which kernels before 6.7 do not count",
    )
}

fn result(id: &'static str, outcome: Outcome, found: impl Into<String>) -> TestResult {
    TestResult {
        id,
        outcome,
        found: found.into(),
        remedy: None,
        lines: 0,
        totals: None,
        wrong: Vec::new(),
    }
}

/// Lines compared so far.
#[derive(Debug, Default)]
struct Comparison {
    lines: usize,
    totals: Totals,
    wrong: Vec<WrongLine>,
    wrong_lines: usize,
    unmeasured_lines: usize,
    why_unmeasured: Option<String>,
}

impl Comparison {
    fn add(&mut self, line: &Line, ours: Option<u64>, at_least: u64, at_most: Option<u64>) {
        let Totals {
            ours: sum,
            at_least: least,
            at_most: most,
        } = &mut self.totals;
        *sum = sum.saturating_add(ours.unwrap_or_default());
        *least = least.saturating_add(at_least);
        *most = match (*most, at_most) {
            _ if self.lines == 0 => at_most,
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            _ => None,
        };
        self.lines += 1;
        let agrees = ours
            .is_some_and(|ours| ours >= at_least && at_most.is_none_or(|at_most| ours <= at_most));
        if !agrees {
            self.wrong_lines += 1;
            if self.wrong.len() < MOST_SHOWN {
                self.wrong.push(WrongLine {
                    irq: line.irq,
                    action: line.action.clone(),
                    ours,
                    at_least,
                    at_most,
                });
            }
        }
    }

    fn unmeasured(&mut self, why: &impl ToString) {
        self.unmeasured_lines += 1;
        self.why_unmeasured.get_or_insert_with(|| why.to_string());
    }

    /// Whether nothing happened that could have been counted wrongly.
    fn is_idle(&self) -> bool {
        self.lines > 0
            && self.wrong_lines == 0
            && self.totals.ours == 0
            && self.totals.at_least == 0
    }

    fn idle(self, id: &'static str) -> TestResult {
        TestResult {
            remedy: Some("run it while there is I/O, or longer (--for)".to_owned()),
            lines: self.lines,
            ..result(
                id,
                Outcome::NotMeasured,
                format!("none of {} lines had an interrupt meanwhile", self.lines),
            )
        }
    }

    /// `passed` is what is said where all agree, `failed` what is added where not.
    fn result(self, id: &'static str, passed: &str, failed: &str) -> TestResult {
        let why = self.why_unmeasured.as_deref().unwrap_or_default();
        let (outcome, mut found, remedy) = if self.wrong_lines > 0 {
            (
                Outcome::Failed,
                format!(
                    "{} of {} lines disagree; {failed}",
                    self.wrong_lines, self.lines
                ),
                Some(
                    "do not trust the counts of these lines; report it with the output of \
                     `vmdtrace doctor --self-test --output json`"
                        .to_owned(),
                ),
            )
        } else if self.lines == 0 {
            (Outcome::NotMeasured, why.to_owned(), None)
        } else {
            (Outcome::Passed, passed.to_owned(), None)
        };
        if self.lines > 0 && self.unmeasured_lines > 0 {
            found.push_str(&format!(
                "; {} lines were not measured: {why}",
                self.unmeasured_lines
            ));
        }
        TestResult {
            id,
            outcome,
            found,
            remedy,
            lines: self.lines,
            totals: (self.lines > 0).then_some(self.totals),
            wrong: self.wrong,
        }
    }
}

#[cfg(test)]
mod tests;
