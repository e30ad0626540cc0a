//! Interrupt coalescing: an interrupt for several completions
//! (NVM Express Base Specification 1.4, sections 5.21.1.8 and 5.21.1.9).

use std::collections::{BTreeMap, BTreeSet};

use crate::service::Nanos;

/// The unit of the aggregation time.
const TIME_UNIT: Nanos = 100_000;
const COALESCING_DISABLE: u32 = 1 << 16;

/// The settings, and the interrupts that are held back.
#[derive(Debug, Default)]
pub(crate) struct Coalescing {
    /// The feature's value as the guest set it: time in bits 15:8, threshold
    /// in bits 7:0, which is one less than meant.
    value: u32,
    /// Vectors whose interrupts are not held back.
    exempt: BTreeSet<u16>,
    held: BTreeMap<u16, Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    entries: u32,
    deadline: Nanos,
}

impl Coalescing {
    /// Sets the feature "interrupt coalescing".
    pub(crate) fn set(&mut self, value: u32) {
        self.value = value & 0xffff;
    }

    pub(crate) fn get(&self) -> u32 {
        self.value
    }

    /// Sets the feature "interrupt vector configuration" of the vector in bits 15:0.
    pub(crate) fn configure(&mut self, value: u32) {
        let vector = value as u16;
        if value & COALESCING_DISABLE != 0 {
            self.exempt.insert(vector);
        } else {
            self.exempt.remove(&vector);
        }
    }

    pub(crate) fn configuration(&self, vector: u16) -> u32 {
        let disabled = self.exempt.contains(&vector);
        u32::from(vector) | if disabled { COALESCING_DISABLE } else { 0 }
    }

    /// Whether completions posted now, `entries` of them, interrupt now.
    pub(crate) fn posted(&mut self, vector: u16, entries: u32, now: Nanos) -> bool {
        let threshold = (self.value & 0xff) + 1;
        let time = Nanos::from(self.value >> 8) * TIME_UNIT;
        if time == 0 || threshold == 1 || self.exempt.contains(&vector) {
            self.interrupted(vector);
            return true;
        }
        let held = self.held.entry(vector).or_insert(Held {
            entries: 0,
            deadline: now.saturating_add(time),
        });
        held.entries = held.entries.saturating_add(entries);
        let is_enough = held.entries >= threshold || held.deadline <= now;
        if is_enough {
            self.interrupted(vector);
        }
        is_enough
    }

    /// An interrupt was raised: it is for all that was held back.
    pub(crate) fn interrupted(&mut self, vector: u16) {
        self.held.remove(&vector);
    }

    /// The vectors whose time is over; they are not held any more.
    pub(crate) fn expired(&mut self, now: Nanos) -> Vec<u16> {
        self.held
            .extract_if(.., |_, held| held.deadline <= now)
            .map(|(vector, _)| vector)
            .collect()
    }

    /// When the first time is over.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.held.values().map(|held| held.deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four completions or 200 us.
    fn coalescing() -> Coalescing {
        let mut coalescing = Coalescing::default();
        coalescing.set(0xffff_0203);
        assert_eq!(coalescing.get(), 0x0203);
        coalescing
    }

    #[test]
    fn enough_completions_interrupt() {
        let mut coalescing = coalescing();
        assert!(!coalescing.posted(1, 3, 0));
        assert!(!coalescing.posted(2, 3, 0));
        assert!(coalescing.posted(1, 1, 10));
        assert!(!coalescing.posted(1, 1, 20));
        assert!(coalescing.posted(3, 9, 20));
    }

    #[test]
    fn enough_time_interrupts_counted_from_the_first_completion() {
        let mut coalescing = coalescing();
        assert!(!coalescing.posted(1, 1, 5));
        assert!(!coalescing.posted(1, 1, 100_000));
        assert!(!coalescing.posted(2, 1, 100_000));
        assert_eq!(coalescing.next_due(), Some(200_005));
        assert_eq!(coalescing.expired(200_004), [0_u16; 0]);
        assert_eq!(coalescing.expired(200_005), [1]);
        assert_eq!(coalescing.next_due(), Some(300_000));
        assert!(coalescing.posted(2, 1, 300_000));
        assert_eq!(coalescing.next_due(), None);
    }

    #[test]
    fn nothing_is_held_without_time_or_threshold_or_on_exempt_vectors() {
        let mut coalescing = coalescing();
        for value in [0, 0x00ff, 0xff00] {
            coalescing.set(value);
            assert!(coalescing.posted(1, 1, 0));
        }
        coalescing.set(0x0203);
        coalescing.configure(1 << 16 | 1);
        assert_eq!(coalescing.configuration(1), 1 << 16 | 1);
        assert!(coalescing.posted(1, 1, 0));
        assert!(!coalescing.posted(2, 1, 0));
        coalescing.configure(1);
        assert_eq!(coalescing.configuration(1), 1);
        assert!(!coalescing.posted(1, 1, 0));
    }
}
