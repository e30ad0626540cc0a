//! Everything unsafe that the programs for bios need: typed loads from kernel
//! structures, map elements, counters, and the constants that user space sets at
//! load.
//!
//! A pointer that the kernel hands to an fentry or fexit program has a type for
//! the verifier. A field of it is loaded without a helper's call; an address
//! that cannot be read gives 0 (kernel/bpf/verifier.c, PTR_TO_BTF_ID).

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use vmdtrace_common::{
    Name,
    bio::CacheWords,
    bio_cells::{ALLOCATIONS, BioBank, BioCall, BioSet, CALLS, FREES},
};

use crate::{
    kernel,
    maps::{BIO_BANKS, BIO_CALLS, BIO_REGIMES, BIO_SETS},
};

/// An offset that this kernel does not have.
const ABSENT: u32 = u32::MAX;

// Offsets in `struct bio`.
#[unsafe(no_mangle)]
static BIO_NEXT: u32 = 0;
#[unsafe(no_mangle)]
static BIO_OPF: u32 = 0;
#[unsafe(no_mangle)]
static BIO_FLAGS: u32 = 0;
#[unsafe(no_mangle)]
static BIO_COUNT: u32 = 0;
#[unsafe(no_mangle)]
static BIO_POOL: u32 = 0;
// Offsets in `struct bio_set` and `struct kmem_cache`.
#[unsafe(no_mangle)]
static BIO_SET_SLAB: u32 = 0;
#[unsafe(no_mangle)]
static BIO_SET_FRONT_PAD: u32 = 0;
/// Or [`ABSENT`].
#[unsafe(no_mangle)]
static BIO_SET_BACK_PAD: u32 = ABSENT;
/// Or [`ABSENT`]: no cache that `bio_alloc_bioset` uses.
#[unsafe(no_mangle)]
static BIO_SET_CACHE: u32 = ABSENT;
#[unsafe(no_mangle)]
static SLAB_NAME: u32 = 0;
/// Not 0: the cache has a list for interrupts.
#[unsafe(no_mangle)]
static BIO_IRQ_LIST: u32 = 0;
// Bits of `bi_opf` and `bi_flags`.
#[unsafe(no_mangle)]
static BIO_ALLOC_CACHE_BIT: u32 = 0;
#[unsafe(no_mangle)]
static BIO_POLLED_BIT: u32 = 0;
#[unsafe(no_mangle)]
static BIO_REFFED_BIT: u32 = 0;
// Values of the operation in `bi_opf`.
#[unsafe(no_mangle)]
static BIO_OP_DRV_IN: u32 = 0;
#[unsafe(no_mangle)]
static BIO_OP_DRV_OUT: u32 = 0;
// Addresses of two sets; 0 if they are not known.
#[unsafe(no_mangle)]
static FS_BIO_SET_ADDRESS: u64 = 0;
#[unsafe(no_mangle)]
static BLKDEV_DIO_POOL_ADDRESS: u64 = 0;
/// Address of the per-CPU `preempt_count`. It is not known if the masks are 0.
#[unsafe(no_mangle)]
static PREEMPT_COUNT_ADDRESS: u64 = 0;
/// Its bits for hardware interrupts, and those for hardware interrupts and NMIs.
#[unsafe(no_mangle)]
static HARDIRQ_MASK: u32 = 0;
#[unsafe(no_mangle)]
static INTERRUPT_MASK: u32 = 0;

/// `REQ_OP_BITS` (include/linux/blk_types.h): the operation is in the low byte.
const OPERATION: u32 = 0xff;

macro_rules! constant {
    ($name:ident) => {
        // SAFETY: the static is initialised, aligned and never written.
        unsafe { core::ptr::read_volatile(&raw const $name) }
    };
}

/// A field behind a pointer that has a type for the verifier, as the compiler
/// must not move or split it.
macro_rules! load {
    ($pointer:expr, $offset:ident, $type:ty) => {{
        let field = $pointer.wrapping_add(u64::from(constant!($offset))) as *const $type;
        // SAFETY: the verifier takes the load only if it lies in a member of the
        // structure; where the address cannot be read the kernel gives 0.
        unsafe { core::ptr::read_volatile(field) }
    }};
}

/// Reads kernel memory at an address without a type.
#[inline(always)]
fn read<T>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address and fails where it cannot be read.
    unsafe { bpf_probe_read_kernel(address as *const T) }.ok()
}

/// A `struct bio`.
#[derive(Clone, Copy)]
pub(crate) struct Bio(pub(crate) u64);

/// Flags and operation of a bio.
#[derive(Clone, Copy)]
pub(crate) struct Flags(pub(crate) u32);

