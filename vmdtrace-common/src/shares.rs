//! What each CPU does for each controller; only where that is asked for.
//!
//! The programs do not know whose a line is. User space tells them by slot, after
//! the line has run for the first time: what ran before is [`UNASSIGNED`]. So the
//! shares of a CPU add up to all it did, whenever they are looked at.

/// Owners that are told apart: a power of two.
pub const OWNERS: u32 = 32;

/// Whose the line is was not told yet, or it found no slot.
pub const UNASSIGNED: u32 = 0;
/// Lines asked for by name. The programs know them themselves.
pub const WATCHED: u32 = 1;
/// Disks behind no controller.
pub const DIRECT: u32 = 2;
/// Controllers for which no number was left.
pub const OTHER: u32 = 3;
/// The first controller's.
pub const FIRST_CONTROLLER: u32 = 4;

/// Beside an owner's number: the controller remaps, so that a run of one of its
/// disks' lines at depth 0 was sent by software.
pub const REMAPPED: u8 = 1 << 7;

/// What one CPU did for one owner: one element for each owner, CPU after CPU. Only
/// that CPU writes it, in handlers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub depth0_runs: u64,
    /// Of these, the runs of a remapped child: re-sent by software.
    pub resent_runs: u64,
    /// Time in handlers at depth 0.
    pub interrupt_ns: u64,
    /// Completions in handlers at any depth.
    pub completions: u64,
}

/// Index of a CPU's share.
#[inline(always)]
#[must_use]
pub fn index_of(cpu: u32, owner: u32) -> u32 {
    cpu.wrapping_mul(OWNERS).wrapping_add(owner & (OWNERS - 1))
}

/// Lines whose owners are in one word: a BPF array's elements take 8 bytes at least.
const OWNERS_PER_WORD: u32 = 8;

/// Words for so many slots.
#[must_use]
pub const fn words(slots: u32) -> u32 {
    slots.div_ceil(OWNERS_PER_WORD)
}

/// Index of the word that has a slot's owner.
#[inline(always)]
#[must_use]
pub fn word_of(slot: u32) -> u32 {
    slot / OWNERS_PER_WORD
}

/// A slot's owner, with [`REMAPPED`] where that is so.
#[inline(always)]
#[must_use]
pub fn owner_in(word: u64, slot: u32) -> u8 {
    (word >> shift(slot)) as u8
}

/// The word with another owner of a slot in it.
#[must_use]
pub fn with_owner(word: u64, slot: u32, owner: u8) -> u64 {
    word & !(0xff << shift(slot)) | u64::from(owner) << shift(slot)
}

#[inline(always)]
fn shift(slot: u32) -> u32 {
    slot % OWNERS_PER_WORD * 8
}

const _: () = assert!(OWNERS.is_power_of_two() && OWNERS <= REMAPPED as u32);
const _: () = assert!(size_of::<Share>() == 32);
// Two CPUs never write one cache line.
const _: () = assert!((OWNERS as usize * size_of::<Share>()).is_multiple_of(64));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn owners_are_kept_apart(told in prop::collection::vec((0..40u32, any::<u8>()), 0..80)) {
            let mut words = vec![0; words(40) as usize];
            let mut expected = [0; 40];
            for (slot, owner) in told {
                let word = &mut words[word_of(slot) as usize];
                *word = with_owner(*word, slot, owner);
                expected[slot as usize] = owner;
            }
            for (slot, owner) in (0..).zip(expected) {
                prop_assert_eq!(owner_in(words[word_of(slot) as usize], slot), owner);
            }
        }
    }

    #[test]
    fn every_share_has_a_place_of_its_own() {
        let places: std::collections::BTreeSet<_> = (0..5)
            .flat_map(|cpu| (0..OWNERS).map(move |owner| index_of(cpu, owner)))
            .collect();
        assert_eq!(places.len() as u32, 5 * OWNERS);
        assert_eq!(places.last(), Some(&(5 * OWNERS - 1)));
    }
}
