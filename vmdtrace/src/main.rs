//! The command; everything it does is in the library.

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::{doctor, serve, topology};
use vmdtrace::snapshot::live::Live;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args, |options| Ok(Arc::new(Live::open(options)?)))
            .map(|()| ExitCode::SUCCESS),
        Command::Topology(args) => topology::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args, Live::open),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vmdtrace: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
