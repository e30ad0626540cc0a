//! `cargo xtask bench`: what vmdtrace costs.

mod bios;
mod guests;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use serde::Serialize;
use xtask_setup::{DEFAULT_KERNEL, Profile, Program, Setup, require_root};

/// Tells vmdtrace's bench where the finished program is.
const PROGRAM_VARIABLE: &str = "VMDTRACE_COST_PROGRAM";

/// Tells it hardirqs and what that is started by, one argument a line.
const HARDIRQS_VARIABLE: &str = "VMDTRACE_COST_HARDIRQS";

/// Tells it node_exporter and what that is started by, one argument a line.
const NODE_EXPORTER_VARIABLE: &str = "VMDTRACE_COST_NODE_EXPORTER";

/// Measure what vmdtrace costs
///
/// docs/cost.md says how each figure is made and has those of the last time.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Parts:
  programs      nanoseconds per run of each program, on this machine's kernel
  host          scrapes, memory and system calls on made-up hosts of several sizes
  instructions  what the verifier walks through of each program, on each kernel (--kernels)
  lab           I/O rates in the virtual server with and without the daemon, in turns
  bios          what the programs for bios take there, beside bpftrace counting the same calls
  record        renew docs/cost.json, what `cargo xtask test` compares with")]
pub(crate) struct Args {
    /// What to measure
    #[arg(value_enum)]
    part: Part,

    /// Write the figures there, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Boot these kernels, by series, or all that the tests know [default: 6.12]
    #[arg(long, value_name = "SERIES,...|all", value_delimiter = ',', value_parser = super::test::series())]
    kernels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Programs,
    Host,
    Instructions,
    Lab,
    Bios,
    Record,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    require_root("the bench loads eBPF programs")?;
    let setup = Setup::new()?;
    match args.part {
        Part::Programs => within_vmdtrace(&setup, "programs", args),
        Part::Host => within_vmdtrace(&setup, "host", args),
        Part::Record => within_vmdtrace(&setup, "record", args),
        Part::Instructions => {
            let kernels = super::test::kernels(&args.kernels, always(args));
            write(args, &guests::instructions(&setup, &kernels)?)
        }
        Part::Lab => {
            let kernels = super::test::kernels(&args.kernels, always(args));
            let mut rates = Vec::new();
            for kernel in kernels {
                rates.extend(guests::rates(&setup, kernel)?);
            }
            write(args, &rates)
        }
        Part::Bios => {
            let kernels = super::test::kernels(&args.kernels, always(args));
            let mut found = Vec::new();
            for kernel in kernels {
                found.push(bios::bios(&setup, kernel)?);
            }
            write(args, &found)
        }
    }
}

/// The kernel that is booted where none is named.
fn always(args: &Args) -> &'static [&'static str] {
    if args.kernels.is_empty() {
        &[DEFAULT_KERNEL]
    } else {
        &[]
    }
}

fn write(args: &Args, figures: &impl Serialize) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        fs::write(path, serde_json::to_string_pretty(figures)? + "\n")
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
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
        match setup.node_exporter() {
            Ok(program) => {
                command.env(NODE_EXPORTER_VARIABLE, by_its_loader(&program)?);
            }
            Err(error) => eprintln!("bench: without node_exporter: {error}"),
        }
    }
    if part == "programs" {
        match setup.hardirqs() {
            Ok(program) => {
                command.env(HARDIRQS_VARIABLE, by_its_loader(&program)?);
            }
            Err(error) => eprintln!("bench: without hardirqs: {error}"),
        }
    }
    let status = command.status().context("cannot run cargo bench")?;
    if !status.success() {
        bail!("cargo bench ended with {status}");
    }
    Ok(())
}

/// The command that runs an unpacked program with the libraries it came with.
fn by_its_loader(program: &Program) -> anyhow::Result<String> {
    let loader = program
        .loader_and_libraries
        .iter()
        .find(|(_, guest)| guest.starts_with("/lib64/"))
        .map(|(path, _)| path)
        .context("a program without a loader")?;
    let libraries = program
        .loader_and_libraries
        .iter()
        .find(|(_, guest)| !guest.starts_with("/lib64/"))
        .and_then(|(path, _)| path.parent())
        .context("a program without libraries")?;
    Ok(format!(
        "{}\n--library-path\n{}\n{}",
        loader.display(),
        libraries.display(),
        program.path.display()
    ))
}
