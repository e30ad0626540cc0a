//! Nanoseconds per run of the programs, by the kernel's own statistics
//! (BPF_ENABLE_STATS), beside programs that do nothing in the same place, and
//! beside hardirqs.
//!
//! On streams that are fed (BPF_PROG_TEST_RUN) every case is there; on a load of
//! this machine's disk its interrupts come as they do.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _};
use aya::sys::{Stats as Statistics, enable_stats};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use vmdtrace::host::{Roots, possible_cpus};
use vmdtrace::probes::{Loaded as _, Options, Sizes, Tracer};
use vmdtrace::snapshot::source::Level;

use crate::actions::Actions;
use crate::kernel::{attach, field, fixture, programs_of};

const ROUNDS: usize = 7;
/// Of each stream in each round.
const REPEATS: usize = 4000;
const LOAD: Duration = Duration::from_secs(2);
/// hardirqs and what it is started by, one argument a line (set by `cargo xtask bench`).
const HARDIRQS: &str = "VMDTRACE_COST_HARDIRQS";

/// Time of one program in one case, in nanoseconds per run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    source: &'static str,
    level: &'static str,
    case: &'static str,
    program: String,
    median: f64,
    least: f64,
    most: f64,
    /// Of a program that does nothing, in the same rounds.
    empty: f64,
    /// The median of the rounds' differences.
    net: f64,
}

/// A run of a program in a stream.
#[derive(Clone, Copy)]
enum Run {
    Enter(u64),
    Exit(u64, bool),
    Completion,
    End,
}

/// Numbers and actions of the made-up lines.
const VECTOR: u64 = 0;
const QUEUE: u64 = 1;
const FOREIGN: u64 = 2;

const END: &str = "end of a request";

const CASES: [(&str, &[Run]); 5] = [
    ("not ours", &[Run::Enter(FOREIGN), Run::Exit(FOREIGN, true)]),
    ("alone", &[Run::Enter(QUEUE), Run::Exit(QUEUE, true)]),
    (
        "8 completions",
        &[
            Run::Enter(QUEUE),
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Completion,
            Run::Exit(QUEUE, true),
        ],
    ),
    (
        "vector, 4 children",
        &[
            Run::Enter(VECTOR),
            Run::Enter(QUEUE),
            Run::Exit(QUEUE, true),
            Run::Enter(QUEUE),
            Run::Exit(QUEUE, false),
            Run::Enter(QUEUE),
            Run::Exit(QUEUE, false),
            Run::Enter(QUEUE),
            Run::Exit(QUEUE, false),
            Run::Exit(VECTOR, true),
        ],
    ),
    (END, &[Run::End]),
];

const LEVELS: [(&str, Level); 2] = [("counters", Level::Counters), ("timing", Level::Timing)];

pub(crate) fn measure() -> anyhow::Result<Vec<Figure>> {
    let _on = enable_stats(Statistics::RunTime).context("cannot switch on the statistics")?;
    let mut figures = Vec::new();
    for (name, level) in LEVELS {
        streams(name, level, &mut figures)?;
    }
    for (name, level) in LEVELS {
        disk(name, level, &mut figures)?;
    }
    Ok(figures)
}

fn options(level: Level, roots: Roots) -> anyhow::Result<Options> {
    Ok(Options {
        sizes: Sizes {
            cpus: possible_cpus(&Roots::default())?,
            interrupts: 1024,
            slots: 64,
        },
        level,
        also_lines: vec!["virtio*".to_owned(), "nvme*".to_owned(), "ahci*".to_owned()],
        kprobes: false,
        shares: false,
        roots,
    })
}

/// Time and runs of each program so far.
struct Readings(BTreeMap<String, PathBuf>);

impl Readings {
    fn of(process: u32) -> anyhow::Result<Self> {
        Ok(Self(programs_of(process)?))
    }

    fn read(&self) -> BTreeMap<&str, (u64, u64)> {
        let mut readings = BTreeMap::new();
        for (name, path) in &self.0 {
            let text = fs::read_to_string(path).unwrap_or_default();
            if let (Some(ns), Some(runs)) = (field(&text, "run_time_ns"), field(&text, "run_cnt")) {
                readings.insert(name.as_str(), (ns, runs));
            }
        }
        readings
    }

