//! H7: the IOMMU translates, and all disks of a VMD share one domain.

use super::{Case, Explanation, Judgement, Kind, Remedy, kernel};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h7-iommu",
    title: "the IOMMU translates every transfer",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "iommu=pt on the kernel's command line",
            price: "devices of the host can write to any of its memory",
        },
        Remedy {
            what: "iommu.strict=0, where the domain is strict",
            price: "a device may use a mapping for some milliseconds after its end",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let kinds = &case.group.iommu;
    let all = kinds.join(", ");
    let translates = |kinds: &[String]| kinds.iter().any(|it| it.starts_with("DMA"));
    let is_strict = kinds.iter().any(|it| it == "DMA") && tells_strict(&case.picture.kernel);
    let shared = case.group.mode.is_some() && case.group.busy_disks > 1;
    let judgement = if kinds.is_empty() {
        Judgement::contradicted("the disks are in no IOMMU domain")
    } else if !translates(kinds) {
        Judgement::contradicted(format!("the IOMMU domain is {all}: nothing is translated"))
    } else if let Some((_, faster)) = case.faster {
        if translates(&faster.iommu) {
            Judgement::contradicted(format!(
                "the domain is {all}, and translates in both windows"
            ))
        } else if case
            .request_growth()
            .is_some_and(|growth| growth >= case.thresholds.latency_grew)
        {
            Judgement::supported(format!(
                "the domain is {all} here and translates nothing in the faster window, and requests \
                 take longer"
            ))
        } else {
            Judgement::possible(
                format!("the domain is {all} here alone, but requests do not take longer"),
                "two windows that differ in this alone",
            )
        }
    } else if is_strict {
        Judgement::supported(format!(
            "the domain is {all}: every request waits for the IOMMU to forget its mapping{}",
            if shared {
                ", and all disks of the controller share it"
            } else {
                ""
            }
        ))
    } else {
        Judgement::possible(
            format!("the domain is {all}: mappings cost CPU time, but are forgotten in batches"),
            "the same with iommu=pt: `vmdtrace compare`",
        )
    };
    judgement
        .with(
            "busy disks",
            Some(f64::from(case.group.busy_disks)),
            "disks",
        )
        .with("latency against the faster", case.request_growth(), "times")
}

/// Whether a domain called `DMA` is a strict one. Until 5.14 lazy ones were called so,
/// too (`iommu_group_show_type` in drivers/iommu/iommu.c).
fn tells_strict(release: &str) -> bool {
    kernel::is_at_least(release, (5, 15))
}
