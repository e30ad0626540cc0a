//! A naive model of the accounting, for tests: strings, vectors and hash maps
//! instead of slots, banks and frames, and the rules told once more from the
//! user's side. The accounting is right where both agree on random streams.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use crate::{cells::kind, shares};

/// Number of made-up actions in a stream.
pub const ACTIONS: usize = 10;
/// Interrupt numbers in a stream: 1 to this.
pub const IRQS: u32 = 8;

/// Names an action may have. Some are re-used by several actions.
pub const NAMES: [&str; 9] = [
    "vmd0",
    "vmd1",
    "vmd",
    "nvme0q0",
    "nvme0q1",
    "nvme12q3",
    "pciehp",
    "eth0-tx-1",
    "virtio1-req.0",
];

/// Number of made-up requests in a stream.
pub const REQUESTS: usize = 6;

/// A made-up request's submitting CPU; None: it has no context.
#[must_use]
pub fn submitter(request: usize) -> Option<u32> {
    [None, Some(0), Some(1), Some(2), Some(999), Some(0)][request]
}

/// When a made-up request began, in nanoseconds; 0: the kernel did not note it.
#[must_use]
pub fn start_ns(request: usize) -> u64 {
    u64::from(request != 1)
}

/// A CPU's last-level cache and NUMA node, where they are known.
pub type MadeUpPlace = (Option<u32>, Option<u32>);

/// What can happen on a CPU.
#[derive(Clone, Debug)]
pub enum Event {
    Enter {
        irq: u32,
        action: usize,
    },
    Exit {
        irq: u32,
        action: usize,
        handled: bool,
    },
    /// A completion of this request is taken.
    Completion {
        request: usize,
    },
    /// A request ended.
    End {
        request: usize,
    },
    /// Devices came or went.
    NewGeneration,
    /// The action's memory now holds another action (None: unreadable).
    Rename {
        action: usize,
        name: Option<&'static str>,
    },
    /// The kernel counted an interrupt on this CPU.
    Counted,
    /// It was told whose all lines of this number are that have run.
    Own {
        irq: u32,
        owner: u32,
        remapped: bool,
    },
}

/// Kind that a name stands for by itself, as the tests' name table has it:
/// VMD vectors, NVMe queues, and `virtio*` watched.
#[must_use]
pub fn kind_of(name: &str) -> u32 {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = name.strip_prefix("vmd")
        && (rest.is_empty() || digits(rest))
    {
        return kind::VMD_VECTOR;
    }
    if let Some((disk, queue)) = name
        .strip_prefix("nvme")
        .and_then(|rest| rest.split_once('q'))
        && digits(disk)
        && digits(queue)
    {
        return kind::NVME;
    }
    if name.starts_with("virtio") {
        kind::WATCHED
    } else {
        kind::NONE
    }
}

/// Counters of one line, by what they mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub kind: u32,
    pub depth0_runs: u64,
    pub nested_runs: u64,
    pub unhandled_runs: u64,
    pub repeated_runs: u64,
    pub completions: u64,
    /// The completions by distance: local, same cache, other cache, other node,
    /// unknown.
    pub placed: [u64; 5],
    pub child_runs: u64,
    pub child_unhandled_runs: u64,
    pub child_completions: u64,
    /// The VMD vector it last ran in.
    pub parent: Option<(u32, String)>,
}

/// Counters of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    pub depth0_runs: u64,
    pub completions_outside: u64,
    /// Those by distance.
    pub placed_outside: [u64; 5],
    pub unassigned_runs: u64,
    pub unassigned_completions: u64,
    pub lost_frames: u64,
    pub unmatched_exits: u64,
    pub overflowed_runs: u64,
    pub unreadable_actions: u64,
    /// What it did for each owner; of those it did something for.
    pub shares: BTreeMap<u32, Share>,
}

/// What a CPU did for one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub hardware_interrupts: u64,
    pub resent_runs: u64,
    pub completions: u64,
}

