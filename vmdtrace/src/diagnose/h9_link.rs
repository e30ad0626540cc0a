//! H9: a link runs below what its two ends can do.

use super::picture::DiskUse;
use super::{Case, Explanation, Judgement, Kind, Remedy, percent};
use crate::host::topology::Link;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h9-link",
    title: "a link is slower or narrower than it can be",
    kind: Kind::Hypothesis,
    judge,
    of_idle: true,
    of_host: false,
    remedies: &[Remedy {
        what: "reseat the disk, look at cable, backplane and the BIOS's link speed for the slot",
        price: "a moment without the disk",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let disks = &case.group.disks;
    let known: Vec<&DiskUse> = disks
        .iter()
        .filter(|disk| disk.link.as_ref().is_some_and(is_known))
        .collect();
    let reduced: Vec<(&DiskUse, String)> = known
        .iter()
        .filter_map(|disk| Some((*disk, reduction(disk)?)))
        .collect();
    let mut judgement = match &reduced[..] {
        [] if known.is_empty() => Judgement::not_measured(
            "the links of its disks are not known",
            "current_link_speed and max_link_speed in sysfs",
        ),
        [] => Judgement::contradicted(format!(
            "all {} links that are known are at their maximum",
            known.len()
        )),
        [(first, what), ..] => {
            let use_of = used(first)
                .map(|share| format!(", and {} of what it can carry now is used", percent(share)))
                .unwrap_or_default();
            Judgement::supported(format!(
                "{} of {} links are reduced: that of {} {what}{use_of}",
                reduced.len(),
                known.len(),
                first.name
            ))
        }
    };
    judgement = judgement
        .with("links reduced", Some(reduced.len() as f64), "disks")
        .with("links known", Some(known.len() as f64), "disks");
    let fullest = reduced.iter().filter_map(|(disk, _)| used(disk));
    judgement.with(
        "used of the fullest reduced link",
        fullest.max_by(f64::total_cmp),
        "of its capacity",
    )
}

fn is_known(link: &Link) -> bool {
    (link.current_speed.is_some() && link.max_speed.is_some())
        || (link.current_width.is_some() && link.max_width.is_some())
}

/// What a disk's link lacks. A port may be wider than any disk: that is no
/// reduction.
fn reduction(disk: &DiskUse) -> Option<String> {
    let link = disk.link.as_ref()?;
    let port = disk.port_link.as_ref();
    let slot = |of_port: Option<u32>, current: u32| {
        if of_port == Some(current) {
            ": the slot can do no more"
        } else {
            ""
        }
    };
    let mut parts = Vec::new();
    if let (Some(current), Some(max)) = (link.current_speed, link.max_speed)
        && current < max
    {
        let why = slot(port.and_then(|it| it.max_speed), current);
        parts.push(format!(
            "runs at {} of {} GT/s{why}",
            f64::from(current) / 1e3,
            f64::from(max) / 1e3
        ));
    }
    if let (Some(current), Some(max)) = (link.current_width, link.max_width)
        && current < max
    {
        let why = slot(port.and_then(|it| it.max_width), current);
        parts.push(format!("has {current} of {max} lanes{why}"));
    }
    (!parts.is_empty()).then(|| parts.join(" and "))
}

/// Share of the link's capacity that data alone takes.
fn used(disk: &DiskUse) -> Option<f64> {
    let link = disk.link.as_ref()?;
    let (speed, width) = (link.current_speed?, link.current_width?);
    // 8b/10b up to 5 GT/s, 128b/130b from 8 GT/s on.
    let coding = if speed < 8000 { 0.8 } else { 128.0 / 130.0 };
    let bytes = f64::from(speed) * 1e6 * f64::from(width) * coding / 8.0;
    (bytes > 0.0).then_some(disk.bytes_per_second? / bytes)
}
