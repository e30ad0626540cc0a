//! Requests are in flight and none ends: interrupts get lost, or a child's
//! vector was never enabled.

use super::{Case, Explanation, Judgement, Kind, Remedy};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "stalled-disk",
    title: "a disk has requests in flight and none ends",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "look for \"completion polled\" (an interrupt was lost), \"I/O timeout\" (nothing was \
               completed) and DMAR faults in dmesg; boot another kernel: a child's interrupt was \
               never enabled in some of 6.17",
        price: "a reboot",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let known = case
        .group
        .disks
        .iter()
        .filter(|disk| disk.in_flight.is_some());
    if known.count() == 0 {
        return Judgement::not_measured(
            "what the disks have in flight is not known",
            "the kernel's counts of block devices",
        );
    }
    let stalled = case.group.disks.iter().filter_map(|disk| {
        let stalled = disk.stalled.as_ref()?;
        Some((disk, stalled))
    });
    let Some((disk, stalled)) = stalled.clone().max_by(|a, b| a.1.busy.total_cmp(&b.1.busy)) else {
        return Judgement::contradicted("every disk with requests in flight ends some");
    };
    let text = format!(
        "{} has {} in flight and ended none",
        disk.name, stalled.requests
    );
    // One that was sent just before the window's end is no fault.
    let judgement = if stalled.busy >= 0.5 {
        Judgement::supported(text)
    } else {
        Judgement::possible(text, "a longer window")
    };
    judgement
        .with("disks that end nothing", Some(stalled_count(case)), "disks")
        .with(
            "time with requests in flight",
            Some(stalled.busy),
            "of the window",
        )
}

fn stalled_count(case: &Case<'_>) -> f64 {
    let disks = case.group.disks.iter();
    disks.filter(|disk| disk.stalled.is_some()).count() as f64
}
