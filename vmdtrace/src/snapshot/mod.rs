//! The one waist: a [`Snapshot`] is everything known of a host at one moment.
//! Metrics, tables, recordings and (later) findings are computed from
//! Snapshots alone. Totals are computed here from their parts, never kept
//! twice.

mod attribution;
pub mod bio;
mod counts;
mod groups;
mod line_names;
pub mod live;
mod owners;
pub mod probes;
mod rare;
pub mod recording;
mod shares;
pub mod source;
mod sums;
pub mod window;

use serde::{Deserialize, Serialize};
use vmdtrace_common::msi::Operation;
use vmdtrace_common::samples::{BUCKETS, FIRST_BITS};

pub use bio::BioCounts;

use crate::host::activity::Activity;
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

/// A line, that is an (interrupt number, action name) pair, its owner, and what
/// was counted on it from the moment the programs were attached.
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
    pub counts: RunCounts,
}

/// What was counted on a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCounts {
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
    /// Of the completions, those that another CPU made the request of. 0 where
    /// the capability `placement` is not there.
    pub remote: Remote,
    /// Handler runs of children inside this one (VMD vectors only).
    pub child_runs: u64,
    pub child_unhandled_runs: u64,
    pub child_completions: u64,
}

impl RunCounts {
    /// Every counter of the two combined by `change`, one by one.
    #[must_use]
    pub fn combine(&self, other: &Self, mut change: impl FnMut(u64, u64) -> u64) -> Self {
        // Taken apart, so that a counter cannot be forgotten.
        let Self {
            depth0_runs,
            nested_runs,
            unhandled_runs,
            repeated_runs,
            inclusive_ns,
            self_ns,
            completions,
            remote,
            child_runs,
            child_unhandled_runs,
            child_completions,
        } = self;
        Self {
            depth0_runs: change(*depth0_runs, other.depth0_runs),
            nested_runs: change(*nested_runs, other.nested_runs),
            unhandled_runs: change(*unhandled_runs, other.unhandled_runs),
            repeated_runs: repeated_runs
                .zip(other.repeated_runs)
                .map(|(ours, theirs)| change(ours, theirs)),
            inclusive_ns: change(*inclusive_ns, other.inclusive_ns),
            self_ns: change(*self_ns, other.self_ns),
            completions: change(*completions, other.completions),
            remote: remote.combine(&other.remote, &mut change),
            child_runs: change(*child_runs, other.child_runs),
            child_unhandled_runs: change(*child_unhandled_runs, other.child_unhandled_runs),
            child_completions: change(*child_completions, other.child_completions),
        }
    }
}

/// Completions on another CPU than the one the request was made on, by how far
/// the two are from each other. What is none of these is local.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// The two share their last-level cache.
    pub same_cache: u64,
    /// Another cache of the same NUMA node.
    pub other_cache: u64,
    pub other_node: u64,
    /// Which CPU it was, or where it is, is not known.
    pub unknown: u64,
}

impl Remote {
    /// Every count with its name as a label.
    #[must_use]
    pub fn by_distance(&self) -> [(&'static str, u64); 4] {
        let Self {
            same_cache,
            other_cache,
            other_node,
            unknown,
        } = *self;
        [
            ("same-cache", same_cache),
            ("other-cache", other_cache),
            ("other-node", other_node),
            ("unknown", unknown),
        ]
    }

    /// Every count of the two combined by `change`, one by one.
    #[must_use]
    pub fn combine(&self, other: &Self, mut change: impl FnMut(u64, u64) -> u64) -> Self {
        let Self {
            same_cache,
            other_cache,
            other_node,
            unknown,
        } = *self;
        Self {
            same_cache: change(same_cache, other.same_cache),
            other_cache: change(other_cache, other.other_cache),
            other_node: change(other_node, other.other_node),
            unknown: change(unknown, other.unknown),
        }
    }
}

/// A histogram of times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Of each power of two, the times up to it and beyond the one before: from
    /// `2^`[`FIRST_BITS`] ns on; the last one has all others, too.
    pub buckets: [u64; BUCKETS],
    pub sum_ns: u64,
}

impl Times {
    /// How many times there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many are not longer than `2^bits` ns.
    #[must_use]
    pub fn up_to(&self, bits: u32) -> u64 {
        let buckets = (u64::from(bits) + 1).saturating_sub(FIRST_BITS) as usize;
        self.buckets.iter().take(buckets).sum()
    }

    #[must_use]
    pub fn combine(&self, other: &Self, mut change: impl FnMut(u64, u64) -> u64) -> Self {
        let Self { buckets, sum_ns } = self;
        Self {
            buckets: std::array::from_fn(|index| change(buckets[index], other.buckets[index])),
            sum_ns: change(*sum_ns, other.sum_ns),
        }
    }
}

/// Times of one completion in [`PERIOD`](vmdtrace_common::samples::PERIOD).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleCounts {
    /// From the start of the request to the completion.
    pub latency: Times,
    /// From the completion to the end of the request.
    pub handling: Times,
    /// Samples without a latency: the kernel did not note the request's start.
    pub without_start: u64,
}

