//! Commands that took too long, and interrupts that never came: layout of what
//! is rare enough for hash maps.
//!
//! A command is *late* when the driver's time-out handler is called for it. The
//! handler looks into the queue first: if it takes the command's completion
//! there, the device had finished and nobody was told. That interrupt is *lost*.

/// How many disks can be told apart.
pub const MAX_DISKS: usize = 1024;

/// How many disks' completions outside handlers can be told apart: less, since each
/// has a count for every possible CPU.
pub const MAX_OUTSIDE_DISKS: usize = 256;

/// What names the disk of a request: the number of its NVMe controller, or where
/// the kernel does not tell that, its block device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DiskKey {
    /// 1 + the N of `nvme<N>`; 0 if it is not known.
    pub number: u32,
    /// Name of the block device, padded with zeros; empty if it is not known or
    /// not needed.
    pub block_device: [u8; 32],
}

/// What happened to the commands of a disk.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLosses {
    pub timeouts: u64,
    pub lost_interrupts: u64,
}

/// Where the kernel keeps what leads from a request to its disk. User space
/// fills it in, some of it only when the driver's module is loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestLayout {
    /// [`RequestLayout::NUMBER`] and [`RequestLayout::BLOCK_DEVICE`]: which are known.
    pub known: u32,
    /// From a `struct request` to `nvme_request.ctrl` behind it.
    pub controller: u32,
    /// Of `instance` in `struct nvme_ctrl`.
    pub instance: u32,
    /// From a `struct request` to what leads to its `struct gendisk`.
    pub disk: u32,
    /// From there to the `struct gendisk`; 0 if that was it.
    pub disk_of_queue: u32,
    /// Of `disk_name` in `struct gendisk`.
    pub disk_name: u32,
}

impl RequestLayout {
    /// The number of the NVMe controller can be read.
    pub const NUMBER: u32 = 1;
    /// The name of the block device can be read.
    pub const BLOCK_DEVICE: u32 = 2;
}

/// Totals beside the hash maps.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossTotals {
    /// Every time-out. While it is 0, no completion can have been a lost one.
    pub timeouts: u64,
    /// Time-outs and lost interrupts of disks that found no room in the map.
    pub unassigned_timeouts: u64,
    pub unassigned_lost_interrupts: u64,
    /// How often a count in the map rose; added to after that. Who has read the map
    /// since this was at some number has all that was counted until then.
    pub changes: u64,
}

const _: () = assert!(size_of::<DiskKey>() == 36);
const _: () = assert!(size_of::<RequestLayout>() == 24);
