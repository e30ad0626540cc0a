//! The figures as JSON.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use xtask_lab::experiment::Run;

#[derive(Serialize)]
struct Report<'a> {
    /// Counts and ratios hold on a real server too, speeds do not.
    emulated_device: bool,
    prometheus: &'a str,
    runs: &'a [Run],
}

pub(super) fn write(path: &Path, prometheus: &str, runs: &[Run]) -> anyhow::Result<()> {
    let report = Report {
        emulated_device: true,
        prometheus,
        runs,
    };
    let mut text = serde_json::to_string_pretty(&report)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
