//! Who owns what is counted: lines and disks, by what sysfs says.
//!
//! Sysfs is read when devices came or went, and when a line is counted that the
//! last reading does not know; never otherwise.
//!
//! Names and numbers are re-used, counts are not: what was counted for an
//! earlier owner of a line stays with that owner, and so does a line whose
//! device is gone. No counter ever goes back.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

use super::line_names::LineNames;
use super::{Counters, DiskSamples, LineCounts, LineKind, RunCounts, SampleCounts};
use crate::host::{
    TopologyIndex,
    topology::{DiskPath, PciAddress, Topology},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    controller: Option<PciAddress>,
    disk: Option<String>,
    path: Option<DiskPath>,
}

/// Something that is counted and has an owner.
trait Owned: Clone {
    /// What it is called, now and by its later owners.
    type Key: Clone + Eq + Hash;
    type Counts: Clone;

    fn key(&self) -> Self::Key;
    /// Whether sysfs knows owners of its kind.
    fn may_be_owned(&self) -> bool;
    fn owner(&self, index: &TopologyIndex<'_>) -> Option<Owner>;
    fn label(&mut self, owner: &Owner);
    fn counts(&mut self) -> &mut Self::Counts;
    fn combine(
        counts: &Self::Counts,
        other: &Self::Counts,
        change: fn(u64, u64) -> u64,
    ) -> Self::Counts;
}

impl Owned for LineCounts {
    /// Interrupt number and action name.
    type Key = (u32, Box<str>);
    type Counts = RunCounts;

    fn key(&self) -> Self::Key {
        (self.irq, self.action.as_str().into())
    }

    fn may_be_owned(&self) -> bool {
        self.kind != LineKind::Watched
    }

    fn owner(&self, index: &TopologyIndex<'_>) -> Option<Owner> {
        index.line(self.irq, &self.action).map(|owner| Owner {
            controller: owner.controller.cloned(),
            disk: owner.disk.map(str::to_owned),
            path: owner.path,
        })
    }

    fn label(&mut self, owner: &Owner) {
        let Owner {
            controller,
            disk,
            path,
        } = owner;
        self.controller.clone_from(controller);
        self.disk.clone_from(disk);
        self.path = *path;
    }

    fn counts(&mut self) -> &mut RunCounts {
        &mut self.counts
    }

    fn combine(counts: &RunCounts, other: &RunCounts, change: fn(u64, u64) -> u64) -> RunCounts {
        counts.combine(other, change)
    }
}

impl Owned for DiskSamples {
    type Key = String;
    type Counts = SampleCounts;

    fn key(&self) -> String {
        self.disk.clone()
    }

    fn may_be_owned(&self) -> bool {
        true
    }

    fn owner(&self, index: &TopologyIndex<'_>) -> Option<Owner> {
        index.disk(&self.disk).map(|disk| Owner {
            controller: disk.controller.clone(),
            disk: Some(disk.name.clone()),
            path: Some(disk.path),
        })
    }

    fn label(&mut self, owner: &Owner) {
        self.controller.clone_from(&owner.controller);
    }

    fn counts(&mut self) -> &mut SampleCounts {
        &mut self.counts
    }

    fn combine(
        counts: &SampleCounts,
        other: &SampleCounts,
        change: fn(u64, u64) -> u64,
    ) -> SampleCounts {
        counts.combine(other, change)
    }
}

/// Who owns a thing now, and what had been counted on it before.
#[derive(Clone, Debug)]
struct Tenancy<C> {
    /// One for all lines of a disk: there may be 50,000 lines.
    owner: Arc<Owner>,
    before: Option<Box<C>>,
}

/// The owners of one sort of thing.
#[derive(Debug)]
struct Ledger<T: Owned> {
    known: HashMap<T::Key, Tenancy<T::Counts>>,
    /// Counts of earlier owners.
    past: HashMap<(T::Key, Owner), T>,
    /// All counts when the first change since the last reading was noticed: the
    /// line between an old and a new owner.
    boundary: Option<HashMap<T::Key, T::Counts>>,
    /// What the last reading did not know: not a reason to read again.
    unknown: HashSet<T::Key>,
}

impl<T: Owned> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            past: HashMap::new(),
            boundary: None,
            unknown: HashSet::new(),
        }
    }
}

