//! The accounting against the naive model, and its rules one by one.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    model::{self, Event, IRQS, MadeUpPlace, Model, any_places, any_stream},
    placement::Place,
    samples::{DISKS, DiskSamples, PENDING, Pending, SampleWorld, pending_index, samples_of},
};

/// The accounting with tables of its own, as a program has maps.
struct Machine {
    banks: Vec<CpuBank>,
    entries: Vec<LineEntry>,
    cells: Vec<LineCell>,
    free: Vec<u32>,
    busy: bool,
    now: u64,
    /// What the kernel would answer; kept by the model.
    names: Vec<Option<&'static str>>,
    irqs_sum: Option<u64>,
    cpu: u32,
    without_slot: Vec<u32>,
    /// By slot.
    owners: Vec<u8>,
    /// By CPU and owner; empty: not counted.
    shares: Vec<Share>,
    places: Vec<Place>,
    samples: Vec<DiskSamples>,
    pending: Vec<Pending>,
}

struct Tables<'a> {
    machine: &'a mut Machine,
}

impl World for Tables<'_> {
    fn now(&mut self) -> u64 {
        self.machine.now += 10;
        self.machine.now
    }

    fn cpu(&mut self) -> u32 {
        self.machine.cpu
    }

    fn zero(&mut self) -> u32 {
        0
    }

    fn irqs_sum(&mut self) -> Option<u64> {
        self.machine.irqs_sum
    }

    fn name(&mut self, action: u64) -> Option<Name> {
        self.machine.names[action as usize].map(|name| Name::new(name.as_bytes()))
    }

    fn classify(&mut self, name: &Name) -> u32 {
        model::kind_of(&String::from_utf8(name.bytes().collect()).unwrap())
    }

    fn take_slot(&mut self) -> Taken {
        if std::mem::take(&mut self.machine.busy) {
            return Taken::Busy;
        }
        self.machine.free.pop().map_or(Taken::Empty, Taken::Slot)
    }

    fn cell(&mut self, slot: u32) -> Option<&mut LineCell> {
        self.machine.cells.get_mut(slot as usize)
    }

    fn publish(&mut self, slot: u32) {
        let cell = &mut self.machine.cells[slot as usize];
        assert_eq!(cell.ready, 0, "slot {slot} is given twice");
        cell.ready = 1;
    }

    fn counts_shares(&mut self) -> bool {
        !self.machine.shares.is_empty()
    }

    fn owner(&mut self, slot: u32) -> u8 {
        self.machine.owners[slot as usize]
    }

    fn share(&mut self, owner: u32) -> Option<&mut Share> {
        let index = shares::index_of(self.machine.cpu, owner);
        self.machine.shares.get_mut(index as usize)
    }

    fn no_slot(&mut self, irq: u32) {
        self.machine.without_slot.push(irq);
    }
}

/// One completion as the accounting sees it.
struct Completed<'a> {
    machine: &'a mut Machine,
    request: usize,
}

impl CompletionWorld for Completed<'_> {
    fn distance(&mut self) -> u64 {
        placement::from_here(self.machine.cpu, model::submitter(self.request), |cpu| {
            self.machine.places.get(cpu as usize).copied()
        })
    }

    fn samples(&mut self) -> bool {
        true
    }

    fn cell(&mut self, slot: u32) -> Option<&mut LineCell> {
        self.machine.cells.get_mut(slot as usize)
    }

    fn add_one(&mut self, counter: &mut u64) {
        *counter += 1;
    }
}

/// Address of a made-up request.
fn address_of(request: usize) -> u64 {
    0xffff_8880_0123_0000 + 512 * request as u64
}

impl SampleWorld for Tables<'_> {
    fn now(&mut self) -> u64 {
        World::now(self)
    }

    fn start_of(&mut self, request: u64) -> u64 {
        model::start_ns((request - address_of(0)) as usize / 512)
    }

    fn disk(&mut self, index: u32) -> Option<&mut DiskSamples> {
        self.machine.samples.get_mut(index as usize)
    }

    fn pending(&mut self, request: u64) -> Option<&mut Pending> {
        self.machine
            .pending
            .get_mut(pending_index(request) as usize)
    }

    fn add(counter: &mut u64, count: u64) {
        *counter += count;
    }
}

