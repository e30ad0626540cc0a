//! A child's interrupt was never enabled at the controller.

use super::{Case, Explanation, Judgement, Kind, NEEDS_LINES, Remedy};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "child-never-enabled",
    title: "a disk's interrupt is not enabled at the controller",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[
        Remedy {
            what: "another kernel: some of 6.17 did not enable the interrupts of a VMD's children",
            price: "a reboot",
        },
        Remedy {
            what: "remove the disk and scan for it again (`echo 1` to its `remove` in sysfs, then to \
                   /sys/bus/pci/rescan)",
            price: "everything on the disk has to be unmounted; on such a kernel it fails again",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let Some(children) = case
        .group
        .children
        .as_ref()
        .filter(|_| case.group.mode == Some(Mode::Remap))
    else {
        return Judgement::contradicted("no controller remaps its disks' interrupts");
    };
    let silent = children.silent.as_deref();
    let allocated = children.allocated.zip(children.enabled);
    let judgement = match (silent, allocated) {
        (Some([first, rest @ ..]), _) => Judgement::supported(match rest.len() {
            0 => format!("{first} was never called, though its vector was interrupted"),
            more => format!(
                "{first} and {more} more were never called, though their vectors were interrupted"
            ),
        }),
        (_, Some((allocated, 0))) if allocated > 0 => Judgement::supported(format!(
            "{allocated} interrupts were allocated for its children and none was enabled"
        )),
        (Some([]), _) if children.told > 0 => Judgement::contradicted(
            "every interrupt of its disks that can be told of is called by its vector",
        ),
        (_, Some((allocated, enabled))) if allocated > 0 => Judgement::contradicted(format!(
            "interrupts of its children were enabled {enabled} times, for {allocated} that were \
             allocated"
        )),
        (Some(_), _) => Judgement::not_measured(
            "too few interrupts of its vectors to tell whether they call its disks",
            "a window under load",
        ),
        (None, _) => Judgement::not_measured(
            "which of its disks' interrupts came is not known",
            NEEDS_LINES,
        ),
    };
    judgement
        .with(
            "interrupts that are not called",
            silent.map(|lines| lines.len() as f64),
            "lines",
        )
        .with(
            "of those that can be told",
            Some(f64::from(children.told)),
            "lines",
        )
        .with(
            "allocated",
            children.allocated.map(|it| it as f64),
            "interrupts",
        )
        .with("enabled", children.enabled.map(|it| it as f64), "times")
}