impl<T: Owned> Ledger<T> {
    fn draw_boundary(&mut self, counted: Vec<T>) {
        let counted = counted
            .into_iter()
            .map(|mut one| (one.key(), one.counts().clone()));
        self.boundary = Some(counted.collect());
    }

    fn has_unheard_of(&self, counted: &[T]) -> bool {
        counted.iter().any(|one| {
            let key = one.key();
            one.may_be_owned() && !self.known.contains_key(&key) && !self.unknown.contains(&key)
        })
    }

    /// Labels what is counted, and leaves to earlier owners what is theirs.
    fn assign(&self, counted: &mut Vec<T>) {
        for one in &mut *counted {
            if let Some(Tenancy { owner, before }) = self.known.get(&one.key()) {
                one.label(owner);
                if let Some(before) = before {
                    subtract::<T>(one.counts(), before);
                }
            }
        }
        counted.extend(self.past.values().cloned());
    }

    /// Takes note of the owners by a new reading.
    fn hand_over(&mut self, index: &TopologyIndex<'_>, counted: &[T]) {
        self.unknown.clear();
        let boundary = self.boundary.take();
        let mut owners: HashSet<Arc<Owner>> = HashSet::new();
        for one in counted.iter().filter(|one| one.may_be_owned()) {
            let key = one.key();
            let Some(owner) = one.owner(index) else {
                if !self.known.contains_key(&key) {
                    self.unknown.insert(key);
                }
                continue;
            };
            let owner = match owners.get(&owner) {
                Some(known) => Arc::clone(known),
                None => {
                    let owner = Arc::new(owner);
                    owners.insert(Arc::clone(&owner));
                    owner
                }
            };
            let Some(tenancy) = self.known.get_mut(&key) else {
                self.known.insert(
                    key,
                    Tenancy {
                        owner,
                        before: None,
                    },
                );
                continue;
            };
            if tenancy.owner == owner {
                continue;
            }
            let mut served = one.clone();
            // What the boundary does not have had no counts there.
            let until = match &boundary {
                Some(boundary) => boundary.get(&key).cloned(),
                None => Some(served.counts().clone()),
            };
            let Some(until) = until else {
                tenancy.owner = owner;
                continue;
            };
            *served.counts() = until.clone();
            if let Some(before) = &tenancy.before {
                subtract::<T>(served.counts(), before);
            }
            served.label(&tenancy.owner);
            let old = std::mem::replace(
                tenancy,
                Tenancy {
                    owner,
                    before: Some(Box::new(until)),
                },
            );
            match self.past.entry((key, Owner::clone(&old.owner))) {
                Entry::Occupied(mut past) => {
                    let past = past.get_mut().counts();
                    *past = T::combine(past, served.counts(), u64::saturating_add);
                }
                Entry::Vacant(past) => {
                    past.insert(served);
                }
            }
        }
    }
}

fn subtract<T: Owned>(counts: &mut T::Counts, earlier: &T::Counts) {
    *counts = T::combine(counts, earlier, u64::saturating_sub);
}

/// Who owns which line and which disk's samples.
#[derive(Debug, Default)]
pub(super) struct Owners {
    topology: Option<Topology>,
    /// The lines of the last reading.
    names: LineNames,
    /// Of the last reading only the outline is left.
    is_outline: bool,
    stale: bool,
    lines: Ledger<LineCounts>,
    samples: Ledger<DiskSamples>,
}

impl Owners {
    /// The last reading, if there was one.
    pub(super) fn last_reading(&self) -> Option<&Topology> {
        self.topology.as_ref()
    }

    /// The last reading.
    pub(super) fn topology(&self) -> Topology {
        self.topology.clone().unwrap_or_default()
    }

    /// The lines of the last reading, also where it is only an outline.
    pub(super) fn names(&self) -> &LineNames {
        &self.names
    }

    /// Forgets the lines and queues of the last reading but their names: on a large
    /// server they are most of what there is to keep, and sums do without.
    pub(super) fn keep_outline(&mut self) {
        self.topology = self.topology.as_ref().map(Topology::outline);
        self.is_outline = true;
    }

    /// Whether sysfs has to be read again for whoever wants lines and queues.
    pub(super) fn is_outline(&self) -> bool {
        self.is_outline
    }

    /// A line's controller and path, once a reading told them.
    pub(super) fn of_line(
        &self,
        irq: u32,
        action: &str,
    ) -> Option<(Option<&PciAddress>, Option<DiskPath>)> {
        let tenancy = self.lines.known.get(&(irq, action.into()))?;
        Some((tenancy.owner.controller.as_ref(), tenancy.owner.path))
    }

