//! The CPUs have no free interrupt vectors left.

use super::{Case, Explanation, Judgement, Kind, Remedy};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "vector-exhaustion",
    title: "searches for a free interrupt vector fail",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: true,
    remedies: &[
        Remedy {
            what: "fewer queues of other devices (`ethtool -L`, a driver's parameter), then reload \
                   the driver of the disk",
            price: "less parallelism there; the disk is gone for that time",
        },
        Remedy {
            what: "more CPUs online: each has some 200 vectors",
            price: "none, where they were switched off",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let Some(failures) = case.picture.allocation_failures else {
        return Judgement::not_measured(
            "searches for a free vector are not counted",
            "the probes vector_alloc and vector_alloc_managed (`vmdtrace doctor`)",
        );
    };
    // Behind a remapping VMD the disks' interrupts take no vectors of CPUs.
    let groups = case.picture.groups.iter();
    let own = groups.filter(|group| group.mode != Some(Mode::Remap));
    let disks = || own.clone().flat_map(|group| &group.disks);
    let cpus = case.picture.usable_cpus;
    let short =
        || disks().filter(|disk| disk.came && cpus.is_some_and(|cpus| disk.io_queues < cpus));
    let judgement = if failures == 0 {
        Judgement::contradicted("no search for a free vector failed")
    } else if let Some(disk) = short().min_by_key(|disk| disk.io_queues) {
        Judgement::supported(format!(
            "{failures} searches for a free vector found none, and {}, which came meanwhile, has {} \
             queues for {} CPUs",
            disk.name,
            disk.io_queues,
            cpus.unwrap_or(0)
        ))
    } else {
        Judgement::possible(
            format!(
                "{failures} searches for a free vector found none on the CPUs they looked at; no \
                 disk is seen that lacks one for it"
            ),
            "dmesg of drivers that could not get interrupts; a recording while disks come",
        )
    };
    judgement
        .with("searches that failed", Some(failures as f64), "searches")
        .with(
            "disks that came with fewer queues than CPUs",
            Some(short().count() as f64),
            "disks",
        )
}
