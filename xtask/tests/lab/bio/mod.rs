//! bios: real loads against every kernel's cache of them, counted by bpftrace.
//!
//! One boot serves all loads of a kernel. After all tests a table says what came
//! out.

mod chain;
mod daemon;
mod guest;
mod loads;
mod oracle;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use xtask_lab::{Bound, CpuList, Done, Load};
use xtask_setup::KERNELS;

use crate::kernel_test;
use crate::server::PATIENCE;
use daemon::Window;
use guest::BioGuest;
use loads::{Expected, Regime, Target, WAYS, Way};
use oracle::{Counts, DRIVER_IN};

/// Enough that the first ones, which find the cache empty, are below one in a
/// hundred.
const READS: u64 = 4000;
const DEPTH: u32 = 8;
/// The CPU that reads; the other one serves what is pinned there.
const CPU: &str = "1";

/// What one load did.
struct Row {
    kernel: String,
    load: &'static str,
    reads: u64,
    counts: Counts,
    /// Hits by the vectors of the bios, where those tell.
    vectors: Option<u64>,
    /// Allocations whose class the daemon could not tell.
    untold: u64,
    expected: Expected,
    wrong: Vec<String>,
}

/// All rows, in the order they came.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<Mutex<Vec<Row>>>);

impl Table {
    fn add(
        &self,
        guest: &BioGuest,
        load: &'static str,
        reads: u64,
        (counts, untold): (Counts, u64),
        expected: Expected,
        wrong: Vec<String>,
    ) {
        let tells = Regime::of(guest.series).tells_hits_by_vectors();
        let row = Row {
            kernel: guest.kernel.clone(),
            load,
            reads,
            vectors: tells.then(|| counts.hits_by_vectors().0),
            counts,
            untold,
            expected,
            wrong,
        };
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.push(row);
    }

    /// What is wrong in any row of a kernel.
    fn wrong(&self, kernel: &str) -> Vec<String> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = table.iter().filter(|row| row.kernel == kernel);
        rows.flat_map(|row| {
            let said = row.wrong.iter();
            said.map(|what| format!("{} {}: {what}", row.kernel, row.load))
        })
        .collect()
    }

    pub(crate) fn print(&self) {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.is_empty() {
            return;
        }
        println!("\nbios by kernel and load, as bpftrace counted them:");
        println!(
            "{:<18} {:<20} {:>6} {:>11} {:>7} {:>6} {:>7} {:>6} {:>6}  expected     result",
            "kernel",
            "load",
            "reads",
            "allocations",
            "kmalloc",
            "slab",
            "vectors",
            "freed",
            "untold"
        );
        for row in rows.iter() {
            println!("{row}");
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional =
            |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let result = if self.wrong.is_empty() {
            "as expected".to_owned()
        } else {
            self.wrong.join("; ")
        };
        write!(
            formatter,
            "{:<18} {:<20} {:>6} {:>11} {:>7} {:>6} {:>7} {:>6} {:>6}  {:<12} {result}",
            self.kernel,
            self.load,
            self.reads,
            self.counts.total(),
            optional(self.counts.kmalloc),
            optional(self.counts.slab),
            optional(self.vectors),
            self.counts.freed,
            self.untold,
            self.expected,
        )
    }
}

/// Reads of one device or file, by this way.
fn read(guest: &BioGuest, way: &Way, target: String) -> u64 {
    let load = Load {
        disks: vec![target],
        cpus: CPU.parse::<CpuList>().unwrap(),
        depth: DEPTH,
        bound: Bound::Reads(READS),
    };
    let output = guest
        .server
        .guest
        .check(&load.command_by(way.engine), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    Done::parse(&output.stdout_text(), &load)
        .unwrap_or_else(|error| panic!("{error}"))
        .total()
}

/// What in these counts is not as expected.
fn judge(
    expected: Expected,
    regime: Regime,
    way: &Way,
    reads: u64,
    counts: &Counts,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut require = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    require(reads == READS, format!("fio read {reads} times"));
    let passthrough = way.target == Target::Character;
    let of_load = counts.sum(|kind| match passthrough {
        true => kind.operation == DRIVER_IN,
        false => kind.operation == 0,
    });
    // fio asks the device before it reads, by passthrough too; ext4 reads where the
    // file's blocks are.
    const BESIDE: u64 = 16;
    let kmalloc = counts.kmalloc.unwrap_or_default();
    if expected == Expected::Kmalloc {
        require(of_load == 0, format!("{of_load} allocations from sets"));
        require(
            (READS..=READS + BESIDE).contains(&kmalloc),
            format!("{kmalloc} calls of bio_kmalloc"),
        );
    } else {
        require(
            (READS..=READS + BESIDE).contains(&of_load),
            format!("{of_load} allocations"),
        );
        require(kmalloc <= BESIDE, format!("{kmalloc} calls of bio_kmalloc"));
    }
    let Some(hits) = counts.hits_by_slab() else {
        // 5.10 has no cache: every bio goes back to where it came from.
        let (freed, all) = (counts.freed, counts.total());
        require(freed == all, format!("{freed} bios freed of {all}"));
        return wrong;
    };
    if expected == Expected::Hits {
        require(
            hits * 100 >= counts.total() * 99,
            format!("only {hits} hits of {}", counts.total()),
        );
    } else {
        require(hits == 0, format!("{hits} hits"));
    }
    if regime.tells_hits_by_vectors() {
        let (by_vectors, silent) = counts.hits_by_vectors();
        require(
            (by_vectors..=by_vectors + silent).contains(&hits),
            format!("{hits} hits by the slab, {by_vectors} by vectors ({silent} untold)"),
        );
    }
    wrong
}

fn loads_meet_the_cache_as_expected(guest: &mut BioGuest, table: &Table) {
    let regime = Regime::of(guest.series);
    let mut before = guest.read();
    for way in &WAYS {
        let expected = way.expected(regime);
        let (mut reads, mut counted, mut wrong) = (0, (Counts::default(), 0), Vec::new());
        match guest.target(way.target) {
            Some(target) => {
                reads = read(guest, way, target);
                let after = guest.read();
                let counts = after.oracle.since(&before.oracle);
                wrong = judge(expected, regime, way, reads, &counts);
                let window = Window {
                    before: &before.daemon,
                    after: &after.daemon,
                };
                wrong.extend(window.compare(&counts, &guest.named, expected, reads));
                wrong.extend(daemon::wrong_regime(&after.daemon, regime));
                counted = (counts, window.untold());
                before = after;
            }
            None if expected == Expected::Unavailable => {}
            None => wrong.push("there is no such device".to_owned()),
        }
        table.add(guest, way.name, reads, counted, expected, wrong);
    }
}

pub(crate) fn trials() -> (Table, Vec<Trial>) {
    let table = Table::default();
    let trial = |series: &'static str| {
        let table = table.clone();
        kernel_test(series, format!("bio::{series}"), move |artifacts| {
            let mut guest = BioGuest::boot(artifacts, series);
            loads_meet_the_cache_as_expected(&mut guest, &table);
            chain::completions_elsewhere_starve_the_cache(&mut guest, &table);
            let wrong = table.wrong(&guest.kernel);
            guest.end();
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            Ok(())
        })
    };
    let trials = KERNELS.into_iter().map(trial).collect();
    (table, trials)
}
