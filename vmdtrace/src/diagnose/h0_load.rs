//! H0: the load itself fell.

use super::{Case, Explanation, Judgement, Kind, Remedy};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h0-load",
    title: "the load keeps less in flight",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[Remedy {
        what: "look at the application: more requests in flight, more jobs, fewer pauses",
        price: "latency rises with the depth once the disks are at their limit",
    }],
};

const TWO: &str = "a second window with the load as it was: `vmdtrace compare`";

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let Some(in_flight) = case.group.in_flight_per_disk() else {
        return Judgement::not_measured(
            "how many requests are in flight is not known",
            "the kernel's counts of block devices (passthrough commands are not in them)",
        );
    };
    let latency = case.group.latency_us;
    let judgement = match (case.in_flight_ratio(), case.request_growth()) {
        (Some(depth), Some(growth)) => {
            let text = format!(
                "{} of the faster window's requests are in flight per disk, at {growth:.2} times \
                 its latency",
                super::percent(depth)
            );
            if depth >= thresholds.same_in_flight {
                Judgement::contradicted(text)
            } else if growth <= thresholds.latency_same {
                Judgement::supported(text)
            } else {
                Judgement::possible(text, "two windows of the same load")
            }
        }
        _ if case.faster.is_some() => {
            Judgement::not_measured("the other window does not tell its requests in flight", TWO)
        }
        _ if in_flight >= thresholds.deep_in_flight => Judgement::contradicted(format!(
            "{in_flight:.0} requests are in flight per disk: enough to keep a disk at its limit"
        )),
        _ => Judgement::possible(
            format!(
                "only {in_flight:.1} requests are in flight per disk, which bounds the rate \
                 whatever serves them (Little)"
            ),
            TWO,
        ),
    };
    judgement
        .with("in flight per disk", Some(in_flight), "requests")
        .with("latency", latency, "us")
        .with(
            "in flight against the faster",
            case.in_flight_ratio(),
            "times",
        )
        .with("latency against the faster", case.request_growth(), "times")
}
