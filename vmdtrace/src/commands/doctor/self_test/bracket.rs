//! The rule that compares two counters of the same events while they rise.
//!
//! Nobody can read both at one moment. So the reference is read before and after
//! ours, twice: at the start of a window and at its end. An event may have been
//! counted by one and not yet by the other, but only one of each line at a time:
//! the kernel runs a line's handlers one after the other.

/// One reading of both counters of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The reference before ours, modulo 2^32.
    pub(super) before: u32,
    pub(super) ours: u64,
    /// The reference after ours, modulo 2^32.
    pub(super) after: u32,
}

/// What the reference allows ours to have risen by, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) at_least: u64,
    pub(super) at_most: u64,
}

/// By how much both rose from the first to the second reading.
///
/// The reference's difference is exact if it rose by less than 2^32 in between.
/// Ours is none if the counter went back, which it never may.
#[must_use]
pub(super) fn compare(first: Reading, second: Reading) -> (Option<u64>, Allowed) {
    let least = second.before.wrapping_sub(first.after);
    let most = second.after.wrapping_sub(first.before);
    let allowed = Allowed {
        at_least: u64::from(least).saturating_sub(1),
        at_most: u64::from(most).saturating_add(1),
    };
    (second.ours.checked_sub(first.ours), allowed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A line: the kernel counts an interrupt, then we do.
    #[derive(Clone, Copy)]
    struct Line {
        kernel: u32,
        ours: u64,
        between: bool,
    }

    impl Line {
        /// Half an interrupt, or a whole one: so many halves.
        fn run(&mut self, halves: u32) {
            for _ in 0..halves {
                if self.between {
                    self.ours += 1;
                } else {
                    self.kernel = self.kernel.wrapping_add(1);
                }
                self.between = !self.between;
            }
        }

        /// Reads kernel, ours, kernel, with events in between.
        fn read(&mut self, halves: [u32; 2]) -> Reading {
            let before = self.kernel;
            self.run(halves[0]);
            let ours = self.ours;
            self.run(halves[1]);
            Reading {
                before,
                ours,
                after: self.kernel,
            }
        }
    }

    fn holds((ours, allowed): (Option<u64>, Allowed)) -> bool {
        ours.is_some_and(|ours| (allowed.at_least..=allowed.at_most).contains(&ours))
    }

    proptest! {
        #[test]
        fn holds_for_every_honest_counter(
            start: u32, ours in 0u64..1 << 40, between: bool,
            first: [u16; 2], window: u16, second: [u16; 2],
        ) {
            let mut line = Line { kernel: start, ours, between };
            let first = line.read(first.map(u32::from));
            line.run(u32::from(window));
            let second = line.read(second.map(u32::from));
            prop_assert!(holds(compare(first, second)), "{first:?} {second:?}");
        }

        /// Whatever is wrong by more than what ran during the two readings shows.
        #[test]
        fn fails_for_a_wrong_counter(
            start: u32, between: bool,
            first: [u8; 2], window: u16, second: [u8; 2], beyond in 1u64..1000, more: bool,
        ) {
            let mut line = Line { kernel: start, ours: 1 << 40, between };
            let first = line.read(first.map(u32::from));
            line.run(u32::from(window));
            let mut second = line.read(second.map(u32::from));
            let slack = u64::from(first.after.wrapping_sub(first.before))
                + u64::from(second.after.wrapping_sub(second.before))
                + 2;
            if more {
                second.ours += slack + beyond;
            } else {
                second.ours -= slack + beyond;
            }
            prop_assert!(!holds(compare(first, second)), "{first:?} {second:?}");
        }

        /// At rest at both ends, two interrupts too many or too few show.
        #[test]
        fn is_sharp_at_rest(start: u32, rose in 2u32..1 << 30, wrong in prop_oneof![Just(-2i64), Just(2)]) {
            let first = Reading { before: start, ours: 7, after: start };
            let end = start.wrapping_add(rose);
            let ours = (7 + i64::from(rose) + wrong) as u64;
            let second = Reading { before: end, ours, after: end };
            prop_assert!(!holds(compare(first, second)));
            let honest = Reading { ours: 7 + u64::from(rose), ..second };
            prop_assert!(holds(compare(first, honest)));
        }
    }

    #[test]
    fn a_counter_that_went_back_is_told() {
        let at = |ours| Reading {
            before: 5,
            ours,
            after: 5,
        };
        assert_eq!(compare(at(3), at(2)).0, None);
    }

    #[test]
    fn the_kernels_count_may_wrap() {
        let first = Reading {
            before: u32::MAX - 1,
            ours: 10,
            after: u32::MAX,
        };
        let second = Reading {
            before: 8,
            ours: 20,
            after: 9,
        };
        let (ours, allowed) = compare(first, second);
        assert_eq!(ours, Some(10));
        assert_eq!((allowed.at_least, allowed.at_most), (8, 12));
    }
}
