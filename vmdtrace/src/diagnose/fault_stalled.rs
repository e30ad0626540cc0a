//! Requests are in flight and none ends.

use super::picture::{DiskUse, Stalled};
use super::{Case, Explanation, Judgement, Kind, Remedy, lost_by};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "stalled-disk",
    title: "a disk with requests in flight does not answer",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "look for \"I/O timeout\" (nothing was completed) and for PCI Express errors in dmesg; \
               reset the disk, or replace it",
        price: "a reset fails what is in flight",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let disks = case.group.disks.iter();
    if disks.clone().all(|disk| disk.in_flight.is_none()) {
        return Judgement::not_measured(
            "what the disks have in flight is not known",
            "the kernel's counts of block devices",
        );
    }
    let stalled = disks.filter_map(|disk| Some((disk, disk.stalled.as_ref()?)));
    let count = stalled.clone().count() as f64;
    let Some((disk, stalled)) = stalled.max_by(|a, b| a.1.busy.total_cmp(&b.1.busy)) else {
        return judge_working(case);
    };
    judge_one(case, disk, stalled)
        .with("disks that end nothing", Some(count), "disks")
        .with(
            "time with requests in flight",
            Some(stalled.busy),
            "of the window",
        )
        .with(
            "commands that timed out",
            disk.timeouts.map(|it| it as f64),
            "commands",
        )
}

/// Every disk ends some of its requests; perhaps not all.
fn judge_working(case: &Case<'_>) -> Judgement {
    let disks = case.group.disks.iter();
    let late = disks.filter_map(|disk| {
        let undone = disk.timeouts?.saturating_sub(disk.lost_interrupts?);
        (undone > 0).then_some((disk, undone))
    });
    let Some((disk, undone)) = late.max_by_key(|&(_, undone)| undone) else {
        return Judgement::contradicted("every disk with requests in flight ends some");
    };
    let text = format!(
        "{undone} commands of {} timed out and were not done when the driver looked; it ends others",
        disk.name
    );
    match lost_by(case) {
        Some(id) => Judgement::possible(
            format!("{text}; {id} is reason enough"),
            "the same without that",
        ),
        None => Judgement::supported(text),
    }
    .with("not done in time", Some(undone as f64), "commands")
}

fn judge_one(case: &Case<'_>, disk: &DiskUse, stalled: &Stalled) -> Judgement {
    let name = &disk.name;
    let text = format!("{name} has {} in flight and ended none", stalled.requests);
    if let Some(lost) = disk.lost_interrupts.filter(|&lost| lost > 0) {
        return Judgement::contradicted(format!(
            "{text}, but {lost} commands were done when the driver looked: it answers, and its \
             interrupts do not come"
        ));
    }
    if let Some(id) = lost_by(case) {
        return Judgement::possible(
            format!("{text}; {id} is reason enough"),
            "the same without that",
        );
    }
    match disk.timeouts {
        Some(timeouts) if timeouts > 0 => {
            let what = if disk.lost_interrupts.is_some() {
                "were not done when the driver looked"
            } else {
                "timed out"
            };
            Judgement::supported(format!("{text}, and {timeouts} of its commands {what}"))
        }
        // One that was sent just before the window's end is no fault.
        _ if stalled.busy < 0.5 => Judgement::possible(text, "a longer window"),
        _ => Judgement::supported(text).settled_by(
            "whether its interrupts are lost or it does nothing: a window longer than the driver's \
             time-out (30 s; nvme_core.io_timeout)",
        ),
    }
}
