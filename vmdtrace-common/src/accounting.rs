//! Interrupt accounting: what a handler's entry, its exit and a completion do
//! to the counters.
//!
//! The rules, which the property tests' model states again in its own words:
//!
//! - A handler that is running has a frame on its CPU's stack. An exit pops
//!   the topmost frame of the same line and action; frames above it are stale.
//! - An exit that finds no frame changes nothing but `unmatched_exits`, and
//!   that only for a line of ours.
//! - An entry of a line that is on the stack already means its exit was
//!   missed: that frame and all above it are stale. An entry of a VMD vector
//!   makes every frame stale: vectors do not nest.
//! - Stale frames are dropped and counted in `lost_frames`; completions they
//!   held go to `completions_outside`, so none is lost.
//! - An entry on a full stack is counted in `overflowed_runs` and not tracked.
//! - A run is counted at its exit.
//! - A completion belongs to the innermost frame, with its distance, and is counted
//!   on the line at the end of that run; without a frame it is one outside.
//! - Where shares are counted, a run at depth 0 and its time go to its CPU's share of
//!   the line's owner, and so do the completions of every run.
//! - A CPU that is not armed counts nothing: the programs may have been attached
//!   in the middle of a handler, and its children would look like runs of their
//!   own.
//!
//! Known limit: on a line that two watched actions share (legacy INTx, never
//! MSI-X) each action's run counts as a hardware interrupt of its own.

use crate::{
    cells::{
        CpuBank, Frame, LineCell, LineEntry, MAX_DEPTH, MAX_NAMES_PER_IRQ, NO_SLOT, kind, state,
    },
    names::Name,
    placement::{self, RemoteCounts, distance},
    samples,
    shares::{self, Share},
};

/// Answer to [`World::take_slot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Slot(u32),
    /// None is left.
    Empty,
    /// None could be had now; another try may.
    Busy,
}

/// What the accounting needs of its surroundings.
pub trait World {
    /// Time in nanoseconds; any constant if times are not wanted.
    fn now(&mut self) -> u64;
    /// This CPU's number.
    fn cpu(&mut self) -> u32;
    /// 0, without the compiler knowing: it would clear a frame by memset, which on
    /// BPF is a loop over bytes and took longer than all the rest of an entry.
    fn zero(&mut self) -> u32;
    /// `kstat.irqs_sum` of this CPU: it rises once for each interrupt that the
    /// kernel counts. None where it cannot be read.
    fn irqs_sum(&mut self) -> Option<u64>;
    /// Name of an irqaction.
    fn name(&mut self, action: u64) -> Option<Name>;
    /// Kind of line that a name stands for.
    fn classify(&mut self, name: &Name) -> u32;
    fn take_slot(&mut self) -> Taken;
    fn cell(&mut self, slot: u32) -> Option<&mut LineCell>;
    /// Marks a slot's cell as described, after everything that describes it.
    fn publish(&mut self, slot: u32);
    /// Whether what each CPU does for each owner is counted.
    fn counts_shares(&mut self) -> bool;
    /// The owner of a slot's line, as user space told it; 0 until then.
    fn owner(&mut self, slot: u32) -> u8;
    /// This CPU's share of an owner.
    fn share(&mut self, owner: u32) -> Option<&mut Share>;
    /// Said once for each interrupt number: a line of ours has no slot, because
    /// none is free or the number has had too many names.
    fn no_slot(&mut self, irq: u32);
}

