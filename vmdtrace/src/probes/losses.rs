//! Time-outs and lost interrupts, as the programs count them: by disk, in a hash
//! map, since they are rare.

use std::collections::HashMap;

use aya::{Ebpf, maps};
use vmdtrace_common::{DiskKey, LossTotals};

use super::mapped::MappedArray;

/// Of a [`DiskKey`].
pub(super) const DISK_KEY_BYTES: usize = size_of::<DiskKey>();

/// What names a disk to the programs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DiskName {
    /// The N of `nvme<N>`.
    Number(u32),
    /// A block device, such as `nvme0n1`.
    BlockDevice(String),
    /// A request that belongs to no block device, where numbers cannot be read.
    Unknown,
}

/// Time-outs and lost interrupts of a disk.
pub type Counts = [u64; 2];

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossesByName {
    pub disks: HashMap<DiskName, Counts>,
    /// Of disks that found no room in the map.
    pub unassigned: Counts,
}

/// Reads the map.
///
/// # Errors
/// If the object has no such map, or the kernel refuses.
pub fn read(ebpf: &Ebpf, totals: &MappedArray<LossTotals>) -> anyhow::Result<LossesByName> {
    let map = ebpf
        .map("LOSSES")
        .ok_or_else(|| anyhow::anyhow!("the eBPF object has no map LOSSES"))?;
    let map: maps::HashMap<_, [u8; DISK_KEY_BYTES], Counts> = map.try_into()?;
    let totals = totals.get(0).unwrap_or_default();
    let mut losses = LossesByName {
        unassigned: [
            totals.unassigned_timeouts,
            totals.unassigned_lost_interrupts,
        ],
        ..LossesByName::default()
    };
    // Most hosts never have any: then there is nothing to ask the kernel for.
    if totals.timeouts == 0 {
        return Ok(losses);
    }
    for entry in &map {
        let (key, counts) = entry?;
        losses.disks.insert(disk_name(&key), counts);
    }
    Ok(losses)
}

/// The bytes of a [`DiskKey`].
pub(super) fn disk_name(key: &[u8; DISK_KEY_BYTES]) -> DiskName {
    let [a, b, c, d, device @ ..] = key;
    match u32::from_ne_bytes([*a, *b, *c, *d]).checked_sub(1) {
        Some(number) => DiskName::Number(number),
        None => match device.split(|byte| *byte == 0).next() {
            Some(device) if !device.is_empty() => {
                DiskName::BlockDevice(String::from_utf8_lossy(device).into_owned())
            }
            _ => DiskName::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_the_programs_write_them() {
        let mut key = [0; DISK_KEY_BYTES];
        assert_eq!(disk_name(&key), DiskName::Unknown);
        key[..4].copy_from_slice(&1u32.to_ne_bytes());
        assert_eq!(disk_name(&key), DiskName::Number(0));
        let mut key = [0; DISK_KEY_BYTES];
        key[std::mem::offset_of!(DiskKey, block_device)..][..7].copy_from_slice(b"nvme0n1");
        assert_eq!(disk_name(&key), DiskName::BlockDevice("nvme0n1".into()));
        key[4..].fill(b'x');
        assert_eq!(disk_name(&key), DiskName::BlockDevice("x".repeat(32)));
    }
}
