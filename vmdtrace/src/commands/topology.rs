//! `vmdtrace topology`: controllers, disks, queues and interrupt lines as
//! `/sys` and `/proc` tell them. Needs no privilege.

mod text;

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::output::{Output, print};
use crate::host::topology::Topology;
use crate::host::{self, Roots};
use crate::snapshot::recording::{Ending, ReadError, Reader};

/// Show VMD controllers, NVMe disks, queues, interrupt lines and their CPUs
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Show what a recording holds instead (its last Snapshot)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sysfs", "procfs"])]
    from: Option<PathBuf>,
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
    let topology = match &args.from {
        Some(file) => recorded(file)?,
        None => read(args)?,
    };
    let shown = match args.output {
        Output::Text => text::render(&topology),
        Output::Json => {
            serde_json::to_string_pretty(&topology).context("cannot write the topology as JSON")?
                + "\n"
        }
    };
    print(&shown)
}

fn read(args: &Args) -> anyhow::Result<Topology> {
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
    Ok(host::read(&Roots {
        sysfs: args.sysfs.clone(),
        procfs: args.procfs.clone(),
    }))
}

/// The topology of a recording's last Snapshot.
fn recorded(file: &Path) -> anyhow::Result<Topology> {
    let unreadable = || format!("cannot read {}", file.display());
    let mut reader = Reader::open(file).with_context(unreadable)?;
    let mut topology = None;
    while let Some(snapshot) = reader.next_snapshot().with_context(unreadable)? {
        topology = Some(snapshot.topology);
    }
    if let Some(ending @ (Ending::Cut { .. } | Ending::Damaged { .. })) = reader.ending() {
        eprintln!("vmdtrace: {}: {ending}", file.display());
    }
    topology.ok_or(ReadError::Empty).with_context(unreadable)
}
