//! The per-CPU cache of bios: who is eligible, who hits, why not, and where bios
//! go.

use crate::model::{Dashboard, Panel, Row, Variable};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        name: "bios",
        title: "vmdtrace / Bio cache",
        description: "Where bios come from and where they go, of the whole server. docs/metrics.md \
                      tells how to read a low share of hits. The cache is worth single-digit per \
                      cent: it is never why a rate is halved.",
        variables: vec![Variable::JOB, Variable::INSTANCE],
        rows: vec![
            Row::new("Allocations", allocations()),
            Row::new("Why not from the cache", causes()),
            Row::new("Frees", frees()),
        ],
    }
}

fn allocations() -> Vec<Panel> {
    vec![
        Panel::stat(
            "Share of hits",
            "percentunit",
            "Of all allocations from a set.",
        )
        .query(
            "sum(rate(vmdtrace_bio_cache_hits_total{@host}@rate)) / \
             sum(rate(vmdtrace_bio_allocations_total{@host}@rate))",
            "hits",
        ),
        Panel::stat(
            "Hits among the eligible",
            "percentunit",
            "Of those that a cache could have served: low means that it starves or is \
             on the wrong CPU.",
        )
        .query(
            "sum(rate(vmdtrace_bio_cache_hits_total{@host}@rate)) / \
             (sum(rate(vmdtrace_bio_cache_hits_total{@host}@rate)) + \
             sum(rate(vmdtrace_bio_cache_misses_total{@host}@rate)))",
            "hits",
        ),
        Panel::stat(
            "Share of the eligible",
            "percentunit",
            "Hits and misses together: what the kernel's caches serve at all. Low on \
             a kernel whose regime does not serve this load; a setting does not \
             change that.",
        )
        .query(
            "(sum(rate(vmdtrace_bio_cache_hits_total{@host}@rate)) + \
             sum(rate(vmdtrace_bio_cache_misses_total{@host}@rate))) / \
             sum(rate(vmdtrace_bio_allocations_total{@host}@rate))",
            "eligible",
        ),
        Panel::table(
            "Regime",
            "none",
            "Which bios the kernel's caches serve: none, polled_only, opt_in (those \
             whose owner asks), default_on, or unknown until a bio was allocated that \
             tells.",
        )
        .width(12)
        .low()
        .query(
            "sum by (instance, regime) (vmdtrace_bio_cache_regime_info{@host})",
            "",
        ),
        Panel::stacked(
            "Allocations by set and kind",
            "ops",
            "Calls of bio_alloc_bioset. fs_bio_set: file systems, and commands passed \
             through; blkdev_dio_pool: direct I/O on a block device; others by their \
             slab.",
        )
        .query(
            "sum by (instance, bio_set, kind) \
             (rate(vmdtrace_bio_allocations_total{@host}@rate))",
            "{{instance}} {{bio_set}} {{kind}}",
        ),
        Panel::stacked(
            "Hits by source",
            "ops",
            "own: the CPU's own list. splice: the list that interrupts fill, taken \
             over for it.",
        )
        .query(
            "sum by (instance, source) \
             (rate(vmdtrace_bio_cache_hits_total{@host}@rate))",
            "{{instance}} {{source}}",
        ),
    ]
}

fn causes() -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Misses by cause",
            "ops",
            "empty: both lists were. below_splice_threshold: only the interrupts' \
             list held bios, too few to use it. reserve: memory was short.",
        )
        .query(
            "sum by (instance, cause) \
             (rate(vmdtrace_bio_cache_misses_total{@host}@rate))",
            "{{instance}} {{cause}}",
        ),
        Panel::stacked(
            "Not eligible, by cause",
            "ops",
            "no_cache: the set has none. vectors: more than 4 segments. no_flag: its \
             owner did not ask where that is needed.",
        )
        .query(
            "sum by (instance, cause) \
             (rate(vmdtrace_bio_cache_ineligible_total{@host}@rate))",
            "{{instance}} {{cause}}",
        ),
        Panel::graph(
            "Bios of no set",
            "ops",
            "Allocated by kmalloc: commands passed through on kernels without a cache \
             for them.",
        )
        .width(8)
        .query(
            "sum by (instance) (rate(vmdtrace_bio_kmalloc_total{@host}@rate))",
            "{{instance}}",
        ),
        Panel::graph("Failed", "ops", "Calls that returned no bio.")
            .width(8)
            .query(
                "sum by (instance) \
             (rate(vmdtrace_bio_allocations_failed_total{@host}@rate))",
                "{{instance}}",
            ),
        Panel::graph(
            "Hit or miss not known",
            "ops",
            "Another task ran in between, or the call's start was not seen.",
        )
        .width(8)
        .query(
            "sum by (instance) \
             (rate(vmdtrace_bio_allocations_ambiguous_total{@host}@rate))",
            "{{instance}} ambiguous",
        )
        .query(
            "sum by (instance) \
             (rate(vmdtrace_bio_allocations_unpaired_total{@host}@rate))",
            "{{instance}} unpaired",
        ),
    ]
}

fn frees() -> Vec<Panel> {
    vec![
        Panel::stacked(
            "Frees by destination",
            "ops",
            "own_list and irq_list fill the freeing CPU's cache. slab_softirq as fast \
             as misses that are empty: completions are sent on to the CPU that made \
             the request and freed there in a softirq, so nothing fills the cache.",
        )
        .query(
            "sum by (instance, destination) \
             (rate(vmdtrace_bio_frees_total{@host}@rate))",
            "{{instance}} {{destination}}",
        ),
        Panel::stacked(
            "Frees by context",
            "ops",
            "In which context bios are freed, which decides where they can go.",
        )
        .query(
            "sum by (instance, context) (rate(vmdtrace_bio_frees_total{@host}@rate))",
            "{{instance}} {{context}}",
        ),
    ]
}
