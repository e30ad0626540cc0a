//! What each CPU does for each controller adds up to what all do, and to what is done
//! for each controller (docs/metrics.md, equation 11).

use std::collections::{BTreeMap, BTreeSet};

use xtask_lab::{Sample, Scrape};

/// Of all there was between two scrapes at rest.
pub(crate) struct Sums {
    /// What does not add up.
    pub(crate) wrong: Vec<String>,
    pub(crate) hardware_interrupts: u64,
    /// Of these, those from before it was known whose they were.
    pub(crate) unassigned: u64,
}

impl Sums {
    pub(crate) fn between(before: &Scrape, after: &Scrape) -> Self {
        let mut sums = Self {
            wrong: Vec::new(),
            hardware_interrupts: 0,
            unassigned: 0,
        };
        let rise = |metric: &str, wanted: &dyn Fn(&Sample) -> bool| {
            let of = |scrape: &Scrape| scrape.sum(metric, wanted).unwrap_or_default() as u64;
            of(after) - of(before)
        };
        let watched = |it: &Sample| it.label("controller") == "watched";
        for (shared, all, beside) in [
            (
                "vmdtrace_cpu_controller_hardware_interrupts_total",
                "vmdtrace_hardware_interrupts_total",
                "vmdtrace_watched_hardware_interrupts_total",
            ),
            (
                "vmdtrace_cpu_controller_completions_total",
                "vmdtrace_completions_total",
                "vmdtrace_unassigned_completions_total",
            ),
        ] {
            let (left, right) = (
                rise(shared, &|_| true),
                rise(all, &|_| true) + rise(beside, &|_| true),
            );
            if left != right {
                sums.wrong.push(format!("{shared}: {left} of {right}"));
            }
            let controllers: BTreeSet<_> = after
                .series(all)
                .map(|it| it.label("controller").to_owned())
                .collect();
            let mut missing = 0;
            for controller in &controllers {
                let of = |it: &Sample| it.label("controller") == controller;
                let (own, all) = (rise(shared, &of), rise(all, &of));
                match all.checked_sub(own) {
                    Some(rest) => missing += rest,
                    None => sums
                        .wrong
                        .push(format!("{shared} of {controller:?}: {own} of {all}")),
                }
            }
            let unassigned = rise(shared, &|it| it.label("controller") == "unassigned");
            if missing != unassigned {
                let told = format!("{shared}: {unassigned} unassigned, {missing} missing");
                sums.wrong.push(told);
            }
            if all == "vmdtrace_hardware_interrupts_total" {
                sums.hardware_interrupts = left - rise(shared, &watched);
                sums.unassigned = unassigned;
            }
        }
        sums.wrong.extend(times(after));
        sums
    }
}

/// CPUs whose time is another than that of their shares together.
fn times(scrape: &Scrape) -> Vec<String> {
    let by_cpu = |metric: &str| {
        let mut sums = BTreeMap::<String, f64>::new();
        for sample in scrape.series(metric) {
            *sums.entry(sample.label("cpu").to_owned()).or_default() += sample.value;
        }
        sums
    };
    let shared = by_cpu("vmdtrace_cpu_controller_interrupt_seconds_total");
    let all = by_cpu("vmdtrace_cpu_interrupt_seconds_total");
    let differs = |(cpu, seconds): (&String, &f64)| {
        let own = shared.get(cpu).copied().unwrap_or_default();
        // Nanoseconds, as they were added up.
        ((own - seconds).abs() > 0.5e-9).then(|| format!("CPU {cpu}: {own} s of {seconds} s"))
    };
    let mut wrong: Vec<_> = all.iter().filter_map(differs).collect();
    if shared.is_empty() {
        wrong.push("no CPU has a share".to_owned());
    }
    wrong
}
