//! The counters of bios: allocations by class, frees by destination.

use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, GaugeFamily, Unit};
use crate::snapshot::{
    BioCounts,
    bio::{BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime},
    probes::BioCounted,
};

/// What every family of allocations is told apart by.
const OF: [&str; 3] = ["bio_set", "kind", "polled"];

pub(super) fn add(counts: &BioCounts, counted: BioCounted, families: &mut Vec<MetricFamily>) {
    let BioCounts {
        regime,
        allocations,
        kmallocs,
        frees,
    } = counts;
    let BioCounted {
        allocations: counts_allocations,
        kmallocs: counts_kmallocs,
        frees: counts_frees,
        kfrees: counts_kfrees,
        contexts,
    } = counted;
    if counts_allocations {
        add_regime(*regime, families);
        add_allocations(allocations, families);
    }
    if counts_kmallocs {
        let mut kmalloc = CounterFamily::new(
            "vmdtrace_bio_kmalloc_total",
            "Bios of no set, allocated by kmalloc: what they are for is not known then.",
            Unit::One,
            [],
        );
        kmalloc.add([], *kmallocs);
        kmalloc.push_to(families);
    }
    let wanted = |destination| match destination {
        BioDestination::Kfree => counts_kfrees,
        _ => counts_frees,
    };
    add_frees(frees, wanted, contexts, families);
}

fn add_regime(regime: BioRegime, families: &mut Vec<MetricFamily>) {
    let mut info = GaugeFamily::new(
        "vmdtrace_bio_cache_regime_info",
        "Which bios the kernel's per-CPU caches serve: none, polled_only, opt_in (who asks), \
         default_on, or unknown until one was allocated that tells.",
        ["regime"],
    );
    let regime = match regime {
        BioRegime::Unknown => "unknown",
        BioRegime::None => "none",
        BioRegime::PolledOnly => "polled_only",
        BioRegime::OptIn => "opt_in",
        BioRegime::DefaultOn => "default_on",
    };
    info.set([regime], 1.0);
    info.push_to(families);
}

/// Values of the labels `kind` and `polled`.
fn labels(purpose: BioPurpose) -> (&'static str, &'static str) {
    match purpose {
        // The flag is set after the allocation.
        BioPurpose::Block => ("block", "unknown"),
        BioPurpose::Passthrough => ("passthrough", "false"),
        BioPurpose::PassthroughPolled => ("passthrough", "true"),
        BioPurpose::Unknown => ("unknown", "unknown"),
    }
}

