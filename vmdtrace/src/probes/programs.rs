//! Which programs there are, in the order they are attached, and what became of
//! each.

use aya::{Btf, Ebpf};

use super::{
    fdinfo,
    hook::{self, Hook},
    tracefs::{KprobeError, KprobeEvent, KprobeEvents, Module, ModuleState, has_function},
};
use crate::{
    host::Roots,
    snapshot::{
        Probe, ProbeState,
        probes::{IRQ_HANDLER_ENTRY, IRQ_HANDLER_EXIT, NVME_DEV_DISABLE, NVME_SQ, NVME_TIMEOUT},
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
/// seen in.
pub const PROGRAMS: [Spec; 5] = [
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
        name: NVME_SQ,
        hook: Hook::RawTracepoint {
            module: Some("nvme_core"),
        },
        required: true,
    },
    // Before the time-outs: what it ends must not be taken for lost.
    Spec {
        name: NVME_DEV_DISABLE,
        hook: Hook::ModuleFunction { module: "nvme" },
        required: false,
    },
    Spec {
        name: NVME_TIMEOUT,
        hook: Hook::ModuleFunction { module: "nvme" },
        required: false,
    },
];

/// Whether kprobes may be made, and where.
#[derive(Debug)]
pub enum Kprobes {
    /// Not wanted.
    Off,
    On(Result<KprobeEvents, KprobeError>),
}

impl Kprobes {
    /// Finds the kernel's list of kprobe events, if they are wanted, and removes
    /// from it what earlier processes left behind.
    #[must_use]
    pub fn open(wanted: bool, roots: &Roots) -> Self {
        if !wanted {
            return Self::Off;
        }
        let events = KprobeEvents::open(roots);
        if let Ok(events) = &events {
            events.remove_stale();
        }
        Self::On(events)
    }
}

/// A program and what became of it.
#[derive(Debug)]
pub struct Attachment {
    spec: Spec,
    loaded: bool,
    state: ProbeState,
    reason: Option<String>,
    /// Of what follows a module.
    event: Option<KprobeEvent>,
    /// Whether the function is known to be there while the module is.
    has_function: bool,
}

impl Attachment {
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        Self {
            spec,
            loaded: false,
            state: ProbeState::Broken,
            reason: None,
            event: None,
            has_function: false,
        }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.spec.name
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
            Ok(()) => self.loaded = true,
            Err(error) if required => return Err(error),
            Err(error) => self.failed(&error, roots),
        }
        Ok(())
    }

    /// Attaches the program if it was loaded and is not attached yet. What
    /// follows a module finds out whether that is there.
    pub fn attach(&mut self, ebpf: &mut Ebpf, roots: &Roots, kprobes: &Kprobes) {
        if !self.loaded {
            return;
        }
        let Spec { name, hook, .. } = self.spec;
        if let Hook::ModuleFunction { module } = hook {
            self.follow(&Module::look(roots, module), ebpf, roots, kprobes);
            return;
        }
        if self.is_attached() {
            return;
        }
        match hook.attach(ebpf, name) {
            Ok(()) => {
                self.state = ProbeState::Attached;
                self.reason = None;
                tracing::info!("probe {name} is attached ({})", hook.mechanism());
            }
            Err(error) => self.failed(&error, roots),
        }
    }

    fn follow(&mut self, module: &Module<'_>, ebpf: &Ebpf, roots: &Roots, kprobes: &Kprobes) {
        let name = self.spec.name;
        let events = match kprobes {
            Kprobes::Off => {
                self.say(
                    ProbeState::Blocked,
                    Some("--no-kprobes switches it off".to_owned()),
                );
                return;
            }
            Kprobes::On(events) => events,
        };
        if self.event.is_none() {
            let made = match (events, hook::borrowed(ebpf, name)) {
                (Err(error), _) => Err(hook::why_no_kprobe(error)),
                (Ok(events), Some(program)) => events
                    .attach(module, name, program)
                    .map_err(|error| hook::why_no_kprobe(&error)),
                (Ok(_), None) => Err((ProbeState::Broken, "has no descriptor".to_owned())),
            };
            match made {
                Ok(event) => self.event = Some(event),
                Err((state, reason)) => {
                    self.say(state, Some(reason));
                    return;
                }
            }
            // The kernel looked for the function then, if the module was there.
            self.has_function = module.state != ModuleState::Absent;
        }
        if module.state == ModuleState::Absent {
            self.has_function = false;
            let reason = format!("{} is not loaded; counts as soon as it is", module.name);
            self.say(ProbeState::NotApplicable, Some(reason));
            return;
        }
        if !self.has_function {
            match has_function(&roots.procfs.join("kallsyms"), module.name, name) {
                Ok(found) => self.has_function = found,
                Err(error) => tracing::debug!("/proc/kallsyms: {error}"),
            }
        }
        if self.has_function {
            self.say(ProbeState::Attached, None);
        } else {
            let missing = KprobeError::NoFunction {
                module: module.name.to_owned(),
                function: name.to_owned(),
            };
            self.say(ProbeState::Unsupported, Some(missing.to_string()));
        }
    }

    /// Takes note of a state and logs it if it is new.
    fn say(&mut self, state: ProbeState, reason: Option<String>) {
        if self.state != state && state == ProbeState::Attached {
            let Spec { name, hook, .. } = self.spec;
            tracing::info!("probe {name} is attached ({})", hook.mechanism());
        }
        self.state = state;
        self.reason = reason;
    }

    /// Takes away what would outlive the process.
    pub fn remove_event(&mut self) {
        self.event = None;
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
