//! fentry and fexit of the functions that allocate and free bios (block/bio.c).

#![expect(
    clippy::needless_pass_by_value,
    reason = "the attribute macro passes the context by value"
)]

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use vmdtrace_common::bio::{
    self, Allocation, CacheWords, Free, Start, class, context, destination, purpose,
};
use vmdtrace_common::bio_cells::{
    self, BLKDEV_DIO_POOL, BioSet, FS_BIO_SET, Identity, Sets, allocation_index, free_index,
};

use crate::{
    bio_kernel::{self, Bank, Bio, Flags, Set},
    kernel,
};

/// bio_alloc_bioset(bdev, nr_vecs, opf, gfp, bs)
#[fentry(function = "bio_alloc_bioset")]
pub(crate) fn bio_alloc_bioset_entry(context: FEntryContext) -> i32 {
    let vectors = context.arg::<u16>(1);
    let flags = Flags(context.arg(2));
    let _nothing_to_follow = start(vectors.into(), flags, Set(context.arg(4)));
    0
}

/// Notes what the cache holds where it may serve the call.
#[inline(always)]
fn start(vectors: u32, flags: Flags, set: Set) -> Option<()> {
    let has_cache = set.has_cache();
    if !bio::may_use_cache(has_cache, vectors, flags.marked(), bio_kernel::regimes()) {
        return None;
    }
    let cpu = kernel::cpu();
    let offset = Bank::of(cpu)?.per_cpu_offset(cpu)?;
    let cache = set.cache_of(offset)?;
    let words = bio_kernel::cache_words(cache)?;
    let (tag, call) = bio_kernel::current_call()?;
    call.cpu = cpu;
    call.spliced = 0;
    call.set = set.0;
    call.cache = cache;
    call.words = words;
    call.tag = tag;
    Some(())
}

/// bio_alloc_irq_cache_splice(cache): runs inside bio_alloc_bioset. Of its other
/// caller, which empties the cache of a CPU that went away, no call is open.
#[fentry(function = "bio_alloc_irq_cache_splice")]
pub(crate) fn bio_alloc_irq_cache_splice(_: FEntryContext) -> i32 {
    if let Some((tag, call)) = bio_kernel::current_call()
        && call.tag == tag
    {
        call.spliced = 1;
    }
    0
}

/// bio_alloc_bioset, since 5.18.
#[fexit(function = "bio_alloc_bioset")]
pub(crate) fn bio_alloc_bioset_exit(context: FExitContext) -> i32 {
    let vectors = context.arg::<u16>(1);
    let flags = Flags(context.arg(2));
    let purpose = bio::purpose_of(flags.passthrough(), flags.polled());
    end(
        vectors.into(),
        flags.marked(),
        purpose,
        Set(context.arg(4)),
        Bio(context.arg(5)),
    );
    0
}

/// bio_alloc_bioset(gfp, nr_iovecs, bs), before 5.18. Without a set it is what
/// bio_kmalloc is later.
#[fexit(function = "bio_alloc_bioset")]
pub(crate) fn bio_alloc_bioset_exit_3_args(context: FExitContext) -> i32 {
    let vectors = context.arg::<u16>(1);
    let set = Set(context.arg(2));
    if set.0 == 0 {
        count_kmalloc();
    } else {
        let bio = Bio(context.arg(3));
        end(vectors.into(), false, purpose::UNKNOWN, set, bio);
    }
    0
}

/// Counts a call in its class.
#[inline(always)]
fn end(vectors: u32, asked: bool, purpose: u64, set: Set, bio: Bio) {
    let cpu = kernel::cpu();
    let Some(bank) = Bank::of(cpu) else { return };
    // Ahead of the class: the verifier would walk through the search for each.
    let slot = slot_of(set);
    let has_cache = set.has_cache();
    let regimes = bio_kernel::regimes();
    let mut call = Allocation {
        returned: bio.0,
        marked: has_cache && bio.flags().marked(),
        has_cache,
        vectors,
        asked,
        default_on: regimes & bio::regime::DEFAULT_ON != 0,
        start: None,
        free_list: 0,
    };
    if bio::may_use_cache(has_cache, vectors, asked, regimes)
        && let Some((start, free_list)) = started(cpu, set)
    {
        call.start = Some(start);
        call.free_list = free_list;
    }
    let evidence = bio::regime_evidence(&call);
    if evidence & !regimes != 0 {
        bio_kernel::add_regime(evidence);
    }
    let class = bio::classify(&call);
    bank.count_allocation(allocation_index(slot, purpose, class));
}

