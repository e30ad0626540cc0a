//! Loads the eBPF programs, attaches them, tells their states and reads what
//! they counted.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    maps::{MapData, MapError, Queue, RingBuf},
    programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use aya_log::EbpfLogger;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use vmdtrace_common::{
    CpuBank, LineCell, LineEntry, NameTable, Place, RequestLayout,
    bio_cells::{BioBank, BioCall, BioSet, CALLS, SETS},
    loss::MAX_OUTSIDE_DISKS,
    samples::{self, Pending},
    shares::Share,
};

use super::{
    arrays::{self, Arrays, Facts},
    bio::{self, BioLayout},
    hook::{self, Hook},
    kernel::{InterruptLayout, KernelLayout, Missing},
    loaded::{Loaded, add_statistics},
    losses::{self, DiskName, LossesByName},
    mapped::{Access, MappedArray, Writable},
    msi::{self, ControllerName, OperationsByName},
    names::{self, NamesError},
    object,
    outside::{self, OutsideByName},
    privileges,
    programs::{Attachment, HANDLER_PROGRAMS, Kprobes, PROGRAMS, Spec},
    requests, shares,
};
use crate::snapshot::{
    Probe, ProbeState,
    probes::{
        BIO_CONTEXT, BLOCK_RQ_COMPLETE, COMPLETION_TIMES, HANDLER_COMPLETIONS, HANDLER_TIME,
        PLACEMENT, REPEATED_RUNS,
    },
    source::{Level, SourceOptions},
};
use crate::{
    host::{self, HostError, Lockdown, Roots},
    memory,
};

/// How large the maps are made. All are fixed at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Highest possible CPU number + 1.
    pub cpus: u32,
    /// Interrupt numbers below this can be watched.
    pub interrupts: u32,
    /// (number, name) pairs that can be watched.
    pub slots: u32,
}

impl Sizes {
    /// Sizes for a host with this many possible CPUs and this highest interrupt
    /// number: room for a sixteenth more lines, and for 4,096 that come later (a VMD
    /// loaded after the start brings dozens of lines a disk).
    #[must_use]
    pub fn for_host(cpus: u32, max_irq: u32) -> Self {
        let lines = max_irq.saturating_add(max_irq / 16).saturating_add(4096);
        Self {
            cpus: cpus.max(1),
            interrupts: lines,
            slots: lines,
        }
    }

    /// Bytes of the maps that grow with the host, or are large on any; without those of
    /// [`Options::shares`].
    #[must_use]
    pub fn bytes(self) -> usize {
        self.cpus as usize * size_of::<CpuBank>()
            + self.interrupts as usize * size_of::<LineEntry>()
            + self.slots as usize * size_of::<LineCell>()
            + size_of::<NameTable>()
            + self.cpus as usize * size_of::<Place>()
            // PER_CPU_OFFSETS
            + self.cpus as usize * size_of::<u64>()
            + samples::DISKS as usize * size_of::<samples::DiskSamples>()
            + samples::PENDING as usize * size_of::<Pending>()
            + self.cpus as usize * size_of::<BioBank>()
            + SETS as usize * size_of::<BioSet>()
            + CALLS as usize * size_of::<BioCall>()
            + MAX_OUTSIDE_DISKS * self.cpus as usize * size_of::<u64>()
    }

    /// Bytes of those of [`Options::shares`].
    #[must_use]
    pub fn bytes_of_shares(self) -> usize {
        let shares::Lengths { owners, shares } = shares::lengths(self, true);
        owners as usize * size_of::<u64>() + shares as usize * size_of::<Share>()
    }
}

/// What to load and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub sizes: Sizes,
    pub level: Level,
    /// Globs of action names to watch beside VMD vectors and NVMe queues.
    pub also_lines: Vec<String>,
    /// Whether kprobes may be made: they are entries of a list of the kernel's
    /// that everybody sees.
    pub kprobes: bool,
    /// Whether what each CPU does for each controller is counted.
    pub shares: bool,
    pub roots: Roots,
}

