//! H5: fewer queues than CPUs, or several queues on a vector.

use super::fault_for_nothing::by_runs_for_nothing;
use super::{Case, Explanation, Judgement, Kind, Remedy, Time, percent};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h5-queues",
    title: "too few queues, or too many on a vector",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "fewer queues per disk where they share vectors (boot with nr_cpus= or give the \
                   disks to fewer CPUs)",
            price: "less parallelism in the block layer",
        },
        Remedy {
            what: "let the application run on CPUs with different queues (/sys/block/*/mq)",
            price: "less freedom for the scheduler",
        },
        Remedy {
            what: "VMD off in the BIOS, or bypass where the controller can",
            price: "VMD off loses Intel's RAID and LED control; bypass cannot be chosen without a \
                    patched vmd driver",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let (sharing, queues) = (sharing(case), queues(case));
    // The better supported of the two; the other's numbers are told, too.
    let (mut first, second) = if queues.verdict < sharing.verdict {
        (queues, sharing)
    } else {
        (sharing, queues)
    };
    first.numbers.extend(second.numbers);
    first
}

fn sharing(case: &Case<'_>) -> Judgement {
    let group = case.group;
    let Some(factor) = group.sharing_factor else {
        return Judgement::contradicted("every queue has an interrupt of its own");
    };
    let judgement = if factor <= 1.0 {
        Judgement::contradicted("no vector serves more than one queue")
    } else {
        match group.nothing_per_completion {
            None => Judgement::not_measured(
                format!("{factor:.1} queues share a vector; runs for nothing are not counted"),
                "the probes of interrupts and nvme_sq",
            ),
            Some(nothing) => by_runs_for_nothing(
                nothing,
                case.thresholds,
                format!(
                    "{factor:.1} queues share a vector, and {nothing:.2} handlers run for nothing \
                     per completion"
                ),
            ),
        }
    };
    judgement
        .with("queues per vector", Some(factor), "lines")
        .with(
            "runs for nothing",
            group.nothing_per_completion,
            "per completion",
        )
}

fn queues(case: &Case<'_>) -> Judgement {
    let Some(cpus) = case.picture.usable_cpus else {
        return Judgement::not_measured("the number of CPUs is not known", "a newer recording");
    };
    let busy = case.group.disks.iter().filter(|disk| disk.busy);
    // A disk without any queue with an interrupt is polled, or not known.
    let fewest = busy.map(|disk| disk.io_queues).filter(|&it| it > 0).min();
    let Some(fewest) = fewest else {
        return Judgement::not_measured(
            "the disks' queues with interrupts are not known",
            "sysfs of the host",
        );
    };
    let busiest = case.serving().and_then(|serving| serving.busiest);
    let judgement = if fewest >= cpus {
        Judgement::contradicted("every CPU has a queue of its own on each disk")
    } else {
        let plural = if fewest == 1 { "" } else { "s" };
        let text = format!("a disk has {fewest} queue{plural} for {cpus} CPUs");
        let others = case.serving().and_then(|serving| serving.others_busy);
        match case.time_of(busiest) {
            Time::Out => {
                let text = format!(
                    "{text}, and a CPU that serves interrupts is full ({})",
                    percent(busiest.unwrap_or(1.0))
                );
                match case.time_of(others) {
                    Time::Left => Judgement::supported(format!(
                        "{text} while those that serve none have time"
                    )),
                    Time::Between | Time::Unknown => Judgement::possible(
                        format!("{text}; whether others have time is not clear"),
                        super::NEEDS_CPUS,
                    ),
                    Time::Out => {
                        Judgement::contradicted(format!("{text}, but so are those that serve none"))
                    }
                }
            }
            Time::Between => Judgement::possible(
                format!("{text}, and a CPU that serves them is neither full nor free"),
                "a window with more load",
            ),
            Time::Unknown => Judgement::possible(
                format!("{text}; how busy their CPUs are is not known"),
                super::NEEDS_CPUS,
            ),
            Time::Left => {
                Judgement::contradicted(format!("{text}, but every CPU that serves them has time"))
            }
        }
    };
    judgement
        .with("queues of a disk", Some(f64::from(fewest)), "queues")
        .with("CPUs that are not isolated", Some(f64::from(cpus)), "CPUs")
        .with("busy, the busiest serving CPU", busiest, "of wall time")
}