impl Machine {
    fn new(cpus: usize, slots: u32) -> Self {
        Self {
            places: vec![Place::default(); cpus],
            samples: vec![DiskSamples::default(); DISKS as usize],
            pending: vec![Pending::default(); PENDING as usize],
            banks: vec![
                CpuBank {
                    armed: 1,
                    ..CpuBank::default()
                };
                cpus
            ],
            entries: vec![LineEntry::default(); IRQS as usize + 1],
            cells: vec![LineCell::default(); slots as usize],
            free: (0..slots).collect(),
            busy: false,
            now: 0,
            names: vec![None; model::ACTIONS],
            irqs_sum: None,
            cpu: 0,
            without_slot: Vec::new(),
            owners: vec![0; slots as usize],
            shares: vec![Share::default(); cpus * shares::OWNERS as usize],
        }
    }

    fn feed(&mut self, cpu: usize, event: &Event) {
        self.cpu = cpu as u32;
        let mut bank = self.banks[cpu];
        match *event {
            Event::Enter { irq, action } => {
                let mut entry = self.entries[irq as usize];
                enter(
                    &mut bank,
                    &mut entry,
                    &mut Tables { machine: self },
                    irq,
                    action as u64,
                );
                self.entries[irq as usize] = entry;
            }
            Event::Exit {
                irq,
                action,
                handled,
            } => {
                let entry = self.entries[irq as usize];
                exit(
                    &mut bank,
                    &entry,
                    &mut Tables { machine: self },
                    irq,
                    action as u64,
                    handled,
                );
            }
            Event::Completion { request } => {
                let mut world = Completed {
                    machine: self,
                    request,
                };
                if let Some(disk) = completion(&mut bank, &mut world) {
                    samples::completed(&mut Tables { machine: self }, address_of(request), disk);
                }
            }
            Event::End { request } => {
                samples::ended(&mut Tables { machine: self }, address_of(request));
            }
            Event::NewGeneration => {
                for bank in &mut self.banks {
                    bank.generation += 1;
                }
                return;
            }
            Event::Rename { action, name } => self.names[action] = name,
            Event::Counted => {}
            Event::Own {
                irq,
                owner,
                remapped,
            } => {
                for (cell, told) in self.cells.iter().zip(&mut self.owners) {
                    if cell.ready != 0 && cell.irq == irq {
                        *told = owner as u8 | if remapped { shares::REMAPPED } else { 0 };
                    }
                }
            }
        }
        self.banks[cpu] = bank;
    }

    fn run(&mut self, events: &[Event]) {
        for event in events {
            self.feed(0, event);
        }
    }
}

