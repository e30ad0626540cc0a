//! The command line.

use clap::{Parser, Subcommand};

use crate::commands::{compare, diagnose, doctor, generate, record, replay, serve, topology};

/// What interrupts do behind an Intel VMD.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 done, or stopped cleanly by SIGTERM or Ctrl-C; 1 an error, told \
                  on stderr; 2 a wrong command line. `record` with a command: the command's \
                  own, 128 and the number of the signal that ended it, 126 or 127 where it \
                  could not be started. `doctor` has its own: see its help."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon: count interrupts and serve them to Prometheus.
    Serve(serve::Args),
    Topology(topology::Args),
    Doctor(doctor::Args),
    Record(record::Args),
    Replay(replay::Args),
    Diagnose(diagnose::Args),
    Compare(compare::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}
