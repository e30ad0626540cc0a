//! Snapshot -> Prometheus families. Everything is built fresh from one
//! [`Snapshot`]: no state, no clock, no time stamps.
//!
//! The rules, so that every sum over labels means something:
//! - A counter is absent, never 0, where nothing could count it
//!   ([`Snapshot::counted`] says so).
//! - Every controller and disk of the topology has its series from the first
//!   scrape; a disk behind a VMD that remaps has no hardware interrupts. A line keeps its series when its disk is gone.
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
mod selection;
mod shares;
#[cfg(test)]
mod tests;

use prometheus::proto::MetricFamily;

use crate::snapshot::{self, Counters, Host, Snapshot};

pub use collector::{CONTENT_TYPE, ScrapeError, SnapshotCollector, scrape};
pub use selection::{Collector, Detail, Selection, SelectionError};

/// Which families are added where some can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Those that are there by default.
    Sums,
    /// The same by disk.
    Disks,
}

/// The families of one Snapshot. Families without a series are left out.
#[must_use]
pub fn families(snapshot: &Snapshot, detail: Detail) -> Vec<MetricFamily> {
    collect(snapshot, detail.into(), |_| {})
}

/// The families of the collectors that are selected. `done` is called after each
/// of these.
fn collect(
    snapshot: &Snapshot,
    selection: Selection,
    mut done: impl FnMut(Collector),
) -> Vec<MetricFamily> {
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
        shares,
        samples: _,
        other_samples: _,
    } = counters;
    let counted = snapshot.counted();
    // Sums have no lines and no disks to tell apart.
    let is_whole = *snapshot_detail == snapshot::Detail::Lines;
    let at_rest = lines::lines_at_rest(topology);
    let owned = || lines::owned(&at_rest).chain(lines::owned(lines));

    let mut families = Vec::new();
    for collector in Collector::ALL {
        if !selection.has(collector) {
            continue;
        }
        let families = &mut families;
        match collector {
            Collector::Topology => host::add(topology, families),
            Collector::Probes => probes::add(probes, families),
            Collector::Interrupts => {
                lines::add_owned(owned(), counted, families);
                lines::add_watched(lines, counted, families);
                lines::add_cpus(cpus, counted, families);
            }
            Collector::Completions => {
                placement::add(topology, counters, owned(), Part::Sums, counted, families);
            }
            Collector::Losses => loss::add(topology, losses, Part::Sums, counted, families),
            Collector::Msi => msi::add(snapshot, msi, Part::Sums, counted, families),
            Collector::Bios => bio::add(bio, counted.bio, families),
            Collector::Lines if is_whole => {
                lines::add_lines(lines, selection.detail, counted, families);
            }
            Collector::Disks if is_whole => {
                placement::add(topology, counters, owned(), Part::Disks, counted, families);
                outside::add(topology, outside, counted, families);
                loss::add(topology, losses, Part::Disks, counted, families);
                msi::add(snapshot, msi, Part::Disks, counted, families);
            }
            Collector::Cpus => shares::add(shares, counted, families),
            Collector::Lines | Collector::Disks => continue,
            // Not of the Snapshot: whoever serves adds it.
            Collector::Process => continue,
        }
        done(collector);
    }
    families
}
