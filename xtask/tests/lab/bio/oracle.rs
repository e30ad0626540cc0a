//! Counts of bios by bpftrace, on returns alone: nothing is known of the cache
//! before the call, and nothing is shared with the daemon.

use std::collections::BTreeMap;

use xtask_lab::{Bpftrace, Guest, GuestCommand, Map};

use crate::server::PATIENCE;

/// Returns by bio set, operation, vectors asked for and vectors of the bio; calls
/// of bio_kmalloc; bios that went back to their slab; objects taken from slabs of
/// bios, whose names begin with `bio-`. Such a slab is no other's: it is merged
/// with none (block/bio.c `create_bio_slab`, SLAB_TYPESAFE_BY_RCU).
const PROGRAM: &str = "
fexit:bio_alloc_bioset {
    @allocations[(uint64)args.bs, args.opf & 0xff, args.nr_vecs, retval->bi_max_vecs] = count();
}
fexit:bio_kmalloc { @kmalloc = count(); }
fexit:bio_free { @freed = count(); }
rawtracepoint:kmem_cache_alloc {
    if (arg1 != 0) {
        $slab = (struct kmem_cache *)arg2;
        if (*(uint32 *)$slab->name == 0x2d6f6962) { @slab = count(); }
    }
}";

/// As above for 5.10, where the operation is set later, bio_kmalloc is
/// bio_alloc_bioset without a set, and the tracepoint does not tell the slab.
const PROGRAM_5_10: &str = "
fexit:bio_alloc_bioset {
    @allocations[(uint64)args.bs, 0, args.nr_iovecs, retval->bi_max_vecs] = count();
}
fexit:bio_free { @freed = count(); }";

/// One kind of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Allocation {
    /// Address of the bio set, 0 without one.
    pub(crate) bio_set: u64,
    /// `enum req_op`.
    pub(crate) operation: u64,
    /// Vectors asked for.
    pub(crate) vectors: u64,
    /// `bi_max_vecs` of the bio that was returned.
    pub(crate) max_vectors: u64,
}

/// Passthrough reads (REQ_OP_DRV_IN).
pub(crate) const DRIVER_IN: u64 = 34;

/// What was counted in a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocations: BTreeMap<Allocation, u64>,
    /// `None` where bio_kmalloc is no function of its own.
    pub(crate) kmalloc: Option<u64>,
    /// Bios given back to a slab, or to kfree.
    pub(crate) freed: u64,
    /// Bios taken from a slab; `None` where the kernel does not tell.
    pub(crate) slab: Option<u64>,
}

impl Counts {
    /// What came after an earlier reading.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut allocations = self.allocations.clone();
        for (kind, count) in &before.allocations {
            *allocations.get_mut(kind).unwrap() -= count;
        }
        allocations.retain(|_, count| *count > 0);
        let difference = |now: Option<u64>, then: Option<u64>| Some(now? - then?);
        Self {
            allocations,
            kmalloc: difference(self.kmalloc, before.kmalloc),
            freed: self.freed - before.freed,
            slab: difference(self.slab, before.slab),
        }
    }

    pub(crate) fn sum(&self, wanted: impl Fn(&Allocation) -> bool) -> u64 {
        let wanted = self.allocations.iter().filter(|(kind, _)| wanted(kind));
        wanted.map(|(_, count)| count).sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.sum(|_| true)
    }

    /// Hits of the cache: allocations for which no object was taken from a slab.
    pub(crate) fn hits_by_slab(&self) -> Option<u64> {
        Some(self.total() - self.slab?)
    }

    /// Hits by what the returned bio says, and allocations for which it does not
    /// say: one from the cache has as many vectors as were asked for, another all
    /// that fit into it, 4 (block/bio.c `bio_alloc_bioset` and
    /// `bio_alloc_percpu_cache` of 6.1 to 6.18; BIO_INLINE_VECS).
    pub(crate) fn hits_by_vectors(&self) -> (u64, u64) {
        let tells = |kind: &Allocation| (1..4).contains(&kind.vectors);
        let hit = |kind: &Allocation| tells(kind) && kind.max_vectors == kind.vectors;
        // Without a cache these are never answered from one.
        let silent = |kind: &Allocation| !tells(kind) && kind.vectors <= 4;
        (self.sum(hit), self.sum(silent))
    }
}

/// The running counter.
pub(crate) struct Oracle(Bpftrace);

impl Oracle {
    pub(crate) fn start(guest: &Guest, series: &str) -> Self {
        let program = if series == "5.10" {
            PROGRAM_5_10
        } else {
            PROGRAM
        };
        Self(Bpftrace::start(guest, program).unwrap_or_else(|error| panic!("{error}")))
    }

    pub(crate) fn read(&mut self) -> Counts {
        let maps = self.0.snapshot().unwrap_or_else(|error| panic!("{error}"));
        let scalar = |name: &str| Some(*maps.get(name)?.get("").unwrap());
        Counts {
            allocations: maps
                .get("@allocations")
                .map(allocations)
                .unwrap_or_default(),
            kmalloc: scalar("@kmalloc"),
            freed: scalar("@freed").unwrap(),
            slab: scalar("@slab"),
        }
    }

    pub(crate) fn stop(self) {
        self.0.stop().unwrap_or_else(|error| panic!("{error}"));
    }
}

fn allocations(map: &Map) -> BTreeMap<Allocation, u64> {
    let parse = |(key, count): (&String, &u64)| {
        // bpftrace prints integers with a sign.
        let parts: Vec<i64> = key.split(',').map(|part| part.parse().unwrap()).collect();
        let [bio_set, operation, vectors, max_vectors] = parts[..] else {
            panic!("bpftrace's key {key}");
        };
        let kind = Allocation {
            bio_set: bio_set as u64,
            operation: operation as u64,
            vectors: vectors as u64,
            max_vectors: max_vectors as u64,
        };
        (kind, *count)
    };
    map.iter().map(parse).collect()
}

/// Addresses of the sets that the daemon tells by name.
pub(crate) fn named_bio_sets(guest: &Guest) -> BTreeMap<u64, String> {
    let script = "grep -wE 'fs_bio_set|blkdev_dio_pool' /proc/kallsyms";
    let output = guest.check(&GuestCommand::shell(script), PATIENCE);
    let text = output
        .unwrap_or_else(|error| panic!("{error}"))
        .stdout_text();
    let line = |line: &str| {
        let mut fields = line.split_whitespace();
        let address = u64::from_str_radix(fields.next()?, 16).ok()?;
        Some((address, fields.nth(1)?.to_owned()))
    };
    text.lines().filter_map(line).collect()
}