fn add_allocations(allocations: &[BioAllocations], families: &mut Vec<MetricFamily>) {
    let total = |name, help| CounterFamily::new(name, help, Unit::One, OF);
    let part = |name, help, by| {
        let [set, kind, polled] = OF;
        CounterFamily::new(name, help, Unit::One, [set, kind, polled, by])
    };
    let mut all = total(
        "vmdtrace_bio_allocations_total",
        "Bios allocated from a set. Each is in exactly one of the families of hits, misses, \
         ineligible, failed, ambiguous and unpaired ones.",
    );
    let mut hits = part(
        "vmdtrace_bio_cache_hits_total",
        "Bios taken from the CPU's cache: its own list, or the one that interrupts fill.",
        "source",
    );
    let mut misses = part(
        "vmdtrace_bio_cache_misses_total",
        "Bios that the cache might have served and did not: it was empty, held too few freed by \
         interrupts, or memory was so short that the reserve was used.",
        "cause",
    );
    let mut ineligible = part(
        "vmdtrace_bio_cache_ineligible_total",
        "Bios that no cache serves: the set has none, too many vectors, or the caller did not \
         ask where the kernel wants that.",
        "cause",
    );
    let mut failed = total(
        "vmdtrace_bio_allocations_failed_total",
        "Calls that returned no bio.",
    );
    let mut ambiguous = total(
        "vmdtrace_bio_allocations_ambiguous_total",
        "Bios whose class cannot be told: something ran in between.",
    );
    let mut unpaired = total(
        "vmdtrace_bio_allocations_unpaired_total",
        "Bios that the cache might have served, and whose call's start was not seen on this CPU.",
    );
    for one in allocations {
        let BioAllocations {
            set,
            purpose,
            hits_own,
            hits_splice,
            misses_empty,
            misses_below_threshold,
            misses_reserve,
            without_cache,
            with_many_vectors,
            without_flag,
            failed: of_failed,
            ambiguous: of_ambiguous,
            unpaired: of_unpaired,
        } = one;
        let (kind, polled) = labels(*purpose);
        let by = |value| [set.as_str(), kind, polled, value];
        let of = [set.as_str(), kind, polled];
        all.add(of, one.total());
        hits.add(by("own"), *hits_own);
        hits.add(by("splice"), *hits_splice);
        misses.add(by("empty"), *misses_empty);
        misses.add(by("below_splice_threshold"), *misses_below_threshold);
        misses.add(by("reserve"), *misses_reserve);
        ineligible.add(by("no_cache"), *without_cache);
        ineligible.add(by("vectors"), *with_many_vectors);
        ineligible.add(by("no_flag"), *without_flag);
        failed.add(of, *of_failed);
        ambiguous.add(of, *of_ambiguous);
        unpaired.add(of, *of_unpaired);
    }
    all.push_to(families);
    for family in [hits, misses, ineligible] {
        family.push_to(families);
    }
    for family in [failed, ambiguous, unpaired] {
        family.push_to(families);
    }
}

fn add_frees(
    frees: &[BioFrees],
    wanted: impl Fn(BioDestination) -> bool,
    contexts: bool,
    families: &mut Vec<MetricFamily>,
) {
    use BioContext::{Hardirq, Softirq, Task, Unknown};
    use BioDestination::{IrqList, Kfree, NotCached, OwnList, SlabOverflow, SlabSoftirq};
    let mut family = CounterFamily::new(
        "vmdtrace_bio_frees_total",
        "Bios freed, by where they went and by the context they were freed in, which decides it.",
        Unit::One,
        ["destination", "context"],
    );
    // Those that can be, at 0.
    let possible: &[_] = if contexts {
        &[
            (OwnList, Task),
            (IrqList, Hardirq),
            (SlabSoftirq, Softirq),
            (SlabOverflow, Task),
            (SlabOverflow, Hardirq),
            (NotCached, Task),
            (NotCached, Softirq),
            (NotCached, Hardirq),
            (Kfree, Task),
            (Kfree, Softirq),
            (Kfree, Hardirq),
        ]
    } else {
        &[
            (BioDestination::Unknown, Unknown),
            (NotCached, Unknown),
            (Kfree, Unknown),
        ]
    };
    let counted = frees.iter().map(|frees| {
        let BioFrees {
            destination,
            context,
            count,
        } = frees;
        (*destination, *context, *count)
    });
    let zeros = possible.iter().map(|(to, context)| (*to, *context, 0));
    for (destination, context, count) in zeros.chain(counted) {
        if wanted(destination) {
            family.add([name(destination), context_name(context)], count);
        }
    }
    family.push_to(families);
}

fn name(destination: BioDestination) -> &'static str {
    match destination {
        BioDestination::OwnList => "own_list",
        BioDestination::IrqList => "irq_list",
        BioDestination::SlabSoftirq => "slab_softirq",
        BioDestination::SlabOverflow => "slab_overflow",
        BioDestination::NotCached => "not_cached",
        BioDestination::Kfree => "kfree",
        BioDestination::Unknown => "unknown",
    }
}

fn context_name(context: BioContext) -> &'static str {
    match context {
        BioContext::Task => "task",
        BioContext::Softirq => "softirq",
        BioContext::Hardirq => "hardirq",
        BioContext::Unknown => "unknown",
    }
}
