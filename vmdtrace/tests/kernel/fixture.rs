//! Made-up irqactions in kernel memory, for streams fed to loaded programs.

use aya::{
    Ebpf,
    maps::Map,
    programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use vmdtrace::{
    host::Roots,
    probes::{kernel::KernelLayout, mapped::MappedArray},
};
use vmdtrace_common::model::ACTIONS;

/// Where the object with the fixture's program is (set by `cargo xtask test`).
const OBJECT: &str = "VMDTRACE_EBPF_FIXTURE";

const ACTION_BYTES: usize = 256;
const NAMES: usize = 3072;
const NAME_BYTES: usize = 32;

/// Memory for `ACTIONS` irqactions and their names.
pub(crate) struct Actions {
    memory: MappedArray<[u8; 4096]>,
    base: u64,
    name_offset: usize,
    image: [u8; 4096],
    /// Keeps the kernel memory alive.
    _ebpf: Ebpf,
}

impl Actions {
    /// None, with the reason, where the fixture's object is not given.
    pub(crate) fn new() -> Result<Self, String> {
        let path = std::env::var_os(OBJECT)
            .ok_or_else(|| format!("{OBJECT} is not set: run `cargo xtask test`"))?;
        let layout = KernelLayout::read(&Roots::default());
        let name_offset = layout.action_name.unwrap() as usize;
        assert!(name_offset + 8 <= ACTION_BYTES && ACTIONS * ACTION_BYTES <= NAMES);

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
        let memory = mapped(&ebpf, "MEMORY");
        Ok(Self {
            memory,
            base,
            name_offset,
            image: [0; 4096],
            _ebpf: ebpf,
        })
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
        let field = action * ACTION_BYTES + self.name_offset;
        self.image[field..field + 8].copy_from_slice(&pointer.to_ne_bytes());
        self.memory.write(&self.image);
    }
}

fn mapped<T>(ebpf: &Ebpf, name: &str) -> MappedArray<T> {
    let Some(Map::Array(data)) = ebpf.map(name) else {
        panic!("no array {name}")
    };
    MappedArray::new(data.fd(), 1).unwrap()
}
