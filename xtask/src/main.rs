//! `cargo xtask`: set-up, builds and everything else around vmdtrace.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Set-up, build, lab, demo and tests of vmdtrace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Setup(commands::setup::Args),
    Build(commands::build::Args),
    Package(commands::package::Args),
    Dashboards(commands::dashboards::Args),
    Demo(commands::demo::Args),
    Lab(commands::lab::Args),
    Test(commands::test::Args),
    Fuzz(commands::fuzz::Args),
    Bench(commands::bench::Args),
    /// Serve an emulated VMD with NVMe disks to one QEMU
    Device(commands::device::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Setup(args) => commands::setup::run(&args),
        Command::Build(args) => commands::build::run(&args),
        Command::Package(args) => commands::package::run(&args),
        Command::Dashboards(args) => commands::dashboards::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Lab(args) => commands::lab::run(&args),
        Command::Test(args) => commands::test::run(&args),
        Command::Fuzz(args) => commands::fuzz::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Device(args) => commands::device::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
