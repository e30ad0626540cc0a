//! H1: the CPUs that serve interrupts have no time left.

use super::{Case, Explanation, Judgement, Kind, NEEDS_CPUS, Remedy, Time, percent};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h1-cpu-time",
    title: "interrupts take all the time of the CPUs that serve them",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "polled I/O (nvme.poll_queues and io_uring with IOPOLL)",
            price: "the polling CPUs are always busy, and queues are taken from interrupts",
        },
        Remedy {
            what: "the disks' interrupt coalescing (NVMe feature 0x08)",
            price: "every synchronous request waits for up to the time that is set",
        },
        Remedy {
            what: "more CPUs for the same disks, or fewer disks on this host",
            price: "hardware",
        },
    ],
};

pub(super) fn judge(case: &Case<'_>) -> Judgement {
    let Some(serving) = case.serving() else {
        return Judgement::not_measured("which CPUs serve the interrupts is not known", NEEDS_CPUS);
    };
    let Some(busy) = serving.busy else {
        return Judgement::not_measured("how busy the serving CPUs are is not known", NEEDS_CPUS);
    };
    let others_idle = serving
        .others_busy
        .is_some_and(|others| others < case.thresholds.cpu_free);
    let text = format!(
        "the CPUs that serve interrupts are busy for {}",
        percent(busy)
    );
    let judgement = match (case.time(), serving.interrupt_part) {
        (Time::Left, _) => Judgement::contradicted(format!("{text}: they have time left")),
        (Time::Out, Some(part)) if part < case.thresholds.interrupt_part => Judgement::possible(
            format!(
                "{text}, but handlers and softirqs are only {} of that: something else fills them",
                percent(part)
            ),
            "what else runs there (perf top -C)",
        ),
        (Time::Out, Some(_)) if is_concentrated(case) && others_idle => Judgement::possible(
            format!(
                "{text}, while other CPUs have time: it is where the interrupts go that counts"
            ),
            "the same load with the interrupts spread (h3-placement)",
        ),
        (Time::Out, Some(part)) => Judgement::supported(format!(
            "{text}, and handlers and softirqs are {} of that",
            percent(part)
        )),
        (Time::Out, None) => Judgement::possible(
            format!("{text}; how much of it are interrupts is not known"),
            "time in handlers (not --level counters) and the kernel's times of softirqs",
        ),
        (Time::Between | Time::Unknown, _) => Judgement::possible(
            format!("{text}: neither full nor free"),
            "a window with more load, or fewer CPUs for the same",
        ),
    };
    judgement
        .with("busy, serving CPUs", Some(busy), "of wall time")
        .with("busy, other CPUs", serving.others_busy, "of wall time")
        .with(
            "handlers and softirqs",
            serving.interrupt_part,
            "of the busy time",
        )
        .with(
            "interrupt time",
            case.group.interrupt_ns_per_io,
            "ns per I/O",
        )
}

/// Whether interrupts go to far fewer CPUs than they could.
pub(super) fn is_concentrated(case: &Case<'_>) -> bool {
    concentration(case).is_some_and(|it| it <= case.thresholds.concentrated)
}

/// Effective CPUs of those that interrupts could go to; absent where there is
/// nothing to spread, or it is not known.
pub(super) fn concentration(case: &Case<'_>) -> Option<f64> {
    let serving = case.serving()?;
    let usable = f64::from(case.picture.usable_cpus?);
    let mut could = serving.effective_lines?.min(usable);
    if case.group.mode != Some(Mode::Remap) {
        // A queue's interrupts go to one of its own CPUs, the same for each disk:
        // too few queues are another fault (h5-queues).
        let queues = case.group.disks.iter().map(|disk| disk.io_queues);
        could = could.min(f64::from(queues.max()?));
    }
    // With less than two there is nothing to spread.
    (could >= 1.9).then(|| serving.effective_cpus / could)
}
