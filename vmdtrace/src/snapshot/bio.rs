//! Allocations and frees of bios, as a [`Snapshot`](super::Snapshot) has them.

use serde::{Deserialize, Serialize};

/// When the kernel uses its caches of bios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BioRegime {
    /// Nothing that tells was allocated yet.
    #[default]
    Unknown,
    /// It has none.
    None,
    /// For polled I/O.
    PolledOnly,
    /// For whoever asks.
    OptIn,
    /// For every bio that is small enough.
    DefaultOn,
}

/// What a bio was allocated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BioPurpose {
    /// File systems and block devices.
    Block,
    /// A command passed through, completed by an interrupt.
    Passthrough,
    PassthroughPolled,
    /// This kernel does not tell when it allocates.
    Unknown,
}

/// Allocations of one set of bios for one purpose, each in exactly one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BioAllocations {
    /// `fs_bio_set`, `blkdev_dio_pool`, the name of its slab, or `other`.
    pub set: String,
    pub purpose: BioPurpose,
    /// From the CPU's own list.
    pub hits_own: u64,
    /// From the list that interrupts fill.
    pub hits_splice: u64,
    /// Both lists were empty.
    pub misses_empty: u64,
    /// The interrupts' list held some, too few to be used.
    pub misses_below_threshold: u64,
    /// From the reserve, for lack of memory.
    pub misses_reserve: u64,
    /// The set has no cache.
    pub without_cache: u64,
    /// Too many vectors for the cache.
    pub with_many_vectors: u64,
    /// Did not ask for the cache where that is needed.
    pub without_flag: u64,
    /// Nothing was returned.
    pub failed: u64,
    /// What was seen does not tell.
    pub ambiguous: u64,
    /// The start was not seen, or on another CPU.
    pub unpaired: u64,
}

impl BioAllocations {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self {
            set: _,
            purpose: _,
            hits_own,
            hits_splice,
            misses_empty,
            misses_below_threshold,
            misses_reserve,
            without_cache,
            with_many_vectors,
            without_flag,
            failed,
            ambiguous,
            unpaired,
        } = self;
        [
            hits_own,
            hits_splice,
            misses_empty,
            misses_below_threshold,
            misses_reserve,
            without_cache,
            with_many_vectors,
            without_flag,
            failed,
            ambiguous,
            unpaired,
        ]
        .into_iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds the counts of another slot of the same name.
    pub fn add(&mut self, more: &Self) {
        self.combine(more, u64::saturating_add);
    }

    /// Combines every counter with its like in `other` by `change`.
    pub fn combine(&mut self, other: &Self, mut change: impl FnMut(u64, u64) -> u64) {
        let Self {
            set: _,
            purpose: _,
            hits_own,
            hits_splice,
            misses_empty,
            misses_below_threshold,
            misses_reserve,
            without_cache,
            with_many_vectors,
            without_flag,
            failed,
            ambiguous,
            unpaired,
        } = self;
        for (count, by) in [
            (hits_own, other.hits_own),
            (hits_splice, other.hits_splice),
            (misses_empty, other.misses_empty),
            (misses_below_threshold, other.misses_below_threshold),
            (misses_reserve, other.misses_reserve),
            (without_cache, other.without_cache),
            (with_many_vectors, other.with_many_vectors),
            (without_flag, other.without_flag),
            (failed, other.failed),
            (ambiguous, other.ambiguous),
            (unpaired, other.unpaired),
        ] {
            *count = change(*count, by);
        }
    }
}

/// Where a freed bio went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BioDestination {
    /// The freeing CPU's own list.
    OwnList,
    /// The freeing CPU's list for interrupts.
    IrqList,
    /// The slab, because it was freed in a softirq.
    SlabSoftirq,
    /// The slab, because the lists were full.
    SlabOverflow,
    /// Its pool: it was not of a cache.
    NotCached,
    /// kfree: it was of no set.
    Kfree,
    /// Of a cache; the context that decides is not known.
    Unknown,
}

/// The context a bio was freed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BioContext {
    Task,
    Softirq,
    Hardirq,
    Unknown,
}

/// Frees of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BioFrees {
    pub destination: BioDestination,
    pub context: BioContext,
    pub count: u64,
}

/// Everything counted of bios. What is 0 is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BioCounts {
    pub regime: BioRegime,
    pub allocations: Vec<BioAllocations>,
    /// Bios of no set.
    pub kmallocs: u64,
    pub frees: Vec<BioFrees>,
}
