//! Each remapped interrupt reads its children's configuration space.

use super::{Case, Explanation, Judgement, Kind, Remedy};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "config-read-per-interrupt",
    title: "each interrupt reads the children's configuration space",
    kind: Kind::Fault,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[Remedy {
        what: "VMD off in the BIOS",
        price: "loses Intel's RAID and LED control. The reads work around an erratum: a kernel \
                without them loses interrupts",
    }],
};

/// Parts with the erratum (`VMD_FEAT_INTERRUPT_QUIRK` in
/// drivers/pci/controller/vmd.c, 7.3).
const WITH_ERRATUM: [u16; 2] = [0x7d0b, 0xad0b];

fn judge(case: &Case<'_>) -> Judgement {
    let has_erratum = case
        .group
        .device_id
        .is_some_and(|id| WITH_ERRATUM.contains(&id));
    if !has_erratum || case.group.mode != Some(Mode::Remap) {
        return Judgement::contradicted("the controller is no part with that erratum, or bypasses");
    }
    let own = case.group.vector_ns_per_child;
    let judgement = match own {
        None => Judgement::not_measured(
            "the time in the controller's own handlers is not known",
            "time in handlers (not --level counters)",
        ),
        Some(ns) if ns >= case.thresholds.config_read_ns => Judgement::supported(format!(
            "the controller's handler takes {ns:.0} ns by itself for each child it calls"
        )),
        Some(ns) => Judgement::contradicted(format!(
            "the controller's handler takes {ns:.0} ns by itself for each child it calls: too \
             little for a read"
        )),
    };
    judgement.with("handler without its children", own, "ns per child")
}
