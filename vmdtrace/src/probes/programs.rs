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
        probes::{
            BLOCK_RQ_COMPLETE, IRQ_HANDLER_ENTRY, IRQ_HANDLER_EXIT, MSI_ALLOCATE, MSI_COMPOSE,
            MSI_DISABLE, MSI_ENABLE, MSI_FREE, MSI_SHUTDOWN, MSI_STARTUP, NVME_DEV_DISABLE,
            NVME_SQ, NVME_TIMEOUT, PCI_WRITE_CONFIG_WORD, VECTOR_ALLOC, VECTOR_ALLOC_MANAGED,
            VECTOR_UPDATE,
        },
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
pub const PROGRAMS: [Spec; 17] = [
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
    // Before the time-outs: what it ends must not be taken for lost.
    Spec {
        name: NVME_DEV_DISABLE,
        hook: Hook::ModuleFunction {
            module: "nvme",
            functions: &["nvme_dev_disable"],
        },
        required: false,
    },
    Spec {
        name: NVME_TIMEOUT,
        hook: Hook::ModuleFunction {
            module: "nvme",
            functions: &["nvme_timeout"],
        },
        required: false,
    },
    of_vmd(MSI_ENABLE, &["vmd_irq_enable", "vmd_pci_msi_enable"]),
    of_vmd(MSI_DISABLE, &["vmd_irq_disable", "vmd_pci_msi_disable"]),
    of_vmd(MSI_STARTUP, &["vmd_pci_msi_startup"]),
    of_vmd(MSI_SHUTDOWN, &["vmd_pci_msi_shutdown"]),
    of_vmd(MSI_COMPOSE, &["vmd_compose_msi_msg"]),
    of_vmd(MSI_ALLOCATE, &["vmd_msi_init", "vmd_msi_alloc"]),
    of_vmd(MSI_FREE, &["vmd_msi_free"]),
    Spec {
        name: PCI_WRITE_CONFIG_WORD,
        hook: Hook::FunctionEntry(PCI_WRITE_CONFIG_WORD),
        required: false,
    },
    of_image(VECTOR_UPDATE),
    of_image(VECTOR_ALLOC),
    of_image(VECTOR_ALLOC_MANAGED),
];

const fn of_vmd(name: &'static str, functions: &'static [&'static str]) -> Spec {
    Spec {
        name,
        hook: Hook::ModuleFunction {
            module: "vmd",
            functions,
        },
        required: false,
    }
}

const fn of_image(name: &'static str) -> Spec {
    Spec {
        name,
        hook: Hook::RawTracepoint { module: None },
        required: false,
    }
}

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
    /// It is of no use even if the kernel takes it.
    useless: bool,
    state: ProbeState,
    reason: Option<String>,
    /// Of what follows a module.
    events: Vec<KprobeEvent>,
    /// Whether one of the functions is known to be there while the module is.
    has_function: bool,
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
            events: Vec::new(),
            has_function: false,
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

    /// Attaches the program if it was loaded and is not attached yet. What
    /// follows a module finds out whether that is there.
    pub fn attach(&mut self, ebpf: &mut Ebpf, roots: &Roots, kprobes: &Kprobes) {
        if !self.loaded {
            return;
        }
        let Spec { name, hook, .. } = self.spec;
        if let Hook::ModuleFunction { module, functions } = hook {
            let module = Module::look(roots, module);
            self.follow(&module, functions, ebpf, roots, kprobes);
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

    fn follow(
        &mut self,
        module: &Module<'_>,
        functions: &[&str],
        ebpf: &Ebpf,
        roots: &Roots,
        kprobes: &Kprobes,
    ) {
        let name = self.spec.name;
        let events = match kprobes {
            Kprobes::Off => {
                let reason = "--no-kprobes switches it off".to_owned();
                self.say(ProbeState::Blocked, Some(reason));
                return;
            }
            Kprobes::On(Ok(events)) => events,
            Kprobes::On(Err(error)) => {
                let (state, reason) = hook::why_no_kprobe(error);
                self.say(state, Some(reason));
                return;
            }
        };
        if self.events.is_empty() {
            let Some(program) = hook::borrowed(ebpf, name) else {
                self.say(ProbeState::Broken, Some("has no descriptor".to_owned()));
                return;
            };
            let mut failure = None;
            for function in functions {
                match events.attach(module, function, program) {
                    Ok(event) => self.events.push(event),
                    Err(error) => failure = Some(error),
                }
            }
            if let (true, Some(error)) = (self.events.is_empty(), failure) {
                let (state, reason) = hook::why_no_kprobe(&error);
                self.say(state, Some(reason));
                return;
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
            let kallsyms = roots.procfs.join("kallsyms");
            match has_function(&kallsyms, module.name, functions) {
                Ok(found) => self.has_function = found,
                Err(error) => tracing::debug!("{}: {error}", kallsyms.display()),
            }
        }
        if self.has_function {
            self.say(ProbeState::Attached, None);
        } else {
            let missing = KprobeError::NoFunction {
                module: module.name.to_owned(),
                function: functions.join(" or "),
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
    pub fn remove_events(&mut self) {
        self.events.clear();
    }

    fn failed(&mut self, error: &anyhow::Error, roots: &Roots) {
        let (state, reason) = self.spec.hook.why_not(self.spec.name, error, roots);
        self.state = state;
        self.reason = Some(reason);
    }

    /// The program as a probe, with what the kernel says of its runs.
    #[must_use]
    pub fn probe(&self, ebpf: &Ebpf, roots: &Roots, counts_runs: bool) -> Probe {
        let statistics = hook::descriptor(ebpf, self.spec.name)
            .map(|descriptor| fdinfo::read(&roots.procfs, descriptor, counts_runs))
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
