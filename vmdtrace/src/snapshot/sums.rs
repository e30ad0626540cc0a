//! A Snapshot with the lines of each owner summed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::counts::Counts as _;
use super::{Counters, Detail, DiskSamples, LineCounts, LineKind, Snapshot};
use crate::host::topology::{DiskPath, PciAddress};

/// Lines with the same are one sum. What is never summed with anything else has
/// its number and name in it.
pub(super) type Key = (
    LineKind,
    Option<PciAddress>,
    Option<String>,
    Option<DiskPath>,
    Option<(u32, String)>,
);

impl Snapshot {
    /// The same with one entry for all lines of a disk, for all vectors of a
    /// controller and for its other children; number 0 and no name. Watched
    /// lines and lines without a known owner stay as they are. What is told of
    /// single CPUs beside our own counters is left out, and where vectors go.
    /// Sampled times are summed over the disks of a controller.
    ///
    /// Every sum over a disk or a controller is what it was.
    #[must_use]
    pub fn sums(&self) -> Self {
        let mut activity = self.activity.clone();
        if let Some(activity) = &mut activity {
            activity.cpus.clear();
            activity.vectors.clear();
        }
        Self {
            taken_ns: self.taken_ns,
            counting_since_ns: self.counting_since_ns,
            detail: Detail::Sums,
            host: self.host.clone(),
            topology: self.topology.clone(),
            counters: Counters {
                lines: lines(&self.counters.lines),
                cpus: self.counters.cpus.clone(),
                samples: samples(&self.counters.samples),
                other_samples: self.counters.other_samples.clone(),
                bio: self.counters.bio.clone(),
                losses: self.counters.losses.clone(),
                outside: self.counters.outside.clone(),
                shares: self.counters.shares.clone(),
                msi: self.counters.msi.clone(),
            },
            probes: self.probes.clone(),
            activity,
        }
    }
}

/// The lines of each owner summed.
pub(super) fn lines(lines: &[LineCounts]) -> Vec<LineCounts> {
    let mut sums: BTreeMap<Key, LineCounts> = BTreeMap::new();
    for line in lines {
        match sums.entry(key(line)) {
            Entry::Occupied(mut sum) => {
                sum.get_mut()
                    .combine(line, &mut |sum: u64, count| sum.saturating_add(count));
            }
            Entry::Vacant(place) => {
                let sum = if is_alone(place.key()) {
                    line.clone()
                } else {
                    of_one(line)
                };
                place.insert(sum);
            }
        }
    }
    sums.into_values().collect()
}

/// The samples of each controller's disks summed.
pub(super) fn samples(of_disks: &[DiskSamples]) -> Vec<DiskSamples> {
    let mut sums: BTreeMap<Option<PciAddress>, DiskSamples> = BTreeMap::new();
    for disk in of_disks {
        match sums.entry(disk.controller.clone()) {
            Entry::Occupied(mut sum) => {
                sum.get_mut()
                    .combine(disk, &mut |sum: u64, count| sum.saturating_add(count));
            }
            Entry::Vacant(place) => {
                place.insert(DiskSamples {
                    disk: String::new(),
                    ..disk.clone()
                });
            }
        }
    }
    sums.into_values().collect()
}

/// Whether it is never summed with anything else.
pub(super) fn is_alone(key: &Key) -> bool {
    key.4.is_some()
}

/// The sum of one line.
pub(super) fn of_one(line: &LineCounts) -> LineCounts {
    LineCounts {
        irq: 0,
        action: String::new(),
        parent_irq: None,
        ..line.clone()
    }
}

pub(super) fn key(line: &LineCounts) -> Key {
    let has_owner = line.controller.is_some() || line.disk.is_some();
    let is_alone = line.kind == LineKind::Watched || !has_owner;
    (
        line.kind,
        line.controller.clone(),
        line.disk.clone(),
        line.path,
        is_alone.then(|| (line.irq, line.action.clone())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{self, families};
    use crate::snapshot::recording::synthetic::Server;

    /// What is shown by default is the same from the sums.
    #[test]
    fn metrics_are_the_same() {
        let mut server = Server::new(3, 4, 3);
        server.run(50);
        let mut snapshot = server.snapshot();
        // A line whose owner is not known, and watched ones of one name.
        for irq in [900, 901] {
            let mut line = snapshot.counters.lines[irq as usize - 890].clone();
            line.irq = irq;
            line.kind = LineKind::Watched;
            line.action = "eth0".to_owned();
            snapshot.counters.lines.push(line);
        }
        snapshot.counters.lines[4].disk = None;
        snapshot.counters.lines[4].controller = None;
        let sums = snapshot.sums();
        assert!(sums.counters.lines.len() < snapshot.counters.lines.len());
        assert_eq!(
            families(&sums, metrics::Detail::default()),
            families(&snapshot, metrics::Detail::default())
        );
        // Lines that are summed are not shown as lines.
        let lines = metrics::Detail {
            lines: true,
            vectors: true,
            disks: true,
            cpus: false,
        };
        let shown = families(&sums, lines);
        assert!(shown.iter().all(|family| {
            !family.name().contains("_line_") && !family.name().starts_with("vmdtrace_disk_re")
        }));
        assert_eq!(sums.sums(), sums);
    }
}
