//! Fewer queues than CPUs because CPUs are isolated: as it should be.

use super::isolation::Cpus;
use super::{Case, Explanation, Judgement, Kind, Remedy};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "queues-shrunk-by-isolation",
    title: "isolated CPUs have no queues of their own (as it should be)",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "none is needed; where isolated CPUs do much I/O, isolate fewer",
        price: "interrupts on what was kept free of them",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let Some(cpus) = Cpus::of(&case.picture.machine) else {
        return Judgement::not_measured(
            "which CPUs are online or isolated is not known",
            "sysfs of the host, or a newer recording",
        );
    };
    let disks = case.group.disks.iter();
    let fewest = disks.map(|disk| disk.io_queues).filter(|&it| it > 0).min();
    let Some(fewest) = fewest else {
        return Judgement::not_measured(
            "the disks' queues with interrupts are not known",
            "sysfs of the host",
        );
    };
    let (online, isolated) = (cpus.online.len() as f64, cpus.isolated.len() as f64);
    let queues = f64::from(fewest);
    let judgement = if cpus.isolated.is_empty() {
        Judgement::contradicted("no CPU is isolated")
    } else if queues >= online {
        Judgement::contradicted("every CPU has a queue of its own, isolated or not")
    } else if queues >= online - isolated {
        // No fault: said so that nobody looks for one.
        Judgement::possible(
            format!(
                "{isolated} of {online} CPUs are isolated, and a disk has {fewest} queues: one for \
                 each of the others, as it should be"
            ),
            "nothing is to be settled: it is no fault",
        )
    } else {
        Judgement::contradicted(format!(
            "a disk has {fewest} queues: fewer than there are CPUs that are not isolated"
        ))
    };
    judgement
        .with("queues of a disk", Some(queues), "queues")
        .with("isolated", Some(isolated), "CPUs")
        .with("online", Some(online), "CPUs")
}
