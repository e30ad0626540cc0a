//! Bios are not eligible for the per-CPU cache on this kernel.

use super::{Case, Explanation, Judgement, Kind, Remedy, percent};
use crate::snapshot::bio::BioRegime;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "bio-cache-not-eligible",
    title: "the per-CPU cache of bios does not serve this load (worth single-digit per cent)",
    kind: Kind::Fault,
    judge,
    of_idle: false,
    of_host: true,
    remedies: &[Remedy {
        what: "io_uring (polled before 6.2), or a kernel from 6.19 on, which serves every small bio",
        price: "a change of the application or the kernel; the gain is single-digit per cent, never \
                a halving",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let Some(bio) = &case.picture.bio else {
        return Judgement::not_measured(
            "allocations of bios are not counted, or there were none",
            "the probes of bio_alloc_bioset",
        );
    };
    let Some(eligible) = bio.eligible_share else {
        return Judgement::not_measured("no bio was allocated", "a window under load");
    };
    let regime = match bio.regime {
        BioRegime::None => "the kernel has no such cache",
        BioRegime::PolledOnly => "the kernel has it for polled I/O",
        BioRegime::OptIn => "the kernel has it for whoever asks",
        BioRegime::DefaultOn => "the kernel has it for every small bio of a set with a cache",
        BioRegime::Unknown => "for what the kernel has it is not known",
    };
    let text = format!("{} of the bios are eligible; {regime}", percent(eligible));
    let judgement = if eligible >= 0.5 {
        Judgement::contradicted(text)
    } else {
        // As this kernel is meant to be: no fault.
        Judgement::possible(text, "the same load by io_uring, or on a newer kernel")
    };
    judgement.with("eligible", Some(eligible), "of all bios")
}
