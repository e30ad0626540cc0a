//! One scrape: take a Snapshot, make families, encode.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TextEncoder};

use super::family::GaugeFamily;
use super::{Detail, families, process};
use crate::snapshot::source::{SnapshotError, SnapshotSource};

/// The text format's content type; the encoder's own constant leaves out the
/// character set.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Why a scrape gave no text.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    #[error(transparent)]
    Snapshot(#[from] Arc<SnapshotError>),
    #[error("cannot encode the metrics")]
    Encode(#[from] prometheus::Error),
}

/// A collector over a source of Snapshots. It lives for one scrape: nothing is
/// kept from one to the next, and a failure belongs to the scrape that saw it.
pub struct SnapshotCollector {
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    failure: Arc<OnceLock<Arc<SnapshotError>>>,
}

impl std::fmt::Debug for SnapshotCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotCollector")
            .field("detail", &self.detail)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl SnapshotCollector {
    pub fn new(source: Arc<dyn SnapshotSource>, detail: Detail) -> Self {
        Self {
            source,
            detail,
            failure: Arc::default(),
        }
    }
}

impl Collector for SnapshotCollector {
    /// None: which series there are is known only when they are collected.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let started = Instant::now();
        let taken = if self.detail == Detail::default() {
            self.source.sums()
        } else {
            self.source.snapshot()
        };
        let mut families = match taken {
            Ok(snapshot) => families(&snapshot, self.detail),
            Err(error) => {
                // The trait has no way to fail; `scrape` asks afterwards.
                let _already_failed = self.failure.set(Arc::new(error));
                return Vec::new();
            }
        };
        let mut duration = GaugeFamily::new(
            "vmdtrace_scrape_duration_seconds",
            "How long this scrape took to read and compute everything, before encoding.",
            ["collector"],
        );
        duration.set(["snapshot"], started.elapsed().as_secs_f64());
        duration.push_to(&mut families);
        add_build_info(&mut families);
        process::add(&mut families);
        families
    }
}

fn add_build_info(families: &mut Vec<MetricFamily>) {
    let mut info = GaugeFamily::new(
        "vmdtrace_build_info",
        "The version of vmdtrace that serves this, and the Git commit it was built from.",
        ["version", "revision"],
    );
    let revision = option_env!("VMDTRACE_REVISION")
        .filter(|revision| !revision.is_empty())
        .unwrap_or("unknown");
    info.set([env!("CARGO_PKG_VERSION"), revision], 1.0);
    info.push_to(families);
}

/// The text of one scrape, from exactly one Snapshot. Blocks.
pub fn scrape(source: &Arc<dyn SnapshotSource>, detail: Detail) -> Result<String, ScrapeError> {
    let collector = SnapshotCollector::new(Arc::clone(source), detail);
    let failure = Arc::clone(&collector.failure);
    let registry = Registry::new();
    registry.register(Box::new(collector))?;
    let families = registry.gather();
    if let Some(error) = failure.get() {
        return Err(Arc::clone(error).into());
    }
    Ok(TextEncoder::new().encode_to_string(&families)?)
}
