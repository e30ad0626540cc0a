//! The maps. User space sets their sizes at load and maps those that it reads
//! or fills.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LruHashMap, PerCpuHashMap, Queue, RingBuf},
    macros::btf_map,
};
use vmdtrace_common::{
    CpuBank, DiskKey, DiskLosses, LineCell, LineEntry, LossTotals, NameTable, Place, RequestLayout,
    bio_cells::{BioBank, BioCall, BioSet, CALLS, SETS},
    loss,
    msi::{self, MsiTotals, OperationKey},
    samples::{DISKS, DiskSamples, PENDING, Pending},
    shares::Share,
};

const MAPPED: usize = BPF_F_MMAPABLE as usize;

/// By interrupt number.
#[btf_map]
pub(crate) static LINES: Array<LineEntry, 1> = Array::new();

/// By slot.
#[btf_map]
pub(crate) static CELLS: Array<LineCell, 1, MAPPED> = Array::new();

/// By CPU number.
#[btf_map]
pub(crate) static BANKS: Array<CpuBank, 1, MAPPED> = Array::new();

/// Which action names are ours.
#[btf_map]
pub(crate) static NAMES: Array<NameTable, 1, MAPPED> = Array::new();

/// Slots that are free, filled at load. Taking one is safe on two CPUs at once.
#[btf_map]
pub(crate) static FREE_SLOTS: Queue<u32, 1> = Queue::new();

/// How a request's disk is found.
#[btf_map]
pub(crate) static REQUEST_LAYOUT: Array<RequestLayout, 1, MAPPED> = Array::new();

/// Time-outs and lost interrupts by disk.
#[btf_map]
pub(crate) static LOSSES: HashMap<DiskKey, DiskLosses, { loss::MAX_DISKS }> = HashMap::new();

/// Completions outside any handler by disk.
#[btf_map]
pub(crate) static OUTSIDE: PerCpuHashMap<DiskKey, u64, { loss::MAX_OUTSIDE_DISKS }> =
    PerCpuHashMap::new();

#[btf_map]
pub(crate) static LOSS_TOTALS: Array<LossTotals, 1, MAPPED> = Array::new();

/// Task -> the request whose time-out it handles. A task that dies leaves its
/// entry, which the map drops when it needs the room.
#[btf_map]
pub(crate) static TIMING_OUT: LruHashMap<u64, u64, 1024> = LruHashMap::new();

/// Operations on the interrupts behind a VMD, and on its own.
#[btf_map]
pub(crate) static OPERATIONS: HashMap<OperationKey, u64, { msi::MAX_OPERATIONS }> = HashMap::new();

#[btf_map]
pub(crate) static MSI_TOTALS: Array<MsiTotals, 1, MAPPED> = Array::new();

/// A few of them, to be told.
#[btf_map]
pub(crate) static MSI_MESSAGES: RingBuf<msi::Message, { msi::RING_BYTES }> = RingBuf::new();

/// By CPU number: where it is. Filled by user space.
#[btf_map]
pub(crate) static PLACES: Array<Place, 1, MAPPED> = Array::new();

/// By CPU number: its `__per_cpu_offset`, once it was asked for; else 0.
#[btf_map]
pub(crate) static PER_CPU_OFFSETS: Array<u64, 1> = Array::new();

/// Whose the lines are: `vmdtrace_common::shares`, eight slots in a word. Filled by
/// user space; of one element where shares are not counted.
#[btf_map]
pub(crate) static LINE_OWNERS: Array<u64, 1, MAPPED> = Array::new();

/// By CPU number and owner; of one element where they are not counted.
#[btf_map]
pub(crate) static SHARES: Array<Share, 1, MAPPED> = Array::new();

/// By disk number + 1.
#[btf_map]
pub(crate) static SAMPLES: Array<DiskSamples, { DISKS as usize }, MAPPED> = Array::new();

/// Sampled completions whose end is awaited.
#[btf_map]
pub(crate) static PENDING_ENDS: Array<Pending, { PENDING as usize }> = Array::new();

/// By CPU number.
#[btf_map]
pub(crate) static BIO_BANKS: Array<BioBank, 1, MAPPED> = Array::new();

/// By slot.
#[btf_map]
pub(crate) static BIO_SETS: Array<BioSet, { SETS as usize }, MAPPED> = Array::new();

/// Calls that are open, by the low bits of the thread's number.
#[btf_map]
pub(crate) static BIO_CALLS: Array<BioCall, { CALLS as usize }> = Array::new();

/// `vmdtrace_common::bio::regime`: one word.
#[btf_map]
pub(crate) static BIO_REGIMES: Array<u64, 1, MAPPED> = Array::new();

/// Calls of vmd_irq by interrupt number, for the self-test: of one element where
/// that is not run.
#[btf_map]
pub(crate) static VMD_IRQ_CALLS: Array<u64, 1, MAPPED> = Array::new();