/// A handler starts.
#[inline(always)]
pub fn enter<W: World>(
    bank: &mut CpuBank,
    entry: &mut LineEntry,
    world: &mut W,
    irq: u32,
    action: u64,
) {
    if bank.armed == 0 {
        return;
    }
    let in_vector = innermost_kind(bank) == kind::VMD_VECTOR;
    let known = entry.action == action
        && entry.generation == bank.generation
        && entry.state != state::UNKNOWN
        // Seen before outside a vector: inside one it is a child.
        && !(in_vector && entry.state == state::NOT_OURS);
    if !known {
        learn(bank, entry, world, irq, action, in_vector);
    }
    let slot = match entry.state {
        state::ASSIGNED => entry.slot,
        state::UNASSIGNED => {
            bank.unassigned_runs += 1;
            NO_SLOT
        }
        _ => return,
    };

    let stale_from = if entry.kind == kind::VMD_VECTOR {
        0
    } else {
        position(bank, irq, action)
    };
    drop_frames(bank, stale_from);
    if bank.depth >= MAX_DEPTH {
        bank.overflowed_runs += 1;
        return;
    }
    let repeated = bank.depth == 0 && slot != NO_SLOT && is_repeat(world, slot, action);
    let depth = bank.depth;
    let start_ns = world.now();
    let zero = world.zero();
    bank.frames[index_of(depth)] = Frame {
        action,
        start_ns,
        nested_ns: zero.into(),
        irq,
        slot,
        kind: entry.kind,
        repeated: u32::from(repeated),
        completions: zero,
        child_runs: zero,
        child_unhandled_runs: zero,
        child_completions: zero,
        remote: [zero; 4],
        reserved: zero.into(),
    };
    bank.depth = depth + 1;
}

/// A handler returned; `handled` is false for `IRQ_NONE`.
#[inline(always)]
pub fn exit<W: World>(
    bank: &mut CpuBank,
    entry: &LineEntry,
    world: &mut W,
    irq: u32,
    action: u64,
    handled: bool,
) {
    if bank.armed == 0 {
        return;
    }
    let at = position(bank, irq, action);
    if at >= bank.depth {
        let ours = entry.state == state::ASSIGNED || entry.state == state::UNASSIGNED;
        if ours && entry.action == action {
            bank.unmatched_exits += 1;
        }
        return;
    }
    drop_frames(bank, at + 1);
    bank.depth = at;
    let frame = bank.frames[index_of(at)];
    let inclusive_ns = world.now().saturating_sub(frame.start_ns);
    let unhandled = u32::from(!handled);

    let mut parent_slot = NO_SLOT;
    if at == 0 {
        bank.interrupt_ns += inclusive_ns;
        bank.depth0_runs += 1;
    } else {
        let parent = &mut bank.frames[index_of(at - 1)];
        parent.nested_ns += inclusive_ns;
        if parent.kind == kind::VMD_VECTOR {
            parent.child_runs += 1;
            parent.child_unhandled_runs += unhandled;
            parent.child_completions += frame.completions;
            parent_slot = parent.slot;
        }
    }

    if world.counts_shares() && (at == 0 || frame.completions != 0) {
        add_to_share(world, &frame, at == 0, inclusive_ns);
    }
    if frame.slot == NO_SLOT {
        bank.unassigned_completions += u64::from(frame.completions);
        return;
    }
    let Some(cell) = world.cell(frame.slot) else {
        return;
    };
    if at == 0 {
        cell.depth0_runs += 1;
        cell.repeated_runs += u64::from(frame.repeated);
    } else {
        cell.nested_runs += 1;
        if parent_slot != NO_SLOT {
            cell.parent = parent_slot + 1;
        }
    }
    cell.unhandled_runs += u64::from(unhandled);
    cell.inclusive_ns += inclusive_ns;
    cell.self_ns += inclusive_ns.saturating_sub(frame.nested_ns);
    cell.completions += u64::from(frame.completions);
    add_remote(&mut cell.remote, &frame.remote);
    if frame.kind == kind::VMD_VECTOR {
        cell.child_runs += u64::from(frame.child_runs);
        cell.child_unhandled_runs += u64::from(frame.child_unhandled_runs);
        cell.child_completions += u64::from(frame.child_completions);
    }
}

