//! What differs between two windows and what does not, beyond their noise; and
//! whether they can be compared at all.

use serde::Serialize;

use super::picture::{Group, Picture};
use super::thresholds::Thresholds;

/// Two windows of a controller, number by number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The controller's address, or `direct`, in the slower window.
    pub of: String,
    /// Beyond noise; what changed most comes first.
    pub changed: Vec<Difference>,
    pub same: Vec<Difference>,
    /// What only one of them has.
    pub missing: Vec<&'static str>,
    /// Which part of a request takes longer. Absent where times are not sampled
    /// in both, or the request takes no longer.
    pub stage: Option<Stage>,
    /// By how much a rate differs by chance, as a share of it: twice the
    /// standard error, from the spread inside each recording. Absent where one
    /// has too few Snapshots to tell.
    pub noise: Option<f64>,
    /// Why they are not of the same load, and what can be compared still.
    pub cautions: Vec<String>,
}

/// The part of a request by which it takes longer, most of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub name: &'static str,
    /// How much longer it takes, in microseconds.
    pub grew_us: f64,
    /// How much longer both parts take together.
    pub both_us: f64,
}

/// A number in both windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub name: &'static str,
    pub unit: &'static str,
    pub slower: f64,
    pub faster: f64,
}

impl Difference {
    /// How far apart the two are, as a factor from 1 on; infinite where one is
    /// 0.
    #[must_use]
    pub fn factor(&self) -> f64 {
        let (low, high) = (self.slower.min(self.faster), self.slower.max(self.faster));
        if high <= 0.0 {
            1.0
        } else if low <= 0.0 {
            f64::INFINITY
        } else {
            high / low
        }
    }
}

type Value = fn(&Picture, &Group) -> Option<f64>;

/// What is compared: in total, then per I/O.
const NUMBERS: [(&str, &str, Value); 15] = [
    ("IOPS", "per second", |_, it| it.iops),
    ("IOPS per busy disk", "per second", |_, it| {
        it.iops_per_disk()
    }),
    ("busy disks", "disks", |_, it| {
        Some(f64::from(it.busy_disks))
    }),
    ("in flight per busy disk", "requests", |_, it| {
        it.in_flight_per_disk()
    }),
    ("latency", "us", |_, it| it.latency_us),
    ("start to completion", "us", |_, it| it.completion_us),
    ("completion to end", "us", |_, it| it.handling_us),
    ("busy, serving CPUs", "of wall time", |_, it| {
        it.serving.as_ref()?.busy
    }),
    ("CPUs that serve, effective", "CPUs", |_, it| {
        Some(it.serving.as_ref()?.effective_cpus)
    }),
    ("hardware interrupts", "per I/O", |_, it| {
        it.completions_per_interrupt.map(|batch| 1.0 / batch)
    }),
    ("interrupt time", "ns per I/O", |_, it| {
        it.interrupt_ns_per_io
    }),
    ("CPU time, whole host", "ns per I/O", |picture, _| {
        picture.cpu_ns_per_io
    }),
    ("runs for nothing", "per I/O", |_, it| {
        it.nothing_per_completion
    }),
    ("by another CPU", "of completions", |_, it| it.remote_share),
    ("by one of another cache", "of completions", |_, it| {
        it.far_share
    }),
];

