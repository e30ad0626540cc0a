//! Why the I/O rate is what it is: explanations, each judged by the numbers of
//! a [`Window`](crate::snapshot::window::Window), or of two, and by nothing
//! else. docs/diagnosis.md has a chapter for each.
//!
//! One file for each explanation; [`picture`] has what they judge by,
//! [`thresholds`] where they turn.

pub mod children;
pub mod compare;
mod fault_bio_ineligible;
mod fault_bio_starved;
mod fault_config_read;
mod fault_for_nothing;
mod fault_forced_remap;
mod fault_isolation;
mod fault_lost;
mod fault_not_enabled;
mod fault_not_remapped;
mod fault_numa;
mod fault_stalled;
mod fault_threaded;
mod fault_vectors;
mod fault_xen;
mod h0_load;
mod h1_cpu_time;
mod h2_batching;
mod h3_placement;
mod h4_device;
mod h5_queues;
mod h6_idle;
mod h7_iommu;
mod h8_kernel;
mod h9_link;
mod isolation;
mod kernel;
pub mod picture;
pub mod recorded;
pub mod thresholds;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod fault_matrix;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use serde::Serialize;

use compare::Comparison;
use picture::{Group, Picture, Serving};
use thresholds::Thresholds;

/// What the numbers say of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// They are as it predicts, and it matters.
    Supported,
    /// They do not exclude it.
    Possible,
    /// They are not as it predicts.
    Contradicted,
    /// What would tell is not in them.
    NotMeasured,
}

impl Verdict {
    /// In words, the same everywhere it is shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Supported => "supported",
            Self::Possible => "possible",
            Self::Contradicted => "contradicted",
            Self::NotMeasured => "not measured",
        }
    }
}

/// What kind of explanation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Why the rate of a host that works is what it is.
    Hypothesis,
    /// A known fault or limit of kernel, driver or set-up.
    Fault,
}

/// A number that a verdict was reached by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Number {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

/// Something to do, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    pub what: &'static str,
    pub price: &'static str,
}

/// What one explanation is worth for one controller.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Stable; an anchor in docs/diagnosis.md.
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    /// The controller's address, `direct`, or `host`.
    pub of: String,
    pub verdict: Verdict,
    pub why: String,
    pub numbers: Vec<Number>,
    /// What would tell more.
    pub to_settle: Option<&'static str>,
    /// For what is supported or possible.
    pub remedies: &'static [Remedy],
}

/// A whole diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    pub picture: Picture,
    /// The one compared with: the one with more I/O per disk.
    pub faster: Option<Picture>,
    /// What differs from it, for each controller.
    pub comparisons: Vec<Comparison>,
    /// Best supported first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Judges one window by itself.
    #[must_use]
    pub fn of(picture: Picture, thresholds: &Thresholds) -> Self {
        let groups = with_disks(&picture);
        let busiest = busiest(&groups);
        let judged = groups.iter().map(|&group| {
            let case = Case {
                picture: &picture,
                group,
                faster: None,
                thresholds,
            };
            judge(&case, busiest == Some(&group.name))
        });
        let findings = judged.flatten().collect();
        Self {
            findings: ranked(findings),
            picture,
            faster: None,
            comparisons: Vec::new(),
        }
    }

    /// Judges the window with less I/O per disk, with the other to compare it
    /// with. A group is compared with the one of the same name, or with the
    /// only other one.
    #[must_use]
    pub fn of_two(one: Picture, other: Picture, thresholds: &Thresholds) -> Self {
        let per_disk = |picture: &Picture| {
            let groups = picture.groups.iter();
            groups.filter_map(Group::iops_per_disk).fold(0.0, f64::max)
        };
        let (slower, faster) = if per_disk(&one) <= per_disk(&other) {
            (one, other)
        } else {
            (other, one)
        };
        let (groups, counterparts) = (with_disks(&slower), with_disks(&faster));
        let busiest = busiest(&groups);
        let (mut findings, mut comparisons) = (Vec::new(), Vec::new());
        for &group in &groups {
            let counterpart = match counterparts[..] {
                [only] if groups.len() == 1 => Some(only),
                _ => counterparts
                    .iter()
                    .copied()
                    .find(|it| it.name == group.name),
            };
            comparisons.extend(counterpart.map(|counterpart| {
                Comparison::of((&slower, group), (&faster, counterpart), thresholds)
            }));
            let case = Case {
                picture: &slower,
                group,
                faster: counterpart.map(|group| (&faster, group)),
                thresholds,
            };
            findings.extend(judge(&case, busiest == Some(&group.name)));
        }
        let findings = ranked(findings);
        Self {
            findings,
            picture: slower,
            faster: Some(faster),
            comparisons,
        }
    }

    /// What is supported.
    pub fn supported(&self) -> impl Iterator<Item = &Finding> {
        let findings = self.findings.iter();
        findings.filter(|finding| finding.verdict == Verdict::Supported)
    }
}

