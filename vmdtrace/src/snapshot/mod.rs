//! The one waist: a [`Snapshot`] is everything known of a host at one moment.
//! Metrics, tables and (later) recordings and findings are computed from
//! Snapshots alone. Totals are computed here from their parts, never kept
//! twice.

mod attribution;
pub mod live;
pub mod probes;
pub mod source;

use serde::{Deserialize, Serialize};

use crate::host::topology::{DiskPath, PciAddress, Topology};

/// What a watched interrupt line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LineKind {
    /// A VMD controller's own vector.
    VmdVector,
    /// An NVMe queue.
    Nvme,
    /// Anything else that runs inside a VMD vector: ports, hot-plug, errors.
    OtherChild,
    /// Asked for by `--also-lines`.
    Watched,
}

/// The counters of one line: an (interrupt number, action name) pair.
/// Every count rises from the moment the programs were attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounts {
    pub irq: u32,
    /// Action name, such as `vmd0` or `nvme3q2`.
    pub action: String,
    pub kind: LineKind,
    /// The VMD it belongs to or is behind.
    pub controller: Option<PciAddress>,
    /// The disk it serves.
    pub disk: Option<String>,
    /// How its interrupts reach a CPU, by sysfs, at the time of this Snapshot.
    pub path: Option<DiskPath>,
    /// The VMD vector it last ran in.
    pub parent_irq: Option<u32>,
    /// Handler runs that no watched handler was running around.
    pub depth0_runs: u64,
    /// Handler runs inside another watched handler, such as a VMD vector's.
    pub nested_runs: u64,
    /// Of all runs, those the handler answered with `IRQ_NONE`.
    pub unhandled_runs: u64,
    /// Of the depth-0 runs, those the kernel repeated without a new interrupt.
    /// Absent where the kernel hides what is needed to tell.
    pub repeated_runs: Option<u64>,
    /// Time in the handler, with what ran inside it.
    pub inclusive_ns: u64,
    /// The same without what ran inside it.
    pub self_ns: u64,
    /// NVMe completions reaped by this handler itself.
    pub completions: u64,
    /// Handler runs of children inside this one (VMD vectors only).
    pub child_runs: u64,
    pub child_unhandled_runs: u64,
    pub child_completions: u64,
}

impl LineCounts {
    /// Runs on behalf of a hardware interrupt of this very line. A child behind
    /// a remapping controller has none: at depth 0 it was re-sent by software.
    #[must_use]
    pub fn hardware_interrupts(&self) -> u64 {
        if self.is_remapped_child() {
            0
        } else {
            self.depth0_runs
        }
    }

    /// Runs of a remapped child outside its vector's handler.
    #[must_use]
    pub fn resent_runs(&self) -> u64 {
        if self.is_remapped_child() {
            self.depth0_runs
        } else {
            0
        }
    }

    /// All runs of the handler.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.depth0_runs.saturating_add(self.nested_runs)
    }

    #[must_use]
    pub fn is_remapped_child(&self) -> bool {
        match self.kind {
            LineKind::VmdVector | LineKind::Watched => false,
            LineKind::Nvme => self.path == Some(DiskPath::VmdRemap),
            // Known only because it ran inside a vector's handler.
            LineKind::OtherChild => true,
        }
    }
}

/// The counters of one CPU's bank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCounts {
    pub cpu: u32,
    /// Time in watched handlers, counted once (depth 0).
    pub interrupt_ns: u64,
    /// Depth-0 runs of watched lines.
    pub depth0_runs: u64,
    /// Completions reaped outside any watched handler.
    pub completions_outside: u64,
    /// Runs of lines that found no free slot, and completions inside them.
    pub unassigned_runs: u64,
    pub unassigned_completions: u64,
    /// Handler frames dropped because their exit was never seen.
    pub lost_frames: u64,
    /// Handler exits without an entry.
    pub unmatched_exits: u64,
    /// Runs nested deeper than the frame stack.
    pub overflowed_runs: u64,
    /// Runs whose action name could not be read.
    pub unreadable_actions: u64,
    /// Runs of interrupt numbers beyond the line table, of lines watched or not.
    pub out_of_range_runs: u64,
}

/// Commands that took too long, and interrupts that never came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossCounts {
    /// Commands for which the driver's time-out handler was called.
    pub timeouts: u64,
    /// Of those, commands that were done: their interrupt did not come.
    pub lost_interrupts: u64,
}

/// The same of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLosses {
    /// The VMD it is behind.
    pub controller: Option<PciAddress>,
    pub disk: String,
    pub counts: LossCounts,
}

/// The same of all disks. A disk without any is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    pub disks: Vec<DiskLosses>,
    /// Of commands whose disk could not be told.
    pub unassigned: LossCounts,
}

/// What was done to a controller's interrupts or to those of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MsiOperation {
    /// A child's interrupt was put on the list of a vector.
    Enable,
    /// It was taken off.
    Disable,
    Startup,
    Shutdown,
    /// The message was made that a child is to send.
    Compose,
    Allocate,
    Free,
    /// Remapping was switched on for the controller.
    RemapOn,
    RemapOff,
    /// A vector of the controller went to another CPU.
    Move,
}

/// How often one of them was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationCount {
    pub controller: PciAddress,
    pub operation: MsiOperation,
    pub count: u64,
}

/// All of them. What was never done is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MsiCounts {
    pub operations: Vec<OperationCount>,
    /// Operations whose controller could not be told.
    pub unassigned: u64,
    /// Searches for a free vector, for any device, that found none.
    pub allocation_failures: u64,
    /// Messages for the log that found no room.
    pub lost_messages: u64,
}

/// Everything the eBPF programs counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub lines: Vec<LineCounts>,
    pub cpus: Vec<CpuCounts>,
    pub losses: Losses,
    pub msi: MsiCounts,
}

/// The one state a probe is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeState {
    Attached,
    /// This kernel lacks what it needs.
    Unsupported,
    /// There is nothing to observe here (yet): the reason says what it waits for.
    NotApplicable,
    /// Permission, lockdown or policy.
    Blocked,
    /// A fault of ours.
    Broken,
}

/// A probe, its state and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// `irq_handler_entry`, `irq_handler_exit`, `nvme_sq`, `repeated_runs`.
    pub name: String,
    pub state: ProbeState,
    /// By what means it is attached, such as `raw_tracepoint`.
    pub mechanism: String,
    /// Why it is not attached, and what to do.
    pub reason: Option<String>,
    /// Runs the kernel skipped (`recursion_misses`); absent where it does not count them.
    pub missed_runs: Option<u64>,
    /// Runs, only while the kernel's BPF statistics are on.
    pub runs: Option<u64>,
}

/// Facts of the host that do not change while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// `uname -r`, for display only: nothing is decided by it.
    pub kernel: String,
    pub possible_cpus: u32,
}

/// Everything known of a host at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Monotonic time (`CLOCK_BOOTTIME`) at which the counters were read.
    pub taken_ns: u64,
    pub host: Host,
    pub topology: Topology,
    pub counters: Counters,
    pub probes: Vec<Probe>,
}
