//! `cargo xtask fuzz`: runs the fuzz targets for a bounded time, from the inputs kept with the sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use clap::builder::PossibleValuesParser;
use xtask_setup::{FUZZERS, Fuzzer, Setup};

/// Longest input of a target, in bytes. Longer ones find nothing that these do
/// not.
fn max_input(fuzzer: &Fuzzer) -> u32 {
    match fuzzer.name {
        // Facts and two Snapshots in JSON.
        "recording" => 4096,
        _ => 2048,
    }
}

/// Seconds that one input may take; thousands run in one second.
const INPUT_SECONDS: &str = "25";
/// What the sanitizer needs too, in MiB.
const MEMORY_MIB: &str = "2048";

/// Fuzz the emulated device (messages of its client, contents of its queues) and
/// the reader of recordings
///
/// Builds libFuzzer programs with the address sanitizer, and runs each for a
/// bounded time, from the inputs kept beside them and a fixed seed. Ends with
/// status 1 if an input makes one fail, and says which.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Time for each target
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Where the fuzzer's random numbers start
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seed: u32,
    /// Afterwards, replace the kept inputs by the fewest that reach as much
    #[arg(long, conflicts_with = "input")]
    keep: bool,
    /// Run only this input of the target, and show all that is said
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Fuzz only this target
    #[arg(value_parser = PossibleValuesParser::new(FUZZERS))]
    target: Option<String>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    for name in FUZZERS {
        if args.target.as_ref().is_some_and(|target| target != name) {
            continue;
        }
        let fuzzer = setup.fuzzer(name)?;
        if let Some(input) = &args.input {
            ensure!(
                input.is_file(),
                "there is no file {}: name an input that was reported or kept",
                input.display()
            );
            ensure!(replay(&fuzzer, input)?, "{} makes it fail", input.display());
            continue;
        }
        let summary = fuzz(&fuzzer, args)?;
        let Summary { inputs, edges } = summary;
        println!(
            "{name}: {inputs} inputs in {} s, {edges} edges covered, no failure",
            args.seconds
        );
        if args.keep {
            keep(&fuzzer)?;
        }
    }
    Ok(())
}

/// What a target did.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    inputs: u64,
    /// Edges of the program's control flow that were taken.
    edges: u64,
}

/// Where new inputs are put.
fn found(fuzzer: &Fuzzer) -> PathBuf {
    fuzzer.work.join("corpus")
}

/// Runs a target for its time.
fn fuzz(fuzzer: &Fuzzer, args: &Args) -> anyhow::Result<Summary> {
    let Fuzzer { name, work, .. } = fuzzer;
    let (found, failures) = (found(fuzzer), work.join("failures"));
    // Of an earlier run: it would make this one depend on it.
    if found.exists() {
        fs::remove_dir_all(&found).with_context(|| format!("cannot remove {}", found.display()))?;
    }
    for folder in [&found, &failures] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let kept = files(&fuzzer.corpus)?;
    eprintln!(
        "fuzzing {name} for {} s, from {} inputs",
        args.seconds,
        kept.len()
    );
    let log = work.join("log");
    let file = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let status = program(fuzzer)
        .arg(format!("-max_total_time={}", args.seconds))
        .arg(format!("-seed={}", args.seed))
        .arg(format!("-max_len={}", max_input(fuzzer)))
        // Kept inputs are long already.
        .arg("-len_control=0")
        .arg(format!("-artifact_prefix={}/", failures.display()))
        // What the device says would fill the log; a failure is run again and shown.
        .arg("-close_fd_mask=2")
        .arg(&found)
        .arg(&fuzzer.corpus)
        .stderr(file)
        .status()
        .with_context(|| format!("cannot run {}", fuzzer.program.display()))?;
    let text = fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    if let Some(input) = failing_input(&text) {
        // It may not fail when run alone; the log has the first failure.
        replay(fuzzer, input)?;
        bail!(
            "{name}: an input made it fail (above, and in {}).\nRun it again: cargo xtask fuzz {name} --input {}",
            log.display(),
            input.display()
        );
    }
    match summary(&text) {
        Some(summary) if status.success() && summary.inputs > kept.len() as u64 => Ok(summary),
        _ => bail!(
            "{name} ended with {status} and without a failing input or a summary; its log is {}, with at the end:\n{}",
            log.display(),
            text.lines().last().unwrap_or_default()
        ),
    }
}

