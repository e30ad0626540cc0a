//! What the probes of a [`Snapshot`] say of its counters: a zero is only a
//! zero where something was counting.

use vmdtrace_common::msi::Operation;

use super::{Probe, ProbeState, Snapshot};

/// Raw tracepoint at the start of a handler run.
pub const IRQ_HANDLER_ENTRY: &str = "irq_handler_entry";
/// Raw tracepoint at the end of a handler run.
pub const IRQ_HANDLER_EXIT: &str = "irq_handler_exit";
/// Raw tracepoint of an NVMe completion.
pub const NVME_SQ: &str = "nvme_sq";
/// Kprobe on the NVMe driver's time-out handler.
pub const NVME_TIMEOUT: &str = "nvme_timeout";
/// Kprobe on the NVMe driver's giving a controller up: what it reaps then was
/// not lost.
pub const NVME_DEV_DISABLE: &str = "nvme_dev_disable";
/// Kprobes on the VMD driver's functions, by what they do to an interrupt.
pub const MSI_ENABLE: &str = "msi_enable";
pub const MSI_DISABLE: &str = "msi_disable";
pub const MSI_STARTUP: &str = "msi_startup";
pub const MSI_SHUTDOWN: &str = "msi_shutdown";
pub const MSI_COMPOSE: &str = "msi_compose";
pub const MSI_ALLOCATE: &str = "msi_allocate";
pub const MSI_FREE: &str = "msi_free";
/// The function by which remapping is switched.
pub const PCI_WRITE_CONFIG_WORD: &str = "pci_write_config_word";
/// Raw tracepoint of a vector that gets a place on a CPU.
pub const VECTOR_UPDATE: &str = "vector_update";
/// Raw tracepoints of a search for a free vector.
pub const VECTOR_ALLOC: &str = "vector_alloc";
pub const VECTOR_ALLOC_MANAGED: &str = "vector_alloc_managed";
/// Raw tracepoint of the end of a block request.
pub const BLOCK_RQ_COMPLETE: &str = "block_rq_complete";
/// Not a hook: whether the CPU that a request was made on can be told.
pub const PLACEMENT: &str = "placement";
/// Not a hook: whether times of completions are sampled.
pub const COMPLETION_TIMES: &str = "completion_times";
/// Not a hook: whether runs that the kernel repeated can be told.
pub const REPEATED_RUNS: &str = "repeated_runs";
/// Not a hook: whether completions are taken inside the handlers, so that
/// figures per interrupt mean something.
pub const HANDLER_COMPLETIONS: &str = "handler_completions";
/// Not a hook: whether the time in handlers is measured (see
/// [`Level`](super::source::Level)). Measured unless this says otherwise.
pub const HANDLER_TIME: &str = "handler_time";

/// Start of `bio_alloc_bioset`, where the kernel has caches of bios.
pub const BIO_ALLOC_BIOSET_ENTRY: &str = "bio_alloc_bioset_entry";
/// Its return.
pub const BIO_ALLOC_BIOSET_EXIT: &str = "bio_alloc_bioset_exit";
/// The same where it takes three arguments, before 5.18.
pub const BIO_ALLOC_BIOSET_EXIT_3_ARGS: &str = "bio_alloc_bioset_exit_3_args";
pub const BIO_ALLOC_IRQ_CACHE_SPLICE: &str = "bio_alloc_irq_cache_splice";
pub const BIO_KMALLOC: &str = "bio_kmalloc";
pub const BIO_PUT: &str = "bio_put";
pub const BLK_RQ_UNMAP_USER: &str = "blk_rq_unmap_user";
/// Not a hook: whether the context that frees a bio can be told.
pub const BIO_CONTEXT: &str = "bio_context";

/// Which of the counters mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub interrupts: bool,
    pub handler_time: bool,
    pub repeated_runs: bool,
    pub completions: bool,
    pub timeouts: bool,
    pub lost_interrupts: bool,
    pub allocation_failures: bool,
    /// Where completions land.
    pub placement: bool,
    /// From the start of requests to their completion.
    pub latency: bool,
    /// From the completion of requests to their end.
    pub handling: bool,
    pub bio: BioCounted,
}

/// Which of the counters of bios mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BioCounted {
    pub allocations: bool,
    pub kmallocs: bool,
    /// Frees of bios of a set.
    pub frees: bool,
    /// Frees of bios of no set.
    pub kfrees: bool,
    /// Contexts of frees.
    pub contexts: bool,
}

