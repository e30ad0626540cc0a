//! `vmdtrace compare`: what differs between two recordings, and why the slower
//! one is slower.

use std::path::{Path, PathBuf};

use super::diagnose::{Output, print, recorded, thresholds};
use crate::diagnose::Diagnosis;
use crate::diagnose::compare::relative_error;
use crate::diagnose::picture::Picture;

/// Say why one of two recordings is slower, with the numbers
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A recording
    a: PathBuf,
    /// Another one; the order does not matter
    b: PathBuf,
    /// Other thresholds: lines of `name = number` (docs/diagnosis.md lists them)
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the comparison.
///
/// # Errors
/// When a file cannot be read.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let thresholds = thresholds(args.thresholds.as_deref())?;
    let picture = |file: &Path| -> anyhow::Result<Picture> {
        let recorded = recorded(file)?;
        Ok(Picture {
            rate_error: relative_error(&recorded.rates),
            ..Picture::of(&recorded.window, &thresholds)
        })
    };
    let diagnosis = Diagnosis::of_two(picture(&args.a)?, picture(&args.b)?, &thresholds);
    print(&diagnosis, args.output)
}
