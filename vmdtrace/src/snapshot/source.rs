//! Where Snapshots come from: the one interface between what counts and what
//! shows.

use std::error::Error;

use super::Snapshot;
use crate::host::Roots;

/// Something that can be asked for a [`Snapshot`] at any time.
///
/// All methods may block (they read `/sys` and maps) and may be called from
/// several threads at once; callers in async code use a blocking thread.
pub trait SnapshotSource: Send + Sync {
    /// Reads everything now. Nothing is kept from one call to the next.
    fn snapshot(&self) -> Result<Snapshot, SnapshotError>;

    /// Tries again to attach the probes that waited for a kernel module.
    fn attach_pending(&self);

    /// A PCI or NVMe device came, went or changed its driver: what was learned
    /// of interrupt lines may be stale, and the topology must be read again.
    fn topology_changed(&self);

    /// A CPU came or went: where completions land is to be told anew.
    fn cpus_changed(&self);

    /// The process is about to end: takes away what would outlive it.
    fn close(&self) {}
}

/// Why a Snapshot could not be taken. The error inside says what was read and
/// where.
#[derive(Debug, thiserror::Error)]
#[error("cannot take a snapshot")]
pub struct SnapshotError(#[source] Box<dyn Error + Send + Sync>);

impl SnapshotError {
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// What a source of live Snapshots is to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    pub roots: Roots,
    /// Globs of action names: further lines to watch.
    pub also_lines: Vec<String>,
    pub level: Level,
    /// Whether kprobes may be made.
    pub kprobes: bool,
    /// Whether what each CPU does for each controller is counted.
    pub shares: bool,
    /// Whether Snapshots hold the kernel's own counts of CPUs and disks, too.
    /// They cost more than all the rest: for recordings and diagnoses.
    pub activity: bool,
}

/// How much is measured; the cost follows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Counts only: no clock is read.
    Counters,
    /// Counts, and the time spent in handlers.
    #[default]
    Timing,
}
