//! `cargo xtask bench`: what vmdtrace costs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use xtask_setup::{Profile, Setup, require_root};

/// Tells vmdtrace's bench where the finished program is.
const PROGRAM_VARIABLE: &str = "VMDTRACE_COST_PROGRAM";

/// Measure what vmdtrace costs
///
/// docs/cost.md says how each figure is made and has those of the last time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Parts:
  programs      nanoseconds per run of each program, on this machine's kernel
  host          scrapes, memory and system calls on made-up hosts of several sizes
  record        renew docs/cost.json, what `cargo xtask test` compares with")]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    part: Part,

    /// Write the figures there, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Programs,
    Host,
    Record,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    require_root("the bench loads eBPF programs")?;
    let setup = Setup::new()?;
    match args.part {
        Part::Programs => within_vmdtrace(&setup, "programs", args),
        Part::Host => within_vmdtrace(&setup, "host", args),
        Part::Record => within_vmdtrace(&setup, "record", args),
    }
}

/// Runs a part of vmdtrace's own bench. Compiled as its tests are: nothing that
/// is timed runs in that program.
fn within_vmdtrace(setup: &Setup, part: &str, args: &Args) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(setup.workspace());
    command.args([
        "bench",
        "--quiet",
        "--profile",
        "dev",
        "--package",
        "vmdtrace",
    ]);
    command.args(["--bench", "cost", "--", part]);
    if let Some(path) = &args.json {
        let path = std::path::absolute(path).context("cannot tell where to write the figures")?;
        command.arg(path);
    }
    command.envs(setup.test_environment()?);
    if part == "host" {
        command.env(PROGRAM_VARIABLE, setup.build(Profile::Release)?.vmdtrace);
    }
    let status = command.status().context("cannot run cargo bench")?;
    if !status.success() {
        bail!("cargo bench ended with {status}");
    }
    Ok(())
}