impl BioCounted {
    /// What both say.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let Self {
            allocations,
            kmallocs,
            frees,
            kfrees,
            contexts,
        } = self;
        Self {
            allocations: allocations && other.allocations,
            kmallocs: kmallocs && other.kmallocs,
            frees: frees && other.frees,
            kfrees: kfrees && other.kfrees,
            contexts: contexts && other.contexts,
        }
    }
}

impl Snapshot {
    /// The probe of this name.
    #[must_use]
    pub fn probe(&self, name: &str) -> Option<&Probe> {
        self.probes.iter().find(|probe| probe.name == name)
    }

    /// Whether interrupts are being counted; if not, why not.
    pub fn interrupt_accounting(&self) -> Result<(), String> {
        for name in [IRQ_HANDLER_EXIT, IRQ_HANDLER_ENTRY] {
            match self.probe(name) {
                Some(Probe {
                    state: ProbeState::Attached,
                    ..
                }) => {}
                Some(Probe { state, reason, .. }) => {
                    let reason = reason.as_deref().unwrap_or("no reason given");
                    return Err(format!("probe {name} is {state}: {reason}"));
                }
                None => return Err(format!("probe {name} was not loaded")),
            }
        }
        Ok(())
    }

    /// Whether what this probe counts is known. Not applicable: no driver is
    /// loaded, so nothing can happen.
    #[must_use]
    pub fn counts(&self, name: &str) -> bool {
        matches!(
            self.probe(name).map(|probe| probe.state),
            Some(ProbeState::Attached | ProbeState::NotApplicable)
        )
    }

    /// Which of the counters mean anything.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let state = |name| self.probe(name).map(|probe| probe.state);
        let interrupts = self.interrupt_accounting().is_ok();
        let lines = &self.counters.lines;
        let counts = |name| self.counts(name);
        let attached = |name| state(name) == Some(ProbeState::Attached);
        let completions = counts(NVME_SQ);
        let latency = interrupts && completions && attached(COMPLETION_TIMES);
        Counted {
            interrupts,
            handler_time: interrupts
                && matches!(state(HANDLER_TIME), None | Some(ProbeState::Attached)),
            // One line that cannot tell makes every sum unknown.
            repeated_runs: interrupts
                && lines.iter().all(|line| line.counts.repeated_runs.is_some())
                && attached(REPEATED_RUNS),
            completions,
            placement: interrupts && completions && attached(PLACEMENT),
            latency,
            handling: latency && attached(BLOCK_RQ_COMPLETE),
            timeouts: counts(NVME_TIMEOUT),
            // Without the handlers nobody knows what is outside them.
            lost_interrupts: interrupts
                && [NVME_SQ, NVME_TIMEOUT, NVME_DEV_DISABLE]
                    .into_iter()
                    .all(counts),
            allocation_failures: [VECTOR_ALLOC, VECTOR_ALLOC_MANAGED].into_iter().all(counts),
            bio: self.bio_counted(),
        }
    }

    fn bio_counted(&self) -> BioCounted {
        let attached = |name| {
            self.probe(name)
                .is_some_and(|probe| probe.state == ProbeState::Attached)
        };
        // Where there is a start to be seen it has to be: without it, whatever a
        // cache may have served is of no class.
        let has_start = self.probe(BIO_ALLOC_BIOSET_ENTRY).is_some();
        let old = attached(BIO_ALLOC_BIOSET_EXIT_3_ARGS);
        BioCounted {
            allocations: old
                || attached(BIO_ALLOC_BIOSET_EXIT)
                    && (!has_start || attached(BIO_ALLOC_BIOSET_ENTRY)),
            kmallocs: old || attached(BIO_KMALLOC),
            frees: attached(BIO_PUT),
            kfrees: attached(if self.probe(BLK_RQ_UNMAP_USER).is_some() {
                BLK_RQ_UNMAP_USER
            } else {
                BIO_PUT
            }),
            contexts: attached(BIO_CONTEXT),
        }
    }
}

/// The probe that counts an operation.
#[must_use]
pub fn of_operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Enable => MSI_ENABLE,
        Operation::Disable => MSI_DISABLE,
        Operation::Startup => MSI_STARTUP,
        Operation::Shutdown => MSI_SHUTDOWN,
        Operation::Compose => MSI_COMPOSE,
        Operation::Allocate => MSI_ALLOCATE,
        Operation::Free => MSI_FREE,
        Operation::RemapOn | Operation::RemapOff => PCI_WRITE_CONFIG_WORD,
        Operation::Move => VECTOR_UPDATE,
    }
}

impl ProbeState {
    /// The state in one word, the same everywhere it is shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Unsupported => "unsupported",
            Self::NotApplicable => "not-applicable",
            Self::Blocked => "blocked",
            Self::Broken => "broken",
        }
    }
}

impl std::fmt::Display for ProbeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