fn assert_equal(machine: &Machine, model: &Model) -> Result<(), TestCaseError> {
    let taken = machine.cells.iter().filter(|cell| cell.ready != 0).count();
    prop_assert_eq!(taken, model.lines.len());
    for ((irq, name), expected) in &model.lines {
        let wanted = Name::new(name.as_bytes());
        let mut cells = machine
            .cells
            .iter()
            .filter(|cell| cell.ready != 0 && cell.irq == *irq && cell.name == wanted);
        let cell = cells
            .next()
            .ok_or_else(|| TestCaseError::fail(format!("no cell for {irq} {name}")))?;
        prop_assert!(cells.next().is_none(), "two cells for {} {}", irq, name);
        let parent = cell.parent.checked_sub(1).map(|slot| {
            let parent = &machine.cells[slot as usize];
            (
                parent.irq,
                String::from_utf8(parent.name.bytes().collect()).unwrap(),
            )
        });
        let seen = model::Line {
            kind: cell.kind,
            depth0_runs: cell.depth0_runs,
            nested_runs: cell.nested_runs,
            unhandled_runs: cell.unhandled_runs,
            repeated_runs: cell.repeated_runs,
            completions: cell.completions,
            placed: placed(cell.completions, cell.remote),
            child_runs: cell.child_runs,
            child_unhandled_runs: cell.child_unhandled_runs,
            child_completions: cell.child_completions,
            parent,
        };
        prop_assert_eq!(&seen, expected, "line {} {}", irq, name);
    }
    let of_cpus = machine.shares.chunks(shares::OWNERS as usize);
    for ((bank, of_cpu), expected) in machine.banks.iter().zip(of_cpus).zip(&model.cpus) {
        let seen = model::Cpu {
            depth0_runs: bank.depth0_runs,
            completions_outside: bank.completions_outside,
            placed_outside: placed(bank.completions_outside, bank.remote_outside),
            unassigned_runs: bank.unassigned_runs,
            unassigned_completions: bank.unassigned_completions,
            lost_frames: bank.lost_frames,
            unmatched_exits: bank.unmatched_exits,
            overflowed_runs: bank.overflowed_runs,
            unreadable_actions: bank.unreadable_actions,
            shares: shares_of(of_cpu),
        };
        prop_assert_eq!(&seen, expected);
        let depth0_runs: u64 = of_cpu.iter().map(|share| share.depth0_runs).sum();
        prop_assert_eq!(depth0_runs, bank.depth0_runs);
        let interrupt_ns: u64 = of_cpu.iter().map(|share| share.interrupt_ns).sum();
        prop_assert_eq!(interrupt_ns, bank.interrupt_ns);
    }
    let in_lines: u64 = machine.cells.iter().map(|cell| cell.completions).sum();
    let unassigned: u64 = machine
        .banks
        .iter()
        .map(|it| it.unassigned_completions)
        .sum();
    let shared: u64 = machine.shares.iter().map(|share| share.completions).sum();
    prop_assert_eq!(shared, in_lines + unassigned);
    let seen = machine
        .samples
        .iter()
        .zip(0..)
        .filter_map(|(of_disk, index)| {
            let counted = model::Samples {
                with_start: of_disk.latency.buckets.iter().sum(),
                without_start: of_disk.without_start,
                ended: of_disk.handling.buckets.iter().sum(),
            };
            (counted != model::Samples::default()).then_some((u32::checked_sub(index, 1), counted))
        });
    prop_assert_eq!(seen.collect::<BTreeMap<_, _>>(), model.samples.clone());
    Ok(())
}

fn shares_of(of_cpu: &[Share]) -> BTreeMap<u32, model::Share> {
    let used = (0..)
        .zip(of_cpu)
        .filter(|(_, share)| **share != Share::default());
    used.map(|(owner, share)| {
        let seen = model::Share {
            hardware_interrupts: share.depth0_runs - share.resent_runs,
            resent_runs: share.resent_runs,
            completions: share.completions,
        };
        (owner, seen)
    })
    .collect()
}

/// By distance, what is local first.
fn placed(completions: u64, remote: [u64; 4]) -> [u64; 5] {
    let [same_cache, other_cache, other_node, unknown] = remote;
    let local = completions - remote.iter().sum::<u64>();
    [local, same_cache, other_cache, other_node, unknown]
}

