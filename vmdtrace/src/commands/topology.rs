//! `vmdtrace topology`: controllers, disks, queues and interrupt lines as
//! `/sys` and `/proc` tell them. Needs no privilege.

mod text;

use std::path::PathBuf;

use anyhow::Context;

use super::output::{Output, print};
use crate::host::{self, Roots};

/// Show VMD controllers, NVMe disks, queues, interrupt lines and their CPUs
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Where sysfs is mounted
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys")]
    sysfs: PathBuf,
    /// Where procfs is mounted
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc")]
    procfs: PathBuf,
}

/// Reads the host and prints it to standard output.
///
/// # Errors
/// When a root is not a directory or standard output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    for (option, path) in [
        ("--path.sysfs", &args.sysfs),
        ("--path.procfs", &args.procfs),
    ] {
        std::fs::read_dir(path).with_context(|| {
            format!(
                "cannot read the directory {} (given by {option})",
                path.display()
            )
        })?;
    }
    let topology = host::read(&Roots {
        sysfs: args.sysfs.clone(),
        procfs: args.procfs.clone(),
    });
    let shown = match args.output {
        Output::Text => text::render(&topology),
        Output::Json => {
            serde_json::to_string_pretty(&topology).context("cannot write the topology as JSON")?
                + "\n"
        }
    };
    print(&shown)
}
