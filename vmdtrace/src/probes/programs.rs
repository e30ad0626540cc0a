//! Which programs there are, in the order they are attached, and what became of
//! each.

use aya::{Btf, Ebpf};

use super::{
    fdinfo,
    hook::{self, Hook},
};
use crate::{
    host::Roots,
    snapshot::{
        Probe, ProbeState,
        probes::{BLOCK_RQ_COMPLETE, IRQ_HANDLER_ENTRY, IRQ_HANDLER_EXIT, NVME_SQ},
    },
};

/// A program of the eBPF object.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub name: &'static str,
    pub hook: Hook,
    /// Without it nothing is loaded at all: the kernel's refusal is an error.
    /// Any other program's is its state.
    pub required: bool,
}

/// How many of [`PROGRAMS`], from the first, follow handlers. The CPUs are let
/// count when these are attached, and before any other is.
pub const HANDLER_PROGRAMS: usize = 2;

/// In this order: an exit is seen from before the first entry, so that no frame
/// stays open; completions after that, since they belong to the handler they are
/// seen in; the ends of requests before their completions, so that none of these
/// waits in vain.
pub const PROGRAMS: [Spec; 4] = [
    Spec {
        name: IRQ_HANDLER_EXIT,
        hook: Hook::RawTracepoint { module: None },
        required: true,
    },
    Spec {
        name: IRQ_HANDLER_ENTRY,
        hook: Hook::RawTracepoint { module: None },
        required: true,
    },
    Spec {
        name: BLOCK_RQ_COMPLETE,
        hook: Hook::RawTracepoint { module: None },
        required: false,
    },
    Spec {
        name: NVME_SQ,
        hook: Hook::RawTracepoint {
            module: Some("nvme_core"),
        },
        required: true,
    },
];

/// A program and what became of it.
#[derive(Debug)]
pub struct Attachment {
    spec: Spec,
    loaded: bool,
    /// It is of no use even if the kernel takes it.
    useless: bool,
    state: ProbeState,
    reason: Option<String>,
}

impl Attachment {
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self {
            spec,
            loaded: false,
            useless: false,
            state: ProbeState::Broken,
            reason: None,
        }
    }

    /// A program that this kernel cannot run, or that has nothing to do on it. If
    /// the kernel refuses it, that is its state instead.
    #[must_use]
    pub fn unless_refused(spec: Spec, state: ProbeState, reason: &str) -> Self {
        Self {
            useless: true,
            state,
            reason: Some(reason.to_owned()),
            ..Self::new(spec)
        }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    /// As the probe list shows it.
    #[must_use]
    pub fn mechanism(&self) -> &'static str {
        self.spec.hook.mechanism()
    }

    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.state == ProbeState::Attached
    }

    /// Hands the program to the verifier.
    ///
    /// # Errors
    /// If a required program is refused.
    pub fn load(
        &mut self,
        ebpf: &mut Ebpf,
        btf: Option<&Btf>,
        roots: &Roots,
    ) -> anyhow::Result<()> {
        let Spec {
            name,
            hook,
            required,
        } = self.spec;
        match hook.load(ebpf, name, btf) {
            Ok(()) => self.loaded = !self.useless,
            Err(error) if required => return Err(error),
            Err(error) => {
                let known = (self.state, self.reason.clone());
                self.failed(&error, roots);
                // Of a program that is of no use only a refusal is news.
                if self.useless && self.state != ProbeState::Blocked {
                    (self.state, self.reason) = known;
                }
            }
        }
        Ok(())
    }

    /// Attaches the program if it was loaded and is not attached yet.
    pub fn attach(&mut self, ebpf: &mut Ebpf, roots: &Roots) {
        if !self.loaded || self.is_attached() {
            return;
        }
        let Spec { name, hook, .. } = self.spec;
        match hook.attach(ebpf, name) {
            Ok(()) => {
                self.state = ProbeState::Attached;
                self.reason = None;
                tracing::info!("probe {name} is attached ({})", hook.mechanism());
            }
            Err(error) => self.failed(&error, roots),
        }
    }

    fn failed(&mut self, error: &anyhow::Error, roots: &Roots) {
        let (state, reason) = self.spec.hook.why_not(self.spec.name, error, roots);
        self.state = state;
        self.reason = Some(reason);
    }

    /// The program as a probe, with what the kernel says of its runs.
    #[must_use]
    pub fn probe(&self, ebpf: &Ebpf, roots: &Roots) -> Probe {
        let statistics = hook::descriptor(ebpf, self.spec.name)
            .map(|descriptor| fdinfo::read(&roots.procfs, descriptor))
            .unwrap_or_default();
        Probe {
            name: self.spec.name.to_owned(),
            state: self.state,
            mechanism: self.spec.hook.mechanism().to_owned(),
            reason: self.reason.clone(),
            missed_runs: statistics.recursion_misses,
            runs: statistics.run_count,
        }
    }
}
