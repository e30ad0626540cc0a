//! The maps. User space sets their sizes at load and maps those that it reads
//! or fills.

use aya_ebpf::{bindings::BPF_F_MMAPABLE, btf_maps::Array, btf_maps::Queue, macros::btf_map};
use vmdtrace_common::{
    CpuBank, LineCell, LineEntry, NameTable, Place,
    bio_cells::{BioBank, BioCall, BioSet, CALLS, SETS},
    samples::{DISKS, DiskSamples, PENDING, Pending},
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

/// By CPU number: where it is. Filled by user space.
#[btf_map]
pub(crate) static PLACES: Array<Place, 1, MAPPED> = Array::new();

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
