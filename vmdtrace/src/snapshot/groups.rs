//! Lines summed by owner while they are read, for who does not ask for single
//! lines: a large server has 50,000 of them.
//!
//! Which line goes into which sum is worked out from a whole reading and kept by
//! slot, as long as nobody's ownership changes. What a sum cannot hold is read as
//! a line of its own: one that came since, one that changed its owner, one that
//! has none.

use std::collections::BTreeMap;

use super::{LineCounts, RunCounts, sums};

const ALONE: u32 = u32::MAX;

/// Which line goes into which sum.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// By slot.
    of_slot: Vec<u32>,
    /// The sums at zero.
    empty: Vec<LineCounts>,
}

impl Groups {
    /// Of lines with their owners, by slot. Those that are left out stay alone.
    pub(super) fn new<'a>(lines: impl Iterator<Item = (u32, &'a LineCounts)>) -> Self {
        let mut groups = Self::default();
        let mut known = BTreeMap::new();
        for (slot, line) in lines {
            let key = sums::key(line);
            if sums::is_alone(&key) {
                continue;
            }
            let group = *known.entry(key).or_insert_with(|| {
                groups.empty.push(LineCounts {
                    counts: RunCounts {
                        repeated_runs: line.counts.repeated_runs.map(|_| 0),
                        ..RunCounts::default()
                    },
                    ..sums::of_one(line)
                });
                groups.empty.len() as u32 - 1
            });
            let slot = slot as usize;
            if groups.of_slot.len() <= slot {
                groups.of_slot.resize(slot + 1, ALONE);
            }
            groups.of_slot[slot] = group;
        }
        groups
    }

    /// The sums at zero.
    pub(super) fn empty(&self) -> Vec<LineCounts> {
        self.empty.clone()
    }

    /// Adds what was counted on a slot's line to its sum; false if it has none.
    pub(super) fn add(&self, sums: &mut [LineCounts], slot: u32, counts: &RunCounts) -> bool {
        let group = self.of_slot.get(slot as usize).copied().unwrap_or(ALONE);
        let Some(sum) = sums.get_mut(group as usize) else {
            return false;
        };
        sum.counts = sum.counts.combine(counts, u64::saturating_add);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Detail, recording::synthetic::Server};

    #[test]
    fn sums_made_while_reading_are_those_made_afterwards() {
        let mut server = Server::new(3, 4, 3);
        server.run(5);
        let mut snapshot = server.snapshot();
        snapshot.counters.lines[4].disk = None;
        snapshot.counters.lines[4].controller = None;
        let by_slot = |lines: Vec<LineCounts>| (0..).step_by(2).zip(lines).collect::<Vec<_>>();
        let lines = by_slot(snapshot.counters.lines.clone());
        // One that had another owner before.
        let plain = lines.iter().filter(|(slot, _)| *slot != 12);
        let groups = Groups::new(plain.map(|(slot, line)| (*slot, line)));

        server.run(7);
        let mut later = server.snapshot();
        later.counters.lines[4].disk = None;
        later.counters.lines[4].controller = None;
        // One that came since.
        let mut new = later.counters.lines[9].clone();
        new.irq = 1000;
        later.counters.lines.push(new);
        let whole = later.sums();
        let mut sums = groups.empty();
        let mut alone = Vec::new();
        for (slot, line) in by_slot(later.counters.lines.clone()) {
            if !groups.add(&mut sums, slot, &line.counts) {
                alone.push(line);
            }
        }
        // The line without an owner, the two above; nothing is counted twice.
        assert_eq!(alone.len(), 3);
        later.counters.lines = alone;
        later.counters.lines.extend(sums);
        assert_eq!(later.sums().counters, whole.counters);
        assert_eq!(later.sums().detail, Detail::Sums);
    }
}
