//! Completions outside any handler by disk, as the programs count them: in a hash
//! map with a count for each CPU.

use std::collections::HashMap;

use aya::{Ebpf, maps::PerCpuHashMap};

use super::losses::{DISK_KEY_BYTES, DiskName, disk_name};

/// By disk; those whose disk found no room are left out.
pub type OutsideByName = HashMap<DiskName, [u64; 1]>;

/// Reads the map.
///
/// # Errors
/// If the object has no such map, or the kernel refuses.
pub fn read(ebpf: &Ebpf) -> anyhow::Result<OutsideByName> {
    let map = ebpf
        .map("OUTSIDE")
        .ok_or_else(|| anyhow::anyhow!("the eBPF object has no map OUTSIDE"))?;
    let map: PerCpuHashMap<_, [u8; DISK_KEY_BYTES], u64> = map.try_into()?;
    map.iter()
        .map(|entry| {
            let (key, by_cpu) = entry?;
            let sum = by_cpu
                .iter()
                .fold(0, |sum: u64, it| sum.saturating_add(*it));
            Ok((disk_name(&key), [sum]))
        })
        .collect()
}