impl Flags {
    /// Of the cache, or asks for it.
    #[inline(always)]
    pub(crate) fn marked(self) -> bool {
        constant!(BIO_SET_CACHE) != ABSENT
            && self.0 >> (constant!(BIO_ALLOC_CACHE_BIT) & 31) & 1 == 1
    }

    #[inline(always)]
    pub(crate) fn polled(self) -> bool {
        self.0 >> (constant!(BIO_POLLED_BIT) & 31) & 1 == 1
    }

    #[inline(always)]
    pub(crate) fn passthrough(self) -> bool {
        let operation = self.0 & OPERATION;
        operation == constant!(BIO_OP_DRV_IN) || operation == constant!(BIO_OP_DRV_OUT)
    }
}

impl Bio {
    #[inline(always)]
    pub(crate) fn flags(self) -> Flags {
        Flags(load!(self.0, BIO_OPF, u32))
    }

    /// Whether somebody else holds a reference, so that putting one frees nothing.
    #[inline(always)]
    pub(crate) fn is_shared(self) -> bool {
        let flags = load!(self.0, BIO_FLAGS, u16);
        u32::from(flags) >> (constant!(BIO_REFFED_BIT) & 31) & 1 == 1
            && load!(self.0, BIO_COUNT, u32) > 1
    }

    /// The next of its list; address 0 if it is the last.
    #[inline(always)]
    pub(crate) fn next(self) -> Self {
        Self(load!(self.0, BIO_NEXT, u64))
    }

    /// Its set; address 0 if it has none.
    #[inline(always)]
    pub(crate) fn set(self) -> Set {
        Set(load!(self.0, BIO_POOL, u64))
    }
}

/// A `struct bio_set`.
#[derive(Clone, Copy)]
pub(crate) struct Set(pub(crate) u64);

impl Set {
    /// Whether it has a cache that `bio_alloc_bioset` uses.
    #[inline(always)]
    pub(crate) fn has_cache(self) -> bool {
        constant!(BIO_SET_CACHE) != ABSENT && load!(self.0, BIO_SET_CACHE, u64) != 0
    }

    /// Address of a CPU's part of its cache.
    #[inline(always)]
    pub(crate) fn cache_of(self, per_cpu_offset: u64) -> Option<u64> {
        // Not by a typed load: the sum would not be a pointer to the verifier.
        let cache: u64 = read(self.0.wrapping_add(u64::from(constant!(BIO_SET_CACHE))))?;
        (cache != 0).then(|| cache.wrapping_add(per_cpu_offset))
    }

    #[inline(always)]
    pub(crate) fn is_fs_bio_set(self) -> bool {
        self.0 == constant!(FS_BIO_SET_ADDRESS)
    }

    #[inline(always)]
    pub(crate) fn is_blkdev_dio_pool(self) -> bool {
        self.0 == constant!(BLKDEV_DIO_POOL_ADDRESS)
    }

    #[inline(always)]
    pub(crate) fn slab(self) -> u64 {
        load!(self.0, BIO_SET_SLAB, u64)
    }

    #[inline(always)]
    pub(crate) fn front_pad(self) -> u32 {
        load!(self.0, BIO_SET_FRONT_PAD, u32)
    }

    #[inline(always)]
    pub(crate) fn back_pad(self) -> u32 {
        if constant!(BIO_SET_BACK_PAD) == ABSENT {
            return 0;
        }
        load!(self.0, BIO_SET_BACK_PAD, u32)
    }
}

/// The name of a set's slab. None if memory cannot be read.
#[inline(always)]
pub(crate) fn slab_name(set: Set) -> Option<Name> {
    let slab: u64 = read(set.0.wrapping_add(u64::from(constant!(BIO_SET_SLAB))))?;
    kernel::string(read(slab.wrapping_add(u64::from(constant!(SLAB_NAME))))?)
}

#[inline(always)]
pub(crate) fn has_irq_list() -> bool {
    constant!(BIO_IRQ_LIST) != 0
}

/// What a CPU's cache at an address holds.
#[inline(always)]
pub(crate) fn cache_words(address: u64) -> Option<CacheWords> {
    if has_irq_list() {
        return read(address);
    }
    Some(CacheWords {
        free_list: read(address)?,
        ..CacheWords::default()
    })
}

/// First bio of the own list of a CPU's cache at an address.
#[inline(always)]
pub(crate) fn cache_head(address: u64) -> Option<u64> {
    read(address)
}

