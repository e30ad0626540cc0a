//! `vmdtrace compare`: what differs between two recordings, and why the slower
//! one is slower.

use std::path::PathBuf;

use anyhow::Context as _;

use super::diagnose::{print, recorded, thresholds};
use super::output::Output;
use crate::diagnose::Diagnosis;
use crate::diagnose::compare::relative_error;
use crate::diagnose::picture::Picture;
use crate::diagnose::recorded::{Rate, parts, turn};
use crate::snapshot::recording::Reader;
use crate::snapshot::window::Window;

/// Say why one of two recordings is slower, with the numbers; or a part of one
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A recording
    a: PathBuf,
    /// Another one; the order does not matter. Without it the parts of the first
    /// before and after its greatest change of rate are compared
    b: Option<PathBuf>,
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
/// When a file cannot be read, or a single one has no change of rate.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let thresholds = thresholds(args.thresholds.as_deref())?;
    let a = recorded(&args.a)?;
    let picture = |window: &Window, rates: &[Rate]| {
        let rates: Vec<f64> = rates.iter().map(|it| it.per_second).collect();
        Picture {
            rate_error: relative_error(&rates),
            ..Picture::of(window, &thresholds)
        }
    };
    let (a, b) = if let Some(b) = &args.b {
        let b = recorded(b)?;
        (picture(&a.window, &a.rates), picture(&b.window, &b.rates))
    } else {
        let shown = args.a.display();
        let turn = turn(&a.rates, &thresholds).with_context(|| {
            format!(
                "the I/O rate in {shown} does not change by a factor of {} beyond chance: name \
                 another recording to compare it with",
                thresholds.rate_changed
            )
        })?;
        let unreadable = || format!("cannot read {shown}");
        let reader = Reader::open(&args.a).with_context(unreadable)?;
        let (before, after) = parts(reader, turn.at_ns).with_context(unreadable)?;
        eprintln!(
            "vmdtrace: the rate went from {:.0} to {:.0} I/Os per second {:.1} s after the begin",
            turn.before,
            turn.after,
            before.elapsed_ns as f64 / 1e9
        );
        let at = a.rates.partition_point(|rate| rate.until_ns <= turn.at_ns);
        let (rates_before, rates_after) = a.rates.split_at(at);
        (picture(&before, rates_before), picture(&after, rates_after))
    };
    print(&Diagnosis::of_two(a, b, &thresholds), args.output)
}