impl Comparison {
    pub(super) fn of(
        slower: (&Picture, &Group),
        faster: (&Picture, &Group),
        thresholds: &Thresholds,
    ) -> Self {
        // Independent errors add up as squares.
        let errors = slower.0.rate_error.zip(faster.0.rate_error);
        let noise = errors.map(|(a, b)| 2.0 * a.hypot(b));
        let least = 1.0 + noise.unwrap_or(0.0).max(thresholds.change_floor);
        let (mut changed, mut same, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for (name, unit, value) in NUMBERS {
            match (value(slower.0, slower.1), value(faster.0, faster.1)) {
                (Some(slower), Some(faster)) => {
                    let difference = Difference {
                        name,
                        unit,
                        slower,
                        faster,
                    };
                    if difference.factor() > least {
                        changed.push(difference);
                    } else {
                        same.push(difference);
                    }
                }
                (None, None) => {}
                _ => missing.push(name),
            }
        }
        changed.sort_by(|a, b| b.factor().total_cmp(&a.factor()));
        Self {
            of: slower.1.name.clone(),
            changed,
            same,
            missing,
            stage: stage(slower.1, faster.1, least),
            noise,
            cautions: cautions(slower.1, faster.1, thresholds),
        }
    }
}

/// `least` is the factor by which something differs beyond noise.
fn stage(slower: &Group, faster: &Group, least: f64) -> Option<Stage> {
    let waiting = slower.completion_us? - faster.completion_us?;
    let handling = slower.handling_us? - faster.handling_us?;
    let before = faster.completion_us? + faster.handling_us?;
    let both_us = waiting + handling;
    let (name, grew_us) = if waiting >= handling {
        (
            "start to completion: the disk, and what is between it and the CPU",
            waiting,
        )
    } else {
        (
            "completion to end: softirqs, and CPUs that are told by others",
            handling,
        )
    };
    (both_us > before * (least - 1.0)).then_some(Stage {
        name,
        grew_us,
        both_us,
    })
}

fn cautions(slower: &Group, faster: &Group, thresholds: &Thresholds) -> Vec<String> {
    let mut cautions = Vec::new();
    if slower.busy_disks != faster.busy_disks {
        cautions.push(format!(
            "{} disks are busy against {}: totals cannot be compared; figures per disk and per I/O \
             can",
            slower.busy_disks, faster.busy_disks
        ));
    }
    let depths = slower.in_flight_per_disk().zip(faster.in_flight_per_disk());
    if let Some((slow, fast)) = depths
        && slow.min(fast) < slow.max(fast) * thresholds.same_in_flight
    {
        cautions.push(format!(
            "{slow:.1} requests are in flight per disk against {fast:.1}, another load: rates and \
             latencies cannot be compared; settings, links and time per interrupt can"
        ));
    }
    let means = |value: fn(&super::picture::DiskUse) -> Option<f64>| {
        let mean = |group: &Group| {
            let busy = group.disks.iter().filter(|disk| disk.busy);
            let known: Vec<f64> = busy.filter_map(value).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        mean(slower).zip(mean(faster))
    };
    // Of the same job these are equal but for the noise.
    let (most_points, most_ratio) = (0.05, 1.1);
    if let Some((slow, fast)) = means(|disk| disk.read_share)
        && (slow - fast).abs() > most_points
    {
        cautions.push(format!(
            "{:.0} % of the I/Os are reads against {:.0} %: another load, and only settings and \
             links can be compared",
            slow * 100.0,
            fast * 100.0
        ));
    }
    let sizes = means(|disk| {
        let (bytes, iops) = disk.bytes_per_second.zip(disk.iops)?;
        (iops > 0.0).then(|| bytes / iops)
    });
    if let Some((slow, fast)) = sizes
        && slow.max(fast) > slow.min(fast) * most_ratio
    {
        cautions.push(format!(
            "an I/O has {slow:.0} bytes against {fast:.0}: another load, and only settings and \
             links can be compared"
        ));
    }
    cautions
}

/// The standard error of the mean of rates, as a share of it. Rates that follow
/// each other are not independent, so it is a low estimate.
#[must_use]
pub fn relative_error(rates: &[f64]) -> Option<f64> {
    // Less than three say nothing of a spread.
    if rates.len() < 3 {
        return None;
    }
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
    let error = (squares / (count - 1.0)).sqrt() / count.sqrt();
    (mean > 0.0)
        .then(|| error / mean)
        .filter(|error| error.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::matrix::{first_report, picture};
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnose::Diagnosis;
    use crate::host::topology::Mode;

    fn compared(slow: &Scene, fast: &Scene, rates: Option<&[f64]>) -> Comparison {
        let (mut slow, mut fast) = (picture(slow), picture(fast));
        slow.rate_error = rates.and_then(relative_error);
        fast.rate_error = slow.rate_error;
        let thresholds = Thresholds::default();
        let mut diagnosis = Diagnosis::of_two(slow, fast, &thresholds);
        diagnosis.comparisons.pop().unwrap()
    }

    #[test]
    fn what_changed_most_comes_first() {
        let (slow, fast) = (first_report(Mode::Bypass), first_report(Mode::Remap));
        let comparison = compared(&slow, &fast, None);
        let names: Vec<&str> = comparison.changed.iter().map(|it| it.name).collect();
        // 2.73 times the interrupts, 2.04 times the latency, 0.49 of the rate.
        assert_eq!(names[0], "hardware interrupts", "{comparison:#?}");
        assert!(
            names.contains(&"IOPS") && names.contains(&"latency"),
            "{names:?}"
        );
        let same: Vec<&str> = comparison.same.iter().map(|it| it.name).collect();
        assert!(same.contains(&"in flight per busy disk"), "{same:?}");
        assert!(same.contains(&"busy disks"), "{same:?}");
        // Only remap has runs for nothing.
        assert_eq!(comparison.missing, ["runs for nothing"]);
        assert_eq!(comparison.cautions, [""; 0]);
        assert_eq!(comparison.noise, None);
        // 906 against 442.5 us to the completion, 5 us after it in both.
        let stage = comparison.stage.unwrap();
        assert!(stage.name.starts_with("start to completion"), "{stage:?}");
        assert!((stage.both_us - 463.5).abs() < 1.0, "{stage:?}");
        let factors: Vec<f64> = comparison.changed.iter().map(Difference::factor).collect();
        assert!(factors.is_sorted_by(|a, b| a >= b), "{factors:?}");
    }

    #[test]
    fn the_stage_that_grew() {
        let fast = Scene::default();
        let slow = |latency_us, handling_us| Scene {
            iops_per_disk: 200_000,
            latency_us,
            handling_us,
            ..Scene::default()
        };
        let stage = |slow: &Scene| compared(slow, &fast, None).stage;
        // 84 and 1 us in the faster one; 4.25 us more are noise.
        assert_eq!(stage(&slow(89.0, 1.0)), None);
        let grew = stage(&slow(90.0, 2.0)).unwrap();
        assert!(grew.name.starts_with("start to completion"), "{grew:?}");
        let grew = stage(&slow(106.0, 21.5)).unwrap();
        assert!(grew.name.starts_with("completion to end"), "{grew:?}");
        assert!((grew.grew_us - 20.5).abs() < 0.1, "{grew:?}");
        assert!((grew.both_us - 21.0).abs() < 0.1, "{grew:?}");
    }

    /// Before and after a kernel: dearer I/O is told by what differs; the other
    /// way round, too.
    #[test]
    fn another_kernel() {
        let old = Scene::default();
        let work = crate::diagnose::scene::Work {
            user: 0.10,
            system: 0.22,
            softirq: 0.03,
        };
        let new = Scene {
            kernel: "6.18.1-amd64",
            iops_per_disk: 200_000,
            latency_us: 106.0,
            on_serving: work,
            elsewhere: work,
            ..Scene::default()
        };
        let thresholds = Thresholds::default();
        for (one, other) in [(&old, &new), (&new, &old)] {
            let diagnosis = Diagnosis::of_two(picture(one), picture(other), &thresholds);
            let supported: Vec<_> = diagnosis.supported().collect();
            assert_eq!(supported.len(), 1, "{supported:?}");
            assert_eq!(supported[0].id, "h8-kernel");
            let differs = "kernel 6.18.1-amd64 against 6.12.74-amd64";
            assert!(supported[0].why.contains(differs), "{}", supported[0].why);
        }
    }

    #[test]
    fn noise_hides_small_changes() {
        let fast = Scene::default();
        let slow = Scene {
            iops_per_disk: 225_000,
            latency_us: 94.4,
            ..Scene::default()
        };
        let changed = |rates| {
            let comparison = compared(&slow, &fast, rates);
            comparison.changed.iter().any(|it| it.name == "IOPS")
        };
        assert!(changed(None));
        assert!(changed(Some(&[100.0, 101.0, 99.0, 100.0])));
        assert!(!changed(Some(&[100.0, 130.0, 70.0, 100.0])));
    }

    #[test]
    fn error_of_rates() {
        assert_eq!(relative_error(&[100.0, 100.0]), None);
        assert_eq!(relative_error(&[0.0; 4]), None);
        assert_eq!(relative_error(&[100.0; 4]), Some(0.0));
        // Variance 100, three of them.
        let error = relative_error(&[90.0, 100.0, 110.0]).unwrap();
        assert!((error - 10.0 / 3_f64.sqrt() / 100.0).abs() < 1e-12);
    }

    #[test]
    fn other_loads_are_told() {
        let fast = Scene::default();
        let cautions = |slow: Scene| compared(&slow, &fast, None).cautions;
        assert_eq!(cautions(fast.clone()), [""; 0]);
        let fewer = cautions(Scene {
            busy_disks: 4,
            iops_per_disk: 249_000,
            ..fast.clone()
        });
        assert!(
            fewer[0].starts_with("4 disks are busy against 12: totals cannot"),
            "{fewer:?}"
        );
        let shallower = cautions(Scene {
            iops_per_disk: 125_000,
            ..fast.clone()
        });
        assert!(
            shallower[0].contains("another load: rates and"),
            "{shallower:?}"
        );
        let mut other = picture(&fast);
        for disk in &mut other.groups[0].disks {
            disk.read_share = Some(0.7);
            disk.bytes_per_second = disk.bytes_per_second.map(|it| it * 2.0);
        }
        let thresholds = Thresholds::default();
        let compared = Diagnosis::of_two(other, picture(&fast), &thresholds);
        let cautions = &compared.comparisons[0].cautions;
        assert!(
            cautions[0].starts_with("70 % of the I/Os are reads against 100 %"),
            "{cautions:?}"
        );
        assert!(
            cautions[1].starts_with("an I/O has 8192 bytes against 4096"),
            "{cautions:?}"
        );
    }

    #[test]
    fn factors() {
        let factor = |slower, faster| {
            Difference {
                name: "",
                unit: "",
                slower,
                faster,
            }
            .factor()
        };
        assert_eq!(factor(1.0, 2.0), 2.0);
        assert_eq!(factor(2.0, 1.0), 2.0);
        assert_eq!(factor(0.0, 0.0), 1.0);
        assert_eq!(factor(0.0, 1.0), f64::INFINITY);
    }
}
