//! What one scrape of a made-up host takes, within this process: all but times.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use vmdtrace::metrics::{self, Detail};
use vmdtrace::snapshot::live::Live;
use vmdtrace::snapshot::source::{Level, SnapshotSource, SourceOptions};

use crate::allocations::{Allocations, allocations};
use crate::kernel::{Loaded, SystemCalls};
use crate::simulated::Host;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scrape {
    pub(crate) series: u64,
    /// Of the text.
    pub(crate) bytes: u64,
    pub(crate) allocations: u64,
    pub(crate) allocated_bytes: u64,
    /// Heap that stays in use from one scrape to the next.
    pub(crate) held_bytes: u64,
    pub(crate) system_calls: u64,
    pub(crate) map_bytes: u64,
}

impl Scrape {
    pub(crate) fn figures(&self) -> BTreeMap<&'static str, u64> {
        let Self {
            series,
            bytes,
            allocations,
            allocated_bytes,
            held_bytes,
            system_calls,
            map_bytes,
        } = *self;
        BTreeMap::from([
            ("series", series),
            ("bytes", bytes),
            ("allocations", allocations),
            ("allocated_bytes", allocated_bytes),
            ("held_bytes", held_bytes),
            ("system_calls", system_calls),
            ("map_bytes", map_bytes),
        ])
    }
}

/// Observes the host, counts on all of its lines, and scrapes. Returns the
/// verified instructions of the programs, too.
pub(crate) fn measure(
    host: &Host,
    detail: Detail,
) -> anyhow::Result<(Scrape, BTreeMap<String, u64>)> {
    let calls = SystemCalls::of(std::process::id())?;
    let before_all = allocations();
    let source: Arc<dyn SnapshotSource> = Arc::new(Live::open(&SourceOptions {
        roots: host.roots(),
        also_lines: Vec::new(),
        level: Level::Timing,
        kprobes: false,
        shares: detail.cpus,
        activity: false,
    })?);
    host.count()?;
    let scrape = || metrics::scrape(&source, detail);
    // The first reads /sys, the second is as all others.
    scrape()?;
    let text = scrape()?;
    check(host, &text)?;
    drop(text);
    let held = allocations().held - before_all.held;
    // An event of this machine may come in between and cost a reading: the least
    // of some is what a scrape takes.
    let mut least: Option<(Allocations, u64, String)> = None;
    for _ in 0..5 {
        let (calls_before, before) = (calls.count()?, allocations());
        let text = scrape()?;
        let (after, calls_after) = (allocations(), calls.count()?);
        let taken = Allocations {
            count: after.count - before.count,
            bytes: after.bytes - before.bytes,
            held: 0,
        };
        // Asking is one of them.
        let made = (calls_after - calls_before).saturating_sub(1);
        if least
            .as_ref()
            .is_none_or(|(least, _, _)| taken.count < least.count)
        {
            least = Some((taken, made, text));
        }
    }
    let (taken, system_calls, text) = least.context("nothing was measured")?;
    // Whoever asks for more than sums gets all that was read, sums or not before.
    let disks = source.snapshot()?.topology.disks;
    let lines: usize = disks.iter().map(|disk| disk.lines.len()).sum();
    let expected = host.shape().lines_of_disks();
    anyhow::ensure!(
        lines == expected as usize,
        "{lines} lines of disks after sums were asked for, instead of {expected}"
    );
    drop(disks);
    let loaded = Loaded::of(std::process::id())?;
    anyhow::ensure!(loaded.map_bytes > 0, "this process holds no maps");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    let scrape = Scrape {
        series: series as u64,
        bytes: text.len() as u64,
        allocations: taken.count,
        allocated_bytes: taken.bytes,
        held_bytes: held,
        system_calls,
        map_bytes: loaded.map_bytes,
    };
    Ok((scrape, loaded.instructions))
}

/// What was put into the maps has to be in the text, to the last unit.
fn check(host: &Host, text: &str) -> anyhow::Result<()> {
    let sum = |name: &str| -> u64 {
        text.lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|it| it.starts_with('{'))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>() as u64
    };
    let (completions, interrupts) = host.counted();
    let told = (
        sum("vmdtrace_completions_total"),
        sum("vmdtrace_hardware_interrupts_total"),
    );
    anyhow::ensure!(
        told == (completions, interrupts),
        "counted {completions} completions and {interrupts} interrupts, told {told:?}"
    );
    Ok(())
}
