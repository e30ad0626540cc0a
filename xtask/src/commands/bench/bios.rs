//! What the programs for bios take in the virtual server, beside a bpftrace program
//! that only counts the calls of the same two functions.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use xtask_lab::{Bpftrace, Guest, GuestCommand, GuestFile};
use xtask_setup::Setup;

use super::guests::{self, LOAD, PATIENCE, WARM_UP};

const ROUNDS: usize = 4;
const ONE_LINE: &str =
    "fentry:bio_alloc_bioset { @allocated = count(); } fentry:bio_put { @put = count(); }";
const HITS: &str = "vmdtrace_bio_cache_hits_total";
const ALLOCATIONS: &str = "vmdtrace_bio_allocations_total";

/// `BPF_PROG_TYPE_TRACING` of include/uapi/linux/bpf.h: fentry and fexit.
const TRACING: u64 = 26;

/// What was seen of one kernel.
#[derive(Debug, Serialize)]
pub(super) struct Bios {
    kernel: String,
    /// Nanoseconds of all fentry and fexit programs for each read, by round.
    ours: Vec<f64>,
    bpftrace: Vec<f64>,
    /// Of one round, ours to bpftrace's.
    ratios: Vec<f64>,
    /// Share of our allocations that the cache served.
    hits: f64,
    /// Of the last round: runs and mean nanoseconds of each program, by its
    /// instructions for the verifier.
    our_programs: Vec<Program>,
    bpftrace_programs: Vec<Program>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Program {
    verified_instructions: u64,
    runs: u64,
    nanoseconds: u64,
}

pub(super) fn bios(setup: &Setup, kernel: &str) -> anyhow::Result<Bios> {
    let artifacts = guests::artifacts(setup, kernel)?;
    let guest = guests::boot(&artifacts, GuestFile::of_program(&setup.guest_bpftrace()?))?;
    guest.check(
        &GuestCommand::shell("echo 1 > /proc/sys/kernel/bpf_stats_enabled"),
        PATIENCE,
    )?;
    let mut found = Bios {
        kernel: artifacts.kernel.package_version.clone(),
        ours: Vec::new(),
        bpftrace: Vec::new(),
        ratios: Vec::new(),
        hits: f64::NAN,
        our_programs: Vec::new(),
        bpftrace_programs: Vec::new(),
    };
    for round in 0..ROUNDS {
        // In turns, so that a slow drift speaks for neither.
        for ours in [round % 2 == 0, round % 2 != 0] {
            if ours {
                let daemon = guests::daemon(&guest, "counters")?;
                let (each, programs) = window(&guest)?;
                let scrape = guest.scrape()?;
                let log = daemon.stop(PATIENCE)?.stderr_text();
                let sum = |name| scrape.sum(name, |_| true);
                // Without its exit an allocation is not counted, and cheap.
                let allocations = sum(ALLOCATIONS).filter(|count| *count > 0.0);
                let allocations = allocations
                    .with_context(|| format!("the daemon counts no allocations:\n{log}"))?;
                found.hits = sum(HITS).unwrap_or_default() / allocations;
                found.ours.push(each);
                found.our_programs = programs;
            } else {
                let bpftrace = Bpftrace::start(&guest, ONE_LINE)?;
                let (each, programs) = window(&guest)?;
                bpftrace.stop()?;
                found.bpftrace.push(each);
                found.bpftrace_programs = programs;
            }
        }
    }
    guest.power_off()?;
    found.ratios = guests::quotients(&found.ours, &found.bpftrace);
    found.print();
    Ok(found)
}

impl Bios {
    fn print(&self) {
        println!(
            "bios on {}, {ROUNDS} rounds of {} s, {:.1} % of our allocations hits:",
            self.kernel,
            LOAD.as_secs(),
            self.hits * 100.0
        );
        for (name, values) in [
            ("ours, ns a read", &self.ours),
            ("bpftrace, ns a read", &self.bpftrace),
            ("ours / bpftrace", &self.ratios),
        ] {
            let [least, median, most] = guests::spread(values);
            println!("  {name:<20} {median:>9.2} ({least:.2} to {most:.2})");
        }
        for (whose, programs) in [
            ("ours", &self.our_programs),
            ("bpftrace", &self.bpftrace_programs),
        ] {
            for program in programs {
                println!(
                    "  {whose:<8} program of {:>6} verified instructions: {:>8} runs, {:>7.1} ns each",
                    program.verified_instructions,
                    program.runs,
                    program.nanoseconds as f64 / program.runs.max(1) as f64
                );
            }
        }
    }
}

/// A load while something runs: nanoseconds for each read, and by program.
fn window(guest: &Guest) -> anyhow::Result<(f64, Vec<Program>)> {
    guests::measure(guest, &guests::load(guest, WARM_UP)?)?;
    let load = guests::load(guest, LOAD)?;
    let before = statistics(guest)?;
    let done = guests::measure(guest, &load)?;
    let programs = since(&before, &statistics(guest)?);
    ensure!(
        programs.iter().any(|program| program.runs > 0),
        "no fentry or fexit program ran in the guest: does its kernel offer them?"
    );
    let nanoseconds: u64 = programs.iter().map(|program| program.nanoseconds).sum();
    let reads = done.iops() * LOAD.as_secs_f64();
    Ok((nanoseconds as f64 / reads, programs))
}

/// What each fentry and fexit program of anybody took so far, by its number.
fn statistics(guest: &Guest) -> anyhow::Result<BTreeMap<u64, Program>> {
    // A program shows what it took where somebody holds it open.
    let command = GuestCommand::shell(
        "cat /proc/[0-9]*/fdinfo/* 2>/dev/null | \
         grep -E '^(prog_type|prog_id|run_time_ns|run_cnt|verified_insns):'",
    );
    parse(&guest.check(&command, PATIENCE)?.stdout_text())
}

fn parse(text: &str) -> anyhow::Result<BTreeMap<u64, Program>> {
    let mut programs = BTreeMap::new();
    let (mut tracing, mut id) = (false, 0);
    for line in text.lines() {
        let field = line.split_once(':');
        let (name, value) = field.with_context(|| format!("{line} in fdinfo"))?;
        let value: u64 = value
            .trim()
            .parse()
            .with_context(|| format!("{line} in fdinfo"))?;
        // The type comes first (kernel/bpf/syscall.c, bpf_prog_show_fdinfo). A link
        // tells its program's number, but not what that took.
        match name {
            "prog_type" => (tracing, id) = (value == TRACING, 0),
            "prog_id" => id = value,
            _ if !tracing || id == 0 => {}
            _ => {
                let program: &mut Program = programs.entry(id).or_default();
                match name {
                    "run_time_ns" => program.nanoseconds = value,
                    "run_cnt" => program.runs = value,
                    _ => program.verified_instructions = value,
                }
            }
        }
    }
    Ok(programs)
}

fn since(before: &BTreeMap<u64, Program>, after: &BTreeMap<u64, Program>) -> Vec<Program> {
    let rise = |(id, now): (&u64, &Program)| {
        let then = before.get(id).copied().unwrap_or_default();
        Program {
            runs: now.runs.saturating_sub(then.runs),
            nanoseconds: now.nanoseconds.saturating_sub(then.nanoseconds),
            ..*now
        }
    };
    after.iter().map(rise).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tracing_programs_are_taken() {
        let text = "prog_type:\t26\nprog_id:\t7\nrun_time_ns:\t100\nrun_cnt:\t5\nverified_insns:\t230\n\
                    prog_id:\t7\n\
                    prog_type:\t17\nprog_id:\t8\nrun_time_ns:\t9\nrun_cnt:\t9\n";
        let program = Program {
            verified_instructions: 230,
            runs: 5,
            nanoseconds: 100,
        };
        let before = parse(text).unwrap();
        assert_eq!(before, BTreeMap::from([(7, program)]));
        let after = parse(&text.replace("100", "160").replace("\t5\n", "\t7\n")).unwrap();
        let rise = Program {
            runs: 2,
            nanoseconds: 60,
            ..program
        };
        assert_eq!(since(&before, &after), [rise]);
        assert!(parse("run_cnt:\tmany\n").is_err());
    }
}
