use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::bio_model::{Between, Context, Kernel, Memory, Regime, Request, Step, any_stream};

const HIT: Allocation = Allocation {
    returned: 0x100,
    marked: true,
    has_cache: true,
    vectors: 1,
    asked: true,
    default_on: false,
    start: Some(Start {
        free_list: 0x100,
        free_list_irq: 0,
        nr_irq: 0,
        spliced: false,
    }),
    free_list: 0,
};

fn missed(free_list_irq: u64, nr_irq: u32) -> Allocation {
    Allocation {
        start: Some(Start {
            free_list: 0,
            free_list_irq,
            nr_irq,
            spliced: false,
        }),
        ..HIT
    }
}

#[test]
fn causes_are_told_in_their_order() {
    assert_eq!(classify(&HIT), class::HIT_OWN);
    // Everything speaks against it at once; each remedy shows the next cause.
    let mut call = Allocation {
        returned: 0,
        marked: false,
        has_cache: false,
        vectors: 5,
        asked: false,
        start: None,
        ..HIT
    };
    for (expected, remedy) in [
        (
            class::FAILED,
            (|call| call.returned = 0x100) as fn(&mut Allocation),
        ),
        (class::NO_CACHE, |call| call.has_cache = true),
        (class::VECTORS, |call| call.vectors = 4),
        (class::NO_FLAG, |call| call.asked = true),
        (class::UNPAIRED, |call| call.start = missed(0, 0).start),
        (class::MISS_RESERVE, |call| call.marked = true),
        (class::MISS_EMPTY, |call| {
            call.start = missed(0x900, 15).start;
        }),
        (class::MISS_BELOW_THRESHOLD, |call| {
            call.start = missed(0x900, 16).start;
        }),
        (class::AMBIGUOUS, |call| call.returned = 0x900),
        (class::HIT_SPLICE, |_| {}),
    ] {
        assert_eq!(classify(&call), expected, "{call:?}");
        remedy(&mut call);
    }
}

#[test]
fn what_comes_in_between_is_ambiguous() {
    // The own list held another bio; it was empty and is not any more.
    let another = Allocation {
        returned: 0x200,
        ..HIT
    };
    let refilled = Allocation {
        free_list: 0x300,
        ..missed(0, 0)
    };
    for call in [another, refilled] {
        assert_eq!(classify(&call), class::AMBIGUOUS);
    }
}

#[test]
fn only_who_did_not_ask_tells_the_regime() {
    let unasked = Allocation {
        asked: false,
        ..HIT
    };
    assert_eq!(regime_evidence(&HIT), 0);
    assert_eq!(regime_evidence(&unasked), regime::DEFAULT_ON);
    let unmarked = Allocation {
        marked: false,
        ..unasked
    };
    assert_eq!(regime_evidence(&unmarked), regime::OPT_IN);
    assert_eq!(classify(&unmarked), class::NO_FLAG);
    // Once it is known that nobody needs to ask, the same is the reserve.
    let known = Allocation {
        default_on: true,
        start: missed(0, 0).start,
        ..unmarked
    };
    assert_eq!(classify(&known), class::MISS_RESERVE);
    for silent in [
        Allocation {
            returned: 0,
            ..unasked
        },
        Allocation {
            has_cache: false,
            ..unasked
        },
        Allocation {
            vectors: 5,
            ..unasked
        },
    ] {
        assert_eq!(regime_evidence(&silent), 0);
    }
    // Once the kernel is known to want to be asked, others need not be followed.
    assert!(!may_use_cache(true, 1, false, regime::OPT_IN));
    assert!(may_use_cache(true, 1, false, 0));
    assert!(may_use_cache(
        true,
        1,
        false,
        regime::OPT_IN | regime::DEFAULT_ON
    ));
    assert!(may_use_cache(true, 4, true, regime::OPT_IN));
    assert!(!may_use_cache(true, 5, true, regime::DEFAULT_ON));
    assert!(!may_use_cache(false, 1, true, regime::DEFAULT_ON));
}

#[test]
fn contexts_are_read_from_both_layouts() {
    // Up to 6.18: hardware interrupts in bits 16 to 19, NMIs above; in 7.3 both
    // are 8 bits further up (include/linux/preempt.h).
    for (hardirq, nmi) in [(16, 20), (24, 28)] {
        let (hardirq_mask, interrupts) = (0xf << hardirq, 0xff << hardirq);
        let at = |count: u32| context_of(count, hardirq_mask, interrupts);
        assert_eq!(at(0), context::TASK);
        assert_eq!(at(3), context::TASK, "preemption held off");
        assert_eq!(at(0x200), context::TASK, "softirqs held off");
        assert_eq!(at(0x100), context::SOFTIRQ);
        assert_eq!(at(0x301), context::SOFTIRQ);
        assert_eq!(at(1 << hardirq), context::HARDIRQ);
        assert_eq!(at(1 << hardirq | 0x100), context::HARDIRQ);
        // The kernel, too, keeps a bio freed there out of its lists.
        assert_eq!(at(1 << nmi), context::SOFTIRQ);
    }
}

