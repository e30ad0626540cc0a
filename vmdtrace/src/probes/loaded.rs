//! The loaded programs as a Snapshot needs them, whether this process loaded them
//! ([`Tracer`](super::Tracer)) or a helper did ([`Helper`](crate::helper::Helper)).

use std::os::fd::RawFd;

use super::{arrays::Arrays, fdinfo, losses::LossesByName, msi::OperationsByName, threads};
use crate::{
    host::Roots,
    snapshot::{Probe, ProbeState, probes::HANDLER_COMPLETIONS},
};

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

    /// Operations on interrupts so far.
    ///
    /// # Errors
    /// If they cannot be read.
    fn operations(&self) -> anyhow::Result<OperationsByName>;

    /// Each probe, its state and why.
    fn probes(&self) -> Vec<Probe>;

    /// Takes away what would outlive the process.
    fn close(&self);
}

/// Adds what is read anew each time: what the kernel says of the runs of programs,
/// by their descriptors in this process, and whether handlers have threads.
pub(crate) fn add_what_changes(
    probes: &mut [Probe],
    roots: &Roots,
    descriptor: impl Fn(&str) -> Option<RawFd>,
) {
    for probe in probes {
        if let Some(descriptor) = descriptor(&probe.name) {
            let statistics = fdinfo::read(&roots.procfs, descriptor);
            probe.missed_runs = statistics.recursion_misses;
            probe.runs = statistics.run_count;
        } else if probe.name == HANDLER_COMPLETIONS {
            (probe.state, probe.reason) = match threads::interrupts_have_threads(roots) {
                None => (ProbeState::Attached, None),
                Some(reason) => (ProbeState::NotApplicable, Some(reason)),
            };
        }
    }
}
