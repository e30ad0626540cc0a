//! Faults that a disk is told to make: which of its next MSIs or completions
//! goes wrong, and how.

use serde::{Deserialize, Serialize};

use crate::service::{Nanos, parse_time, time_text};

/// What goes wrong with an MSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MsiFault {
    /// It is lost.
    Drop,
    /// It is delivered twice.
    Duplicate,
    /// It is delivered later by so much, and after MSIs that were sent meanwhile.
    Delay(Delay),
}

/// A length of time, as text such as `5ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Delay(pub(crate) Nanos);

impl TryFrom<String> for Delay {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        parse_time(&text).map(Self)
    }
}

impl From<Delay> for String {
    fn from(delay: Delay) -> Self {
        time_text(delay.0)
    }
}

/// What goes wrong with a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionFault {
    /// Its command id is one that no driver uses. Linux says "could not locate
    /// request" and does without its tracepoint (`nvme_handle_cqe` in
    /// drivers/nvme/host/pci.c); the command never ends for it.
    CommandId,
    /// Its status is "unrecovered read error, do not retry", whatever the command did.
    Status,
}

/// Faults planned and not yet made, at most `MAX`.
#[derive(Debug)]
pub(crate) struct Plan<F> {
    faults: Vec<Planned<F>>,
}

const MAX: usize = 64;

#[derive(Debug)]
struct Planned<F> {
    /// A vector or queue; `None` is any.
    of: Option<u16>,
    /// 1 is the next one.
    nth: u32,
    fault: F,
}

impl<F> Default for Plan<F> {
    fn default() -> Self {
        Self { faults: Vec::new() }
    }
}

impl<F: Copy> Plan<F> {
    /// Plans a fault for the `nth` from now on, 1 being the next; false if too many wait.
    pub(crate) fn add(&mut self, of: Option<u16>, nth: u32, fault: F) -> bool {
        let fits = self.faults.len() < MAX;
        if fits {
            let nth = nth.max(1);
            self.faults.push(Planned { of, nth, fault });
        }
        fits
    }

    /// Counts one of `of`; the fault that it gets, if any. A second fault that is
    /// planned for the same one happens to the next.
    pub(crate) fn next(&mut self, of: u16) -> Option<F> {
        let mut due = None;
        for (index, planned) in self.faults.iter_mut().enumerate() {
            if planned.of.is_some_and(|wanted| wanted != of) {
                continue;
            }
            if planned.nth > 1 {
                planned.nth -= 1;
            } else if due.is_none() {
                due = Some(index);
            }
        }
        due.map(|index| self.faults.remove(index).fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_of_a_kind_gets_the_fault() {
        let mut plan = Plan::default();
        assert!(plan.add(Some(1), 3, 'a'));
        assert!(plan.add(None, 2, 'b'));
        assert!(plan.add(Some(2), 1, 'c'));
        let made: Vec<_> = [1, 1, 1, 2, 2, 1].map(|of| plan.next(of)).to_vec();
        assert_eq!(made, [None, Some('b'), Some('a'), Some('c'), None, None]);
    }

    #[test]
    fn two_faults_for_the_same_one_follow_each_other() {
        let mut plan = Plan::default();
        assert!(plan.add(Some(1), 1, 'a') && plan.add(Some(1), 0, 'b'));
        assert_eq!([plan.next(1), plan.next(1)], [Some('a'), Some('b')]);
        assert_eq!(plan.next(1), None);
    }

    #[test]
    fn plans_are_bounded() {
        let mut plan = Plan::default();
        assert_eq!((0..100).filter(|_| plan.add(None, 1, ())).count(), MAX);
    }
}
