//! Bios: where an allocation came from and where a freed one went.
//!
//! Plain functions over plain data; the programs only gather what they look at.
//! The kernel's side is `bio_alloc_bioset` and `bio_put` (block/bio.c). A set of
//! bios may have a cache: for each CPU a list of free bios (`free_list`), and
//! from 6.2 on a second one that only interrupts fill (`free_list_irq`). Taking
//! from the first is a hit; if it is empty and the second holds at least
//! [`SPLICE_THRESHOLD`], the second becomes the first.

/// Largest number of vectors the cache serves: `BIO_INLINE_VECS`, a macro.
pub const INLINE_VECTORS: u32 = 4;
/// `ALLOC_CACHE_THRESHOLD`, a macro.
pub const SPLICE_THRESHOLD: u32 = 16;
/// `ALLOC_CACHE_MAX` where there is a list for interrupts: a CPU whose lists hold
/// more takes no more back.
pub const CACHE_MAX: u32 = 256;

/// Classes of allocations. Each is in exactly one.
pub mod class {
    /// From this CPU's own list.
    pub const HIT_OWN: u64 = 0;
    /// From the interrupts' list, which was spliced for it.
    pub const HIT_SPLICE: u64 = 1;
    /// Both lists were empty.
    pub const MISS_EMPTY: u64 = 2;
    /// Only the interrupts' list held bios, fewer than it takes to splice it.
    pub const MISS_BELOW_THRESHOLD: u64 = 3;
    /// From the reserve, for lack of memory: it will not come back to the cache.
    pub const MISS_RESERVE: u64 = 4;
    /// The set of bios has no cache.
    pub const NO_CACHE: u64 = 5;
    /// Too many vectors for the cache.
    pub const VECTORS: u64 = 6;
    /// Did not ask for the cache, on a kernel that wants to be asked.
    pub const NO_FLAG: u64 = 7;
    /// Nothing was returned.
    pub const FAILED: u64 = 8;
    /// What was seen before and after does not tell: something came in between.
    pub const AMBIGUOUS: u64 = 9;
    /// The call's start was not seen, or on another CPU.
    pub const UNPAIRED: u64 = 10;
}

/// Which bits of [`regime_evidence`] were seen.
pub mod regime {
    /// A bio that did not ask for the cache is not of the cache.
    pub const OPT_IN: u64 = 1;
    /// A bio that did not ask for the cache is of the cache all the same.
    pub const DEFAULT_ON: u64 = 2;
}

/// What a bio is for. Values are indices.
pub mod purpose {
    /// A file system's or block device's. Whether it will be polled is not known
    /// yet when it is allocated: the callers set the flag later.
    pub const BLOCK: u64 = 0;
    /// A command passed through (`REQ_OP_DRV_IN`, `REQ_OP_DRV_OUT`), completed by
    /// an interrupt.
    pub const PASSTHROUGH: u64 = 1;
    /// The same, polled.
    pub const PASSTHROUGH_POLLED: u64 = 2;
    /// This kernel does not tell when it allocates.
    pub const UNKNOWN: u64 = 3;
}

/// Where a freed bio went.
pub mod destination {
    /// The freeing CPU's own list.
    pub const OWN_LIST: u64 = 0;
    /// The freeing CPU's list for interrupts.
    pub const IRQ_LIST: u64 = 1;
    /// To the slab, though of the cache, because it was freed in a softirq.
    pub const SLAB_SOFTIRQ: u64 = 2;
    /// To the slab, though of the cache, because the lists were full.
    pub const SLAB_OVERFLOW: u64 = 3;
    /// To its pool: not of the cache.
    pub const NOT_CACHED: u64 = 4;
    /// Was of no set: `kfree`.
    pub const KFREE: u64 = 5;
    /// Of the cache, but the context that decides cannot be read.
    pub const UNKNOWN: u64 = 6;
}

/// In which context a bio was freed.
pub mod context {
    pub const TASK: u64 = 0;
    pub const SOFTIRQ: u64 = 1;
    pub const HARDIRQ: u64 = 2;
    /// Cannot be read on this kernel.
    pub const UNKNOWN: u64 = 3;
}

/// `SOFTIRQ_OFFSET` (include/linux/preempt.h): set while a softirq is served.
/// More than that, and not this bit, is a task that only holds softirqs off.
const SERVING_SOFTIRQ: u32 = 1 << 8;

/// The context by a CPU's preempt_count; the masks cover the nesting of hardware
/// interrupts, and of those and NMIs.
#[inline(always)]
#[must_use]
pub fn context_of(preempt_count: u32, hardirq_mask: u32, interrupt_mask: u32) -> u64 {
    if preempt_count & hardirq_mask != 0 {
        context::HARDIRQ
    } else if preempt_count & (interrupt_mask | SERVING_SOFTIRQ) != 0 {
        context::SOFTIRQ
    } else {
        context::TASK
    }
}

/// `struct bio_alloc_cache` of one CPU, as from 6.2 on. Before, the interrupts'
/// list does not exist: it is empty.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheWords {
    pub free_list: u64,
    pub free_list_irq: u64,
    pub nr: u32,
    pub nr_irq: u32,
}

