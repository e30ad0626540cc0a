//! Layout of the maps. Each struct is one element of a memory-mapped array:
//! the programs write it in place, user space reads it in place.
//!
//! Two elements never share a cache line where two CPUs write them: sizes are
//! multiples of 64 bytes (asserted below), except for [`LineEntry`], which is
//! written only when a line is learned.

use crate::{names::Name, placement::RemoteCounts};

/// Frames a CPU's stack holds. A VMD vector and its child need two; the rest is
/// for demultiplexed lines that are watched by name.
pub const MAX_DEPTH: u64 = 4;

/// Names one interrupt number may have had. More are not told apart any more:
/// their runs are unassigned.
pub const MAX_NAMES_PER_IRQ: u32 = 8;

/// In [`Frame::slot`]: the run found no free slot.
pub const NO_SLOT: u32 = u32::MAX;

/// Kinds of line, in [`LineCell::kind`] and in the classes of a [`crate::NameTable`].
pub mod kind {
    /// Not watched.
    pub const NONE: u32 = 0;
    /// A VMD controller's own vector.
    pub const VMD_VECTOR: u32 = 1;
    /// An NVMe queue.
    pub const NVME: u32 = 2;
    /// Anything else that was first seen inside a VMD vector's handler.
    pub const OTHER_CHILD: u32 = 3;
    /// Asked for by name.
    pub const WATCHED: u32 = 4;
}

/// What is known of an interrupt number, in [`LineEntry::state`].
pub mod state {
    pub const UNKNOWN: u32 = 0;
    pub const NOT_OURS: u32 = 1;
    /// Ours, but no slot was free.
    pub const UNASSIGNED: u32 = 2;
    pub const ASSIGNED: u32 = 3;
}

/// Interrupt number -> what is known of it. The kernel runs a number's handlers
/// on one CPU at a time (IRQD_IRQ_INPROGRESS), so an entry has one writer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineEntry {
    /// Address of the irqaction this was learned from.
    pub action: u64,
    /// Generation it was learned in; in an older one it is learned again.
    pub generation: u32,
    pub state: u32,
    pub kind: u32,
    /// The action's slot, if the state is ASSIGNED.
    pub slot: u32,
    /// Slot + 1 of the latest name this number has had; a list through [`LineCell::next`].
    pub newest: u32,
    /// Not 0 once it was said that no slot was free for it.
    pub told: u32,
}

/// The counters of one (interrupt number, action name) pair. One writer at a
/// time, for the same reason as above: no atomics.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCell {
    pub depth0_runs: u64,
    pub nested_runs: u64,
    pub unhandled_runs: u64,
    pub repeated_runs: u64,
    pub inclusive_ns: u64,
    pub self_ns: u64,
    pub completions: u64,
    pub child_runs: u64,

    /// Of the completions, those on another CPU than the request's.
    pub remote: RemoteCounts<u64>,
    /// Of the latest depth-0 run: the CPU's interrupt count, its action and CPU + 1.
    pub last_irqs_sum: u64,
    pub last_action: u64,
    pub last_cpu: u32,
    /// Slot + 1 of the VMD vector it last ran in.
    pub parent: u32,
    pub child_completions: u64,

    pub child_unhandled_runs: u64,
    pub irq: u32,
    pub kind: u32,
    /// Slot + 1 of an earlier name of the same interrupt number.
    pub next: u32,
    /// Not 0 once the slot is taken and described.
    pub ready: u32,
    pub name: Name,
    /// Index of the disk in the map of samples; 0: none.
    pub disk: u32,
    pub reserved: u32,
}

/// A handler that is running.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub action: u64,
    pub start_ns: u64,
    /// Time of the runs inside this one.
    pub nested_ns: u64,
    pub irq: u32,
    pub slot: u32,
    pub kind: u32,
    /// 1: the kernel repeats the handler without a new interrupt.
    pub repeated: u32,
    pub completions: u32,
    pub child_runs: u32,
    pub child_unhandled_runs: u32,
    pub child_completions: u32,
    /// Of the completions, those on another CPU than the request's.
    pub remote: RemoteCounts<u32>,
    pub reserved: u64,
}

/// What one CPU keeps for itself. Only that CPU writes it; user space raises
/// `generation`, and arms CPUs that are offline.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBank {
    /// Frames in use. As wide as a register: the verifier loses track of the
    /// bounds of narrower ones.
    pub depth: u64,
    /// Raised by user space when devices come or go: what was learned in an
    /// older generation is learned again, because addresses are re-used.
    pub generation: u32,
    /// 0: this CPU may be inside a handler whose entry was not seen; nothing is
    /// counted yet. Set once, by a run that cannot be inside one.
    pub armed: u32,
    /// Time in watched handlers at depth 0.
    pub interrupt_ns: u64,
    pub depth0_runs: u64,
    /// Also written from task context: added to atomically.
    pub completions_outside: u64,
    pub unassigned_runs: u64,
    pub unassigned_completions: u64,
    pub lost_frames: u64,
    pub unmatched_exits: u64,

    pub overflowed_runs: u64,
    pub unreadable_actions: u64,
    /// Runs of an interrupt number beyond the line table.
    pub out_of_range_runs: u64,
    /// Of `completions_outside`, those on another CPU than the request's. Also
    /// written from task context: added to atomically.
    pub remote_outside: RemoteCounts<u64>,

    pub frames: [Frame; MAX_DEPTH as usize],
}

const _: () = assert!(MAX_DEPTH.is_power_of_two());
const _: () = assert!(size_of::<LineEntry>() == 32);
const _: () = assert!(size_of::<LineCell>() == 192);
const _: () = assert!(size_of::<Frame>() == 80);
const _: () = assert!(size_of::<CpuBank>() == 128 + 4 * 80);
const _: () = assert!(size_of::<CpuBank>().is_multiple_of(64));
