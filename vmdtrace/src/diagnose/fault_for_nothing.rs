//! Queues that share a vector: each interrupt runs the handlers of all of them.

use super::thresholds::Thresholds;
use super::{Case, Explanation, Judgement, Kind, Remedy, percent};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "runs-for-nothing",
    title: "handlers run for nothing, because queues share vectors",
    kind: Kind::Fault,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "fewer queues per disk (boot with nr_cpus= or give the disks to fewer CPUs)",
            price: "less parallelism in the block layer",
        },
        Remedy {
            what: "fewer disks behind this VMD, or VMD off in the BIOS",
            price: "VMD off loses Intel's RAID and LED control",
        },
    ],
};

/// What so many runs for nothing per completion make of queues that share a vector.
pub(super) fn by_runs_for_nothing(
    per_completion: f64,
    thresholds: &Thresholds,
    text: String,
) -> Judgement {
    if per_completion >= thresholds.nothing_per_completion {
        Judgement::supported(text)
    } else if per_completion > thresholds.nothing_few {
        Judgement::possible(text, "the CPU time per I/O with fewer queues per vector")
    } else {
        Judgement::contradicted(text)
    }
}

fn judge(case: &Case<'_>) -> Judgement {
    let group = case.group;
    let Some(factor) = group.sharing_factor.filter(|&factor| factor > 1.0) else {
        return Judgement::contradicted("no vector serves more than one queue");
    };
    let (Some(nothing), Some(share)) = (group.nothing_per_completion, group.nothing_share) else {
        return Judgement::not_measured(
            format!("{factor:.1} queues share a vector; runs for nothing are not counted"),
            "the probes of interrupts and nvme_sq",
        );
    };
    let text = format!(
        "{factor:.1} queues share a vector: {} of the handlers that its interrupts run find \
         nothing, {nothing:.2} for each completion",
        percent(share)
    );
    by_runs_for_nothing(nothing, case.thresholds, text)
        .with("runs for nothing", Some(nothing), "per completion")
        .with("of all runs of its disks' handlers", Some(share), "of runs")
        .with("queues per vector", Some(factor), "lines")
        .with("runs per interrupt", group.runs_per_interrupt, "runs")
}
