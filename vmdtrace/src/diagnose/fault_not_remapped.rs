//! Bypass where the IOMMU remaps interrupts and those of the disks are not made
//! for it.

use super::{Case, Explanation, Judgement, Kind, Remedy};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "bypass-without-remapping",
    title: "a VMD in bypass whose disks' interrupts the IOMMU does not know",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[
        Remedy {
            what: "a kernel from 5.19 on (or a stable one with the same change)",
            price: "a reboot",
        },
        Remedy {
            what: "boot with intremap=off",
            price: "devices can raise any interrupt: no safe passthrough to virtual machines, and \
                    no more than 255 CPUs",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let group = case.group;
    if group.mode != Some(Mode::Bypass) {
        return Judgement::contradicted("no controller in bypass");
    }
    let (known, plain) = (group.known_chips, group.plain_chips);
    let judgement = match case.picture.machine.interrupt_remapping {
        Some(false) => Judgement::contradicted("the IOMMU does not remap interrupts here"),
        Some(true) if known > 0 && plain > 0 => Judgement::supported(format!(
            "the IOMMU remaps interrupts, and {plain} of {known} of the disks' are not made for it: \
             it blocks them"
        )),
        Some(true) if known > 0 => {
            Judgement::contradicted("the IOMMU remaps the disks' interrupts as it does others")
        }
        Some(true) => Judgement::not_measured(
            "the interrupt chips of its disks are not known",
            "/sys/kernel/irq of the host",
        ),
        None => Judgement::not_measured(
            "whether the IOMMU remaps interrupts is not known",
            "/sys/kernel/irq of the host, or a newer recording",
        ),
    };
    judgement
        .with("not made for it", Some(f64::from(plain)), "lines")
        .with("whose chip is known", Some(f64::from(known)), "lines")
}
