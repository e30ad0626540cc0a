//! Where Snapshots come from: the one interface between what counts and what
//! shows.

use std::error::Error;

use tokio::sync::oneshot;

use super::Snapshot;
use crate::host::Roots;
use crate::logging;

/// Something that can be asked for a [`Snapshot`] at any time.
///
/// All methods may block (they read `/sys` and maps) and may be called from
/// several threads at once; callers in async code use a blocking thread.
pub trait SnapshotSource: Send + Sync {
    /// Reads everything now. Nothing is kept from one call to the next.
    fn snapshot(&self) -> Result<Snapshot, SnapshotError>;

    /// The same with the lines of each owner summed ([`Snapshot::sums`]), or not:
    /// for who does not ask for single lines, which may be many. What a topology
    /// says of single lines may be left out as well.
    fn sums(&self) -> Result<Snapshot, SnapshotError> {
        self.snapshot()
    }

    /// Tries again to attach the probes that waited for a kernel module.
    fn attach_pending(&self);

    /// A PCI or NVMe device came, went or changed its driver: what was learned
    /// of interrupt lines may be stale, and the topology must be read again.
    fn topology_changed(&self);

    /// A CPU came or went: where completions land is to be told anew.
    fn cpus_changed(&self);

    /// Changes which records are logged by what runs for it in another process.
    ///
    /// # Errors
    /// If that cannot be told.
    fn set_log_level(&self, _level: logging::Level) -> anyhow::Result<()> {
        Ok(())
    }

    /// The process is about to end: takes away what would outlive it.
    fn close(&self) {}

    /// Tells, once, when nothing is counted any more, and why. None if that cannot
    /// happen, or if it was asked for already.
    fn take_end(&self) -> Option<oneshot::Receiver<String>> {
        None
    }
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
