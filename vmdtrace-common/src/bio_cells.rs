//! Layout of the maps for bios, and the table that gives a set of bios its slot.

use crate::{bio::CacheWords, names::Name};

/// Slots for sets of bios. The last is [`OTHER_SET`].
pub const SETS: u64 = 16;
/// Told by address: `fs_bio_set`.
pub const FS_BIO_SET: u64 = 0;
/// Told by address: `blkdev_dio_pool`.
pub const BLKDEV_DIO_POOL: u64 = 1;
/// From here on sets are told by their slab.
const FIRST_BY_SLAB: u64 = 2;
/// Sets that found no slot.
pub const OTHER_SET: u64 = SETS - 1;

/// Values of [`crate::bio::purpose`].
pub const PURPOSES: u64 = 4;
/// Room for [`crate::bio::class`].
pub const CLASSES: u64 = 16;
/// Room for [`crate::bio::destination`].
pub const DESTINATIONS: u64 = 8;
/// Values of [`crate::bio::context`].
pub const CONTEXTS: u64 = 4;

/// Words in [`BioBank::allocations`] and [`BioBank::frees`].
pub const ALLOCATIONS: usize = (SETS * PURPOSES * CLASSES) as usize;
pub const FREES: usize = (DESTINATIONS * CONTEXTS) as usize;

/// Calls that may be open at once without sharing a slot, by the low bits of the
/// thread's number.
pub const CALLS: u32 = 4096;

/// Index into [`BioBank::allocations`]. The masks spare the verifier, and the
/// compiler a panic.
#[inline(always)]
#[must_use]
pub fn allocation_index(set: u64, purpose: u64, class: u64) -> usize {
    let index = (set & (SETS - 1)) * (PURPOSES * CLASSES)
        + (purpose & (PURPOSES - 1)) * CLASSES
        + (class & (CLASSES - 1));
    index as usize & (ALLOCATIONS - 1)
}

/// Index into [`BioBank::frees`].
#[inline(always)]
#[must_use]
pub fn free_index(destination: u64, context: u64) -> usize {
    let index = (destination & (DESTINATIONS - 1)) * CONTEXTS + (context & (CONTEXTS - 1));
    index as usize & (FREES - 1)
}

/// What one CPU counts of bios. A program may be interrupted by itself or by
/// another: every counter is added to atomically.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioBank {
    /// By [`allocation_index`].
    pub allocations: [u64; ALLOCATIONS],
    /// By [`free_index`].
    pub frees: [u64; FREES],
    /// Bios of no set.
    pub kmallocs: u64,
    /// `__per_cpu_offset` of this CPU; 0 until it was read.
    pub per_cpu_offset: u64,
    pub reserved: [u64; 6],
}

impl Default for BioBank {
    fn default() -> Self {
        Self {
            allocations: [0; ALLOCATIONS],
            frees: [0; FREES],
            kmallocs: 0,
            per_cpu_offset: 0,
            reserved: [0; 6],
        }
    }
}

/// A call of `bio_alloc_bioset` between its start and its end.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BioCall {
    /// Which thread; 0: no call is open.
    pub tag: u64,
    pub cpu: u32,
    /// Not 0: the kernel spliced the lists for it.
    pub spliced: u32,
    /// The set of bios.
    pub set: u64,
    /// Address of the CPU's cache.
    pub cache: u64,
    /// What it held.
    pub words: CacheWords,
    pub reserved: u64,
}

/// What a slot stands for, where it was not told by address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BioSet {
    /// How many wanted it. Only who made it 1 and sees that owns it.
    pub claims: u64,
    /// Not 0 once it is described.
    pub ready: u64,
    pub identity: Identity,
    /// Name of the slab.
    pub name: Name,
}

/// What tells a set by its slab. The slab's name follows from the size of what
/// is in it, and that from the pads (block/bio.c, `bs_bio_slab_size`), so
/// memory that is used again for another slab is not taken for the old one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Address of the slab.
    pub slab: u64,
    pub front_pad: u32,
    pub back_pad: u32,
}

/// The table of sets, as [`slot_by_slab`] sees it.
pub trait Sets {
    fn set(&mut self, slot: u64) -> Option<&mut BioSet>;
    /// Adds 1 to `claims` and tells whether that made it 1: of all who ask, at
    /// most one is told so. It may be nobody: the slot is lost then.
    fn claim(&mut self, slot: u64) -> bool;
    /// Fills in a claimed slot and marks it as ready, last.
    fn describe(&mut self, slot: u64, identity: Identity);
}

/// Where the search for a set's slot begins. By the pads, which tell slabs apart
/// as well: the slab itself is a pointer to the verifier, not to be reckoned with.
#[inline(always)]
fn first_tried(identity: Identity) -> u64 {
    let pads = u64::from(identity.front_pad) << 32 | u64::from(identity.back_pad);
    pads.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.trailing_zeros())
}