/// The input that libFuzzer says it has written because it failed, be it one that an
/// earlier run has written, too.
fn failing_input(log: &str) -> Option<&Path> {
    log.lines()
        .find_map(|line| line.split_once("Test unit written to "))
        .map(|(_, path)| Path::new(path))
}

/// Runs one input visibly; true if it does no harm.
fn replay(fuzzer: &Fuzzer, input: &Path) -> anyhow::Result<bool> {
    let status = program(fuzzer)
        .arg(input)
        .status()
        .with_context(|| format!("cannot run {}", fuzzer.program.display()))?;
    Ok(status.success())
}

/// A target with the limits that every run has.
fn program(fuzzer: &Fuzzer) -> Command {
    let mut command = Command::new(&fuzzer.program);
    command
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .stdin(Stdio::null());
    command
}

/// Replaces the kept inputs by a smallest set of kept and found ones.
fn keep(fuzzer: &Fuzzer) -> anyhow::Result<()> {
    let fewest = fuzzer.work.join("fewest");
    if fewest.exists() {
        fs::remove_dir_all(&fewest)?;
    }
    fs::create_dir_all(&fewest)?;
    let merged = program(fuzzer)
        .args(["-set_cover_merge=1", "-close_fd_mask=2"])
        // How often something is reached counts too, but messages are long: too
        // much would be kept.
        .arg(format!(
            "-use_counters={}",
            u8::from(fuzzer.name != "messages")
        ))
        .arg(format!("-max_len={}", max_input(fuzzer)))
        .args([&fewest, &fuzzer.corpus, &found(fuzzer)])
        .stderr(Stdio::null())
        .status()?;
    let fewest = files(&fewest)?;
    ensure!(
        merged.success() && !fewest.is_empty(),
        "{}: merging the inputs ended with {merged}; the kept ones are as they were",
        fuzzer.name
    );
    for old in files(&fuzzer.corpus)? {
        fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    let mut bytes = 0;
    for new in &fewest {
        let name = new.file_name().unwrap_or_default();
        let to = fuzzer.corpus.join(name);
        bytes += fs::copy(new, &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    println!(
        "{}: {} inputs with {bytes} bytes are kept",
        fuzzer.name,
        fewest.len()
    );
    Ok(())
}

/// The files of a folder.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|item| Ok(item?.path())).collect()
    };
    read().with_context(|| format!("cannot read {}", folder.display()))
}

/// Reads libFuzzer's last line of progress, such as
/// `#19162 DONE cov: 1654 ft: 3666 corp: 197/3359b lim: 29 exec/s: 1197 rss: 451Mb`.
fn summary(log: &str) -> Option<Summary> {
    log.lines().rev().find_map(|line| {
        let mut words = line.strip_prefix('#')?.split_whitespace();
        let inputs = words.next()?.parse().ok()?;
        (words.next()? == "DONE").then_some(())?;
        (words.next()? == "cov:").then_some(())?;
        let edges = words.next()?.parse().ok()?;
        Some(Summary { inputs, edges })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_run_has_a_summary() {
        let progress = "#18\tNEW    cov: 1600 ft: 3 corp: 1/1b\n";
        let done = "#19\tDONE   cov: 1654 ft: 3666 corp: 197/3359b lim: 29 exec/s: 1197 rss: 451Mb\nDone 19 runs in 16 second(s)\n";
        assert_eq!(summary(progress), None);
        assert_eq!(
            summary(&format!("{progress}{done}")),
            Some(Summary {
                inputs: 19,
                edges: 1654
            })
        );
        assert_eq!(summary(""), None);
    }

    #[test]
    fn the_failing_input_is_the_one_that_the_log_names() {
        let log = "==7==ABORTING\nartifact_prefix='/w/failures/'; Test unit written to /w/failures/crash-db7d\nBase64: YGBg\n";
        let input = failing_input(log);
        assert_eq!(input, Some(Path::new("/w/failures/crash-db7d")));
        assert_eq!(failing_input("Done 19 runs in 16 second(s)\n"), None);
    }
}