    /// Nanoseconds per run since `before`, of what ran.
    fn since(&self, before: &BTreeMap<&str, (u64, u64)>) -> BTreeMap<String, f64> {
        let mut per_run = BTreeMap::new();
        for (name, (ns, runs)) in self.read() {
            let (ns_before, runs_before) = before.get(name).copied().unwrap_or_default();
            if runs > runs_before {
                let per = (ns - ns_before) as f64 / (runs - runs_before) as f64;
                per_run.insert(name.to_owned(), per);
            }
        }
        per_run
    }
}

fn streams(
    level_name: &'static str,
    level: Level,
    figures: &mut Vec<Figure>,
) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    // The made-up offset of CPU 0 is 0, which no real one is: it would be read
    // each time.
    cpus.set(1)?;
    let _may_be_elsewhere = sched_setaffinity(Pid::from_raw(0), &cpus);
    let mut actions = Actions::new().map_err(anyhow::Error::msg)?;
    for (action, name) in [(VECTOR, "vmd0"), (QUEUE, "nvme0q1"), (FOREIGN, "eth9")] {
        actions.rename(action as usize, Some(name));
    }
    let tracer = Tracer::load(options(level, actions.roots())?)?;
    tracer.arm();
    let mut nothing = fixture()?;
    let empty: &mut RawTracePoint = nothing
        .program_mut("empty_entry")
        .context("no program empty_entry")?
        .try_into()?;
    empty.load()?;
    let readings = Readings::of(std::process::id())?;

    let mut rounds: BTreeMap<(&str, String), Vec<(f64, f64)>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut cases = CASES;
        if round % 2 == 1 {
            cases.reverse();
        }
        for (case, runs) in cases {
            // Without a clock there are no samples whose end could come.
            if level == Level::Counters && case == END {
                continue;
            }
            let before = readings.read();
            for _ in 0..REPEATS {
                for run in runs {
                    feed(&tracer, &actions, *run)?;
                }
                empty.test_run(RawTracePointRunOptions::new())?;
            }
            let per_run = readings.since(&before);
            let nothing = per_run.get("empty_entry").copied().unwrap_or_default();
            for (program, ns) in per_run {
                if program != "empty_entry" {
                    rounds
                        .entry((case, program))
                        .or_default()
                        .push((ns, nothing));
                }
            }
        }
    }
    anyhow::ensure!(!rounds.is_empty(), "nothing ran");
    for ((case, program), values) in rounds {
        figures.push(summary("stream", level_name, case, program, &values));
    }
    Ok(())
}

fn feed(tracer: &Tracer, actions: &Actions, run: Run) -> anyhow::Result<()> {
    let mut args = [0; 12];
    let program = match run {
        Run::Enter(line) => {
            args[..2].copy_from_slice(&[100 + line, actions.address(line as usize)]);
            "irq_handler_entry"
        }
        Run::Exit(line, handled) => {
            let handled = u64::from(handled);
            args[..3].copy_from_slice(&[100 + line, actions.address(line as usize), handled]);
            "irq_handler_exit"
        }
        Run::Completion => {
            args[0] = actions.request(0);
            "nvme_sq"
        }
        // One that is not sampled: of an address that no completion had.
        Run::End => {
            args[0] = actions.request(3);
            "block_rq_complete"
        }
    };
    tracer.test_run(program, args)
}

fn summary(
    source: &'static str,
    level: &'static str,
    case: &'static str,
    program: String,
    values: &[(f64, f64)],
) -> Figure {
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        (
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN),
            values.first().copied().unwrap_or(f64::NAN),
            values.last().copied().unwrap_or(f64::NAN),
        )
    };
    let (median, least, most) = middle(values.iter().map(|(ns, _)| *ns).collect());
    let (empty, _, _) = middle(values.iter().map(|(_, empty)| *empty).collect());
    let (net, _, _) = middle(values.iter().map(|(ns, empty)| ns - empty).collect());
    Figure {
        source,
        level,
        case,
        program,
        median,
        least,
        most,
        empty,
        net,
    }
}

/// What does nothing, attached in the same places.
fn attach_empty() -> anyhow::Result<Ebpf> {
    let mut nothing = fixture()?;
    attach(&mut nothing, "empty_exit", "irq_handler_exit")?;
    attach(&mut nothing, "empty_entry", "irq_handler_entry")?;
    attach(&mut nothing, "empty_end", "block_rq_complete")?;
    Ok(nothing)
}

