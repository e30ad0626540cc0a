//! The per-CPU cache of bios is empty where bios are allocated, because they are
//! freed in softirqs, or on other CPUs, whose caches are full.

use super::{Case, Explanation, Judgement, Kind, Remedy, percent};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "bio-cache-starved",
    title: "the per-CPU cache of bios is starved (worth single-digit per cent)",
    kind: Kind::Fault,
    judge,
    of_idle: false,
    of_host: true,
    remedies: &[Remedy {
        what: "let interrupts come where requests are made (h3-placement)",
        price: "as there; the gain is single-digit per cent, never a halving",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let Some(bio) = &case.picture.bio else {
        return Judgement::not_measured(
            "allocations of bios are not counted, or there were none",
            "the probes of bio_alloc_bioset",
        );
    };
    let judgement = match (bio.hit_share, bio.softirq_share) {
        (None, _) => Judgement::contradicted("no bio was eligible for the cache"),
        (Some(hits), _) if hits >= thresholds.bio_hits => Judgement::contradicted(format!(
            "{} of the eligible bios hit the cache",
            percent(hits)
        )),
        (Some(hits), Some(softirq)) if softirq >= thresholds.bio_softirq => {
            Judgement::supported(format!(
                "only {} of the eligible bios hit the cache, and {} of those with a cache are freed \
                 in softirqs, which bypass it",
                percent(hits),
                percent(softirq)
            ))
        }
        // A cache holds no more than `ALLOC_CACHE_MAX` (block/bio.c). One that stays full
        // gets more bios than its CPU takes: those that take them are others.
        (Some(hits), _)
            if bio
                .overflow_share
                .is_some_and(|overflow| overflow >= thresholds.bio_softirq) =>
        {
            Judgement::supported(format!(
                "only {} of the eligible bios hit the cache, and {} of those with a cache are freed \
                 on a CPU whose cache is full: not on the one that allocates them",
                percent(hits),
                percent(bio.overflow_share.unwrap_or_default())
            ))
        }
        (Some(hits), _) => Judgement::possible(
            format!("only {} of the eligible bios hit the cache", percent(hits)),
            "the contexts bios are freed in, and on which CPU",
        ),
    };
    judgement
        .with("hits", bio.hit_share, "of eligible bios")
        .with(
            "freed in softirqs",
            bio.softirq_share,
            "of bios with a cache",
        )
        .with(
            "freed where the cache is full",
            bio.overflow_share,
            "of bios with a cache",
        )
        .with("eligible", bio.eligible_share, "of all bios")
}
