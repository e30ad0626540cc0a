//! Bypass under Xen: the children's interrupts do not arrive.

use super::{Case, Explanation, Judgement, Kind, Remedy};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "bypass-under-xen",
    title: "a VMD in bypass under Xen",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "a kernel that remaps under Xen (6.15, or a later 6.12 or 6.1)",
        price: "a reboot; remap's shared vectors",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let is_xen = case.picture.machine.is_xen();
    match case.group.mode {
        Some(Mode::Bypass) if is_xen => Judgement::supported(
            "the controller is in bypass and the host is a Xen domain: Xen does not know of its \
             children, whose interrupts are not delivered",
        ),
        _ if is_xen => Judgement::contradicted("the controller is not in bypass"),
        _ => Judgement::contradicted("this is no Xen domain"),
    }
}