fn disk(level_name: &'static str, level: Level, figures: &mut Vec<Figure>) -> anyhow::Result<()> {
    let mut rounds: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for round in 0..ROUNDS {
        // Who is attached first is called first: it finds the caches colder.
        let first = (round % 2 == 0).then(attach_empty).transpose()?;
        let peer = Hardirqs::start()?;
        let tracer = Tracer::load(options(level, Roots::default())?)?;
        tracer.attach();
        let nothing = match first {
            Some(nothing) => nothing,
            None => attach_empty()?,
        };
        let ours = Readings::of(std::process::id())?;
        let theirs = peer
            .as_ref()
            .map(|peer| Readings::of(peer.0.id()))
            .transpose()?;
        let before = ours.read();
        let before_theirs = theirs.as_ref().map(Readings::read);
        read_disk(LOAD)?;
        let per_run = ours.since(&before);
        let place = |program: &str| -> Option<f64> {
            let place = match program {
                "irq_handler_ent" => "empty_entry",
                "irq_handler_exi" => "empty_exit",
                "block_rq_comple" => "empty_end",
                _ => return None,
            };
            per_run.get(place).copied()
        };
        for (program, ns) in &per_run {
            if let Some(nothing) = place(program) {
                rounds
                    .entry(program.clone())
                    .or_default()
                    .push((*ns, nothing));
            }
        }
        if let (Some(theirs), Some(before)) = (&theirs, &before_theirs) {
            for (program, ns) in theirs.since(before) {
                let place = if program.contains("exi") {
                    "empty_exit"
                } else {
                    "empty_entry"
                };
                let nothing = per_run.get(place).copied().unwrap_or_default();
                let name = format!("hardirqs: {program}");
                rounds.entry(name).or_default().push((ns, nothing));
            }
        }
        drop((nothing, tracer, peer));
    }
    anyhow::ensure!(!rounds.is_empty(), "no interrupt came");
    for (program, values) in rounds {
        figures.push(summary(
            "disk",
            level_name,
            "reads of 4 KiB",
            program,
            &values,
        ));
    }
    Ok(())
}

/// The peer, while it runs.
struct Hardirqs(Child);

impl Hardirqs {
    /// None where it is not at hand.
    fn start() -> anyhow::Result<Option<Self>> {
        let Ok(command) = std::env::var(HARDIRQS) else {
            return Ok(None);
        };
        let mut words = command.lines();
        let program = words.next().context("an empty command")?;
        let child = Command::new(program)
            .args(words)
            .arg("60")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let peer = Self(child);
        let started = Instant::now();
        while programs_of(peer.0.id())?.len() < 2 {
            anyhow::ensure!(
                started.elapsed() < Duration::from_secs(20),
                "hardirqs loads no programs"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Some(peer))
    }
}

impl Drop for Hardirqs {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Reads from the disk that holds the system, past the page cache, on as many
/// threads as there are CPUs.
fn read_disk(time: Duration) -> anyhow::Result<()> {
    let threads = thread::available_parallelism()?.get();
    let file = tempfile::NamedTempFile::new_in(".")?;
    file.as_file().write_all_at(&vec![1; 16 << 20], 0)?;
    file.as_file().sync_all()?;
    let until = Instant::now() + time;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|thread| {
                let path = file.path();
                scope.spawn(move || -> anyhow::Result<()> {
                    let file = OpenOptions::new()
                        .read(true)
                        .custom_flags(nix::libc::O_DIRECT)
                        .open(path)?;
                    let mut room = vec![0_u8; 2 * 4096];
                    let start = room.as_ptr().align_offset(4096);
                    let mut block = thread as u64 * 7919;
                    while Instant::now() < until {
                        block = (block * 5 + 1) % 4096;
                        file.read_exact_at(&mut room[start..start + 4096], block * 4096)?;
                    }
                    Ok(())
                })
            })
            .collect();
        for reader in readers {
            match reader.join() {
                Ok(done) => done?,
                Err(_) => anyhow::bail!("a reader panicked"),
            }
        }
        Ok(())
    })
}

pub(crate) fn print(figures: &[Figure]) {
    println!(
        "{:<7} {:<9} {:<19} {:<28} {:>7} {:>7} {:>7} {:>7} {:>7}",
        "source", "level", "case", "program, ns per run", "median", "least", "most", "empty", "net"
    );
    for figure in figures {
        let Figure {
            source,
            level,
            case,
            program,
            median,
            least,
            most,
            empty,
            net,
        } = figure;
        println!(
            "{source:<7} {level:<9} {case:<19} {program:<28} {median:>7.0} {least:>7.0} {most:>7.0} {empty:>7.0} {net:>7.0}"
        );
    }
}