/// Samples of one disk, by number; None: of no disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub with_start: u64,
    pub without_start: u64,
    /// Of both, those whose end was seen.
    pub ended: u64,
}

type LineKey = (u32, String);

#[derive(Clone, Debug)]
struct Running {
    irq: u32,
    action: usize,
    kind: u32,
    /// None: no slot was free.
    line: Option<LineKey>,
    repeated: bool,
    completions: u64,
    placed: [u64; 5],
    children: Vec<Child>,
}

#[derive(Clone, Debug)]
struct Child {
    handled: bool,
    completions: u64,
}

#[derive(Clone, Debug)]
enum Belief {
    Unreadable,
    NotOurs,
    Ours(Option<LineKey>, u32),
}

/// The model: feed it events, compare its counters.
#[derive(Clone, Debug)]
pub struct Model {
    pub lines: BTreeMap<LineKey, Line>,
    pub cpus: Vec<Cpu>,
    pub samples: BTreeMap<Option<u32>, Samples>,
    places: Vec<MadeUpPlace>,
    pending: HashMap<usize, Option<u32>>,
    stacks: Vec<Vec<Running>>,
    names: Vec<Option<&'static str>>,
    beliefs: HashMap<u32, (usize, u32, Belief)>,
    generation: u32,
    /// Whether the kernel's interrupt count can be read.
    counted: Option<Vec<u64>>,
    previous: HashMap<LineKey, (usize, u64, usize)>,
    /// Owner, and whether it remaps.
    owners: HashMap<LineKey, (u32, bool)>,
    slots: usize,
    max_depth: usize,
    max_names: usize,
}

impl Model {
    /// A machine with CPUs at these places and `slots` free slots. `sees_counts`
    /// tells whether the kernel's interrupt counts can be read.
    #[must_use]
    pub fn new(places: &[MadeUpPlace], slots: usize, sees_counts: bool) -> Self {
        let cpus = places.len();
        Self {
            lines: BTreeMap::new(),
            samples: BTreeMap::new(),
            places: places.to_vec(),
            pending: HashMap::new(),
            cpus: vec![Cpu::default(); cpus],
            stacks: vec![Vec::new(); cpus],
            names: vec![None; ACTIONS],
            beliefs: HashMap::new(),
            generation: 0,
            counted: sees_counts.then(|| vec![0; cpus]),
            previous: HashMap::new(),
            owners: HashMap::new(),
            slots,
            max_depth: crate::cells::MAX_DEPTH as usize,
            max_names: crate::cells::MAX_NAMES_PER_IRQ as usize,
        }
    }

