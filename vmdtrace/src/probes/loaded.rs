//! The loaded programs as a Snapshot needs them, whether this process loaded them
//! ([`Tracer`](super::Tracer)) or a helper did ([`Helper`](crate::helper::Helper)).

use std::os::fd::RawFd;

use super::{
    arrays::Arrays, fdinfo, losses::LossesByName, msi::OperationsByName, outside::OutsideByName,
};
use crate::{host::Roots, logging, snapshot::Probe};

/// Programs that are loaded, and what they count.
pub trait Loaded: std::fmt::Debug + Send + Sync {
    /// What is read in place.
    fn arrays(&self) -> &Arrays;

    /// Attaches what is not attached yet and can be now. To be called again
    /// when a module comes.
    fn attach(&self);

    /// Time-outs and lost interrupts so far.
    ///
    /// # Errors
    /// If they cannot be read.
    fn losses(&self) -> anyhow::Result<LossesByName>;

    /// Completions outside any handler so far, by disk.
    ///
    /// # Errors
    /// If they cannot be read.
    fn outside(&self) -> anyhow::Result<OutsideByName>;

    /// Operations on interrupts so far.
    ///
    /// # Errors
    /// If they cannot be read.
    fn operations(&self) -> anyhow::Result<OperationsByName>;

    /// Each probe, its state and why, without what [threads](super::threads) of
    /// interrupts do to it.
    fn probes(&self) -> Vec<Probe>;

    /// Changes which records are logged by another process that loaded them.
    ///
    /// # Errors
    /// If it cannot be told.
    fn set_log_level(&self, _level: logging::Level) -> anyhow::Result<()> {
        Ok(())
    }

    /// Takes away what would outlive the process.
    fn close(&self);
}

/// Adds what the kernel says of the runs of programs, by their descriptors in this
/// process.
pub(crate) fn add_statistics(
    probes: &mut [Probe],
    roots: &Roots,
    descriptor: impl Fn(&str) -> Option<RawFd>,
) {
    let counts_runs = fdinfo::counts_runs(&roots.procfs);
    for probe in probes {
        if let Some(descriptor) = descriptor(&probe.name) {
            let statistics = fdinfo::read(&roots.procfs, descriptor, counts_runs);
            probe.missed_runs = statistics.recursion_misses;
            probe.runs = statistics.run_count;
        }
    }
}