/// A run that ended, in this CPU's share of the line's owner.
#[inline(always)]
fn add_to_share<W: World>(world: &mut W, frame: &Frame, outermost: bool, inclusive_ns: u64) {
    let told = match frame.slot {
        NO_SLOT => 0,
        slot => world.owner(slot),
    };
    let owner = match frame.kind {
        kind::WATCHED if frame.slot != NO_SLOT => shares::WATCHED,
        _ => u32::from(told & !shares::REMAPPED),
    };
    let resent = match frame.kind {
        kind::OTHER_CHILD => true,
        kind::NVME => told & shares::REMAPPED != 0,
        _ => false,
    };
    let Some(share) = world.share(owner) else {
        return;
    };
    share.completions += u64::from(frame.completions);
    if outermost {
        share.depth0_runs += 1;
        share.resent_runs += u64::from(resent);
        share.interrupt_ns += inclusive_ns;
    }
}

/// What the accounting of a completion needs of its surroundings.
pub trait CompletionWorld {
    /// How far this CPU is from the one the request was made on.
    fn distance(&mut self) -> u64;
    /// Whether times are sampled.
    fn samples(&mut self) -> bool;
    fn cell(&mut self, slot: u32) -> Option<&mut LineCell>;
    /// Adds 1 so that a run in between, on the same CPU, loses nothing.
    fn add_one(&mut self, counter: &mut u64);
}

/// An NVMe completion was taken from its queue. Returns the index of the disk
/// to sample its times for, if it is one of those that are sampled.
///
/// Outside any handler the CPU may be interrupted by another completion: what is
/// written there is added to atomically.
#[inline(always)]
#[must_use]
pub fn completion<W: CompletionWorld>(bank: &mut CpuBank, world: &mut W) -> Option<u32> {
    let distance = world.distance();
    let depth = bank.depth;
    if depth == 0 {
        let number = bank.completions_outside;
        world.add_one(&mut bank.completions_outside);
        if distance != distance::LOCAL {
            world.add_one(&mut bank.remote_outside[placement::index_of(distance)]);
        }
        return (world.samples() && samples::is_sampled(number)).then_some(0);
    }
    let frame = &mut bank.frames[index_of(depth - 1)];
    let nth_of_run = u64::from(frame.completions);
    frame.completions += 1;
    if distance != distance::LOCAL {
        frame.remote[placement::index_of(distance)] += 1;
    }
    if !world.samples() || frame.slot == NO_SLOT {
        return None;
    }
    let cell = world.cell(frame.slot)?;
    samples::is_sampled(cell.completions.wrapping_add(nth_of_run)).then_some(cell.disk)
}

/// Index of the frame at a depth. The mask spares the verifier, and the
/// compiler a panic: depths are below MAX_DEPTH, a power of two.
#[inline(always)]
fn index_of(depth: u64) -> usize {
    (depth & (MAX_DEPTH - 1)) as usize
}

#[inline(always)]
fn innermost_kind(bank: &CpuBank) -> u32 {
    match bank.depth {
        0 => kind::NONE,
        depth => bank.frames[index_of(depth - 1)].kind,
    }
}

/// Index of the topmost frame of this line and action; the depth if there is none.
#[inline(always)]
fn position(bank: &CpuBank, irq: u32, action: u64) -> u64 {
    let depth = bank.depth;
    let mut found = depth;
    let mut index = 0;
    while index < MAX_DEPTH {
        // Most often nothing is running.
        if index >= depth {
            break;
        }
        let frame = &bank.frames[index_of(index)];
        if frame.irq == irq && frame.action == action {
            found = index;
        }
        index += 1;
    }
    found
}

/// Drops the frames from `from` upwards as stale.
#[inline(always)]
fn drop_frames(bank: &mut CpuBank, from: u64) {
    if from >= bank.depth {
        return;
    }
    let mut index = 0;
    while index < MAX_DEPTH {
        if index >= from && index < bank.depth {
            bank.lost_frames += 1;
            let frame = &bank.frames[index_of(index)];
            bank.completions_outside += u64::from(frame.completions);
            add_remote(&mut bank.remote_outside, &frame.remote);
        }
        index += 1;
    }
    bank.depth = from;
}