/// Why nothing could be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("this program was built without its eBPF object; build it with `cargo xtask build`")]
    NoObject,
    #[error("missing {0}: run as root, or give the program what is missing")]
    Privileges(String),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(
        "kernel lockdown is in confidentiality mode, which forbids eBPF programs to read kernel \
         memory: boot with lockdown=integrity or lockdown=none (/sys/kernel/security/lockdown)"
    )]
    Lockdown,
    #[error("the kernel's types are not known: {0}")]
    Layout(String),
    #[error("the kernel refused to load the eBPF object: {0:#}")]
    Load(#[source] anyhow::Error),
    #[error("map {map}: {source}")]
    Map {
        map: &'static str,
        source: anyhow::Error,
    },
    #[error("program {program}: {source}")]
    Program {
        program: &'static str,
        source: anyhow::Error,
    },
}

impl LoadError {
    /// The state this leaves every probe in.
    #[must_use]
    pub fn state(&self) -> ProbeState {
        match self {
            Self::Privileges(_) | Self::Lockdown => ProbeState::Blocked,
            Self::Layout(_) => ProbeState::Unsupported,
            Self::Load(source) | Self::Map { source, .. } | Self::Program { source, .. } => {
                if hook::is_refusal(source) {
                    ProbeState::Blocked
                } else {
                    ProbeState::Broken
                }
            }
            Self::NoObject | Self::Host(_) | Self::Names(_) => ProbeState::Broken,
        }
    }
}

/// The probes as they are where nothing could be loaded on a kernel of this layout.
#[must_use]
pub fn unloaded(error: &LoadError, layout: &KernelLayout) -> Vec<Probe> {
    let programs = PROGRAMS.map(Attachment::new).into_iter();
    programs
        .chain(bio::programs(&layout.bio))
        .map(|one| (one.name(), one.mechanism()))
        .chain(CAPABILITIES)
        .map(|(name, mechanism)| {
            capability(name, mechanism, (error.state(), Some(error.to_string())))
        })
        .collect()
}

/// Is run, never attached.
const ARM: Spec = Spec {
    name: "arm",
    hook: Hook::RawTracepoint { module: None },
    required: true,
};

/// The loaded programs and their maps.
pub struct Tracer {
    arrays: Arrays,
    request_layout: MappedArray<RequestLayout, Writable>,
    /// Or why bios cannot be followed.
    bio_layout: Result<BioLayout, String>,
    options: Options,
    /// Why repeated runs cannot be told, if so.
    repeats_unknown: Option<Missing>,
    /// Why it cannot be told where completions land, if so.
    placement_unknown: Option<Missing>,
    /// Why times of completions cannot be sampled, if so.
    starts_unknown: Option<Missing>,
    attached: RwLock<Attached>,
}

