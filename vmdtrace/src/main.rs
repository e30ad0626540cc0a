//! The command; everything it does is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::{serve, topology};

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args, serve::open_live),
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