    /// What an action's memory holds now.
    #[must_use]
    pub fn name(&self, action: usize) -> Option<&'static str> {
        self.names[action]
    }

    /// The kernel's interrupt count of a CPU.
    #[must_use]
    pub fn irqs_sum(&self, cpu: usize) -> Option<u64> {
        self.counted.as_ref().map(|counts| counts[cpu])
    }

    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn feed(&mut self, cpu: usize, event: &Event) {
        match *event {
            Event::Enter { irq, action } => self.enter(cpu, irq, action),
            Event::Exit {
                irq,
                action,
                handled,
            } => self.exit(cpu, irq, action, handled),
            Event::Completion { request } => self.complete(cpu, request),
            Event::End { request } => {
                if let Some(disk) = self.pending.remove(&request) {
                    self.samples.entry(disk).or_default().ended += 1;
                }
            }
            Event::NewGeneration => self.generation += 1,
            Event::Rename { action, name } => self.names[action] = name,
            Event::Counted => {
                if let Some(counts) = &mut self.counted {
                    counts[cpu] += 1;
                }
            }
            Event::Own {
                irq,
                owner,
                remapped,
            } => {
                let lines = self.lines.keys().filter(|(number, _)| *number == irq);
                let told = lines.map(|line| (line.clone(), (owner, remapped)));
                self.owners.extend(told);
            }
        }
    }

    /// 0 to 4: local, same cache, other cache, other node, unknown.
    fn distance(&self, cpu: usize, request: usize) -> usize {
        let Some(submitter) = submitter(request) else {
            return 4;
        };
        if submitter as usize == cpu {
            return 0;
        }
        let Some(other) = self.places.get(submitter as usize) else {
            return 4;
        };
        match (self.places[cpu], *other) {
            ((Some(here), _), (Some(there), _)) if here == there => 1,
            ((Some(_), Some(here)), (Some(_), Some(there))) if here == there => 2,
            ((Some(_), Some(_)), (Some(_), Some(_))) => 3,
            _ => 4,
        }
    }

    fn complete(&mut self, cpu: usize, request: usize) {
        let distance = self.distance(cpu, request);
        let bank = &mut self.cpus[cpu];
        let (number, disk) = match self.stacks[cpu].last_mut() {
            None => {
                bank.completions_outside += 1;
                bank.placed_outside[distance] += 1;
                (bank.completions_outside - 1, None)
            }
            Some(running) => {
                running.completions += 1;
                running.placed[distance] += 1;
                let Some(key) = &running.line else { return };
                let line = &self.lines[key];
                let disk = (line.kind == kind::NVME)
                    .then(|| key.1.strip_prefix("nvme")?.split_once('q')?.0.parse().ok())
                    .flatten();
                (line.completions + running.completions - 1, disk)
            }
        };
        if crate::samples::is_sampled(number) {
            let samples = self.samples.entry(disk).or_default();
            if start_ns(request) == 0 {
                samples.without_start += 1;
            } else {
                samples.with_start += 1;
            }
            self.pending.insert(request, disk);
        }
    }

    fn enter(&mut self, cpu: usize, irq: u32, action: usize) {
        let in_vector = self.stacks[cpu]
            .last()
            .is_some_and(|running| running.kind == kind::VMD_VECTOR);
        let belief = match self.beliefs.get(&irq) {
            Some((known, generation, belief))
                if *known == action
                    && *generation == self.generation
                    && !matches!(belief, Belief::Unreadable)
                    && !(in_vector && matches!(belief, Belief::NotOurs)) =>
            {
                belief.clone()
            }
            _ => {
                let belief = self.believe(irq, action, in_vector);
                self.beliefs
                    .insert(irq, (action, self.generation, belief.clone()));
                belief
            }
        };
        let (line, kind) = match belief {
            Belief::Unreadable => {
                self.cpus[cpu].unreadable_actions += 1;
                return;
            }
            Belief::NotOurs => return,
            Belief::Ours(line, kind) => (line, kind),
        };
        if line.is_none() {
            self.cpus[cpu].unassigned_runs += 1;
        }
        let stale = if kind == kind::VMD_VECTOR {
            Some(0)
        } else {
            self.stacks[cpu]
                .iter()
                .rposition(|running| running.irq == irq && running.action == action)
        };
        if let Some(from) = stale {
            self.forget(cpu, from);
        }
        if self.stacks[cpu].len() == self.max_depth {
            self.cpus[cpu].overflowed_runs += 1;
            return;
        }
        let mut repeated = false;
        if let (true, Some(counts), Some(line)) =
            (self.stacks[cpu].is_empty(), &self.counted, &line)
        {
            let now = (cpu, counts[cpu], action);
            repeated = self.previous.insert(line.clone(), now) == Some(now);
        }
        self.stacks[cpu].push(Running {
            irq,
            action,
            kind,
            line,
            repeated,
            completions: 0,
            placed: [0; 5],
            children: Vec::new(),
        });
    }

    fn believe(&mut self, irq: u32, action: usize, in_vector: bool) -> Belief {
        let Some(name) = self.names[action] else {
            return Belief::Unreadable;
        };
        let key = (irq, name.to_owned());
        if let Some(line) = self.lines.get(&key) {
            return Belief::Ours(Some(key), line.kind);
        }
        let kind = match kind_of(name) {
            kind::VMD_VECTOR => kind::VMD_VECTOR,
            kind::NVME => kind::NVME,
            _ if in_vector => kind::OTHER_CHILD,
            kind::WATCHED => kind::WATCHED,
            _ => return Belief::NotOurs,
        };
        let names = self.lines.keys().filter(|(known, _)| *known == irq).count();
        if names == self.max_names || self.lines.len() == self.slots {
            return Belief::Ours(None, kind);
        }
        self.lines.insert(
            key.clone(),
            Line {
                kind,
                ..Line::default()
            },
        );
        Belief::Ours(Some(key), kind)
    }

    fn exit(&mut self, cpu: usize, irq: u32, action: usize, handled: bool) {
        let found = self.stacks[cpu]
            .iter()
            .rposition(|running| running.irq == irq && running.action == action);
        let Some(at) = found else {
            if let Some((known, _, Belief::Ours(..))) = self.beliefs.get(&irq)
                && *known == action
            {
                self.cpus[cpu].unmatched_exits += 1;
            }
            return;
        };
        self.forget(cpu, at + 1);
        let Some(run) = self.stacks[cpu].pop() else {
            return;
        };
        let mut parent = None;
        match self.stacks[cpu].last_mut() {
            None => self.cpus[cpu].depth0_runs += 1,
            Some(outer) if outer.kind == kind::VMD_VECTOR => {
                outer.children.push(Child {
                    handled,
                    completions: run.completions,
                });
                parent.clone_from(&outer.line);
            }
            Some(_) => {}
        }
        let nested = !self.stacks[cpu].is_empty();
        self.share(cpu, &run, nested);
        let Some(key) = run.line else {
            self.cpus[cpu].unassigned_completions += run.completions;
            return;
        };
        let Some(line) = self.lines.get_mut(&key) else {
            return;
        };
        if nested {
            line.nested_runs += 1;
        } else {
            line.depth0_runs += 1;
            line.repeated_runs += u64::from(run.repeated);
        }
        if parent.is_some() {
            line.parent = parent;
        }
        line.unhandled_runs += u64::from(!handled);
        line.completions += run.completions;
        add(&mut line.placed, run.placed);
        line.child_runs += run.children.len() as u64;
        line.child_unhandled_runs +=
            run.children.iter().filter(|child| !child.handled).count() as u64;
        line.child_completions += run
            .children
            .iter()
            .map(|child| child.completions)
            .sum::<u64>();
    }

    /// Every run that no other was around, and every completion, is of somebody.
    fn share(&mut self, cpu: usize, run: &Running, nested: bool) {
        let told = run.line.as_ref().and_then(|line| self.owners.get(line));
        let (owner, remapped) = match (&run.line, told) {
            (Some(_), _) if run.kind == kind::WATCHED => (shares::WATCHED, false),
            (_, Some(told)) => *told,
            (_, None) => (shares::UNASSIGNED, false),
        };
        if nested && run.completions == 0 {
            return;
        }
        let share = self.cpus[cpu].shares.entry(owner).or_default();
        share.completions += run.completions;
        let by_software = run.kind == kind::OTHER_CHILD || run.kind == kind::NVME && remapped;
        match (nested, by_software) {
            (true, _) => {}
            (false, true) => share.resent_runs += 1,
            (false, false) => share.hardware_interrupts += 1,
        }
    }

    fn forget(&mut self, cpu: usize, from: usize) {
        while self.stacks[cpu].len() > from {
            if let Some(stale) = self.stacks[cpu].pop() {
                self.cpus[cpu].lost_frames += 1;
                self.cpus[cpu].completions_outside += stale.completions;
                add(&mut self.cpus[cpu].placed_outside, stale.placed);
            }
        }
    }
}