fn places_of(places: &[MadeUpPlace]) -> Vec<Place> {
    let place = |&(cache, node): &MadeUpPlace| Place::new(cache, node);
    places.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn accounting_equals_the_naive_model(
        stream in any_stream(3, 40),
        places in any_places(3),
        slots in 0..12u32,
        sees_counts in any::<bool>(),
    ) {
        let mut machine = Machine::new(3, slots);
        machine.places = places_of(&places);
        let mut model = Model::new(&places, slots as usize, sees_counts);
        for (cpu, event) in &stream {
            model.feed(*cpu, event);
            machine.irqs_sum = model.irqs_sum(*cpu);
            machine.feed(*cpu, event);
        }
        assert_equal(&machine, &model)?;
    }

    /// Where no frame is lost, the samples of a line follow from its completions.
    #[test]
    fn each_line_is_sampled_by_its_completions(
        runs in prop::collection::vec((1..=2u32, 0..100usize), 1..20),
    ) {
        let mut machine = named(&["nvme0q1", "nvme3q1"]);
        for (irq, completions) in runs {
            let action = irq as usize - 1;
            machine.run(&[enter_line(irq, action)]);
            machine.run(&vec![Event::Completion { request: 2 }; completions]);
            machine.run(&[exit_line(irq, action, true)]);
        }
        for (irq, name, index) in [(1, "nvme0q1", 1), (2, "nvme3q1", 4)] {
            let wanted = Name::new(name.as_bytes());
            let mut cells = machine.cells.iter().filter(|cell| cell.irq == irq && cell.name == wanted);
            let completions = cells.next().map_or(0, |cell| cell.completions);
            let samples: u64 = machine.samples[index].latency.buckets.iter().sum();
            prop_assert_eq!(samples, samples_of(completions), "{}", name);
        }
    }

    /// The clock ticks by 10 at each reading, so a run with `n` children in it
    /// lasts 10 * (2 * n + 1).
    #[test]
    fn time_is_counted_once(
        runs in prop::collection::vec((any::<bool>(), prop::collection::vec(2..=IRQS, 0..4)), 1..30),
    ) {
        let mut machine = named(&["vmd0", "nvme0q1"]);
        let mut outermost = 0;
        for (in_vector, children) in &runs {
            let children = children.iter().flat_map(|irq| [enter_line(*irq, 1), exit_line(*irq, 1, true)]);
            let events: Vec<_> = if *in_vector {
                [enter_line(1, 0)].into_iter().chain(children).chain([exit_line(1, 0, true)]).collect()
            } else {
                children.collect()
            };
            let nested = events.len() as u64 / 2;
            outermost += if *in_vector { 10 * (2 * nested - 1) } else { 10 * nested };
            machine.run(&events);
        }
        let self_ns: u64 = machine.cells.iter().map(|cell| cell.self_ns).sum();
        prop_assert_eq!(machine.banks[0].interrupt_ns, outermost);
        prop_assert_eq!(self_ns, outermost);
    }
}

fn named(names: &[&'static str]) -> Machine {
    let mut machine = Machine::new(1, 16);
    for (action, name) in names.iter().enumerate() {
        machine.feed(
            0,
            &Event::Rename {
                action,
                name: Some(name),
            },
        );
    }
    machine
}

fn enter_line(irq: u32, action: usize) -> Event {
    Event::Enter { irq, action }
}

fn exit_line(irq: u32, action: usize, handled: bool) -> Event {
    Event::Exit {
        irq,
        action,
        handled,
    }
}

fn cell_of<'a>(machine: &'a Machine, irq: u32, name: &str) -> &'a LineCell {
    let wanted = Name::new(name.as_bytes());
    machine
        .cells
        .iter()
        .find(|cell| cell.ready != 0 && cell.irq == irq && cell.name == wanted)
        .unwrap()
}

#[test]
fn a_vector_with_two_children() {
    let mut machine = named(&["vmd0", "nvme0q1", "nvme1q1"]);
    machine.run(&[
        enter_line(1, 0),
        enter_line(2, 1),
        Event::Completion { request: 1 },
        Event::Completion { request: 1 },
        exit_line(2, 1, true),
        enter_line(3, 2),
        exit_line(3, 2, false),
        exit_line(1, 0, true),
    ]);
    let vector = cell_of(&machine, 1, "vmd0");
    assert_eq!((vector.depth0_runs, vector.nested_runs), (1, 0));
    assert_eq!(
        (
            vector.child_runs,
            vector.child_unhandled_runs,
            vector.child_completions
        ),
        (2, 1, 2)
    );
    // Clock ticks of 10: the vector's six readings span 50, its children took 10 each.
    assert_eq!((vector.inclusive_ns, vector.self_ns), (50, 30));
    let busy = cell_of(&machine, 2, "nvme0q1");
    assert_eq!(
        (
            busy.depth0_runs,
            busy.nested_runs,
            busy.completions,
            busy.unhandled_runs
        ),
        (0, 1, 2, 0)
    );
    assert_eq!(cell_of(&machine, 3, "nvme1q1").unhandled_runs, 1);
    assert_eq!(machine.banks[0].interrupt_ns, 50);
}

#[test]
fn a_lost_exit_heals_and_loses_no_completion() {
    let mut machine = named(&["vmd0", "nvme0q1"]);
    machine.run(&[
        enter_line(1, 0),
        enter_line(2, 1),
        Event::Completion { request: 1 },
    ]);
    machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    let bank = &machine.banks[0];
    assert_eq!(
        (bank.lost_frames, bank.completions_outside, bank.depth),
        (2, 1, 0)
    );
    assert_eq!(cell_of(&machine, 1, "vmd0").depth0_runs, 1);
}

