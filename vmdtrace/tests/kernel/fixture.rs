//! Made-up irqactions, requests and interrupt counts in kernel memory, for streams fed to
//! loaded programs.

use std::{fs, os::unix::fs::symlink};

use aya::{
    Ebpf,
    maps::Map,
    programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use tempfile::TempDir;
use vmdtrace::{
    host::Roots,
    probes::{
        btf::Btf,
        mapped::{MappedArray, Writable},
    },
};
use vmdtrace_common::model::{ACTIONS, REQUESTS, start_ns, submitter};

/// Where the object with the fixture's program is (set by `cargo xtask test`).
const OBJECT: &str = "VMDTRACE_EBPF_FIXTURE";

const ACTION_BYTES: usize = 256;
const NAMES: usize = 3072;
const NAME_BYTES: usize = 32;
/// As `__per_cpu_offset[]`, for the CPUs that streams are fed on.
const PER_CPU_OFFSETS: usize = 3456;
/// As each CPU's `kstat.irqs_sum`.
const SUMS: usize = 3520;
/// Requests, and their contexts.
const REQUEST: usize = 4096;
const REQUEST_BYTES: usize = 384;
const CONTEXT: usize = 6656;
const CONTEXT_BYTES: usize = 256;
const BYTES: usize = 8192;
/// CPUs that streams may be fed on.
pub(crate) const CPUS: usize = 2;

/// Memory for `ACTIONS` irqactions and their names.
pub(crate) struct Actions {
    memory: MappedArray<[u8; BYTES], Writable>,
    base: u64,
    name_offset: usize,
    image: [u8; BYTES],
    /// A procfs whose kallsyms places the counts in this memory.
    procfs: TempDir,
    /// Keeps the kernel memory alive.
    _ebpf: Ebpf,
}

impl Actions {
    /// None, with the reason, where the fixture's object is not given.
    pub(crate) fn new() -> Result<Self, String> {
        let path = std::env::var_os(OBJECT)
            .ok_or_else(|| format!("{OBJECT} is not set: run `cargo xtask test`"))?;
        let data = fs::read("/sys/kernel/btf/vmlinux").map_err(|error| error.to_string())?;
        let btf = Btf::parse(&data).unwrap();
        let name_offset = btf.member_offset("irqaction", "name").unwrap() as usize;
        let irqs_sum = btf.member_offset("kernel_stat", "irqs_sum").unwrap();
        assert!(name_offset + 8 <= ACTION_BYTES && ACTIONS * ACTION_BYTES <= NAMES);
        const { assert!(NAMES + ACTIONS * NAME_BYTES <= PER_CPU_OFFSETS) };

        let mut ebpf = Ebpf::load_file(path).unwrap();
        let program: &mut RawTracePoint = ebpf
            .program_mut("tell_address")
            .unwrap()
            .try_into()
            .unwrap();
        program.load().unwrap();
        program.test_run(RawTracePointRunOptions::new()).unwrap();
        let base = mapped::<u64>(&ebpf, "ADDRESS").get(0).unwrap();
        assert_ne!(base, 0, "the program did not tell the address");
        let mut actions = Self {
            memory: mapped(&ebpf, "MEMORY"),
            base,
            name_offset,
            image: [0; BYTES],
            procfs: made_up_procfs(base, irqs_sum).map_err(|error| error.to_string())?,
            _ebpf: ebpf,
        };
        for cpu in 0..CPUS {
            actions.set(PER_CPU_OFFSETS + 8 * cpu, 8 * cpu as u64);
        }
        let of_request = |member| btf.member_offset("request", member).unwrap() as usize;
        let (context, start) = (of_request("mq_ctx"), of_request("start_time_ns"));
        let cpu = btf.member_offset("blk_mq_ctx", "cpu").unwrap() as usize;
        assert!(context.max(start) + 8 <= REQUEST_BYTES && cpu + 8 <= CONTEXT_BYTES);
        const { assert!(REQUEST + REQUESTS * REQUEST_BYTES <= CONTEXT) };
        const { assert!(CONTEXT + REQUESTS * CONTEXT_BYTES <= BYTES) };
        for request in 0..REQUESTS {
            let at = REQUEST + request * REQUEST_BYTES;
            actions.set(at + start, start_ns(request));
            if let Some(made_on) = submitter(request) {
                let at_context = CONTEXT + request * CONTEXT_BYTES;
                actions.set(at + context, base + at_context as u64);
                actions.set(at_context + cpu, made_on.into());
            }
        }
        Ok(actions)
    }

    /// Kernel address of a request.
    pub(crate) fn request(&self, request: usize) -> u64 {
        self.base + (REQUEST + request * REQUEST_BYTES) as u64
    }

    /// Roots for a tracer that reads the made-up counts.
    pub(crate) fn roots(&self) -> Roots {
        Roots {
            procfs: self.procfs.path().to_owned(),
            ..Roots::default()
        }
    }

    /// The kernel counted so many interrupts on a CPU.
    pub(crate) fn count(&mut self, cpu: usize, sum: u64) {
        self.set(SUMS + 8 * cpu, sum);
    }

    fn set(&mut self, at: usize, word: u64) {
        self.image[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        self.memory.write(&self.image);
    }

    /// Kernel address of an action.
    pub(crate) fn address(&self, action: usize) -> u64 {
        self.base + (action * ACTION_BYTES) as u64
    }

    /// Lets an action's memory hold this name; None makes it unreadable.
    pub(crate) fn rename(&mut self, action: usize, name: Option<&str>) {
        let text = NAMES + action * NAME_BYTES;
        self.image[text..text + NAME_BYTES].fill(0);
        let mut pointer = 0;
        if let Some(name) = name {
            self.image[text..text + name.len()].copy_from_slice(name.as_bytes());
            pointer = self.base + text as u64;
        }
        self.set(action * ACTION_BYTES + self.name_offset, pointer);
    }
}

/// The real one, but for the two symbols that lead to the counts.
fn made_up_procfs(base: u64, irqs_sum: u32) -> std::io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    for name in ["self", "sys"] {
        symlink(format!("/proc/{name}"), folder.path().join(name))?;
    }
    let kstat = base + SUMS as u64 - u64::from(irqs_sum);
    let per_cpu_offset = base + PER_CPU_OFFSETS as u64;
    let text = format!("{kstat:x} D kstat\n{per_cpu_offset:x} R __per_cpu_offset\n");
    fs::write(folder.path().join("kallsyms"), text)?;
    Ok(folder)
}

fn mapped<T>(ebpf: &Ebpf, name: &str) -> MappedArray<T, Writable> {
    let Some(Map::Array(data)) = ebpf.map(name) else {
        panic!("no array {name}")
    };
    MappedArray::new(data.fd(), 1).unwrap()
}
