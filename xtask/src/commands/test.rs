//! `cargo xtask test`: sets up what the tests need, runs them, and counts them.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use xtask_setup::{DEFAULT_KERNEL, KERNELS, Setup, require_root};

/// Tells the lab's tests that everything they boot is set up.
pub(crate) const LAB_VARIABLE: &str = "VMDTRACE_LAB";
/// Which kernels are set up for them, separated by commas.
const KERNELS_VARIABLE: &str = "VMDTRACE_LAB_KERNELS";

/// Run the tests: unit, on this machine's kernel, and in the virtual server
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only what needs no set-up, no root and no virtual server; the rest
    /// reports "ignored" with the reason
    #[arg(long)]
    unit: bool,

    /// Boot these kernels too, by series, or all that the tests know
    ///
    /// The tests of those that are not named report "ignored".
    #[arg(long, value_name = "SERIES,...|all", value_delimiter = ',', value_parser = series(), conflicts_with = "unit")]
    kernels: Vec<String>,

    /// Run only tests whose name contains this
    filter: Option<String>,
}

/// Names every series that the tests know.
pub(crate) const ALL: &str = "all";

pub(crate) fn series() -> PossibleValuesParser {
    PossibleValuesParser::new(KERNELS.into_iter().chain([ALL]))
}

/// What `--kernels` names, and those that are always booted.
pub(crate) fn kernels(named: &[String], always: &[&str]) -> Vec<&'static str> {
    let wanted = |series: &&str| {
        always.contains(series) || named.iter().any(|name| name == series || name == ALL)
    };
    KERNELS.into_iter().filter(wanted).collect()
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut environment: Vec<(&str, OsString)> = Vec::new();
    if !args.unit {
        // All of it first: what cannot be had is said before the first test.
        require_root("the tests load eBPF programs and boot virtual servers")?;
        let setup = Setup::new()?;
        for (name, path) in setup.test_environment()? {
            environment.push((name, path.into()));
        }
        setup.qemu()?;
        let kernels = kernels(&args.kernels, &[DEFAULT_KERNEL]);
        for series in &kernels {
            setup.kernel(series)?;
        }
        setup.guest_programs()?;
        setup.guest_bpftrace()?;
        setup.guest_irqbalance()?;
        setup.debian_root()?;
        setup.prometheus()?;
        environment.push((LAB_VARIABLE, "1".into()));
        environment.push((KERNELS_VARIABLE, kernels.join(",").into()));
    }

    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--workspace", "--no-fail-fast"]);
    if let Some(filter) = &args.filter {
        command.args(["--", filter]);
    }
    command.envs(environment);
    let mut cargo = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let mut counts = Counts::default();
    if let Some(output) = cargo.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("cannot read what cargo test prints")?;
            println!("{line}");
            counts.add(&line);
        }
    }
    let status = cargo.wait().context("cannot wait for cargo test")?;
    let Counts {
        passed,
        failed,
        skipped,
    } = counts;
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    if passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Outcomes of all test programs together.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    /// Takes in a line such as
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; …`.
    fn add(&mut self, line: &str) {
        let Some(outcome) = line.strip_prefix("test result: ") else {
            return;
        };
        for part in outcome.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(count) = count.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.skipped += count,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_chosen_by_series_and_the_default_is_always_there() {
        let chosen = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            kernels(&names, &[DEFAULT_KERNEL])
        };
        assert_eq!(chosen(&[]), [DEFAULT_KERNEL]);
        assert_eq!(chosen(&["7.3", "5.10"]), ["5.10", DEFAULT_KERNEL, "7.3"]);
        assert_eq!(chosen(&["all"]), KERNELS);
    }

    #[test]
    fn outcomes_of_several_programs_add_up() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
            "test a ... ok",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            counts.add(line);
        }
        assert_eq!(
            counts,
            Counts {
                passed: 7,
                failed: 2,
                skipped: 1
            }
        );
    }
}