#[test]
fn a_bio_of_no_set_or_not_of_the_cache_goes_where_it_came_from() {
    let free = Free {
        pooled: true,
        marked: true,
        polled: false,
        irq_list: true,
        context: context::UNKNOWN,
        cached: 0,
    };
    assert_eq!(destination_of(&free), destination::UNKNOWN);
    let unmarked = Free {
        marked: false,
        ..free
    };
    assert_eq!(destination_of(&unmarked), destination::NOT_CACHED);
    let unpooled = Free {
        pooled: false,
        ..free
    };
    assert_eq!(destination_of(&unpooled), destination::KFREE);
}

/// Runs a stream on a model of the kernel; counts by class, and where they
/// differ from the truth.
fn run(regime: Regime, preemption: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut kernel = Kernel::new(regime);
    let mut in_use = VecDeque::new();
    let mut regimes = 0;
    let mut classes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut calls = 0;
    for step in steps {
        match step {
            Step::Allocate {
                request,
                before,
                after,
            } => {
                // What is the first to tell the regime cannot be told from a
                // reserve: a kernel does not start with its memory used up.
                let memory = match request.memory {
                    Memory::Reserve if regimes == 0 => Memory::Plenty,
                    memory => memory,
                };
                let request = Request { memory, ..*request };
                let default_on = regimes & regime::DEFAULT_ON != 0;
                let outcome = kernel.allocate(request, before, after, default_on);
                let mut seen = outcome.seen;
                let followed = may_use_cache(seen.has_cache, seen.vectors, seen.asked, regimes);
                if !followed {
                    seen.start = None;
                }
                regimes |= regime_evidence(&seen);
                in_use.extend(outcome.bio);
                let found = classify(&seen);
                *classes.entry(found).or_default() += 1;
                calls += 1;
                check(found, outcome.truth, preemption, before, after)
                    .map_err(|error| TestCaseError::fail(format!("{error}: {outcome:?}")))?;
            }
            Step::Free { context, polled } => {
                let Some(bio) = in_use.pop_front() else {
                    continue;
                };
                let free = Free {
                    pooled: true,
                    marked: bio.marked,
                    polled: *polled,
                    irq_list: matches!(regime, Regime::OptIn | Regime::DefaultOn),
                    context: match context {
                        Context::Task => context::TASK,
                        Context::Softirq => context::SOFTIRQ,
                        Context::Hardirq => context::HARDIRQ,
                    },
                    cached: kernel.cached(),
                };
                let truth = if bio.marked {
                    kernel.put_marked(bio.address, *context, *polled)
                } else {
                    destination::NOT_CACHED
                };
                prop_assert_eq!(destination_of(&free), truth);
            }
            Step::Burst { context, bios } => {
                for bio in 0..u64::from(*bios) {
                    kernel.put_marked(0x1_0000_0000 + calls * 0x1000 + bio, *context, true);
                }
            }
        }
    }
    prop_assert_eq!(classes.values().sum::<u64>(), calls);
    let expected = match regime {
        Regime::None => 0,
        Regime::PolledOnly | Regime::OptIn => regime::OPT_IN,
        Regime::DefaultOn => regime::DEFAULT_ON,
    };
    prop_assert!(regimes & !expected & regime::DEFAULT_ON == 0, "{}", regimes);
    if regimes != 0 && regime != Regime::DefaultOn {
        prop_assert_eq!(regimes, expected);
    }
    Ok(())
}

/// What a class may be, given the truth and what came in between.
fn check(
    found: u64,
    truth: u64,
    preemption: bool,
    before: &[Between],
    after: &[Between],
) -> Result<(), String> {
    let is_hit = |class| matches!(class, class::HIT_OWN | class::HIT_SPLICE);
    let is_miss = |class| {
        matches!(
            class,
            class::MISS_EMPTY | class::MISS_BELOW_THRESHOLD | class::MISS_RESERVE
        )
    };
    let interrupted = before
        .iter()
        .any(|between| matches!(between, Between::Interrupt));
    let unsure = matches!(found, class::AMBIGUOUS | class::UNPAIRED);
    let right = if found == truth {
        true
    } else if !preemption {
        // An interrupt may bring the first bio after the look at the lists.
        interrupted && (found, truth) == (class::MISS_EMPTY, class::MISS_BELOW_THRESHOLD)
    } else if before.iter().any(|between| between.is_preemption()) {
        // Between its look and the kernel's another task may do and undo what it
        // likes; a hit is a hit all the same.
        unsure
            || (is_miss(found) && (is_miss(truth) || is_hit(truth)))
            || (is_hit(found) && is_hit(truth))
    } else {
        // Only the end may be in doubt.
        unsure || (interrupted && is_miss(found) && is_miss(truth))
    };
    if right && (preemption || !unsure) {
        return Ok(());
    }
    Err(format!("{found} for {truth}, {before:?}, {after:?}"))
}

fn any_regime() -> impl Strategy<Value = Regime> {
    prop_oneof![
        Just(Regime::None),
        Just(Regime::PolledOnly),
        Just(Regime::OptIn),
        Just(Regime::DefaultOn)
    ]
}

proptest! {
    /// Whatever interrupts do, every call is told for what it was.
    #[test]
    fn without_other_tasks_every_class_is_true(
        regime in any_regime(),
        steps in any_stream(false),
    ) {
        run(regime, false, &steps)?;
    }

    /// Other tasks may make a call ambiguous. They never make a hit of a miss.
    #[test]
    fn other_tasks_never_make_a_hit(regime in any_regime(), steps in any_stream(true)) {
        run(regime, true, &steps)?;
    }
}
