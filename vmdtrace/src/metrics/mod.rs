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

mod collector;
mod family;
mod host;
mod lines;
mod probes;
mod process;
#[cfg(test)]
mod tests;

use prometheus::proto::MetricFamily;

use crate::snapshot::{Counters, Host, Snapshot};

pub use collector::{CONTENT_TYPE, ScrapeError, SnapshotCollector, scrape};

/// The families of one Snapshot. Families without a series are left out.
#[must_use]
pub fn families(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let Snapshot {
        taken_ns: _,
        host,
        topology,
        counters,
        probes,
    } = snapshot;
    // The machine's own facts are node_exporter's to tell.
    let Host {
        kernel: _,
        possible_cpus: _,
    } = host;
    let Counters { lines, cpus } = counters;
    let counted = snapshot.counted();

    let mut families = Vec::new();
    probes::add(probes, &mut families);
    host::add(topology, &mut families);
    lines::add_disks(topology, lines, counted, &mut families);
    lines::add_watched(lines, counted, &mut families);
    lines::add_cpus(cpus, counted, &mut families);
    families
}