/// An explanation: how it is called and judged.
struct Explanation {
    id: &'static str,
    title: &'static str,
    kind: Kind,
    judge: fn(&Case<'_>) -> Judgement,
    /// Whether it says anything of a controller without I/O.
    of_idle: bool,
    /// Whether it is of the whole host: judged once, with its busiest group.
    of_host: bool,
    remedies: &'static [Remedy],
}

/// Every explanation. Among equal verdicts this is the ranking: what makes
/// others happen comes first.
const EXPLANATIONS: [&Explanation; 24] = [
    &fault_xen::EXPLANATION,
    &fault_not_remapped::EXPLANATION,
    &fault_not_enabled::EXPLANATION,
    &fault_lost::EXPLANATION,
    &fault_stalled::EXPLANATION,
    &fault_vectors::EXPLANATION,
    &h9_link::EXPLANATION,
    &h0_load::EXPLANATION,
    &h5_queues::EXPLANATION,
    &h3_placement::EXPLANATION,
    &h1_cpu_time::EXPLANATION,
    &h2_batching::EXPLANATION,
    &h4_device::EXPLANATION,
    &h7_iommu::EXPLANATION,
    &h6_idle::EXPLANATION,
    &h8_kernel::EXPLANATION,
    &fault_for_nothing::EXPLANATION,
    &fault_config_read::EXPLANATION,
    &fault_numa::EXPLANATION,
    &fault_forced_remap::EXPLANATION,
    &fault_threaded::EXPLANATION,
    &fault_isolation::EXPLANATION,
    &fault_bio_starved::EXPLANATION,
    &fault_bio_ineligible::EXPLANATION,
];

/// What is judged.
#[derive(Clone, Copy)]
struct Case<'a> {
    picture: &'a Picture,
    group: &'a Group,
    /// The window with more I/O per disk, and the same group in it.
    faster: Option<(&'a Picture, &'a Group)>,
    thresholds: &'a Thresholds,
}

/// Whether CPUs that serve interrupts have time left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Left,
    Between,
    Out,
    Unknown,
}

impl<'a> Case<'a> {
    fn serving(&self) -> Option<&'a Serving> {
        self.group.serving.as_ref()
    }

    fn time_of(&self, busy: Option<f64>) -> Time {
        match busy {
            None => Time::Unknown,
            Some(busy) if busy >= self.thresholds.cpu_full => Time::Out,
            Some(busy) if busy < self.thresholds.cpu_free => Time::Left,
            Some(_) => Time::Between,
        }
    }

    /// Of the serving CPUs together.
    fn time(&self) -> Time {
        self.time_of(self.serving().and_then(|serving| serving.busy))
    }

    /// Time of whole requests against that of the faster window.
    fn request_growth(&self) -> Option<f64> {
        let (_, faster) = self.faster?;
        let (slow, fast) = self.group.latency_us.zip(faster.latency_us)?;
        (fast > 0.0).then(|| slow / fast)
    }

    /// Time up to the completion against that of the faster window; of whole
    /// requests where one of them has no samples.
    fn completion_growth(&self) -> Option<f64> {
        let (_, faster) = self.faster?;
        let sampled = self.group.completion_us.zip(faster.completion_us);
        match sampled {
            Some((slow, fast)) => (fast > 0.0).then(|| slow / fast),
            None => self.request_growth(),
        }
    }

    /// Requests in flight per disk against those of the faster window.
    fn in_flight_ratio(&self) -> Option<f64> {
        let (_, faster) = self.faster?;
        let (slow, fast) = self
            .group
            .in_flight_per_disk()
            .zip(faster.in_flight_per_disk())?;
        (fast > 0.0).then(|| slow / fast)
    }
}

