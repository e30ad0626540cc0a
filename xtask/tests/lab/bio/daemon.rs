//! What the daemon counted, held against bpftrace's counts of the same window.

use std::collections::BTreeMap;

use xtask_lab::{Sample, Scrape};

use super::loads::{Expected, Regime};
use super::oracle::Counts;

const ALLOCATIONS: &str = "vmdtrace_bio_allocations_total";
const HITS: &str = "vmdtrace_bio_cache_hits_total";
const MISSES: &str = "vmdtrace_bio_cache_misses_total";
const INELIGIBLE: &str = "vmdtrace_bio_cache_ineligible_total";
const FAILED: &str = "vmdtrace_bio_allocations_failed_total";
const AMBIGUOUS: &str = "vmdtrace_bio_allocations_ambiguous_total";
const UNPAIRED: &str = "vmdtrace_bio_allocations_unpaired_total";
const KMALLOC: &str = "vmdtrace_bio_kmalloc_total";
const FREES: &str = "vmdtrace_bio_frees_total";
const REMOTE: &str = "vmdtrace_remote_completions_total";
const MISSED: &str = "vmdtrace_probe_missed_total";

/// One window of the daemon's counters.
pub(crate) struct Window<'a> {
    pub(crate) before: &'a Scrape,
    pub(crate) after: &'a Scrape,
}

impl Window<'_> {
    /// How far the wanted series of a metric rose. A series that is not there yet
    /// has counted nothing.
    pub(crate) fn rise(&self, metric: &str, wanted: impl Fn(&Sample) -> bool) -> u64 {
        let at = |scrape: &Scrape| scrape.sum(metric, &wanted).unwrap_or_default() as u64;
        at(self.after) - at(self.before)
    }

    fn all(&self, metric: &str) -> u64 {
        self.rise(metric, |_| true)
    }

    fn of(&self, metric: &str, label: &str, value: &str) -> u64 {
        self.rise(metric, |sample| sample.label(label) == value)
    }

    /// Completions taken on a CPU that shares no cache with the one that submitted.
    pub(crate) fn completed_far(&self) -> u64 {
        self.rise(REMOTE, |sample| sample.label("distance") != "same-cache")
    }

    /// Allocations whose class cannot be told.
    pub(crate) fn untold(&self) -> u64 {
        self.all(AMBIGUOUS) + self.all(UNPAIRED)
    }

    /// Frees to the slab because they came in a softirq.
    pub(crate) fn freed_to_slab_in_softirq(&self) -> u64 {
        self.of(FREES, "destination", "slab_softirq")
    }

    /// Frees in a context.
    pub(crate) fn freed_in(&self, context: &str) -> u64 {
        self.of(FREES, "context", context)
    }

    /// What of the daemon's counts does not fit to bpftrace's, or not to what is
    /// expected of `reads` reads.
    pub(crate) fn compare(
        &self,
        counts: &Counts,
        named: &BTreeMap<u64, String>,
        expected: Expected,
        reads: u64,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut equal = |what: &str, ours: u64, oracle: u64| {
            if ours != oracle {
                wrong.push(format!("{what}: vmdtrace {ours}, bpftrace {oracle}"));
            }
        };
        // A run that came while the same program ran on that CPU is skipped and counted.
        let missed =
            |probe: &str| self.rise(MISSED, |sample| sample.label("probe").starts_with(probe));
        let allocations_missed = missed("bio_alloc_bioset_exit");
        let (ambiguous, unpaired) = (self.all(AMBIGUOUS), self.all(UNPAIRED));
        let hits = self.all(HITS);
        let classes = hits
            + self.all(MISSES)
            + self.all(INELIGIBLE)
            + self.all(FAILED)
            + ambiguous
            + unpaired;
        // Without a set it is what bio_kmalloc is later.
        let of_sets = counts.sum(|kind| kind.bio_set != 0);
        let kmalloc = counts.kmalloc.unwrap_or(counts.total() - of_sets);
        equal(
            "allocations",
            self.all(ALLOCATIONS) + allocations_missed,
            of_sets,
        );
        equal(
            "classes of allocations",
            classes + allocations_missed,
            of_sets,
        );
        for (address, name) in named {
            let ours = self.of(ALLOCATIONS, "bio_set", name);
            equal(name, ours, counts.sum(|kind| kind.bio_set == *address));
        }
        equal(
            "bio_kmalloc",
            self.all(KMALLOC) + missed("bio_kmalloc"),
            kmalloc,
        );
        // At rest none is in flight: what was allocated is free again.
        let kfree = self.of(FREES, "destination", "kfree");
        let cached =
            self.of(FREES, "destination", "own_list") + self.of(FREES, "destination", "irq_list");
        let freed = self.all(FREES) - kfree;
        equal("frees", freed + missed("bio_put"), of_sets);
        equal(
            "frees by kfree",
            kfree + missed("blk_rq_unmap_user"),
            kmalloc,
        );
        if missed("bio_put") == 0 {
            equal("frees to a slab", freed - cached, counts.freed);
        }
        // What is not told may have been a hit or not.
        let oracle = counts.hits_by_slab().unwrap_or_default();
        let untold = ambiguous + unpaired + allocations_missed;
        if !(hits..=hits + untold).contains(&oracle) {
            equal("hits", hits, oracle);
        }

        let mut require = |holds: bool, what: String| {
            if !holds {
                wrong.push(what);
            }
        };
        for (what, count) in [
            ("ambiguous", ambiguous),
            ("unpaired", unpaired),
            ("missed", missed("bio_")),
        ] {
            require(
                count * 1000 < counts.total() + kmalloc,
                format!("vmdtrace: {count} {what} of {}", counts.total() + kmalloc),
            );
        }
        let (what, count) = match expected {
            Expected::Unavailable => return wrong,
            Expected::NoCache => ("no cache", self.of(INELIGIBLE, "cause", "no_cache")),
            Expected::NoFlag => ("no flag", self.of(INELIGIBLE, "cause", "no_flag")),
            Expected::Kmalloc => ("kmalloc", self.all(KMALLOC)),
            Expected::Hits => ("hits", hits),
            // Interrupts that came here earlier may have parked some, too few to be used.
            Expected::Starved => (
                "misses",
                self.of(MISSES, "cause", "empty")
                    + self.of(MISSES, "cause", "below_splice_threshold"),
            ),
        };
        require(
            count * 100 >= reads * 99,
            format!("vmdtrace: only {count} {what}"),
        );
        wrong
    }
}

/// What the daemon says of the kernel's regime, if that is wrong.
pub(crate) fn wrong_regime(scrape: &Scrape, regime: Regime) -> Option<String> {
    let expected = match regime {
        Regime::Absent => "none",
        Regime::PolledOnly => "polled_only",
        Regime::OptIn => "opt_in",
        Regime::DefaultOn => "default_on",
    };
    let found: Vec<_> = scrape
        .series("vmdtrace_bio_cache_regime_info")
        .filter(|sample| sample.value == 1.0)
        .map(|sample| sample.label("regime"))
        .collect();
    (found != [expected]).then(|| format!("vmdtrace: regime {found:?}, expected {expected}"))
}
