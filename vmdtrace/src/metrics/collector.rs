//! One scrape: take a Snapshot, make families, encode.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Registry, TextEncoder};

use super::family::GaugeFamily;
use super::{Collector as Part, Selection, collect, process};
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
    selection: Selection,
    failure: Arc<OnceLock<Arc<SnapshotError>>>,
}

impl std::fmt::Debug for SnapshotCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotCollector")
            .field("selection", &self.selection)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl SnapshotCollector {
    pub fn new(source: Arc<dyn SnapshotSource>, selection: impl Into<Selection>) -> Self {
        Self {
            source,
            selection: selection.into(),
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
        let mut durations = Durations::start();
        // Only these tell single lines and disks apart.
        let is_whole = [Part::Lines, Part::Disks].map(|part| self.selection.has(part));
        let taken = if is_whole == [false, false] {
            self.source.sums()
        } else {
            self.source.snapshot()
        };
        let snapshot = match taken {
            Ok(snapshot) => snapshot,
            Err(error) => {
                // The trait has no way to fail; `scrape` asks afterwards.
                let _already_failed = self.failure.set(Arc::new(error));
                return Vec::new();
            }
        };
        durations.took("snapshot");
        let mut families = collect(&snapshot, self.selection, |collector| {
            durations.took(collector.as_str());
        });
        if self.selection.has(Part::Process) {
            process::add(&mut families);
            durations.took(Part::Process.as_str());
        }
        durations.family.push_to(&mut families);
        add_build_info(&mut families);
        families
    }
}

/// How long each part of a scrape took.
struct Durations {
    family: GaugeFamily<1>,
    since: Instant,
}

impl Durations {
    fn start() -> Self {
        Self {
            family: GaugeFamily::new(
                "vmdtrace_scrape_duration_seconds",
                "How long each part of this scrape took: `snapshot` read the counters and the \
                 topology, the others made families of it.",
                ["collector"],
            ),
            since: Instant::now(),
        }
    }

    /// This part ends now, where the next one begins.
    fn took(&mut self, part: &str) {
        let now = Instant::now();
        let took = now.duration_since(self.since);
        self.family.set([part], took.as_secs_f64());
        self.since = now;
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
pub fn scrape(
    source: &Arc<dyn SnapshotSource>,
    selection: impl Into<Selection>,
) -> Result<String, ScrapeError> {
    let collector = SnapshotCollector::new(Arc::clone(source), selection);
    let failure = Arc::clone(&collector.failure);
    let registry = Registry::new();
    registry.register(Box::new(collector))?;
    let families = registry.gather();
    if let Some(error) = failure.get() {
        return Err(Arc::clone(error).into());
    }
    // Of one series, about. A text that grows is copied again and again.
    const BYTES: usize = 100;
    let series: usize = families.iter().map(|it| it.get_metric().len()).sum();
    let mut text = String::with_capacity(BYTES * series);
    TextEncoder::new().encode_utf8(&families, &mut text)?;
    Ok(text)
}
