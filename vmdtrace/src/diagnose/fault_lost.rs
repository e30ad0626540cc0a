//! Interrupts of commands that were done did not come.

use super::{Case, Explanation, Judgement, Kind, Remedy, lost_by};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "lost-interrupts",
    title: "disks' interrupts get lost",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[
        Remedy {
            what: "look for DMAR or AMD-Vi faults in dmesg, and for a newer kernel and firmware of the \
                   disks and the BIOS",
            price: "a reboot; a firmware update takes the disk out of service",
        },
        Remedy {
            what: "VMD off in the BIOS, to see whether the same disks lose interrupts without it",
            price: "loses Intel's RAID and LED control",
        },
        Remedy {
            what: "a shorter nvme_core.io_timeout, so that lost ones are found sooner",
            price: "slow commands that were not lost are given up, too; it mends nothing",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let group = case.group;
    let Some(lost) = group.lost_interrupts else {
        return Judgement::not_measured(
            "whether commands that timed out were done is not counted",
            "the probes nvme_timeout, nvme_dev_disable and nvme_sq (`vmdtrace doctor`)",
        );
    };
    let timeouts = group.timeouts.unwrap_or(lost);
    let worst = group
        .disks
        .iter()
        .filter_map(|disk| Some((disk, disk.lost_interrupts.filter(|&it| it > 0)?)))
        .max_by_key(|&(_, lost)| lost);
    let unassigned = case.picture.unassigned_lost_interrupts.unwrap_or(0);
    let judgement = match (lost, lost_by(case)) {
        (0, _) if unassigned > 0 => Judgement::possible(
            format!("{unassigned} interrupts were lost of disks that could not be told"),
            "dmesg: \"completion polled\" names the disk",
        ),
        (0, _) if timeouts > 0 => Judgement::contradicted(format!(
            "{timeouts} commands timed out and none of them was done: it is not their interrupts"
        )),
        (0, _) if group.disks.iter().any(|disk| disk.stalled.is_some()) => Judgement::possible(
            "a disk has requests in flight and ended none; no command has timed out yet",
            "a window longer than the driver's time-out (30 s; nvme_core.io_timeout)",
        ),
        (0, _) => Judgement::contradicted("no command timed out"),
        (lost, Some(id)) => Judgement::possible(
            format!("{lost} interrupts of commands that were done did not come, as {id} has it"),
            "the same without that",
        ),
        (lost, None) => {
            let whose = worst.map_or_else(String::new, |(disk, of_disk)| {
                format!(", {of_disk} of them of {}", disk.name)
            });
            Judgement::supported(format!(
                "{lost} interrupts of commands that were done did not come{whose}: each was found \
                 by the driver's time-out, after 30 s unless nvme_core.io_timeout says otherwise"
            ))
        }
    };
    let of_disks = group.disks.iter().filter(|it| it.lost_interrupts > Some(0));
    judgement
        .with("lost interrupts", Some(lost as f64), "commands")
        .with("commands that timed out", Some(timeouts as f64), "commands")
        .with(
            "disks that lost some",
            Some(of_disks.count() as f64),
            "disks",
        )
}