/// The part that changes: programs and their links.
struct Attached {
    ebpf: Ebpf,
    attachments: Vec<Attachment>,
    kprobes: Kprobes,
    /// Whether the CPUs were let count.
    armed: bool,
    /// Whether nvme_core was loaded when its types were looked for; None before.
    knows_requests: Option<bool>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tracer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Tracer {
    /// Loads the embedded object. Nothing is attached yet.
    ///
    /// # Errors
    /// See [`LoadError`]; each message says what to do.
    pub fn load(options: Options) -> Result<Self, LoadError> {
        let table = check(&options)?;
        let object = object::embedded().ok_or(LoadError::NoObject)?;
        Self::load_checked(object, &table, options)
    }

    /// Loads the embedded object with maps as large as this host needs.
    ///
    /// # Errors
    /// As [`Tracer::load`].
    pub fn load_for(options: &SourceOptions) -> Result<Self, LoadError> {
        let SourceOptions {
            roots,
            also_lines,
            level,
            kprobes,
            shares,
            activity: _,
        } = options.clone();
        Self::load(Options {
            sizes: Sizes::for_host(host::possible_cpus(&roots)?, host::max_irq(&roots)?),
            level,
            also_lines,
            kprobes,
            shares,
            roots,
        })
    }

    /// Loads an object given as bytes.
    ///
    /// # Errors
    /// As [`Tracer::load`].
    pub fn load_object(object: &[u8], options: Options) -> Result<Self, LoadError> {
        let table = check(&options)?;
        Self::load_checked(object, &table, options)
    }

    fn load_checked(object: &[u8], table: &NameTable, options: Options) -> Result<Self, LoadError> {
        // aya's loader reads the kernel's types for itself and does not hand them
        // on, so they are read twice: at the same time.
        let btf = std::thread::Builder::new().spawn(|| Btf::from_sys_fs().ok());
        let layout = KernelLayout::read(&options.roots);
        let action_name = layout.action_name.map_err(LoadError::Layout)?;
        // Without securityfs the kernel's own refusal has to do.
        if matches!(
            Lockdown::read(&options.roots),
            Ok(Some(Lockdown::Confidentiality))
        ) {
            return Err(LoadError::Lockdown);
        }
        // Kernels before 5.11 charge maps to this limit; later ones do not need it.
        if let Err(error) = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY) {
            tracing::debug!("RLIMIT_MEMLOCK stays as it is: {error}");
        }

        let (count, repeats_unknown) = known(layout.interrupt_count);
        let kstat = count.map_or(0, |count| count.kstat);
        let per_cpu_offset = layout.per_cpu_offset.unwrap_or_default();
        let bio_layout = layout.bio;
        let irqs_sum = count.map_or(0, |count| count.irqs_sum);
        // Without these, whose an operation is cannot be told; it is counted all the same.
        let interrupts = layout.interrupts.unwrap_or_else(|reason| {
            tracing::debug!("operations on interrupts are not told by controller: {reason}");
            InterruptLayout::default()
        });
        let timing = u32::from(options.level == Level::Timing);
        let (submitter, placement_unknown) = known(layout.submitter);
        let placement = u32::from(submitter.is_some());
        let request_ctx = submitter.map_or(0, |offsets| offsets.request_ctx);
        let ctx_cpu = submitter.map_or(0, |offsets| offsets.ctx_cpu);
        let (request_start, starts_unknown) = known(layout.request_start);
        let samples = options.level == Level::Timing && request_start.is_some();
        let sampling = u32::from(samples);
        let request_start = request_start.unwrap_or(0);
        let sizes = options.sizes;
        let count_shares = u32::from(options.shares);
        let of_shares = shares::lengths(sizes, options.shares);
        let mut loader = EbpfLoader::new();
        BioLayout::set(bio_layout.as_ref().ok(), &mut loader);
        let mut ebpf = loader
            .override_global("ACTION_NAME_OFFSET", &action_name, true)
            .override_global("KSTAT_ADDRESS", &kstat, true)
            .override_global("PER_CPU_OFFSET_ADDRESS", &per_cpu_offset, true)
            .override_global("IRQS_SUM_OFFSET", &irqs_sum, true)
            .override_global("TIMING", &timing, true)
            .override_global("IRQ_DATA_DOMAIN", &interrupts.data_domain, true)
            .override_global("IRQ_DATA_PARENT", &interrupts.data_parent, true)
            .override_global("IRQ_DATA_IRQ", &interrupts.data_irq, true)
            .override_global("IRQ_DOMAIN_NAME", &interrupts.domain_name, true)
            .override_global("IRQ_DOMAIN_HOST_DATA", &interrupts.domain_host_data, true)
            .override_global("PCI_DEVICE", &interrupts.pci_device, true)
            .override_global("DEVICE_NAME", &interrupts.device_name, true)
            .override_global("DEVICE_DRIVER", &interrupts.device_driver, true)
            .override_global("DRIVER_NAME", &interrupts.driver_name, true)
            .override_global("PLACEMENT", &placement, true)
            .override_global("REQUEST_CTX_OFFSET", &request_ctx, true)
            .override_global("CTX_CPU_OFFSET", &ctx_cpu, true)
            .override_global("SAMPLING", &sampling, true)
            .override_global("REQUEST_START_OFFSET", &request_start, true)
            .override_global("COUNT_SHARES", &count_shares, true)
            .map_max_entries("LINES", sizes.interrupts)
            .map_max_entries("CELLS", sizes.slots)
            .map_max_entries("BANKS", sizes.cpus)
            .map_max_entries("PLACES", sizes.cpus)
            .map_max_entries("PER_CPU_OFFSETS", sizes.cpus)
            .map_max_entries("FREE_SLOTS", sizes.slots)
            .map_max_entries("BIO_BANKS", sizes.cpus)
            .map_max_entries(shares::LINE_OWNERS, of_shares.owners)
            .map_max_entries(shares::SHARES, of_shares.shares)
            .load(object)
            .map_err(|error: EbpfError| LoadError::Load(error.into()))?;
        let btf = match btf.map(std::thread::JoinHandle::join) {
            Ok(Ok(btf)) => btf,
            // No thread could be had.
            Ok(Err(_)) | Err(_) => Btf::from_sys_fs().ok(),
        };

        map::<NameTable, Writable>(&ebpf, "NAMES", 1)?.fill(table);
        fill_queue(&mut ebpf, sizes.slots)?;
        let kprobes = Kprobes::open(options.kprobes, &options.roots);
        let facts = Facts {
            sizes,
            repeats_known: repeats_unknown.is_none(),
            bio_cache: bio_layout.as_ref().ok().and_then(|layout| layout.cache),
            shares: options.shares,
        };
        let tracer = Self {
            arrays: Arrays::map(facts, |name| array(&ebpf, name))?,
            request_layout: map(&ebpf, "REQUEST_LAYOUT", 1)?,
            options,
            repeats_unknown,
            placement_unknown,
            starts_unknown,
            attached: RwLock::new(Attached {
                kprobes,
                attachments: PROGRAMS
                    .into_iter()
                    // Ends are of no use without samples.
                    .filter(|program| samples || program.name != BLOCK_RQ_COMPLETE)
                    .map(Attachment::new)
                    .chain(bio::programs(&bio_layout))
                    .collect(),
                ebpf,
                armed: false,
                knows_requests: None,
            }),
            bio_layout,
        };
        tracer.verify(btf.as_ref())?;
        Ok(tracer)
    }