/// What a rule says.
#[derive(Clone, Debug)]
struct Judgement {
    verdict: Verdict,
    why: String,
    numbers: Vec<Number>,
    to_settle: Option<&'static str>,
}

impl Judgement {
    fn new(verdict: Verdict, why: impl Into<String>) -> Self {
        Self {
            verdict,
            why: why.into(),
            numbers: Vec::new(),
            to_settle: None,
        }
    }

    fn supported(why: impl Into<String>) -> Self {
        Self::new(Verdict::Supported, why)
    }

    fn possible(why: impl Into<String>, to_settle: &'static str) -> Self {
        Self::new(Verdict::Possible, why).settled_by(to_settle)
    }

    fn contradicted(why: impl Into<String>) -> Self {
        Self::new(Verdict::Contradicted, why)
    }

    fn not_measured(why: impl Into<String>, to_settle: &'static str) -> Self {
        Self::new(Verdict::NotMeasured, why).settled_by(to_settle)
    }

    fn settled_by(mut self, to_settle: &'static str) -> Self {
        self.to_settle = Some(to_settle);
        self
    }

    /// With a number, where it is known.
    fn with(mut self, name: &'static str, value: Option<f64>, unit: &'static str) -> Self {
        if let Some(value) = value {
            self.numbers.push(Number { name, value, unit });
        }
        self
    }
}

fn with_disks(picture: &Picture) -> Vec<&Group> {
    let groups = picture.groups.iter();
    groups.filter(|group| !group.disks.is_empty()).collect()
}

/// Name of the group with most I/O.
fn busiest<'a>(groups: &[&'a Group]) -> Option<&'a String> {
    let rate = |group: &Group| group.iops.unwrap_or(0.0);
    let groups = groups.iter();
    let busiest = groups.max_by(|a, b| rate(a).total_cmp(&rate(b)))?;
    Some(&busiest.name)
}

fn judge(case: &Case<'_>, with_host: bool) -> Vec<Finding> {
    EXPLANATIONS
        .iter()
        .filter(|explanation| with_host || !explanation.of_host)
        .map(|explanation| {
            let judgement = match case.group.iops {
                None if !explanation.of_idle => Judgement::not_measured(
                    "the I/O of its disks is not counted",
                    "the kernel's counts of block devices, or the probe nvme_sq",
                ),
                Some(iops) if iops < case.thresholds.least_iops && !explanation.of_idle => {
                    Judgement::not_measured(
                        format!("{iops:.0} I/Os per second are too few to say anything"),
                        "a window under load",
                    )
                }
                _ => (explanation.judge)(case),
            };
            let Judgement {
                verdict,
                why,
                numbers,
                to_settle,
            } = judgement;
            Finding {
                id: explanation.id,
                title: explanation.title,
                kind: explanation.kind,
                of: if explanation.of_host {
                    "host".to_owned()
                } else {
                    case.group.name.clone()
                },
                verdict,
                why,
                numbers,
                to_settle,
                remedies: match verdict {
                    Verdict::Supported | Verdict::Possible => explanation.remedies,
                    Verdict::Contradicted | Verdict::NotMeasured => &[],
                },
            }
        })
        .collect()
}

/// Best supported first; otherwise they stay in the order they are in.
fn ranked(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.verdict);
    findings
}

/// A share as people write it.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Why a controller's interrupts do not come, where that is known: the id of what
/// is supported.
fn lost_by(case: &Case<'_>) -> Option<&'static str> {
    let reasons = [
        &fault_xen::EXPLANATION,
        &fault_not_remapped::EXPLANATION,
        &fault_not_enabled::EXPLANATION,
    ];
    let mut reasons = reasons.into_iter();
    let found = reasons.find(|it| (it.judge)(case).verdict == Verdict::Supported);
    found.map(|it| it.id)
}

/// What would tell which lines are interrupted.
const NEEDS_LINES: &str = "every interrupt line by itself: `vmdtrace record --lines` or a live \
                           `vmdtrace diagnose`";

/// What would tell how busy the CPUs are.
const NEEDS_CPUS: &str = "interrupts counted per CPU and the kernel's times of each CPU: \
                          `vmdtrace record --lines` or a live `vmdtrace diagnose`";
