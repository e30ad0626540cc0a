//! The command; everything it does is in the library.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::{serve, topology};
use vmdtrace::snapshot::source::{SnapshotSource, SourceOptions};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args, open_source),
        Command::Topology(args) => topology::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmdtrace: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn open_source(_options: &SourceOptions) -> anyhow::Result<Arc<dyn SnapshotSource>> {
    anyhow::bail!("this build has no eBPF programs")
}