fn add(counts: &mut [u64; 5], more: [u64; 5]) {
    for (count, by) in counts.iter_mut().zip(more) {
        *count += by;
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let irq = 1..=IRQS;
    let action = 0..ACTIONS;
    prop_oneof![
        8 => (irq.clone(), action.clone()).prop_map(|(irq, action)| Event::Enter { irq, action }),
        4 => (irq.clone(), 0..shares::OWNERS, any::<bool>())
            .prop_map(|(irq, owner, remapped)| Event::Own { irq, owner, remapped }),
        8 => (irq, action.clone(), any::<bool>())
            .prop_map(|(irq, action, handled)| Event::Exit { irq, action, handled }),
        3 => (0..REQUESTS).prop_map(|request| Event::Completion { request }),
        2 => (0..REQUESTS).prop_map(|request| Event::End { request }),
        1 => Just(Event::NewGeneration),
        1 => (action, any_name()).prop_map(|(action, name)| Event::Rename { action, name }),
        2 => Just(Event::Counted),
    ]
}

fn any_name() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![20 => (0..NAMES.len()).prop_map(|index| Some(NAMES[index])), 1 => Just(None)]
}

/// A vector's run as the kernel makes it, with children and completions.
fn any_vector_run() -> impl Strategy<Value = Vec<Event>> {
    // Some runs take many, so that there are samples.
    let completions = prop_oneof![40 => 0..3usize, 1 => 40..150usize];
    let completions = completions
        .prop_flat_map(|count| prop::collection::vec((0..REQUESTS, any::<bool>()), count));
    let child = (1..=IRQS, 0..ACTIONS, any::<bool>(), completions).prop_map(
        |(irq, action, handled, completions)| {
            let mut events = vec![Event::Enter { irq, action }];
            for (request, ends) in completions {
                events.push(Event::Completion { request });
                if ends {
                    events.push(Event::End { request });
                }
            }
            events.push(Event::Exit {
                irq,
                action,
                handled,
            });
            events
        },
    );
    (
        1..=IRQS,
        0..ACTIONS,
        any::<bool>(),
        prop::collection::vec(child, 0..4),
    )
        .prop_map(|(irq, action, counted, children)| {
            let mut events = Vec::new();
            if counted {
                events.push(Event::Counted);
            }
            events.push(Event::Enter { irq, action });
            events.extend(children.into_iter().flatten());
            events.push(Event::Exit {
                irq,
                action,
                handled: true,
            });
            events
        })
}

