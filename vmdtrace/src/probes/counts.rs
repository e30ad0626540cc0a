//! Elements of the maps -> the counters of a Snapshot.

use std::collections::BTreeMap;

use vmdtrace_common::{
    CpuBank, LineCell,
    bio::{class, context, destination, purpose, regime},
    bio_cells::{
        ALLOCATIONS, BLKDEV_DIO_POOL, BioBank, BioSet, CONTEXTS, DESTINATIONS, FREES, FS_BIO_SET,
        OTHER_SET, PURPOSES, SETS, allocation_index, free_index,
    },
    cells::kind,
    placement::RemoteCounts,
    samples::{self, DiskSamples},
};

use super::bio::Cache;
use crate::snapshot::{
    BioCounts, CpuCounts, LineCounts, LineKind, Remote, RunCounts, SampleCounts, Times,
    bio::{BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime},
};

/// A line's action name.
#[must_use]
pub fn action_of(cell: &LineCell) -> String {
    String::from_utf8_lossy(&cell.name.bytes().collect::<Vec<_>>()).into_owned()
}

/// A line's counters; `parent_irq` is the number of its parent's line. Its owner
/// is not known here.
#[must_use]
pub fn line_counts(cell: &LineCell, parent_irq: Option<u32>, repeats_known: bool) -> LineCounts {
    LineCounts {
        irq: cell.irq,
        action: action_of(cell),
        kind: match cell.kind {
            kind::VMD_VECTOR => LineKind::VmdVector,
            kind::NVME => LineKind::Nvme,
            kind::OTHER_CHILD => LineKind::OtherChild,
            _ => LineKind::Watched,
        },
        controller: None,
        disk: None,
        path: None,
        parent_irq,
        counts: run_counts(cell, repeats_known),
    }
}

/// What was counted on a line.
#[must_use]
pub fn run_counts(cell: &LineCell, repeats_known: bool) -> RunCounts {
    let LineCell {
        depth0_runs,
        nested_runs,
        unhandled_runs,
        repeated_runs,
        inclusive_ns,
        self_ns,
        completions,
        child_runs,
        remote: far,
        child_unhandled_runs,
        child_completions,
        last_irqs_sum: _,
        last_action: _,
        last_cpu: _,
        parent: _,
        irq: _,
        kind: _,
        next: _,
        ready: _,
        name: _,
        disk: _,
        reserved: _,
    } = *cell;
    RunCounts {
        depth0_runs,
        nested_runs,
        unhandled_runs,
        repeated_runs: repeats_known.then_some(repeated_runs),
        inclusive_ns,
        self_ns,
        completions,
        remote: remote(far),
        child_runs,
        child_unhandled_runs,
        child_completions,
    }
}

/// A CPU's counters.
#[must_use]
pub fn cpu_counts(cpu: u32, bank: &CpuBank) -> CpuCounts {
    let CpuBank {
        depth: _,
        generation: _,
        interrupt_ns,
        depth0_runs,
        completions_outside,
        unassigned_runs,
        unassigned_completions,
        lost_frames,
        unmatched_exits,
        overflowed_runs,
        unreadable_actions,
        out_of_range_runs,
        remote_outside,
        armed: _,
        frames: _,
    } = *bank;
    CpuCounts {
        cpu,
        interrupt_ns,
        depth0_runs,
        completions_outside,
        remote_outside: remote(remote_outside),
        unassigned_runs,
        unassigned_completions,
        lost_frames,
        unmatched_exits,
        overflowed_runs,
        unreadable_actions,
        out_of_range_runs,
    }
}

fn remote([same_cache, other_cache, other_node, unknown]: RemoteCounts<u64>) -> Remote {
    Remote {
        same_cache,
        other_cache,
        other_node,
        unknown,
    }
}

/// A disk's samples.
#[must_use]
pub fn sample_counts(of_disk: &DiskSamples) -> SampleCounts {
    let DiskSamples {
        latency,
        handling,
        without_start,
        reserved: _,
    } = of_disk;
    SampleCounts {
        latency: times(latency),
        handling: times(handling),
        without_start: *without_start,
    }
}

