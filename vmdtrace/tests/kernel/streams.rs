//! Event streams fed to the loaded programs through BPF_PROG_TEST_RUN: what
//! they count equals the naive model to the last unit (times excepted). Names
//! are learned from kernel memory, no table is filled in advance.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Barrier,
    thread,
};

use libtest_mimic::{Completion, Failed};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use vmdtrace::{
    host::Roots,
    probes::{Loaded as _, Options, Sizes, Tracer, shares::NumberedShare},
    snapshot::{Counters, LineKind, Remote, source::Level},
};
use vmdtrace_common::{
    Place,
    cells::kind,
    model::{self, Event, Model, any_places, any_stream},
    shares,
};

use crate::{
    cpus,
    fixture::{Actions, CPUS},
    tracer,
};

/// Globs of the model's watched lines.
const WATCHED: &[&str] = &["virtio*"];

/// Puts this thread on a CPU; false if it may not run there.
fn pin(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &set).is_ok()
}

/// What was told of the lines.
type LineOwners = BTreeMap<(u32, String), u8>;

fn feed(
    tracer: &Tracer,
    actions: &mut Actions,
    owners: &mut LineOwners,
    (cpu, sum): (usize, u64),
    event: &Event,
) {
    let mut args = [0; 12];
    let program = match *event {
        Event::Enter { irq, action } => {
            args[..2].copy_from_slice(&[irq.into(), actions.address(action)]);
            "irq_handler_entry"
        }
        Event::Exit {
            irq,
            action,
            handled,
        } => {
            args[..3].copy_from_slice(&[irq.into(), actions.address(action), handled.into()]);
            "irq_handler_exit"
        }
        Event::Completion { request } => {
            args[0] = actions.request(request);
            "nvme_sq"
        }
        Event::End { request } => {
            args[0] = actions.request(request);
            "block_rq_complete"
        }
        Event::NewGeneration => return tracer.arrays().raise_generation(),
        Event::Rename { action, name } => return actions.rename(action, name),
        Event::Own {
            irq: number,
            owner,
            remapped,
        } => {
            let flag = if remapped { shares::REMAPPED } else { 0 };
            return tracer.arrays().set_owners(|irq, action| {
                let line = (irq, action.to_owned());
                if irq == number {
                    owners.insert(line.clone(), owner as u8 | flag);
                }
                owners.get(&line).copied().unwrap_or_default()
            });
        }
        // The model was fed first.
        Event::Counted => return actions.count(cpu, sum),
    };
    tracer
        .test_run(program, args)
        .unwrap_or_else(|error| panic!("{program}: {error:#}"));
}

/// The kernel's counters in the model's terms.
fn lines(counters: &Counters) -> BTreeMap<(u32, String), model::Line> {
    let names: BTreeMap<u32, String> = counters
        .lines
        .iter()
        .filter(|line| line.kind == LineKind::VmdVector)
        .map(|line| (line.irq, line.action.clone()))
        .collect();
    counters
        .lines
        .iter()
        .map(|line| {
            let seen = model::Line {
                kind: match line.kind {
                    LineKind::VmdVector => kind::VMD_VECTOR,
                    LineKind::Nvme => kind::NVME,
                    LineKind::OtherChild => kind::OTHER_CHILD,
                    LineKind::Watched => kind::WATCHED,
                },
                depth0_runs: line.counts.depth0_runs,
                nested_runs: line.counts.nested_runs,
                unhandled_runs: line.counts.unhandled_runs,
                repeated_runs: line
                    .counts
                    .repeated_runs
                    .expect("the made-up counts can be read"),
                completions: line.counts.completions,
                placed: placed(line.counts.completions, &line.counts.remote),
                child_runs: line.counts.child_runs,
                child_unhandled_runs: line.counts.child_unhandled_runs,
                child_completions: line.counts.child_completions,
                parent: line
                    .parent_irq
                    .and_then(|irq| Some((irq, names.get(&irq)?.clone()))),
            };
            ((line.irq, line.action.clone()), seen)
        })
        .collect()
}

/// Runs of lines of which it had been told whose they are.
fn owned_runs(tracer: &Tracer) -> u64 {
    let shares = tracer.arrays().shares();
    let owned = shares.iter().filter(|share| share.owner >= shares::DIRECT);
    owned.map(|share| share.counts.depth0_runs).sum()
}