/// Places for `cpus` CPUs: few caches and nodes, so that they meet.
pub fn any_places(cpus: usize) -> impl Strategy<Value = Vec<MadeUpPlace>> {
    let known =
        |numbers: std::ops::Range<u32>| prop_oneof![4 => numbers.prop_map(Some), 1 => Just(None)];
    prop::collection::vec((known(0..2), known(0..2)), cpus)
}

/// Streams for `cpus` CPUs: names for all actions first, then well-formed runs
/// with arbitrary events mixed in: exits without entries, entries without
/// exits, deep nesting, re-used numbers and addresses.
pub fn any_stream(cpus: usize, length: usize) -> impl Strategy<Value = Vec<(usize, Event)>> {
    let names = prop::collection::vec(any_name(), ACTIONS).prop_map(|names| {
        names
            .into_iter()
            .enumerate()
            .map(|(action, name)| (0, Event::Rename { action, name }))
            .collect::<Vec<_>>()
    });
    let burst = prop_oneof![
        3 => any_vector_run(),
        2 => prop::collection::vec(any_event(), 1..12),
    ];
    let bursts = prop::collection::vec((0..cpus, burst), 1..length);
    (names, bursts).prop_map(|(mut stream, bursts)| {
        for (cpu, burst) in bursts {
            stream.extend(burst.into_iter().map(|event| (cpu, event)));
        }
        stream
    })
}
