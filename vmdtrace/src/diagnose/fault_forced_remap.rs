//! A controller that can bypass and remaps.

use super::{Case, Explanation, Judgement, Kind, Remedy, kernel};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "forced-remap",
    title: "a controller that could bypass was made to remap",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "in a virtual machine: pass the VMD through at the addresses it has on the host, or not at all",
        price: "the guest's address space is tied to the host's",
    }],
};

/// Server parts whose ids may bypass (`VMD_FEAT_CAN_BYPASS_MSI_REMAP` in
/// drivers/pci/controller/vmd.c).
const CAN_BYPASS: [u16; 2] = [0x28c0, 0x28c1];

fn judge(case: &Case<'_>) -> Judgement {
    let machine = &case.picture.machine;
    let release = &case.picture.kernel;
    let can_bypass = case
        .group
        .device_id
        .is_some_and(|id| CAN_BYPASS.contains(&id));
    if case.group.mode != Some(Mode::Remap) {
        return Judgement::contradicted("the controller does not remap");
    }
    if !can_bypass {
        return Judgement::contradicted("controllers of its kind always remap");
    }
    // The driver's own word, and where it has none its release's.
    let knows_bypass = machine
        .driver_knows_bypass
        .unwrap_or_else(|| kernel::is_at_least(release, (5, 13)));
    if !knows_bypass {
        return Judgement::contradicted("the driver knows no bypass, or is not understood");
    }
    // 5.16 to 5.18 remapped wherever the IOMMU did, and nothing but the release
    // tells that they do.
    if machine.interrupt_remapping != Some(false) && !kernel::is_at_least(release, (5, 19)) {
        return Judgement::possible(
            "kernels before 5.19 remap in virtual machines, and some of them wherever the IOMMU \
             remaps interrupts",
            "a kernel from 5.19 on",
        );
    }
    match (machine.is_xen(), machine.virtual_machine) {
        (true, _) => Judgement::supported("under Xen the driver always remaps"),
        (_, Some(true)) => Judgement::supported(
            "this is a virtual machine in which the controller's addresses are not the host's: the \
             driver then remaps",
        ),
        _ => Judgement::possible(
            "neither a virtual machine nor Xen: the driver was changed, or told to",
            "the parameters of the module vmd; `modinfo vmd`",
        ),
    }
}