#[test]
fn completions_of_a_lost_run_keep_their_distance() {
    let mut machine = named(&["vmd0", "nvme0q1"]);
    machine.places = places_of(&[(Some(0), Some(0)), (Some(0), Some(0)), (Some(2), Some(1))]);
    machine.run(&[enter_line(1, 0), enter_line(2, 1)]);
    // Made on CPU 0, 1, 2 and on none.
    machine.run(&[1, 2, 3, 0].map(|request| Event::Completion { request }));
    machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    let bank = &machine.banks[0];
    assert_eq!(
        (bank.completions_outside, bank.remote_outside),
        (4, [1, 0, 1, 1])
    );
    assert_eq!(cell_of(&machine, 2, "nvme0q1").remote, [0; 4]);
}

#[test]
fn an_end_is_taken_once_and_by_its_request_only() {
    let mut machine = named(&["nvme0q1"]);
    machine.run(&[enter_line(1, 0)]);
    while machine.samples[1].latency.sum_ns == 0 {
        machine.run(&[Event::Completion { request: 2 }]);
    }
    machine.run(&[3, 2, 2].map(|request| Event::End { request }));
    let handled = machine.samples[1].handling;
    // The clock ticks by 10 between the two.
    assert_eq!((handled.buckets[0], handled.sum_ns), (1, 10));
}

#[test]
fn a_port_is_a_child_whatever_its_name_and_stays_one_when_resent() {
    let mut machine = named(&["vmd0", "pciehp"]);
    machine.run(&[enter_line(2, 1), exit_line(2, 1, true)]);
    assert!(
        machine.cells.iter().all(|cell| cell.ready == 0),
        "not ours outside a vector"
    );
    machine.run(&[
        enter_line(1, 0),
        enter_line(2, 1),
        exit_line(2, 1, true),
        exit_line(1, 0, true),
    ]);
    machine.run(&[
        Event::NewGeneration,
        enter_line(2, 1),
        exit_line(2, 1, true),
    ]);
    let port = cell_of(&machine, 2, "pciehp");
    assert_eq!(
        (port.kind, port.nested_runs, port.depth0_runs),
        (kind::OTHER_CHILD, 1, 1)
    );
}

#[test]
fn a_reused_address_is_noticed_in_a_new_generation_only() {
    let mut machine = named(&["nvme0q1"]);
    machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    machine.run(&[
        Event::Rename {
            action: 0,
            name: Some("eth0-tx-1"),
        },
        enter_line(1, 0),
        exit_line(1, 0, true),
    ]);
    assert_eq!(
        cell_of(&machine, 1, "nvme0q1").depth0_runs,
        2,
        "same address, same generation"
    );
    machine.run(&[
        Event::NewGeneration,
        enter_line(1, 0),
        exit_line(1, 0, true),
    ]);
    assert_eq!(cell_of(&machine, 1, "nvme0q1").depth0_runs, 2);
    machine.run(&[
        Event::Rename {
            action: 0,
            name: Some("nvme0q1"),
        },
        Event::NewGeneration,
    ]);
    machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    assert_eq!(
        cell_of(&machine, 1, "nvme0q1").depth0_runs,
        3,
        "the name has its slot back"
    );
}

#[test]
fn no_slot_is_said_once_counted_always_and_keeps_the_nesting() {
    let mut machine = named(&["vmd0", "nvme0q1"]);
    machine.free = vec![0];
    machine.run(&[enter_line(2, 1), exit_line(2, 1, true)]);
    for _ in 0..3 {
        machine.run(&[
            enter_line(1, 0),
            enter_line(2, 1),
            Event::Completion { request: 1 },
            exit_line(2, 1, true),
            exit_line(1, 0, true),
        ]);
    }
    assert_eq!(machine.without_slot, [1]);
    assert_eq!(machine.banks[0].unassigned_runs, 3);
    let child = cell_of(&machine, 2, "nvme0q1");
    assert_eq!(
        (child.depth0_runs, child.nested_runs, child.completions),
        (1, 3, 3)
    );
}

