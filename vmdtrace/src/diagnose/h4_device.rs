//! H4: disks, ports or the fabric below the controller are at a limit.

use super::{
    Case, Explanation, Judgement, Kind, NEEDS_CPUS, Remedy, Time, Verdict, h6_idle, h7_iommu,
    h9_link,
};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h4-device",
    title: "disks, ports or the fabric below the CPUs are at a limit",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "fewer busy disks per VMD domain: spread them over controllers",
            price: "slots and cabling",
        },
        Remedy {
            what: "VMD off in the BIOS, to compare: needs no patch",
            price: "loses Intel's RAID and LED control; the first report saw no gain against \
                    bypass",
        },
        Remedy {
            what: "the other VMD mode",
            price: "Linux has no switch for it: needs a patched vmd driver",
        },
    ],
};

const TWO: &str = "a window with fewer busy disks of the same domain, or with the VMD off: \
                   `vmdtrace compare`";

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let group = case.group;
    let growth = case.completion_growth();
    let judgement = verdict(case, growth);
    let latency = group.best_latency_us();
    judgement
        .with("busy disks", Some(f64::from(group.busy_disks)), "disks")
        .with("in flight per disk", group.in_flight_per_disk(), "requests")
        .with(
            latency.map_or("latency", |(_, kind)| kind),
            latency.map(|(us, _)| us),
            "us",
        )
        .with("latency against the faster", growth, "times")
        .with(
            "busy, serving CPUs",
            case.serving().and_then(|serving| serving.busy),
            "of wall time",
        )
        .with(
            "in flight it takes",
            Some(thresholds.deep_in_flight),
            "requests per disk",
        )
}

fn verdict(case: &Case<'_>, growth: Option<f64>) -> Judgement {
    let thresholds = case.thresholds;
    let group = case.group;
    let disks = group.busy_disks;
    if f64::from(disks) < thresholds.many_disks {
        return Judgement::not_measured(
            format!("{disks} busy disks do not show what more of them share"),
            TWO,
        );
    }
    let Some(in_flight) = group.in_flight_per_disk() else {
        return Judgement::not_measured("how many requests are in flight is not known", TWO);
    };
    if in_flight < thresholds.deep_in_flight {
        return Judgement::contradicted(format!(
            "{in_flight:.1} requests in flight per disk do not reach a limit below"
        ));
    }
    match case.time() {
        Time::Unknown => {
            return Judgement::not_measured(
                "whether the CPUs hold the requests up is not known",
                NEEDS_CPUS,
            );
        }
        Time::Out => {
            return Judgement::not_measured(
                "the CPUs are full, which hides what is below them",
                "the same with time left on the CPUs",
            );
        }
        Time::Between => {
            return Judgement::possible(
                "requests wait, and the serving CPUs are neither full nor free",
                TWO,
            );
        }
        Time::Left => {}
    }
    let Some(growth) = growth else {
        return Judgement::possible(
            format!(
                "{disks} disks of one domain have {in_flight:.0} requests in flight each, and the \
                 CPUs have time: what they wait for is below"
            ),
            TWO,
        );
    };
    let depth = case.in_flight_ratio().unwrap_or(0.0);
    if growth <= thresholds.latency_same {
        Judgement::contradicted(format!(
            "latency is {growth:.2} times that of the faster window: requests do not wait longer"
        ))
    } else if growth >= thresholds.latency_grew && depth >= thresholds.same_in_flight {
        if let Some(other) = other_cause(case) {
            return Judgement::possible(
                format!(
                    "requests take {growth:.2} times as long at the same depth, which {other} may \
                     account for"
                ),
                "two windows that differ in this alone",
            );
        }
        Judgement::supported(format!(
            "requests take {growth:.2} times as long at the same depth, and the CPUs that serve \
             them have time left: they wait below the CPUs. What it is there is not known; upstream \
             did not determine it either"
        ))
    } else {
        Judgement::possible(
            format!("requests take {growth:.2} times as long, at another depth or by too little"),
            TWO,
        )
    }
}

/// What else makes requests take longer, where it is supported.
fn other_cause(case: &Case<'_>) -> Option<&'static str> {
    let others = [
        &h9_link::EXPLANATION,
        &h7_iommu::EXPLANATION,
        &h6_idle::EXPLANATION,
    ];
    let mut others = others.into_iter();
    others
        .find(|other| (other.judge)(case).verdict == Verdict::Supported)
        .map(|other| other.id)
}
