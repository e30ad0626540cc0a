//! The command; everything it does is in the library.

use std::{process::ExitCode, sync::Arc};

use clap::Parser as _;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::{compare, diagnose, doctor, generate, record, replay, serve, topology};
use vmdtrace::logging;
use vmdtrace::snapshot::live::Live;

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    let result = match Cli::parse().command {
        Command::Serve(args) => {
            serve::run(args, |options| Ok(Arc::new(Live::open(options)?))).map(done)
        }
        Command::Topology(args) => topology::run(&args).map(done),
        Command::Record(args) => logging::start(logging::Level::Warn, logging::Format::Text)
            .and_then(|()| record::run(args, |options| Ok(Arc::new(Live::open(options)?))))
            .map(ExitCode::from),
        Command::Replay(args) => replay::run(args).map(done),
        Command::Diagnose(args) => logging::start(logging::Level::Warn, logging::Format::Text)
            .and_then(|()| diagnose::run(args, |options| Ok(Arc::new(Live::open(options)?))))
            .map(done),
        Command::Compare(args) => compare::run(&args).map(done),
        Command::Generate(args) => generate::run(&args).map(done),
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
