//! Which tests run side by side. Guests are emulated: too many at once would
//! only run into time limits.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a test needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A guest of its own, beside others.
    Beside,
    /// The whole machine.
    Alone,
    /// A guest that it shares with the others of this name, which run in their
    /// order, one at a time.
    Shared(&'static str),
    /// As above, and the whole machine.
    SharedAlone(&'static str),
}

impl Place {
    fn group(self) -> Option<&'static str> {
        match self {
            Self::Beside | Self::Alone => None,
            Self::Shared(group) | Self::SharedAlone(group) => Some(group),
        }
    }

    fn is_alone(self) -> bool {
        matches!(self, Self::Alone | Self::SharedAlone(_))
    }
}

/// Lets planned tests begin in their order, as soon as there is room. A test that
/// waits for one of its own group is passed over; one that waits for room is not,
/// so that each gets its turn.
///
/// Each planned test must call [`Schedule::enter`] from a thread of its own.
#[derive(Debug)]
pub struct Schedule {
    slots: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    tests: BTreeMap<String, Test>,
}

#[derive(Debug)]
struct Test {
    order: usize,
    place: Place,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Planned,
    Running,
    Done,
}

/// Held while a test runs.
#[derive(Debug)]
pub struct Turn<'a> {
    schedule: &'a Schedule,
    name: String,
}

impl Schedule {
    /// A plan for tests by name, which has to be unique, for a machine on which so
    /// many guests can run.
    pub fn new(slots: usize, tests: impl IntoIterator<Item = (String, Place)>) -> Self {
        let test = |(order, (name, place))| {
            let stage = Stage::Planned;
            (
                name,
                Test {
                    order,
                    place,
                    stage,
                },
            )
        };
        let slots = slots.max(1);
        Self {
            slots,
            state: Mutex::new(State {
                free: slots,
                tests: tests.into_iter().enumerate().map(test).collect(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits until it is this test's turn. One that is not planned has the whole
    /// machine at once: nothing is known of it.
    pub fn enter(&self, name: &str) -> Turn<'_> {
        let mut state = self.lock();
        while !state.may_begin(name, self.slots) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.set(name, Stage::Running, self.slots);
        drop(state);
        // The next in order may have room too.
        self.changed.notify_all();
        Turn {
            schedule: self,
            name: name.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn may_begin(&self, name: &str, slots: usize) -> bool {
        let Some(test) = self.tests.get(name) else {
            return true;
        };
        let next = self
            .tests
            .values()
            .filter(|it| it.stage == Stage::Planned && !self.waits_for_its_group(it))
            .map(|it| it.order)
            .min();
        next == Some(test.order) && self.free >= needed(test.place, slots)
    }

    fn waits_for_its_group(&self, test: &Test) -> bool {
        test.place.group().is_some_and(|group| {
            self.tests.values().any(|other| {
                other.place.group() == Some(group)
                    && other.order < test.order
                    && other.stage != Stage::Done
            })
        })
    }

    fn set(&mut self, name: &str, stage: Stage, slots: usize) {
        if let Some(test) = self.tests.get_mut(name) {
            test.stage = stage;
            let needed = needed(test.place, slots);
            match stage {
                Stage::Running => self.free -= needed,
                Stage::Done => self.free += needed,
                Stage::Planned => {}
            }
        }
    }
}

fn needed(place: Place, slots: usize) -> usize {
    if place.is_alone() { slots } else { 1 }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.schedule.lock();
        state.set(&self.name, Stage::Done, self.schedule.slots);
        drop(state);
        self.schedule.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// Runs all tests, begun in the order given; what happened, in order.
    fn run(slots: usize, tests: &[(&str, Place)], begun: &[usize]) -> Vec<String> {
        let plan = tests
            .iter()
            .map(|(name, place)| ((*name).to_owned(), *place));
        let schedule = Schedule::new(slots, plan);
        let (sender, events) = channel();
        std::thread::scope(|scope| {
            for index in begun {
                let (name, _) = tests[*index];
                let (schedule, sender) = (&schedule, sender.clone());
                scope.spawn(move || {
                    let turn = schedule.enter(name);
                    sender.send(format!("+{name}")).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                    sender.send(format!("-{name}")).unwrap();
                    drop(turn);
                });
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        drop(sender);
        events.into_iter().collect()
    }

    /// The largest number of tests that ran at once.
    fn at_once(events: &[String]) -> usize {
        let (mut running, mut most) = (0_usize, 0);
        for event in events {
            if event.starts_with('+') {
                running += 1;
            } else {
                running -= 1;
            }
            most = most.max(running);
        }
        most
    }

    #[test]
    fn one_slot_keeps_the_order_whoever_comes_first() {
        let tests = [
            ("a", Place::Beside),
            ("b", Place::Shared("g")),
            ("c", Place::Alone),
            ("d", Place::Shared("g")),
        ];
        let events = run(1, &tests, &[3, 2, 1, 0]);
        assert_eq!(events, ["+a", "-a", "+b", "-b", "+c", "-c", "+d", "-d"]);
    }

    #[test]
    fn slots_bound_what_runs_at_once_and_a_group_keeps_its_order() {
        let tests = [
            ("g1", Place::Shared("g")),
            ("g2", Place::Shared("g")),
            ("a", Place::Beside),
            ("b", Place::Beside),
            ("c", Place::Beside),
            ("g3", Place::Shared("g")),
        ];
        let events = run(2, &tests, &[5, 4, 3, 2, 1, 0]);
        assert!(at_once(&events) <= 2, "{events:?}");
        let place = |event: &str| events.iter().position(|it| it == event).unwrap();
        assert!(place("-g1") < place("+g2") && place("-g2") < place("+g3"));
    }

    /// Would wait for ever if they ran one after the other.
    #[test]
    fn as_many_run_at_once_as_there_are_slots() {
        let plan = ["a", "b", "c"].map(|name| (name.to_owned(), Place::Beside));
        let schedule = Schedule::new(3, plan);
        let all_run = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let (schedule, all_run) = (&schedule, &all_run);
                scope.spawn(move || {
                    let _turn = schedule.enter(name);
                    all_run.wait();
                });
            }
        });
    }

    #[test]
    fn who_needs_the_whole_machine_gets_it() {
        let tests = [
            ("a", Place::Beside),
            ("b", Place::Beside),
            ("all", Place::Alone),
            ("c", Place::Beside),
            ("s", Place::SharedAlone("s")),
        ];
        let events = run(3, &tests, &[4, 3, 2, 1, 0]);
        for alone in ["all", "s"] {
            let begin = events
                .iter()
                .position(|it| *it == format!("+{alone}"))
                .unwrap();
            assert_eq!(events[begin + 1], format!("-{alone}"), "{events:?}");
            let before = events[..begin].iter();
            let (begun, ended): (Vec<_>, Vec<_>) = before.partition(|it| it.starts_with('+'));
            assert_eq!(begun.len(), ended.len(), "{events:?}");
        }
    }

    #[test]
    fn a_test_that_panics_leaves_its_place() {
        let schedule = Schedule::new(
            1,
            [("a", Place::Alone), ("b", Place::Beside)]
                .map(|(name, place)| (name.to_owned(), place)),
        );
        std::thread::scope(|scope| {
            let failed = scope.spawn(|| {
                let _turn = schedule.enter("a");
                std::panic::resume_unwind(Box::new("as planned"));
            });
            assert!(failed.join().is_err());
        });
        drop(schedule.enter("b"));
        drop(schedule.enter("not planned"));
    }
}