/// A CPU's `preempt_count`, and its masks. None where they are not known.
#[inline(always)]
pub(crate) fn preempt_count(per_cpu_offset: u64) -> Option<(u32, u32, u32)> {
    let (hardirq, interrupt) = (constant!(HARDIRQ_MASK), constant!(INTERRUPT_MASK));
    if hardirq == 0 {
        return None;
    }
    let count = read(constant!(PREEMPT_COUNT_ADDRESS).wrapping_add(per_cpu_offset))?;
    Some((count, hardirq, interrupt))
}

/// This CPU's bank: only ever read and added to word by word.
#[derive(Clone, Copy)]
pub(crate) struct Bank(*mut BioBank);

impl Bank {
    #[inline(always)]
    pub(crate) fn of(cpu: u32) -> Option<Self> {
        BIO_BANKS.get_ptr_mut(cpu).map(Self)
    }

    #[inline(always)]
    pub(crate) fn count_allocation(self, index: usize) {
        // SAFETY: an element of a map lives as long as the program; the index is
        // below the array's length by its mask.
        let counter = unsafe { &mut (&mut (*self.0).allocations)[index & (ALLOCATIONS - 1)] };
        kernel::add(counter, 1);
    }

    #[inline(always)]
    pub(crate) fn count_free(self, index: usize) {
        // SAFETY: as above.
        let counter = unsafe { &mut (&mut (*self.0).frees)[index & (FREES - 1)] };
        kernel::add(counter, 1);
    }

    #[inline(always)]
    pub(crate) fn count_kmalloc(self) {
        // SAFETY: as above.
        let counter = unsafe { &mut (*self.0).kmallocs };
        kernel::add(counter, 1);
    }

    /// `__per_cpu_offset` of this bank's CPU.
    #[inline(always)]
    pub(crate) fn per_cpu_offset(self, cpu: u32) -> Option<u64> {
        // SAFETY: as above.
        let word = unsafe { &raw mut (*self.0).per_cpu_offset };
        // SAFETY: valid and aligned; whoever writes it writes the same.
        let known = unsafe { word.read_volatile() };
        if known != 0 {
            return Some(known);
        }
        let offset = kernel::per_cpu_offset(cpu)?;
        // SAFETY: as above.
        unsafe { word.write_volatile(offset) };
        Some(offset)
    }
}

/// The thread that runs, as it stands in [`BioCall::tag`], and its slot.
#[inline(always)]
pub(crate) fn current_call() -> Option<(u64, &'static mut BioCall)> {
    let thread = bpf_get_current_pid_tgid();
    let call = BIO_CALLS.get_ptr_mut(thread as u32 & (CALLS - 1))?;
    // SAFETY: an element of a map lives as long as the program. Two threads of
    // one slot may write it at once: the tag, written last, then belongs to one
    // of them at most, and the other's call is counted as unpaired.
    Some((thread | 1 << 63, unsafe { &mut *call }))
}

/// A slot for a set.
#[inline(always)]
pub(crate) fn set_slot(slot: u64) -> Option<&'static mut BioSet> {
    let set = BIO_SETS.get_ptr_mut(slot as u32)?;
    // SAFETY: an element of a map lives as long as the program. It is written by
    // who claimed it, before it is ready; `claims` is added to atomically.
    Some(unsafe { &mut *set })
}

/// Wants a slot; true for at most one of all who do. Whoever adds sees at least
/// its own addition, so only the first adder may read 1.
#[inline(always)]
pub(crate) fn claim_set(slot: u64) -> bool {
    let Some(set) = set_slot(slot) else {
        return false;
    };
    kernel::add(&mut set.claims, 1);
    // SAFETY: valid and aligned.
    let claims = unsafe { (&raw const set.claims).read_volatile() };
    claims == 1
}

/// Marks a slot as described, after everything that describes it.
#[inline(always)]
pub(crate) fn publish_set(slot: u64) {
    if let Some(set) = set_slot(slot) {
        // SAFETY: valid and aligned.
        unsafe { (&raw mut set.ready).write_volatile(1) };
    }
}

/// What is known of when this kernel uses the cache.
#[inline(always)]
pub(crate) fn regimes() -> u64 {
    let seen = BIO_REGIMES.get_ptr(0);
    // SAFETY: valid and aligned; each word is 0 or 1.
    seen.map_or(0, |seen| unsafe { seen.read_volatile() })
}

/// Adds to it. Two CPUs may do so at once: what one loses comes again with the
/// next allocation.
#[inline(always)]
pub(crate) fn add_regime(evidence: u64) {
    let Some(seen) = BIO_REGIMES.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: valid and aligned.
    let known = unsafe { seen.read_volatile() };
    if known | evidence != known {
        // SAFETY: as above.
        unsafe { seen.write_volatile(known | evidence) };
    }
}