    /// Devices came or went; `counted` is what has been counted until now.
    pub(super) fn changed(&mut self, counted: impl FnOnce() -> Counters) {
        if !self.stale {
            let Counters {
                lines,
                samples,
                cpus: _,
                bio: _,
                other_samples: _,
                // These have ledgers of their own.
                losses: _,
                outside: _,
                msi: _,
                // The programs were told whose they are.
                shares: _,
            } = counted();
            self.lines.draw_boundary(lines);
            self.samples.draw_boundary(samples);
        }
        self.stale = true;
    }

    /// Labels what was counted. `news`: something else is counted that the last
    /// reading does not know. Returns whether there was a new reading.
    pub(super) fn assign(
        &mut self,
        counters: &mut Counters,
        news: bool,
        read: impl FnOnce() -> Topology,
    ) -> bool {
        let stale = news || self.need_reading(counters);
        if stale {
            let topology = read();
            let index = TopologyIndex::new(&topology);
            self.lines.hand_over(&index, &counters.lines);
            self.samples.hand_over(&index, &counters.samples);
            self.names = LineNames::new(&topology);
            self.topology = Some(topology);
            self.is_outline = false;
            self.stale = false;
        }
        self.label(counters);
        stale
    }

    /// Whether sysfs is to be read again before these are labelled.
    pub(super) fn need_reading(&self, counters: &Counters) -> bool {
        self.stale
            || self.topology.is_none()
            || self.lines.has_unheard_of(&counters.lines)
            || self.samples.has_unheard_of(&counters.samples)
    }

    /// Labels by the last reading. What earlier owners had comes behind.
    pub(super) fn label(&self, counters: &mut Counters) {
        self.lines.assign(&mut counters.lines);
        self.samples.assign(&mut counters.samples);
    }

