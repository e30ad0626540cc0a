//! What must not grow unnoticed: a file in the repository, and the comparison with
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::scrape::Scrape;
use crate::simulated::Shape;

/// Growth that is let pass, in hundredths.
const TOLERATED_PERCENT: u64 = 10;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) host: Shape,
    pub(crate) scrape: Scrape,
    /// By kernel release series, then by program.
    pub(crate) verified_instructions: BTreeMap<String, BTreeMap<String, u64>>,
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/cost.json")
}

/// Such as `6.18`.
pub(crate) fn kernel_series() -> anyhow::Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut parts = release.split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("{major}.{minor}")),
        _ => anyhow::bail!("not a kernel release: {release}"),
    }
}

impl Record {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let path = path();
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path(), text).with_context(|| path().display().to_string())
    }
}

/// What grew by more than is let pass, each in a sentence that says what to do.
pub(crate) fn growth<'a>(
    recorded: impl IntoIterator<Item = (&'a str, u64)>,
    now: &BTreeMap<&'a str, u64>,
) -> Vec<String> {
    let mut grown = Vec::new();
    let mut known = Vec::new();
    for (name, before) in recorded {
        known.push(name);
        let Some(&after) = now.get(name) else {
            continue;
        };
        let limit = before + before * TOLERATED_PERCENT / 100;
        if after > limit {
            grown.push(format!(
                "{name} grew from {before} to {after}, by more than {TOLERATED_PERCENT} %: make \
                 it cheaper, or run `cargo xtask bench record` and say why in the commit"
            ));
        }
    }
    for (name, after) in now {
        if !known.contains(name) {
            grown.push(format!(
                "{name} ({after}) is not in docs/cost.json: run `cargo xtask bench record`"
            ));
        }
    }
    grown
}

pub(crate) fn tells_growth() -> Result<(), libtest_mimic::Failed> {
    let now = BTreeMap::from([("same", 109), ("more", 112), ("less", 1), ("new", 5)]);
    let grown = growth(
        [("same", 100), ("more", 100), ("less", 100), ("gone", 9)],
        &now,
    );
    let names: Vec<_> = grown.iter().filter_map(|it| it.split(' ').next()).collect();
    assert_eq!(names, ["more", "new"], "{grown:?}");
    assert!(
        grown
            .iter()
            .all(|it| it.contains("cargo xtask bench record"))
    );
    Ok(())
}
