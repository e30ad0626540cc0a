//! What the kernel holds of eBPF, whoever loaded it.

use std::io;

use nix::errno::Errno;
use nix::libc::{SYS_bpf, syscall};

/// `BPF_PROG_GET_NEXT_ID`, `BPF_MAP_GET_NEXT_ID` and `BPF_LINK_GET_NEXT_ID` of
/// include/uapi/linux/bpf.h.
const PROGRAMS: u32 = 11;
const MAPS: u32 = 12;
const LINKS: u32 = 31;

/// The part of `union bpf_attr` that these commands have.
#[repr(C)]
#[derive(Default)]
struct NextId {
    start: u32,
    next: u32,
    open_flags: u32,
}

/// All programs, maps and links, one `KIND ID` a line.
pub(crate) fn objects() -> io::Result<String> {
    let mut list = String::new();
    for (kind, command) in [("program", PROGRAMS), ("map", MAPS), ("link", LINKS)] {
        let mut after = 0;
        while let Some(id) = next(command, after)? {
            list.push_str(&format!("{kind} {id}\n"));
            after = id;
        }
    }
    Ok(list)
}

fn next(command: u32, after: u32) -> io::Result<Option<u32>> {
    let mut ids = NextId {
        start: after,
        ..NextId::default()
    };
    // SAFETY: the kernel reads and writes as many bytes as it is told, which are
    // those of `ids`.
    let result = unsafe { syscall(SYS_bpf, command, &raw mut ids, size_of::<NextId>()) };
    match Errno::result(result) {
        Ok(_) => Ok(Some(ids.next)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