/// What the call's start saw on this CPU, and the first of its own list now. The
/// slot is free again.
#[inline(always)]
fn started(cpu: u32, set: Set) -> Option<(Start, u64)> {
    let (tag, call) = bio_kernel::current_call()?;
    if call.tag != tag {
        return None;
    }
    call.tag = 0;
    if call.cpu != cpu || call.set != set.0 {
        return None;
    }
    let CacheWords {
        free_list,
        free_list_irq,
        nr: _,
        nr_irq,
    } = call.words;
    let start = Start {
        free_list,
        free_list_irq,
        nr_irq,
        spliced: call.spliced != 0,
    };
    let now = if free_list == 0 {
        bio_kernel::cache_head(call.cache)?
    } else {
        0
    };
    Some((start, now))
}

/// The sets, as the table of slots sees them.
struct Table {
    set: Set,
}

impl Sets for Table {
    #[inline(always)]
    fn set(&mut self, slot: u64) -> Option<&mut BioSet> {
        bio_kernel::set_slot(slot)
    }

    #[inline(always)]
    fn claim(&mut self, slot: u64) -> bool {
        bio_kernel::claim_set(slot)
    }

    #[inline(always)]
    fn describe(&mut self, slot: u64, identity: Identity) {
        let Some(known) = bio_kernel::set_slot(slot) else {
            return;
        };
        known.identity = identity;
        // A name that cannot be read stays empty: the set is of those without one.
        if let Some(name) = bio_kernel::slab_name(self.set) {
            known.name = name;
        }
        bio_kernel::publish_set(slot);
    }
}

#[inline(always)]
fn slot_of(set: Set) -> u64 {
    if set.is_fs_bio_set() {
        return FS_BIO_SET;
    }
    if set.is_blkdev_dio_pool() {
        return BLKDEV_DIO_POOL;
    }
    let identity = Identity {
        slab: set.slab(),
        front_pad: set.front_pad(),
        back_pad: set.back_pad(),
    };
    bio_cells::slot_by_slab(&mut Table { set }, identity)
}

#[inline(always)]
fn count_kmalloc() {
    if let Some(bank) = Bank::of(kernel::cpu()) {
        bank.count_kmalloc();
    }
}

/// bio_kmalloc(nr_vecs, gfp_mask), a function of its own since 5.18.
#[fentry(function = "bio_kmalloc")]
pub(crate) fn bio_kmalloc(_: FEntryContext) -> i32 {
    count_kmalloc();
    0
}

/// bio_put(bio): frees it if this is the last reference.
#[fentry(function = "bio_put")]
pub(crate) fn bio_put(context: FEntryContext) -> i32 {
    let bio = Bio(context.arg(0));
    if !bio.is_shared() {
        let _no_bank = freed(bio);
    }
    0
}

#[inline(always)]
fn freed(bio: Bio) -> Option<()> {
    let cpu = kernel::cpu();
    let bank = Bank::of(cpu)?;
    let flags = bio.flags();
    let set = bio.set();
    let offset = bank.per_cpu_offset(cpu);
    let context = context(offset);
    let mut free = Free {
        pooled: set.0 != 0,
        marked: flags.marked(),
        polled: flags.polled(),
        irq_list: bio_kernel::has_irq_list(),
        context,
        cached: 0,
    };
    if free.pooled
        && free.marked
        && free.irq_list
        && let Some(offset) = offset
        && let Some(cache) = set.cache_of(offset)
        && let Some(words) = bio_kernel::cache_words(cache)
    {
        free.cached = words.nr.wrapping_add(words.nr_irq);
    }
    bank.count_free(free_index(bio::destination_of(&free), context));
    Some(())
}

/// The context that this CPU is in.
#[inline(always)]
fn context(per_cpu_offset: Option<u64>) -> u64 {
    per_cpu_offset
        .and_then(bio_kernel::preempt_count)
        .map_or(context::UNKNOWN, |(count, hardirq, interrupt)| {
            bio::context_of(count, hardirq, interrupt)
        })
}

/// Most bios of one command that are followed.
const MAX_CHAIN: u32 = 32;

/// blk_rq_unmap_user(bio): ends the bios of a command that user space passed
/// through, a list. Those of no set are given to kfree (block/blk-map.c,
/// blk_mq_map_bio_put). `bio_uninit` would not do: where `bio_endio` calls it, a
/// bio comes by twice.
#[fentry(function = "blk_rq_unmap_user")]
pub(crate) fn blk_rq_unmap_user(context: FEntryContext) -> i32 {
    let cpu = kernel::cpu();
    let Some(bank) = Bank::of(cpu) else {
        return 0;
    };
    let at = self::context(bank.per_cpu_offset(cpu));
    let mut bio = Bio(context.arg(0));
    let mut count = 0;
    while count < MAX_CHAIN && bio.0 != 0 {
        if bio.set().0 == 0 {
            bank.count_free(free_index(destination::KFREE, at));
        }
        bio = bio.next();
        count += 1;
    }
    0
}

const _: () = assert!(class::UNPAIRED < bio_cells::CLASSES);