impl SampleCounts {
    #[must_use]
    pub fn combine(&self, other: &Self, mut change: impl FnMut(u64, u64) -> u64) -> Self {
        let Self {
            latency,
            handling,
            without_start,
        } = self;
        Self {
            latency: latency.combine(&other.latency, &mut change),
            handling: handling.combine(&other.handling, &mut change),
            without_start: change(*without_start, other.without_start),
        }
    }
}

/// A disk, its owner, and what was sampled of its completions in handlers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSamples {
    /// Such as `nvme3`.
    pub disk: String,
    /// The VMD it is behind.
    pub controller: Option<PciAddress>,
    pub counts: SampleCounts,
}

impl LineCounts {
    /// Runs on behalf of a hardware interrupt of this very line. A child behind
    /// a remapping controller has none: at depth 0 it was re-sent by software.
    #[must_use]
    pub fn hardware_interrupts(&self) -> u64 {
        if self.is_remapped_child() {
            0
        } else {
            self.counts.depth0_runs
        }
    }

    /// Runs of a remapped child outside its vector's handler.
    #[must_use]
    pub fn resent_runs(&self) -> u64 {
        if self.is_remapped_child() {
            self.counts.depth0_runs
        } else {
            0
        }
    }

    /// Of the hardware interrupts, runs that the kernel repeated. A re-sent run
    /// moves no interrupt count either, but it is no hardware interrupt to begin
    /// with.
    #[must_use]
    pub fn repeated_interrupts(&self) -> u64 {
        if self.is_remapped_child() {
            0
        } else {
            self.counts.repeated_runs.unwrap_or(0)
        }
    }

    /// All runs of the handler.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let RunCounts {
            depth0_runs,
            nested_runs,
            ..
        } = self.counts;
        depth0_runs.saturating_add(nested_runs)
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
    /// Of these, those that another CPU made the request of.
    pub remote_outside: Remote,
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

/// Whose interrupts a CPU serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShareOwner {
    /// Of nobody, yet: runs of a line until it was told whose it is, and of lines that
    /// found no slot.
    Unassigned,
    /// Lines asked for by `--also-lines`.
    Watched,
    /// Disks behind no controller.
    Direct,
    /// Controllers beyond those that are told apart.
    Other,
    Controller(PciAddress),
}

/// What one CPU did for one owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuShare {
    pub cpu: u32,
    pub owner: ShareOwner,
    pub counts: ShareCounts,
}

/// The counters of a [`CpuShare`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareCounts {
    /// Handler runs that no watched handler was running around.
    pub depth0_runs: u64,
    /// Of these, runs of a remapped child: re-sent by software.
    pub resent_runs: u64,
    /// Time in handlers, counted once (depth 0).
    pub interrupt_ns: u64,
    /// NVMe completions in handlers, inner ones among them.
    pub completions: u64,
}

impl ShareCounts {
    /// Runs on behalf of a hardware interrupt.
    #[must_use]
    pub fn hardware_interrupts(&self) -> u64 {
        self.depth0_runs.saturating_sub(self.resent_runs)
    }
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

/// Completions of one disk outside any handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCompletions {
    /// The VMD it is behind.
    pub controller: Option<PciAddress>,
    pub disk: String,
    pub count: u64,
}

/// Time-outs and lost interrupts of all disks. A disk without any is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    pub disks: Vec<DiskLosses>,
    /// Of commands whose disk could not be told.
    pub unassigned: LossCounts,
}

/// How often something was done to a controller's interrupts or to those of its children.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationCount {
    pub controller: PciAddress,
    pub operation: Operation,
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
    /// Recordings made before there were any have none; their probes say so.
    #[serde(default)]
    pub losses: Losses,
    /// Of [`CpuCounts::completions_outside`], those whose disk could be told. A disk
    /// without any is not listed.
    #[serde(default)]
    pub outside: Vec<OutsideCompletions>,
    /// Of CPUs and owners that have any; none where they are not asked for
    /// ([`SourceOptions::shares`](source::SourceOptions)). Over a CPU's owners they
    /// add up to its [`CpuCounts`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<CpuShare>,
    #[serde(default)]
    pub msi: MsiCounts,
    /// Of disks that have any.
    pub samples: Vec<DiskSamples>,
    /// Of completions outside any handler, and of disks that are not told apart.
    pub other_samples: SampleCounts,
    #[serde(default)]
    pub bio: BioCounts,
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

/// How finely a Snapshot tells interrupt lines apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detail {
    /// Every line by itself, and the activity of every CPU.
    #[default]
    Lines,
    /// The lines of each owner summed (see [`Snapshot::sums`]).
    Sums,
}

/// Everything known of a host at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Monotonic time (`CLOCK_BOOTTIME`) at which the counters were read.
    pub taken_ns: u64,
    /// When counting began, on the same clock: two Snapshots of one run have
    /// the same. Absent where it is not known.
    #[serde(default)]
    pub counting_since_ns: Option<u64>,
    #[serde(default)]
    pub detail: Detail,
    pub host: Host,
    pub topology: Topology,
    pub counters: Counters,
    pub probes: Vec<Probe>,
    /// What the kernel itself counted; only where it was asked for
    /// ([`SourceOptions::activity`](source::SourceOptions)).
    #[serde(default)]
    pub activity: Option<Activity>,
}