#[test]
fn a_busy_slot_queue_is_asked_again() {
    let mut machine = named(&["nvme0q1"]);
    machine.busy = true;
    machine.run(&[
        enter_line(1, 0),
        exit_line(1, 0, true),
        enter_line(1, 0),
        exit_line(1, 0, true),
    ]);
    assert_eq!(machine.banks[0].unassigned_runs, 1);
    assert_eq!(cell_of(&machine, 1, "nvme0q1").depth0_runs, 1);
    assert!(machine.without_slot.is_empty());
}

#[test]
fn a_repeat_is_a_run_without_a_count_on_the_same_cpu() {
    let mut machine = named(&["vmd0"]);
    for sum in [5, 5, 6] {
        machine.irqs_sum = Some(sum);
        machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    }
    let vector = cell_of(&machine, 1, "vmd0");
    assert_eq!((vector.depth0_runs, vector.repeated_runs), (3, 1));
}

#[test]
fn nothing_is_counted_before_a_cpu_is_armed() {
    let mut machine = named(&["vmd0", "nvme0q1"]);
    machine.banks[0].armed = 0;
    // Attached in the middle of a vector's handler: this child is none of depth 0.
    machine.run(&[
        enter_line(2, 1),
        exit_line(2, 1, true),
        exit_line(1, 0, true),
    ]);
    machine.banks[0].armed = 1;
    machine.run(&[
        enter_line(1, 0),
        enter_line(2, 1),
        exit_line(2, 1, true),
        exit_line(1, 0, true),
    ]);
    let child = cell_of(&machine, 2, "nvme0q1");
    assert_eq!((child.depth0_runs, child.nested_runs), (0, 1));
    assert_eq!(machine.banks[0].unmatched_exits, 0);
}

#[test]
fn a_number_with_too_many_names_is_said_once_and_takes_no_more_slots() {
    let mut machine = Machine::new(1, 16);
    let names = [
        "nvme0q0", "nvme0q1", "nvme0q2", "nvme0q3", "nvme0q4", "nvme0q5", "nvme0q6", "nvme0q7",
        "nvme0q8", "nvme0q9",
    ];
    for (action, name) in names.into_iter().enumerate() {
        machine.run(&[
            Event::Rename {
                action,
                name: Some(name),
            },
            enter_line(1, action),
            exit_line(1, action, true),
        ]);
    }
    let taken = machine.cells.iter().filter(|cell| cell.ready != 0).count();
    assert_eq!(taken, MAX_NAMES_PER_IRQ as usize);
    assert_eq!(machine.banks[0].unassigned_runs, 2);
    assert_eq!(machine.without_slot, [1]);
}

#[test]
fn a_share_is_of_the_owner_told_when_the_run_ends() {
    let mut machine = named(&["vmd0", "nvme0q1"]);
    let run = [
        enter_line(1, 0),
        enter_line(2, 1),
        Event::Completion { request: 2 },
        exit_line(2, 1, true),
        exit_line(1, 0, true),
    ];
    let own = |irq| Event::Own {
        irq,
        owner: 5,
        remapped: true,
    };
    machine.run(&run);
    machine.run(&[own(1), own(2)]);
    machine.run(&run);
    // Re-sent: outside the vector.
    machine.run(&[enter_line(2, 1), exit_line(2, 1, true)]);
    let share = |owner| machine.shares[shares::index_of(0, owner) as usize];
    let expected = |depth0_runs, resent_runs, interrupt_ns| Share {
        depth0_runs,
        resent_runs,
        interrupt_ns,
        completions: 1,
    };
    assert_eq!(share(shares::UNASSIGNED), expected(1, 0, 30));
    assert_eq!(share(5), expected(2, 1, 40));
}

#[test]
fn nothing_is_shared_where_that_is_not_asked_for() {
    let mut machine = named(&["nvme0q1"]);
    machine.shares.clear();
    machine.run(&[enter_line(1, 0), exit_line(1, 0, true)]);
    assert_eq!(machine.banks[0].depth0_runs, 1);
}