/// What was seen when a call started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// First bio of the CPU's own list; 0 if it was empty.
    pub free_list: u64,
    /// The interrupts' list, likewise, and how many it held.
    pub free_list_irq: u64,
    pub nr_irq: u32,
    /// The kernel spliced the lists for this call.
    pub spliced: bool,
}

/// One call of `bio_alloc_bioset`, when it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The bio; 0 if there is none.
    pub returned: u64,
    /// It is marked as of the cache (`REQ_ALLOC_CACHE`).
    pub marked: bool,
    /// The set has a cache that this function uses.
    pub has_cache: bool,
    /// Vectors asked for.
    pub vectors: u32,
    /// The caller asked for the cache by that mark.
    pub asked: bool,
    /// Known: this kernel uses the cache unasked.
    pub default_on: bool,
    /// None if it was not seen, or on another CPU.
    pub start: Option<Start>,
    /// First bio of the CPU's own list now.
    pub free_list: u64,
}

/// Whether the start of a call has to be looked at: the cache may serve it.
#[inline(always)]
#[must_use]
pub fn may_use_cache(has_cache: bool, vectors: u32, asked: bool, regimes: u64) -> bool {
    has_cache && vectors <= INLINE_VECTORS && (asked || regimes != regime::OPT_IN)
}

/// What a call tells about when this kernel uses the cache; 0: nothing. Only
/// one that could use it and did not ask does.
#[inline(always)]
#[must_use]
pub fn regime_evidence(call: &Allocation) -> u64 {
    let tells =
        call.returned != 0 && call.has_cache && call.vectors <= INLINE_VECTORS && !call.asked;
    match (tells, call.marked) {
        (false, _) => 0,
        (true, false) => regime::OPT_IN,
        (true, true) => regime::DEFAULT_ON,
    }
}

/// The class of a call.
#[inline(always)]
#[must_use]
pub fn classify(call: &Allocation) -> u64 {
    if call.returned == 0 {
        return class::FAILED;
    }
    if !call.has_cache {
        return class::NO_CACHE;
    }
    if call.vectors > INLINE_VECTORS {
        return class::VECTORS;
    }
    if !call.asked && !call.marked && !call.default_on {
        return class::NO_FLAG;
    }
    let Some(start) = call.start else {
        return class::UNPAIRED;
    };
    if start.spliced {
        // Only an empty own list is spliced, and only where that fills it.
        return class::HIT_SPLICE;
    }
    if start.free_list != 0 {
        return if call.returned == start.free_list {
            class::HIT_OWN
        } else {
            class::AMBIGUOUS
        };
    }
    if start.nr_irq >= SPLICE_THRESHOLD && call.returned == start.free_list_irq {
        // The splice itself was missed, or cannot be seen on this kernel.
        return class::HIT_SPLICE;
    }
    // Nothing to take and no splice, unless an interrupt or another task came in
    // between: something is left over then.
    if call.free_list != 0 || start.nr_irq >= SPLICE_THRESHOLD {
        class::AMBIGUOUS
    } else if !call.marked {
        class::MISS_RESERVE
    } else if start.nr_irq == 0 {
        class::MISS_EMPTY
    } else {
        class::MISS_BELOW_THRESHOLD
    }
}

/// What a bio is for, by its operation and flags when it is allocated.
#[inline(always)]
#[must_use]
pub fn purpose_of(passthrough: bool, polled: bool) -> u64 {
    match (passthrough, polled) {
        (false, _) => purpose::BLOCK,
        (true, false) => purpose::PASSTHROUGH,
        (true, true) => purpose::PASSTHROUGH_POLLED,
    }
}

/// The last reference to a bio is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// It belongs to a set.
    pub pooled: bool,
    /// It is of the cache.
    pub marked: bool,
    /// It was polled for.
    pub polled: bool,
    /// This kernel's caches have a list for interrupts.
    pub irq_list: bool,
    /// [`context`].
    pub context: u64,
    /// Bios in both lists of this CPU.
    pub cached: u32,
}

/// Where it goes.
#[inline(always)]
#[must_use]
pub fn destination_of(free: &Free) -> u64 {
    if !free.pooled {
        return destination::KFREE;
    }
    if !free.marked {
        return destination::NOT_CACHED;
    }
    match free.context {
        // Full or not, from here it goes to the slab.
        context::SOFTIRQ => destination::SLAB_SOFTIRQ,
        context::UNKNOWN => destination::UNKNOWN,
        // Before 6.2 the cache takes back what was polled for, in task context.
        at if !free.irq_list => {
            if free.polled && at == context::TASK {
                destination::OWN_LIST
            } else {
                destination::NOT_CACHED
            }
        }
        _ if free.cached > CACHE_MAX => destination::SLAB_OVERFLOW,
        context::HARDIRQ => destination::IRQ_LIST,
        _ => destination::OWN_LIST,
    }
}

#[cfg(test)]
#[path = "bio_tests.rs"]
mod tests;