    /// Hands every program to the kernel's verifier.
    fn verify(&self, btf: Option<&Btf>) -> Result<(), LoadError> {
        let mut attached = self.write();
        let Attached {
            ebpf, attachments, ..
        } = &mut *attached;
        let failed = |program, source| LoadError::Program { program, source };
        for one in attachments {
            one.load(ebpf, btf, &self.options.roots)
                .map_err(|source| failed(one.name(), source))?;
        }
        ARM.hook
            .load(ebpf, ARM.name, btf)
            .map_err(|source| failed(ARM.name, source))
    }

    fn tell_request_layout(&self) {
        match requests::layout(&self.options.roots) {
            Ok(layout) => self.request_layout.set(layout),
            Err(reason) => tracing::debug!("requests are not told by disk: {reason}"),
        }
    }

    /// Lets every CPU count. [`Tracer::attach`] does so; who feeds the programs
    /// by [`Tracer::test_run`] does it first.
    pub fn arm(&self) {
        self.arm_cpus(&self.read().ebpf);
    }

    fn arm_cpus(&self, ebpf: &Ebpf) {
        for cpu in 0..self.options.sizes.cpus {
            let args = RawTracePointRunOptions {
                cpu: Some(cpu),
                ..RawTracePointRunOptions::new()
            };
            if let Err(error) = run_once(ebpf, ARM.name, args) {
                // An offline CPU: it is inside no handler.
                tracing::debug!("CPU {cpu} is armed from here: {error:#}");
                self.arrays.arm(cpu);
            }
        }
    }

    /// Whether interrupts are accounted.
    #[must_use]
    pub fn counts_interrupts(&self) -> bool {
        self.read()
            .attachments
            .iter()
            .take(HANDLER_PROGRAMS)
            .all(Attachment::is_attached)
    }