fn shares_of(shares: &[NumberedShare], cpu: usize) -> BTreeMap<u32, model::Share> {
    let of_cpu = shares.iter().filter(|share| share.cpu as usize == cpu);
    of_cpu
        .map(|share| {
            let seen = model::Share {
                hardware_interrupts: share.counts.hardware_interrupts(),
                resent_runs: share.counts.resent_runs,
                completions: share.counts.completions,
            };
            (share.owner, seen)
        })
        .collect()
}

fn assert_equal(
    counters: &Counters,
    shares: &[NumberedShare],
    model: &Model,
) -> Result<(), TestCaseError> {
    let mut seen = lines(counters);
    let mut expected = model.lines.clone();
    // Several vectors' names on one number: the parent's name is not told.
    for line in seen.values_mut().chain(expected.values_mut()) {
        if let Some((_, name)) = &mut line.parent {
            name.clear();
        }
    }
    prop_assert_eq!(seen, expected);
    for (cpu, expected) in model.cpus.iter().enumerate() {
        let counts = &counters.cpus[cpu];
        let seen = model::Cpu {
            depth0_runs: counts.depth0_runs,
            completions_outside: counts.completions_outside,
            placed_outside: placed(counts.completions_outside, &counts.remote_outside),
            unassigned_runs: counts.unassigned_runs,
            unassigned_completions: counts.unassigned_completions,
            lost_frames: counts.lost_frames,
            unmatched_exits: counts.unmatched_exits,
            overflowed_runs: counts.overflowed_runs,
            unreadable_actions: counts.unreadable_actions,
            shares: shares_of(shares, cpu),
        };
        let of_cpu = shares.iter().filter(|share| share.cpu as usize == cpu);
        let interrupt_ns: u64 = of_cpu.map(|share| share.counts.interrupt_ns).sum();
        prop_assert_eq!(interrupt_ns, counts.interrupt_ns, "CPU {}", cpu);
        prop_assert_eq!(&seen, expected, "CPU {}", cpu);
        prop_assert_eq!(counts.out_of_range_runs, 0);
    }
    let of_disks = counters.samples.iter().map(|of_disk| {
        let number = of_disk.disk.strip_prefix("nvme").unwrap().parse().unwrap();
        (Some(number), &of_disk.counts)
    });
    let seen: BTreeMap<_, _> = of_disks
        .chain([(None, &counters.other_samples)])
        .map(|(disk, counts)| {
            let samples = model::Samples {
                with_start: counts.latency.count(),
                without_start: counts.without_start,
                ended: counts.handling.count(),
            };
            (disk, samples)
        })
        .filter(|(_, samples)| *samples != model::Samples::default())
        .collect();
    prop_assert_eq!(&seen, &model.samples);
    Ok(())
}

/// Completions by distance, the local ones first.
fn placed(completions: u64, remote: &Remote) -> [u64; 5] {
    let [same_cache, other_cache, other_node, unknown] =
        remote.by_distance().map(|(_, count)| count);
    let local = completions - (same_cache + other_cache + other_node + unknown);
    [local, same_cache, other_cache, other_node, unknown]
}

