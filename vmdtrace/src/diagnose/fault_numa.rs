//! Interrupts are served on another NUMA node than the controller's.

use super::{Case, Explanation, Judgement, Kind, NEEDS_CPUS, Remedy, percent};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "numa-remote-interrupts",
    title: "interrupts are served on another NUMA node than the controller's",
    kind: Kind::Fault,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[Remedy {
        what: "in remap: move the controller's vectors to its node; else let the application run \
               there",
        price: "irqbalance moves vectors again: ban them there; the other node's CPUs serve less",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    if case.picture.machine.numa_nodes.len() < 2 && !case.picture.machine.numa_nodes.is_empty() {
        return Judgement::contradicted("the host has one NUMA node");
    }
    let Some(share) = case.serving().and_then(|serving| serving.other_node) else {
        return Judgement::not_measured(
            "the nodes of the controller and of the CPUs that serve it are not known",
            NEEDS_CPUS,
        );
    };
    let text = format!(
        "{} of the interrupt time is on another node than the controller's",
        percent(share)
    );
    let judgement = if share >= case.thresholds.other_node_high {
        Judgement::supported(text)
    } else {
        Judgement::contradicted(text)
    };
    judgement.with("on other nodes", Some(share), "of the interrupt time")
}
