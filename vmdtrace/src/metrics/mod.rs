//! Snapshot -> Prometheus families. Everything is built fresh from one
//! [`Snapshot`]: no state, no clock, no time stamps.
//!
//! The rules, so that every sum over labels means something:
//! - A counter is absent, never 0, where nothing could count it
//!   ([`Snapshot::counted`] says so).
//! - Every controller and disk of the topology has its series from the first
//!   scrape. A line keeps its series when its disk is gone.
//! - `disk=""` is the controller's own vectors and its children that are not
//!   NVMe disks; `controller=""` is a disk that is not behind a VMD.
//!
//! Every family is described in docs/metrics.md; a test compares the two.

mod bio;
mod collector;
mod family;
mod host;
mod lines;
mod loss;
mod msi;
pub mod openmetrics;
mod outside;
mod placement;
mod probes;
mod process;
#[cfg(test)]
mod tests;

use prometheus::proto::MetricFamily;

use crate::snapshot::{self, Counters, Host, Snapshot};

pub use collector::{CONTENT_TYPE, ScrapeError, SnapshotCollector, scrape};

/// What is exported beside the default families, at the price of more series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The counters of every interrupt line beside the sums per disk.
    pub lines: bool,
    /// What is otherwise summed up by controller, for every disk.
    pub disks: bool,
}

/// The families of one Snapshot. Families without a series are left out.
#[must_use]
pub fn families(snapshot: &Snapshot, detail: Detail) -> Vec<MetricFamily> {
    let Detail {
        lines: each_line,
        disks: each_disk,
    } = detail;
    let Snapshot {
        taken_ns: _,
        counting_since_ns: _,
        detail: snapshot_detail,
        host,
        topology,
        counters,
        probes,
        // The kernel's own counts are node_exporter's to tell.
        activity: _,
    } = snapshot;
    // The machine's own facts are node_exporter's to tell.
    let Host {
        kernel: _,
        possible_cpus: _,
    } = host;
    let Counters {
        lines,
        cpus,
        losses,
        outside,
        msi,
        bio,
        samples: _,
        other_samples: _,
    } = counters;
    let counted = snapshot.counted();

    let mut families = Vec::new();
    probes::add(probes, &mut families);
    host::add(topology, &mut families);
    // Sums have no lines and no disks to tell apart.
    let is_whole = *snapshot_detail == snapshot::Detail::Lines;
    let (each_line, each_disk) = (each_line && is_whole, each_disk && is_whole);
    let at_rest = lines::lines_at_rest(topology);
    lines::add_owned(&at_rest, lines, each_line, counted, &mut families);
    let owned = lines::owned(&at_rest).chain(lines::owned(lines));
    placement::add(topology, counters, owned, each_disk, counted, &mut families);
    lines::add_watched(lines, counted, &mut families);
    lines::add_cpus(cpus, counted, &mut families);
    outside::add(topology, outside, each_disk, counted, &mut families);
    loss::add(topology, losses, each_disk, counted, &mut families);
    msi::add(snapshot, msi, each_disk, counted, &mut families);
    bio::add(bio, counted.bio, &mut families);
    families
}
