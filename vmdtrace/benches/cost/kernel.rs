//! What the kernel tells of programs and maps, and a process's system calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya::programs::{RawTracePoint, loaded_programs};

/// Where the object with the fixture's programs is (set by `cargo xtask`).
const OBJECT: &str = "VMDTRACE_EBPF_FIXTURE";

/// Why the fixture's programs cannot be had; None if they can.
pub(crate) fn obstacle() -> Option<String> {
    std::env::var_os(OBJECT)
        .is_none()
        .then(|| format!("{OBJECT} is not set: run `cargo xtask test` or `cargo xtask bench`"))
}

/// The fixture's programs.
pub(crate) fn fixture() -> anyhow::Result<Ebpf> {
    let path = std::env::var_os(OBJECT).context("no fixture")?;
    Ebpf::load_file(path).context("cannot load the fixture")
}

/// Attaches one of the fixture's programs.
pub(crate) fn attach(ebpf: &mut Ebpf, program: &str, tracepoint: &str) -> anyhow::Result<()> {
    let program: &mut RawTracePoint = ebpf
        .program_mut(program)
        .with_context(|| format!("the fixture has no program {program}"))?
        .try_into()?;
    program.load()?;
    program.attach(tracepoint)?;
    Ok(())
}

/// Counts the system calls of a process.
pub(crate) struct SystemCalls {
    ebpf: Ebpf,
}

impl SystemCalls {
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let mut ebpf = fixture()?;
        let map = ebpf.map_mut("PROCESS").context("no map PROCESS")?;
        let mut wanted: Array<&mut MapData, u64> = map.try_into()?;
        wanted.set(0, u64::from(process), 0)?;
        attach(&mut ebpf, "count_system_calls", "sys_enter")?;
        Ok(Self { ebpf })
    }

    /// So far; asking is one more if it is this process's own.
    pub(crate) fn count(&self) -> anyhow::Result<u64> {
        let map = self.ebpf.map("SYSTEM_CALLS").context("no map")?;
        let count: Array<&MapData, u64> = map.try_into()?;
        Ok(count.get(&0, 0)?)
    }
}

/// Where a process's programs tell of themselves, by name as the kernel cuts it.
pub(crate) fn programs_of(process: u32) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut paths = BTreeMap::new();
    let folder = format!("/proc/{process}/fdinfo");
    for entry in fs::read_dir(&folder).with_context(|| folder.clone())? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).unwrap_or_default();
        // A link's descriptor names its program, too.
        if !text.contains("link_id:")
            && let Some(id) = field(&text, "prog_id")
        {
            paths.insert(id, path);
        }
    }
    let mut programs = BTreeMap::new();
    for program in loaded_programs() {
        // One may go while they are listed.
        let Ok(program) = program else { continue };
        if let (Some(name), Some(path)) =
            (program.name_as_str(), paths.get(&u64::from(program.id())))
        {
            programs.insert(name.to_owned(), path.clone());
        }
    }
    Ok(programs)
}

/// A figure of a file in fdinfo.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().parse().ok()
}

/// What `/proc/PID/fdinfo` says of a process's programs and maps.
pub(crate) struct Loaded {
    /// Verified instructions by name, as the kernel cuts it. Absent before 5.16.
    pub(crate) instructions: BTreeMap<String, u64>,
    /// Bytes of all maps.
    pub(crate) map_bytes: u64,
}

impl Loaded {
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let mut instructions = BTreeMap::new();
        for (name, path) in programs_of(process)? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            if let Some(verified) = field(&text, "verified_insns") {
                instructions.insert(name, verified);
            }
        }
        let mut maps = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
            // The descriptor of the folder itself is gone by now.
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            if let (Some(id), Some(bytes)) = (field(&text, "map_id"), field(&text, "memlock")) {
                maps.insert(id, bytes);
            }
        }
        Ok(Self {
            instructions,
            map_bytes: maps.values().sum(),
        })
    }
}