pub(crate) fn loaded_programs_equal_the_model() -> Result<Completion, Failed> {
    let actions = match Actions::new() {
        Ok(actions) => RefCell::new(actions),
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let mut runner = TestRunner::new(Config {
        cases: 160,
        failure_persistence: None,
        ..Config::default()
    });
    let cpu_count = (cpus() as usize).min(CPUS);
    if !(0..cpu_count).all(pin) {
        return Ok(Completion::ignored_with("may not run on CPU 0 or 1"));
    }
    let (runs, repeated, ended) = (Cell::new(0u64), Cell::new(0u64), Cell::new(0u64));
    let told = Cell::new(0u64);
    let strategy = (any_stream(cpu_count, 60), any_places(cpu_count), 1..12u32);
    runner
        .run(&strategy, |(stream, places, slots)| {
            let mut actions = actions.borrow_mut();
            for cpu in 0..cpu_count {
                actions.count(cpu, 0);
            }
            let tracer = tracer(slots, WATCHED, actions.roots());
            let place = |&(cache, node): &_| Place::new(cache, node);
            tracer
                .arrays()
                .set_places(&places.iter().map(place).collect::<Vec<_>>());
            let mut model = Model::new(&places, slots as usize, true);
            let mut owners = LineOwners::new();
            for (cpu, event) in &stream {
                prop_assert!(pin(*cpu), "may not run on CPU {}", cpu);
                model.feed(*cpu, event);
                let sum = model.irqs_sum(*cpu).unwrap_or_default();
                feed(&tracer, &mut actions, &mut owners, (*cpu, sum), event);
            }
            repeated.set(
                repeated.get()
                    + model
                        .lines
                        .values()
                        .map(|line| line.repeated_runs)
                        .sum::<u64>(),
            );
            ended.set(ended.get() + model.samples.values().map(|it| it.ended).sum::<u64>());
            runs.set(runs.get() + model.cpus.iter().map(|cpu| cpu.depth0_runs).sum::<u64>());
            told.set(told.get() + owned_runs(&tracer));
            let arrays = tracer.arrays();
            assert_equal(&arrays.counters(), &arrays.shares(), &model)
        })
        .map_err(|error| error.to_string())?;
    // Some thousands and some dozens, by chance: far from what is asked.
    if runs.get() < 500 || repeated.get() == 0 || ended.get() == 0 || told.get() == 0 {
        return Err(format!(
            "only {} depth-0 runs, {} repeated ones, {} of lines with an owner and {} samples \
             with an end in all streams: they test nothing",
            runs.get(),
            repeated.get(),
            told.get(),
            ended.get()
        )
        .into());
    }
    Ok(Completion::Completed)
}

pub(crate) fn two_cpus_learn_at_once() -> Result<Completion, Failed> {
    if cpus() < 2 || !pin(0) || !pin(1) {
        return Ok(Completion::ignored_with("needs two CPUs"));
    }
    let mut actions = match Actions::new() {
        Ok(actions) => actions,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    actions.rename(0, Some("nvme0q1"));
    actions.rename(1, Some("nvme1q1"));
    const LINES: u32 = 400;
    const ROUNDS: u64 = 5;
    let tracer = tracer(2 * LINES, &[], Roots::default());
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for cpu in 0..2u32 {
            let (tracer, barrier) = (&tracer, &barrier);
            let action = actions.address(cpu as usize);
            scope.spawn(move || {
                assert!(pin(cpu as usize), "may not run on CPU {cpu}");
                barrier.wait();
                for _ in 0..ROUNDS {
                    for line in 0..LINES {
                        let irq = u64::from(1 + 2 * line + cpu);
                        let mut args = [0; 12];
                        args[..3].copy_from_slice(&[irq, action, 1]);
                        tracer.test_run("irq_handler_entry", args).unwrap();
                        tracer.test_run("irq_handler_exit", args).unwrap();
                    }
                }
            });
        }
    });
    let counters = tracer.arrays().counters();
    let expected: BTreeMap<(u32, String), u64> = (0..2 * LINES)
        .map(|index| ((1 + index, format!("nvme{}q1", index % 2)), ROUNDS))
        .collect();
    let seen: BTreeMap<(u32, String), u64> = counters
        .lines
        .iter()
        .map(|line| ((line.irq, line.action.clone()), line.counts.depth0_runs))
        .collect();
    if counters.lines.len() != seen.len() {
        return Err("two slots for one line".into());
    }
    assert_eq!(seen, expected);
    assert!(
        counters
            .cpus
            .iter()
            .all(|cpu| cpu.unassigned_runs == 0 && cpu.lost_frames == 0)
    );
    Ok(Completion::Completed)
}

pub(crate) fn level_counters_reads_no_clock() -> Result<Completion, Failed> {
    let mut actions = match Actions::new() {
        Ok(actions) => actions,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    actions.rename(0, Some("nvme0q1"));
    let mut times = Vec::new();
    for level in [Level::Counters, Level::Timing] {
        let options = Options {
            sizes: Sizes {
                cpus: cpus(),
                interrupts: 16,
                slots: 4,
            },
            level,
            also_lines: Vec::new(),
            kprobes: false,
            shares: false,
            roots: Roots::default(),
        };
        let tracer = Tracer::load(options).map_err(|error| error.to_string())?;
        tracer.arm();
        if !pin(0) {
            return Ok(Completion::ignored_with("may not run on CPU 0"));
        }
        feed(
            &tracer,
            &mut actions,
            &mut LineOwners::new(),
            (0, 0),
            &Event::Enter { irq: 3, action: 0 },
        );
        feed(
            &tracer,
            &mut actions,
            &mut LineOwners::new(),
            (0, 0),
            &Event::Exit {
                irq: 3,
                action: 0,
                handled: true,
            },
        );
        let counters = tracer.arrays().counters();
        assert_eq!(counters.lines[0].counts.depth0_runs, 1);
        times.push(counters.lines[0].counts.inclusive_ns > 0);
    }
    assert_eq!(times, [false, true]);
    Ok(Completion::Completed)
}