    /// The stream of the programs' rare messages, once.
    pub fn take_logger(&self) -> Option<EbpfLogger<&'static dyn log::Log>> {
        let mut attached = self.write();
        match EbpfLogger::init(&mut attached.ebpf) {
            Ok(logger) => Some(logger),
            Err(error) => {
                tracing::debug!("no messages from the eBPF programs: {error}");
                None
            }
        }
    }

    /// Descriptors of the maps behind [`Loaded::arrays`], in the order of their
    /// [names](arrays::NAMES).
    ///
    /// # Errors
    /// If there are no more descriptors to be had.
    pub fn array_descriptors(&self) -> anyhow::Result<Vec<OwnedFd>> {
        let attached = self.read();
        arrays::NAMES
            .into_iter()
            .map(|name| Ok(array(&attached.ebpf, name)?.try_clone_to_owned()?))
            .collect()
    }

    /// Names and descriptors of the loaded programs.
    ///
    /// # Errors
    /// If there are no more descriptors to be had.
    pub fn program_descriptors(&self) -> anyhow::Result<Vec<(&'static str, OwnedFd)>> {
        let attached = self.read();
        let names = attached.attachments.iter().map(Attachment::name);
        names
            .filter_map(|name| Some((name, hook::borrowed(&attached.ebpf, name)?)))
            .map(|(name, descriptor)| Ok((name, descriptor.try_clone_to_owned()?)))
            .collect()
    }

    /// Time-outs and lost interrupts by disk, read from the kernel.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read_losses(&self) -> anyhow::Result<HashMap<DiskName, losses::Counts>> {
        losses::read(&self.read().ebpf)
    }

    /// Completions outside any handler by disk, read from the kernel.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read_outside(&self) -> anyhow::Result<OutsideByName> {
        outside::read(&self.read().ebpf)
    }

    /// Operations on interrupts by controller, read from the kernel.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read_operations(&self) -> anyhow::Result<HashMap<ControllerName, msi::Counts>> {
        msi::read(&self.read().ebpf)
    }

    /// The ring of messages about operations on interrupts, once.
    ///
    /// # Errors
    /// If it cannot be had.
    pub fn take_msi_messages(&self) -> anyhow::Result<RingBuf<MapData>> {
        let ring = self
            .write()
            .ebpf
            .take_map("MSI_MESSAGES")
            .ok_or_else(|| anyhow::anyhow!("the eBPF object has no map MSI_MESSAGES"))?;
        Ok(RingBuf::try_from(ring)?)
    }

    /// Each probe, its state and why, without
    /// [statistics](super::loaded::add_statistics).
    #[must_use]
    pub fn states(&self) -> Vec<Probe> {
        let attached = self.read();
        let mut probes: Vec<Probe> = attached.attachments.iter().map(Attachment::probe).collect();
        let supported = |unknown: &Option<Missing>| match unknown {
            None => (ProbeState::Attached, None),
            Some(Missing { state, reason }) => (*state, Some(reason.clone())),
        };
        let timed = |otherwise| match self.options.level {
            Level::Timing => otherwise,
            Level::Counters => (
                ProbeState::NotApplicable,
                Some("--level counters reads no clock".to_owned()),
            ),
        };
        let context = match &self.bio_layout {
            Ok(layout) => layout.context().err(),
            Err(reason) => Some(reason.clone().into()),
        };
        let states = [
            supported(&self.repeats_unknown),
            timed((ProbeState::Attached, None)),
            supported(&self.placement_unknown),
            timed(supported(&self.starts_unknown)),
            // Whoever takes Snapshots knows better.
            (ProbeState::Attached, None),
            supported(&context),
        ];
        for ((name, mechanism), state) in CAPABILITIES.into_iter().zip(states) {
            probes.push(capability(name, mechanism, state));
        }
        probes
    }

    /// Runs a loaded program once with the given tracepoint arguments
    /// (BPF_PROG_TEST_RUN), for tests and benchmarks. Several threads may do so
    /// at once. Do not use it on a program that is attached.
    ///
    /// # Errors
    /// If there is no such program, or the kernel refuses.
    pub fn test_run(&self, program: &str, args: [u64; 12]) -> anyhow::Result<()> {
        let args = RawTracePointRunOptions { args, cpu: None };
        run_once(&self.read().ebpf, program, args)
    }

    // A panic while the lock was held leaves programs and links as they were.

    fn read(&self) -> RwLockReadGuard<'_, Attached> {
        self.attached.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Attached> {
        self.attached
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded for Tracer {
    fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    fn attach(&self) {
        let mut attached = self.write();
        let Attached {
            ebpf,
            attachments,
            kprobes,
            armed,
            knows_requests,
        } = &mut *attached;
        let roots = &self.options.roots;
        // The types are read again only where there may be more of them.
        if *knows_requests != Some(true) {
            let is_loaded = roots.sysfs.join("module/nvme_core").exists();
            if *knows_requests != Some(is_loaded) {
                self.tell_request_layout();
                memory::give_back();
            }
            *knows_requests = Some(is_loaded);
        }
        let (handlers, others) = attachments.split_at_mut(HANDLER_PROGRAMS);
        for one in &mut *handlers {
            one.attach(ebpf, roots, kprobes);
        }
        if !*armed && handlers.iter().all(Attachment::is_attached) {
            *armed = true;
            self.arm_cpus(ebpf);
        }
        for one in others {
            one.attach(ebpf, roots, kprobes);
        }
    }

    fn losses(&self) -> anyhow::Result<LossesByName> {
        let totals = self.arrays.loss_totals();
        // Most hosts never have any: then there is nothing to ask the kernel for.
        let disks = match totals.changes {
            0 => HashMap::new(),
            _ => self.read_losses()?,
        };
        Ok(LossesByName::new(disks, &totals))
    }

    fn operations(&self) -> anyhow::Result<OperationsByName> {
        let totals = self.arrays.msi_totals();
        let controllers = match totals.changes {
            0 => HashMap::new(),
            _ => self.read_operations()?,
        };
        Ok(OperationsByName::new(controllers, &totals))
    }

    fn outside(&self) -> anyhow::Result<OutsideByName> {
        match self.arrays.completions_outside() {
            0 => Ok(HashMap::new()),
            _ => self.read_outside(),
        }
    }

    fn probes(&self) -> Vec<Probe> {
        let mut probes = self.states();
        let attached = self.read();
        add_statistics(&mut probes, &self.options.roots, |name| {
            hook::descriptor(&attached.ebpf, name)
        });
        probes
    }

    /// Entries in the kernel's list of kprobes.
    fn close(&self) {
        for one in &mut self.write().attachments {
            one.remove_events();
        }
    }
}

/// What can be told without an object: a wrong name, a missing privilege.
fn check(options: &Options) -> Result<Box<NameTable>, LoadError> {
    let table = names::compile(&options.also_lines)?;
    match privileges::missing(&options.roots)? {
        Some(missing) => Err(LoadError::Privileges(missing)),
        None => Ok(table),
    }
}

/// What is in the probe list without a hook of its own, and by what it is told.
const CAPABILITIES: [(&str, &str); 6] = [
    (REPEATED_RUNS, "kstat.irqs_sum"),
    (HANDLER_TIME, "bpf_ktime_get_ns"),
    (PLACEMENT, "request.mq_ctx"),
    (COMPLETION_TIMES, "request.start_time_ns"),
    (HANDLER_COMPLETIONS, "nvme_sq"),
    (BIO_CONTEXT, "preempt_count"),
];

/// What is known, or else why not.
fn known<T>(fact: Result<T, Missing>) -> (Option<T>, Option<Missing>) {
    match fact {
        Ok(value) => (Some(value), None),
        Err(missing) => (None, Some(missing)),
    }
}

/// A line of the probe list for what is no hook of its own.
fn capability(name: &str, mechanism: &str, (state, reason): (ProbeState, Option<String>)) -> Probe {
    Probe {
        name: name.to_owned(),
        state,
        mechanism: mechanism.to_owned(),
        reason,
        missed_runs: None,
        runs: None,
    }
}

fn run_once(ebpf: &Ebpf, name: &str, args: RawTracePointRunOptions) -> anyhow::Result<()> {
    let program = ebpf
        .program(name)
        .ok_or_else(|| anyhow::anyhow!("the eBPF object has no program {name}"))?;
    let program: &RawTracePoint = program.try_into()?;
    program.test_run(args)?;
    Ok(())
}

fn array<'a>(ebpf: &'a Ebpf, name: &'static str) -> Result<BorrowedFd<'a>, LoadError> {
    let failed = |problem: &str| LoadError::Map {
        map: name,
        source: anyhow::anyhow!("{problem}"),
    };
    let found = ebpf
        .map(name)
        .ok_or_else(|| failed("the eBPF object has no such map"))?;
    let aya::maps::Map::Array(data) = found else {
        return Err(failed("is no array"));
    };
    Ok(data.fd().as_fd())
}

fn map<T, A: Access>(
    ebpf: &Ebpf,
    name: &'static str,
    length: u32,
) -> Result<MappedArray<T, A>, LoadError> {
    MappedArray::new(array(ebpf, name)?, length).map_err(|error| LoadError::Map {
        map: name,
        source: error.into(),
    })
}

fn fill_queue(ebpf: &mut Ebpf, slots: u32) -> Result<(), LoadError> {
    let failed = |source: anyhow::Error| LoadError::Map {
        map: "FREE_SLOTS",
        source,
    };
    let map = ebpf
        .map_mut("FREE_SLOTS")
        .ok_or_else(|| failed(anyhow::anyhow!("the eBPF object has no such map")))?;
    let mut queue: Queue<&mut MapData, u32> = map
        .try_into()
        .map_err(|error: MapError| failed(error.into()))?;
    for slot in 0..slots {
        queue.push(slot, 0).map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_loaded_is_listed_with_the_reason() {
        let layout = KernelLayout::read(&Roots {
            sysfs: "/nonexistent".into(),
            procfs: "/nonexistent".into(),
        });
        let blocked = unloaded(&LoadError::Privileges("CAP_BPF".to_owned()), &layout);
        let bios = bio::programs(&layout.bio).len();
        assert_eq!(blocked.len(), PROGRAMS.len() + bios + CAPABILITIES.len());
        for probe in &blocked {
            assert_eq!(probe.state, ProbeState::Blocked, "{probe:?}");
            assert!(probe.reason.as_deref().unwrap().contains("CAP_BPF"));
        }
        let state = |error: LoadError| error.state();
        assert_eq!(state(LoadError::Lockdown), ProbeState::Blocked);
        assert_eq!(state(LoadError::NoObject), ProbeState::Broken);
        assert_eq!(
            state(LoadError::Layout(String::new())),
            ProbeState::Unsupported
        );
        for (errno, expected) in [
            (1, ProbeState::Blocked),
            (13, ProbeState::Blocked),
            (12, ProbeState::Broken),
        ] {
            let source = std::io::Error::from_raw_os_error(errno).into();
            assert_eq!(state(LoadError::Load(source)), expected, "{errno}");
        }
    }

    #[test]
    fn maps_stay_small_on_the_largest_host_we_plan_for() {
        // 8 VMDs of 64 vectors, 24 disks each with 257 lines, 256 CPUs, and 2,000 other lines.
        let lines = 8 * (64 + 24 * 257) + 2_000;
        let sizes = Sizes::for_host(256, lines);
        assert!(sizes.slots > lines && sizes.interrupts > lines);
        assert!(sizes.bytes() < 16 << 20, "{} bytes", sizes.bytes());
        let more = sizes.bytes_of_shares();
        assert!(more < 384 << 10, "{more} bytes");
    }
}
