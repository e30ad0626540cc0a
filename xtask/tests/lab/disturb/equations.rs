//! The equations of docs/metrics.md, between two readings at rest.

use std::collections::BTreeMap;

use xtask_lab::{Sample, Scrape, disk_of_action, is_vmd_action};

use crate::server::Readings;

/// Names and values.
type Labels = Vec<(String, String)>;

/// What was counted between two scrapes.
pub(super) struct Rise {
    by_series: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Rise {
    pub(super) fn new(before: &Scrape, after: &Scrape) -> Self {
        let earlier: BTreeMap<_, f64> = before
            .samples
            .iter()
            .map(|it| ((&it.name, &it.labels), it.value))
            .collect();
        let mut by_series: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for Sample {
            name,
            labels,
            value,
        } in &after.samples
        {
            let was = earlier.get(&(name, labels)).copied().unwrap_or_default();
            let series = by_series.entry(name.clone()).or_default();
            series.push((labels.clone(), value - was));
        }
        Self { by_series }
    }

    /// The sum over the series whose labels have these values; 0 where there is none.
    pub(super) fn of(&self, metric: &str, wanted: &[(&str, &str)]) -> u64 {
        self.real(metric, wanted) as u64
    }

    /// As above, of what is no whole number.
    fn real(&self, metric: &str, wanted: &[(&str, &str)]) -> f64 {
        let has = |labels: &[(String, String)]| {
            wanted
                .iter()
                .all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
        };
        let series = self.by_series.get(metric).into_iter().flatten();
        // An empty sum is -0.0.
        let sum: f64 = series
            .filter(|(labels, _)| has(labels))
            .map(|(_, value)| value)
            .sum();
        sum + 0.0
    }

    /// What rose of these, for a person.
    fn list(&self, metrics: &[&str]) -> String {
        let mut text = String::new();
        for metric in metrics {
            for (labels, value) in self.by_series.get(*metric).into_iter().flatten() {
                if *value != 0.0 {
                    let labels: Vec<_> = labels.iter().map(|(n, v)| format!("{n}={v}")).collect();
                    text.push_str(&format!("{metric} {} {value}\n", labels.join(" ")));
                }
            }
        }
        text
    }

    pub(super) fn all(&self, metric: &str) -> u64 {
        self.of(metric, &[])
    }

    /// Completions that were counted somewhere.
    fn completions(&self) -> u64 {
        self.all("vmdtrace_completions_total")
            + self.all("vmdtrace_completions_outside_handler_total")
            + self.all("vmdtrace_unassigned_completions_total")
    }

    /// Completions that the kernel did not let us count.
    pub(super) fn missed(&self) -> u64 {
        self.missed_by("nvme_sq")
    }

    fn missed_by(&self, probe: &str) -> u64 {
        self.of("vmdtrace_probe_missed_total", &[("probe", probe)])
    }

    pub(super) fn resent(&self) -> u64 {
        self.all("vmdtrace_handler_resent_total")
    }

    pub(super) fn repeated(&self) -> u64 {
        self.all("vmdtrace_handler_repeated_total")
    }
}

/// Equations 2 to 5, 8, 10 and, as far as they hold in any case, 11.
pub(super) fn hold(what: &str, before: &Readings, after: &Readings) {
    let rise = Rise::new(&before.daemon, &after.daemon);
    let mut wrong = Vec::new();
    let mut equal = |equation: &str, left: u64, right: u64| {
        if left != right {
            wrong.push(format!("{equation}: {left} is not {right}"));
        }
    };

    let posted = |readings: &Readings| {
        let devices = readings.devices.iter();
        devices.map(|it| it.cqes() - it.cqes_skipped()).sum::<u64>()
    };
    let completions = rise.completions() + rise.missed();
    equal(
        "completions, and the devices'",
        completions,
        posted(after) - posted(before),
    );

    equal(
        "completions by CPU and controller, and all in handlers",
        rise.all("vmdtrace_cpu_controller_completions_total"),
        rise.all("vmdtrace_completions_total") + rise.all("vmdtrace_unassigned_completions_total"),
    );
    let shares = rise.real("vmdtrace_cpu_controller_interrupt_seconds_total", &[]);
    let cpus = rise.real("vmdtrace_cpu_interrupt_seconds_total", &[]);
    equal(
        "seconds by CPU and controller, and by CPU",
        u64::from((shares - cpus).abs() > 1e-6),
        0,
    );

    let whole = rise.all("vmdtrace_unassigned_runs_total") == 0
        && rise.all("vmdtrace_lost_frames_total") == 0;
    if whole {
        let lines = rise.real("vmdtrace_handler_seconds_total", &[]);
        // Of each series, the last digit is rounded.
        equal(
            "seconds of lines and CPUs",
            u64::from((lines - cpus).abs() > 1e-6),
            0,
        );
        equal(
            "runs of children, and inside vectors or sent again",
            rise.of("vmdtrace_handler_runs_total", &[("path", "vmd-remap")])
                + rise.all("vmdtrace_controller_other_handler_runs_total"),
            rise.all("vmdtrace_line_child_runs_total") + rise.resent(),
        );
    }
    for family in [
        "hardware_interrupts",
        "handler_repeated",
        "handler_runs",
        "completions",
    ] {
        let by_disk = rise.all(&format!("vmdtrace_{family}_total"));
        let other = if family == "handler_runs" {
            rise.all("vmdtrace_controller_other_handler_runs_total")
        } else {
            0
        };
        let by_line = rise.all(&format!("vmdtrace_line_{family}_total"));
        equal(
            &format!("{family} by disk, by line"),
            by_disk + other,
            by_line,
        );
    }

    let bios = |kind: &str| rise.all(&format!("vmdtrace_bio_{kind}_total"));
    let allocated = bios("allocations");
    let classes = ["cache_hits", "cache_misses", "cache_ineligible"];
    let classes = classes.map(bios).iter().sum::<u64>()
        + ["failed", "ambiguous", "unpaired"]
            .map(|it| bios(&format!("allocations_{it}")))
            .iter()
            .sum::<u64>();
    equal("bios, and their classes", allocated, classes);
    let freed = bios("frees") - rise.of("vmdtrace_bio_frees_total", &[("destination", "kfree")]);
    equal(
        "bios allocated and freed",
        allocated + rise.missed_by("bio_alloc_bioset_exit") - bios("allocations_failed"),
        freed + rise.missed_by("bio_put"),
    );

    assert!(
        wrong.is_empty(),
        "{what}:\n{}\n(missed {}, resent {}, repeated {}, lost {})\n{}",
        wrong.join("\n"),
        rise.missed(),
        rise.resent(),
        rise.repeated(),
        rise.all("vmdtrace_lost_frames_total"),
        rise.list(&[
            "vmdtrace_handler_runs_total",
            "vmdtrace_line_child_runs_total"
        ]),
    );
}

/// Equation 1, for every line of a VMD or a disk that both readings have.
pub(super) fn lines_equal_the_kernel(what: &str, before: &Readings, after: &Readings) {
    let rise = Rise::new(&before.daemon, &after.daemon);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (irq, line) in &after.kernel.lines {
        let action = line.actions.as_str();
        let ours = is_vmd_action(action) || disk_of_action(action).is_some();
        let earlier = before.kernel.lines.get(irq);
        let Some(earlier) = earlier.filter(|it| ours && it.actions == action) else {
            continue;
        };
        let since = |(now, then): (&u32, &u32)| u64::from(now.wrapping_sub(*then));
        let kernel: u64 = line.per_cpu.iter().zip(&earlier.per_cpu).map(since).sum();
        let number = irq.to_string();
        let of = |family: &str| {
            let labels = [("irq", number.as_str()), ("action", action)];
            rise.of(&format!("vmdtrace_line_{family}_total"), &labels)
        };
        let counted = of("hardware_interrupts") - of("handler_repeated");
        if kernel != counted {
            wrong.push(format!(
                "line {irq} ({action}): kernel {kernel}, vmdtrace {counted} after {} repeated",
                of("handler_repeated")
            ));
        }
        compared += kernel;
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    assert!(compared > 20, "{what}: only {compared} interrupts");
}