#[inline(always)]
fn add_remote(counts: &mut RemoteCounts<u64>, more: &RemoteCounts<u32>) {
    let mut index = 0;
    while index < more.len() {
        counts[index] += u64::from(more[index]);
        index += 1;
    }
}

/// Whether a depth-0 run repeats the one before without a new interrupt: the
/// kernel's edge handler calls the handlers again while the line is pending
/// (kernel/irq/chip.c, handle_edge_irq) and counts that only once.
#[inline(always)]
fn is_repeat<W: World>(world: &mut W, slot: u32, action: u64) -> bool {
    let Some(irqs_sum) = world.irqs_sum() else {
        return false;
    };
    let cpu = world.cpu() + 1;
    let Some(cell) = world.cell(slot) else {
        return false;
    };
    let repeat =
        cell.last_cpu == cpu && cell.last_irqs_sum == irqs_sum && cell.last_action == action;
    cell.last_cpu = cpu;
    cell.last_irqs_sum = irqs_sum;
    cell.last_action = action;
    repeat
}

/// Finds out what an interrupt number stands for now. The entry is marked last.
#[inline(always)]
fn learn<W: World>(
    bank: &mut CpuBank,
    entry: &mut LineEntry,
    world: &mut W,
    irq: u32,
    action: u64,
    in_vector: bool,
) {
    entry.state = state::UNKNOWN;
    entry.action = action;
    entry.generation = bank.generation;
    let Some(name) = world.name(action) else {
        bank.unreadable_actions += 1;
        return;
    };
    // A name keeps its slot, and its kind: a child re-sent outside its vector is
    // still a child.
    let mut link = entry.newest;
    let mut names = 0;
    while names < MAX_NAMES_PER_IRQ {
        if link == 0 {
            break;
        }
        let Some(cell) = world.cell(link - 1) else {
            break;
        };
        if cell.name == name {
            entry.slot = link - 1;
            entry.kind = cell.kind;
            entry.state = state::ASSIGNED;
            return;
        }
        link = cell.next;
        names += 1;
    }

    let kind = match world.classify(&name) {
        kind::NONE if !in_vector => {
            entry.state = state::NOT_OURS;
            return;
        }
        kind::NONE => kind::OTHER_CHILD,
        // A watched name inside a vector is a child like any other.
        kind::WATCHED if in_vector => kind::OTHER_CHILD,
        named => named,
    };

    entry.kind = kind;
    let taken = if names < MAX_NAMES_PER_IRQ {
        world.take_slot()
    } else {
        Taken::Empty
    };
    match taken {
        Taken::Slot(slot) => {
            let Some(cell) = world.cell(slot) else { return };
            cell.irq = irq;
            cell.kind = kind;
            cell.next = entry.newest;
            cell.name = name;
            cell.disk = if kind == kind::NVME {
                disk_index(&name)
            } else {
                0
            };
            world.publish(slot);
            entry.newest = slot + 1;
            entry.slot = slot;
            entry.state = state::ASSIGNED;
        }
        Taken::Empty => {
            entry.state = state::UNASSIGNED;
            if entry.told == 0 {
                entry.told = 1;
                world.no_slot(irq);
            }
        }
        Taken::Busy => {
            entry.state = state::UNASSIGNED;
            // Of no generation: the next run tries again.
            entry.generation = bank.generation.wrapping_sub(1);
        }
    }
}

/// Index of an NVMe queue's disk in the map of samples.
#[inline(always)]
fn disk_index(name: &Name) -> u32 {
    let index = name.disk_number().wrapping_add(1);
    if index < samples::DISKS { index } else { 0 }
}

#[cfg(test)]
#[path = "accounting_tests.rs"]
mod tests;