fn times(&samples::Times { buckets, sum_ns }: &samples::Times) -> Times {
    Times { buckets, sum_ns }
}

/// The counters of bios, over all CPUs. `sets` are the slots; `seen` is what
/// allocations told of the regime.
#[must_use]
pub fn bio_counts(
    banks: impl Iterator<Item = BioBank>,
    sets: &[BioSet],
    cache: Option<Cache>,
    seen: u64,
) -> BioCounts {
    let mut allocations = vec![0u64; ALLOCATIONS];
    let mut frees = [0u64; FREES];
    let mut kmallocs = 0u64;
    for bank in banks {
        let BioBank {
            allocations: of_allocations,
            frees: of_frees,
            kmallocs: of_kmallocs,
            per_cpu_offset: _,
            reserved: _,
        } = &bank;
        for (sum, count) in allocations.iter_mut().zip(of_allocations) {
            *sum = sum.saturating_add(*count);
        }
        for (sum, count) in frees.iter_mut().zip(of_frees) {
            *sum = sum.saturating_add(*count);
        }
        kmallocs = kmallocs.saturating_add(*of_kmallocs);
    }

    // Several slots may be of one name: sets of equally large bios share a slab.
    let mut by_name: BTreeMap<(String, BioPurpose), BioAllocations> = BTreeMap::new();
    for slot in 0..SETS {
        for purpose in 0..PURPOSES {
            let count = |class| allocations[allocation_index(slot, purpose, class)];
            let counts = BioAllocations {
                set: set_name(slot, sets),
                purpose: purpose_of(purpose),
                hits_own: count(class::HIT_OWN),
                hits_splice: count(class::HIT_SPLICE),
                misses_empty: count(class::MISS_EMPTY),
                misses_below_threshold: count(class::MISS_BELOW_THRESHOLD),
                misses_reserve: count(class::MISS_RESERVE),
                without_cache: count(class::NO_CACHE),
                with_many_vectors: count(class::VECTORS),
                without_flag: count(class::NO_FLAG),
                failed: count(class::FAILED),
                ambiguous: count(class::AMBIGUOUS),
                unpaired: count(class::UNPAIRED),
            };
            if counts.total() == 0 {
                continue;
            }
            by_name
                .entry((counts.set.clone(), counts.purpose))
                .and_modify(|sum| sum.combine(&counts, u64::saturating_add))
                .or_insert(counts);
        }
    }
    let of_frees = (0..DESTINATIONS)
        .flat_map(|to| (0..CONTEXTS).map(move |context| (to, context)))
        .map(|(to, context)| BioFrees {
            destination: destination_of(to),
            context: context_of(context),
            count: frees[free_index(to, context)],
        })
        .filter(|frees| frees.count != 0)
        .collect();
    BioCounts {
        regime: regime_of(cache, seen),
        allocations: by_name.into_values().collect(),
        kmallocs,
        frees: of_frees,
    }
}

fn set_name(slot: u64, sets: &[BioSet]) -> String {
    match slot {
        FS_BIO_SET => "fs_bio_set".to_owned(),
        BLKDEV_DIO_POOL => "blkdev_dio_pool".to_owned(),
        OTHER_SET => OTHER.to_owned(),
        slot => {
            let name = sets.get(slot as usize).filter(|set| set.ready != 0);
            let bytes = name.map(|set| set.name.bytes().collect::<Vec<_>>());
            match bytes {
                Some(bytes) if !bytes.is_empty() => String::from_utf8_lossy(&bytes).into_owned(),
                _ => OTHER.to_owned(),
            }
        }
    }
}

/// Sets beyond the table, and those whose slab has no readable name.
const OTHER: &str = "other";

fn purpose_of(purpose: u64) -> BioPurpose {
    match purpose {
        purpose::BLOCK => BioPurpose::Block,
        purpose::PASSTHROUGH => BioPurpose::Passthrough,
        purpose::PASSTHROUGH_POLLED => BioPurpose::PassthroughPolled,
        _ => BioPurpose::Unknown,
    }
}