    /// Whether all that was ever counted on a line belongs to its owner.
    pub(super) fn has_one_owner(&self, line: &LineCounts) -> bool {
        let tenancy = self.lines.known.get(&line.key());
        tenancy.is_some_and(|tenancy| tenancy.before.is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::host::topology::Disk;

    fn line(irq: u32, action: &str, kind: LineKind) -> LineCounts {
        LineCounts {
            irq,
            action: action.to_owned(),
            kind,
            controller: None,
            disk: None,
            path: None,
            parent_irq: None,
            counts: RunCounts {
                depth0_runs: 1,
                ..RunCounts::default()
            },
        }
    }

    fn of_lines(lines: Vec<LineCounts>) -> Counters {
        Counters {
            lines,
            ..Counters::default()
        }
    }

    fn topology(disks: &[&str]) -> Topology {
        let disk = |name: &&str| Disk {
            controller: Some(PciAddress("0000:97:00.5".into())),
            ..Disk::bare(name, "10000:01:00.0", DiskPath::VmdBypass)
        };
        Topology {
            disks: disks.iter().map(disk).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn a_line_keeps_its_owner_when_the_disk_is_gone() {
        let mut owners = Owners::default();
        let mut counters = Counters {
            lines: vec![line(40, "nvme0q1", LineKind::Nvme)],
            ..Counters::default()
        };
        owners.assign(&mut counters, false, || topology(&["nvme0"]));
        owners.changed(|| counters.clone());
        counters.lines = vec![line(40, "nvme0q1", LineKind::Nvme)];
        owners.assign(&mut counters, false, || topology(&[]));
        assert_eq!(counters.lines[0].disk.as_deref(), Some("nvme0"));
        assert_eq!(counters.lines[0].path, Some(DiskPath::VmdBypass));
        let controller = PciAddress("0000:97:00.5".into());
        assert_eq!(
            owners.of_line(40, "nvme0q1"),
            Some((Some(&controller), Some(DiskPath::VmdBypass)))
        );
        assert_eq!(owners.of_line(40, "nvme0q2"), None);
    }

    #[test]
    fn sysfs_is_read_for_news_only() {
        let reads = Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            topology(&["nvme0"])
        };
        let mut owners = Owners::default();
        let mut lines = vec![
            line(40, "nvme0q1", LineKind::Nvme),
            line(9, "virtio0", LineKind::Watched),
        ];
        for expected in [1, 1] {
            owners.assign(
                &mut Counters {
                    lines: lines.clone(),
                    ..Counters::default()
                },
                false,
                read,
            );
            assert_eq!(reads.get(), expected);
        }
        lines.push(line(41, "nvme5q1", LineKind::Nvme));
        for expected in [2, 2] {
            owners.assign(
                &mut Counters {
                    lines: lines.clone(),
                    ..Counters::default()
                },
                false,
                read,
            );
            assert_eq!(reads.get(), expected, "an unknown line is a reason once");
        }
        owners.changed(|| of_lines(lines.clone()));
        owners.assign(
            &mut Counters {
                lines,
                ..Counters::default()
            },
            false,
            read,
        );
        assert_eq!(reads.get(), 3);
    }

    /// What a disk's owner had counted: by controller and path.
    fn depth0(counters: &Counters) -> Vec<(Option<&str>, Option<DiskPath>, u64)> {
        let mut counts: Vec<_> = counters
            .lines
            .iter()
            .map(|line| {
                (
                    line.controller.as_ref().map(|it| it.0.as_str()),
                    line.path,
                    line.counts.depth0_runs,
                )
            })
            .collect();
        counts.sort();
        counts
    }

    #[test]
    fn counts_stay_with_the_owner_they_were_counted_for() {
        let mut direct = topology(&["nvme0"]);
        direct.disks[0].controller = None;
        direct.disks[0].path = DiskPath::Direct;
        let counted = |runs| {
            let mut line = line(40, "nvme0q1", LineKind::Nvme);
            line.counts.depth0_runs = runs;
            vec![line]
        };
        let mut owners = Owners::default();
        let mut at = |runs, topology: &Topology, changed_at: Option<u64>| {
            if let Some(runs) = changed_at {
                owners.changed(|| of_lines(counted(runs)));
                // A burst: only the first of them draws the line.
                owners.changed(|| panic!("counted again"));
            }
            let mut counters = Counters {
                lines: counted(runs),
                ..Counters::default()
            };
            owners.assign(&mut counters, false, || topology.clone());
            counters
        };
        let vmd = topology(&["nvme0"]);
        let bypass = (Some("0000:97:00.5"), Some(DiskPath::VmdBypass));
        let alone = (None, Some(DiskPath::Direct));
        assert_eq!(depth0(&at(5, &vmd, None)), [(bypass.0, bypass.1, 5)]);
        // Another disk took the name: 6 were counted when that was noticed.
        let counters = at(9, &direct, Some(6));
        assert_eq!(
            depth0(&counters),
            [(alone.0, alone.1, 3), (bypass.0, bypass.1, 6)]
        );
        // And back: what each had, it keeps.
        let counters = at(20, &vmd, Some(12));
        assert_eq!(
            depth0(&counters),
            [
                (alone.0, alone.1, 6),
                (bypass.0, bypass.1, 6),
                (bypass.0, bypass.1, 8)
            ]
        );
        assert_eq!(
            counters
                .lines
                .iter()
                .map(|line| line.counts.depth0_runs)
                .sum::<u64>(),
            20
        );
        let counters = at(25, &direct, Some(25));
        assert_eq!(
            depth0(&counters),
            [
                (alone.0, alone.1, 0),
                (alone.0, alone.1, 6),
                (bypass.0, bypass.1, 19)
            ]
        );
    }

    #[test]
    fn samples_stay_with_the_disk_they_were_taken_of() {
        let sampled = |count| DiskSamples {
            disk: "nvme0".to_owned(),
            controller: None,
            counts: SampleCounts {
                without_start: count,
                ..SampleCounts::default()
            },
        };
        let counters = |count| Counters {
            samples: vec![sampled(count)],
            ..Counters::default()
        };
        let behind = topology(&["nvme0"]);
        let mut direct = behind.clone();
        direct.disks[0].controller = None;
        let mut owners = Owners::default();
        let mut first = counters(5);
        owners.assign(&mut first, false, || behind.clone());
        let vmd = behind.disks[0].controller.clone();
        assert_eq!(first.samples[0].controller, vmd);
        owners.changed(|| counters(6));
        let mut second = counters(9);
        owners.assign(&mut second, false, || direct);
        let mut seen: Vec<_> = second
            .samples
            .iter()
            .map(|it| (it.controller.clone(), it.counts.without_start))
            .collect();
        seen.sort();
        assert_eq!(seen, [(None, 3), (vmd, 6)]);
    }
}