/// The slot of a set. Two CPUs that meet a new one at once may give it two:
/// their counts belong to the same name. A known set is nearly always found at
/// once; and that the slot does not tell how often was tried spares the verifier
/// what follows for each try.
#[inline(always)]
pub fn slot_by_slab<S: Sets>(sets: &mut S, identity: Identity) -> u64 {
    let first = first_tried(identity);
    let mut tried = 0;
    while tried < SETS {
        let slot = (first + tried) & (SETS - 1);
        tried += 1;
        if !(FIRST_BY_SLAB..OTHER_SET).contains(&slot) {
            continue;
        }
        let Some(set) = sets.set(slot) else {
            break;
        };
        if set.ready != 0 {
            if set.identity == identity {
                return slot;
            }
        } else if set.claims == 0 && sets.claim(slot) {
            sets.describe(slot, identity);
            return slot;
        }
    }
    OTHER_SET
}

const _: () = assert!(SETS.is_power_of_two() && ALLOCATIONS.is_power_of_two());
const _: () = assert!(FREES.is_power_of_two() && CALLS.is_power_of_two());
const _: () = assert!(size_of::<BioBank>() == 8512 && size_of::<BioBank>().is_multiple_of(64));
const _: () = assert!(size_of::<BioCall>() == 64);
const _: () = assert!(size_of::<BioSet>() == 64);
const _: () = assert!(size_of::<CacheWords>() == 24);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Table([BioSet; SETS as usize]);

    impl Sets for Table {
        fn set(&mut self, slot: u64) -> Option<&mut BioSet> {
            self.0.get_mut(slot as usize)
        }
        fn claim(&mut self, slot: u64) -> bool {
            self.0[slot as usize].claims += 1;
            self.0[slot as usize].claims == 1
        }
        fn describe(&mut self, slot: u64, identity: Identity) {
            self.0[slot as usize].identity = identity;
            self.0[slot as usize].ready = 1;
        }
    }

    #[test]
    fn every_counter_has_a_place_of_its_own() {
        let allocations: BTreeSet<usize> = (0..SETS)
            .flat_map(|set| (0..PURPOSES).map(move |purpose| (set, purpose)))
            .flat_map(|(set, purpose)| {
                (0..CLASSES).map(move |class| allocation_index(set, purpose, class))
            })
            .collect();
        assert_eq!(allocations.len(), ALLOCATIONS);
        let frees: BTreeSet<usize> = (0..DESTINATIONS)
            .flat_map(|to| (0..CONTEXTS).map(move |context| free_index(to, context)))
            .collect();
        assert_eq!(frees.len(), FREES);
        assert!(allocation_index(u64::MAX, u64::MAX, u64::MAX) < ALLOCATIONS);
        assert!(free_index(u64::MAX, u64::MAX) < FREES);
    }

    #[test]
    fn memory_used_again_is_another_set() {
        let mut table = Table::default();
        let old = Identity {
            slab: 0x1000,
            front_pad: 0,
            back_pad: 64,
        };
        let new = Identity {
            front_pad: 24,
            ..old
        };
        let first = slot_by_slab(&mut table, old);
        assert_ne!(slot_by_slab(&mut table, new), first);
        assert_eq!(slot_by_slab(&mut table, old), first);
    }

    #[test]
    fn a_slot_that_nobody_could_claim_is_passed_over() {
        let identity = Identity {
            slab: 0xffff_8880_0123_4500,
            ..Identity::default()
        };
        let wanted = slot_by_slab(&mut Table::default(), identity);
        let mut table = Table::default();
        table.0[wanted as usize].claims = 2;
        let found = slot_by_slab(&mut table, identity);
        assert_ne!(found, wanted);
        assert!((FIRST_BY_SLAB..OTHER_SET).contains(&found));
        assert_eq!(table.0[wanted as usize].claims, 2);
        assert_eq!(slot_by_slab(&mut table, identity), found);
    }

    proptest! {
        #[test]
        fn sets_keep_their_slots_and_never_share(slabs in prop::collection::vec(1u64..30, 0..200), pads in 0u32..200) {
            let mut table = Table::default();
            let mut known = BTreeMap::new();
            for slab in slabs {
                let front_pad = slab as u32 * pads;
                let identity = Identity { slab, front_pad, ..Identity::default() };
                let slot = slot_by_slab(&mut table, identity);
                let room = known.len() < (OTHER_SET - FIRST_BY_SLAB) as usize;
                let expected = match known.get(&slab) {
                    Some(slot) => *slot,
                    None if room => {
                        prop_assert!(!known.values().any(|other| *other == slot));
                        prop_assert!((FIRST_BY_SLAB..OTHER_SET).contains(&slot));
                        known.insert(slab, slot);
                        slot
                    }
                    None => OTHER_SET,
                };
                prop_assert_eq!(slot, expected);
            }
        }
    }
}