fn destination_of(destination: u64) -> BioDestination {
    match destination {
        destination::OWN_LIST => BioDestination::OwnList,
        destination::IRQ_LIST => BioDestination::IrqList,
        destination::SLAB_SOFTIRQ => BioDestination::SlabSoftirq,
        destination::SLAB_OVERFLOW => BioDestination::SlabOverflow,
        destination::NOT_CACHED => BioDestination::NotCached,
        destination::KFREE => BioDestination::Kfree,
        _ => BioDestination::Unknown,
    }
}

fn context_of(context: u64) -> BioContext {
    match context {
        context::TASK => BioContext::Task,
        context::SOFTIRQ => BioContext::Softirq,
        context::HARDIRQ => BioContext::Hardirq,
        _ => BioContext::Unknown,
    }
}

/// Whether there is a cache, and a list for interrupts, is in the kernel's types;
/// whether one has to ask for it shows only in what is allocated.
fn regime_of(cache: Option<Cache>, seen: u64) -> BioRegime {
    match cache {
        None => BioRegime::None,
        Some(cache) if !cache.irq_list => BioRegime::PolledOnly,
        // A bio of the reserve looks as on a kernel that wants to be asked.
        Some(_) if seen & regime::DEFAULT_ON != 0 => BioRegime::DefaultOn,
        Some(_) if seen & regime::OPT_IN != 0 => BioRegime::OptIn,
        Some(_) => BioRegime::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use vmdtrace_common::Name;

    use super::*;

    #[test]
    fn sets_of_one_name_and_all_cpus_are_added_up() {
        let mut sets = vec![BioSet::default(); SETS as usize];
        for slot in [2, 3] {
            sets[slot].ready = 1;
            sets[slot].name = Name::new(b"bio-248");
        }
        // Claimed, described, but its name could not be read.
        sets[4].ready = 1;
        let mut bank = BioBank::default();
        for (slot, purpose, class, count) in [
            (FS_BIO_SET, purpose::PASSTHROUGH, class::HIT_OWN, 5),
            (2, purpose::BLOCK, class::NO_CACHE, 10),
            (3, purpose::BLOCK, class::NO_CACHE, 20),
            (3, purpose::BLOCK, class::FAILED, 1),
            (4, purpose::UNKNOWN, class::VECTORS, 3),
            (OTHER_SET, purpose::UNKNOWN, class::VECTORS, 4),
        ] {
            bank.allocations[allocation_index(slot, purpose, class)] = count;
        }
        bank.frees[free_index(destination::IRQ_LIST, context::HARDIRQ)] = 6;
        bank.kmallocs = 7;
        let counts = bio_counts([bank, bank].into_iter(), &sets, None, 0);
        let found: Vec<_> = counts
            .allocations
            .iter()
            .map(|one| {
                (
                    one.set.as_str(),
                    one.purpose,
                    one.total(),
                    one.without_cache,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("bio-248", BioPurpose::Block, 62, 60),
                ("fs_bio_set", BioPurpose::Passthrough, 10, 0),
                ("other", BioPurpose::Unknown, 14, 0)
            ]
        );
        assert_eq!(counts.kmallocs, 14);
        let irq_list = BioFrees {
            destination: BioDestination::IrqList,
            context: BioContext::Hardirq,
            count: 12,
        };
        assert_eq!(counts.frees, [irq_list]);
        assert_eq!(counts.regime, BioRegime::None);
    }

    #[test]
    fn every_index_of_the_programs_has_a_name_of_its_own() {
        use std::collections::BTreeSet;
        let purposes: BTreeSet<_> = (0..PURPOSES).map(purpose_of).collect();
        assert_eq!(purposes.len() as u64, PURPOSES);
        let destinations: BTreeSet<_> = (0..=destination::UNKNOWN).map(destination_of).collect();
        assert_eq!(destinations.len() as u64, destination::UNKNOWN + 1);
        let contexts: BTreeSet<_> = (0..CONTEXTS).map(context_of).collect();
        assert_eq!(contexts.len() as u64, CONTEXTS);
    }
}
