//! `vmdtrace diagnose`: why the I/O rate is what it is, of this host or of a
//! recording.

mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::directory;
use super::output::{self, Output};
use crate::diagnose::Diagnosis;
use crate::diagnose::picture::Picture;
use crate::diagnose::recorded::{Recorded, turn};
use crate::diagnose::thresholds::Thresholds;
use crate::host::Roots;
use crate::snapshot::recording::Reader;
use crate::snapshot::source::{Level, SnapshotSource, SourceOptions};
use crate::snapshot::window::Window;

/// Shorter windows have too few of the kernel's ticks of 10 ms.
const MIN_TIME: Duration = Duration::from_secs(1);
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Say why the I/O rate is what it is, with the numbers, or that they do not tell
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// How long to look at this host, such as 10s: from 1s to 1h
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = "10s",
        value_parser = time,
        conflicts_with = "from"
    )]
    duration: Duration,
    /// Look at a recording instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sysfs", "procfs"])]
    from: Option<PathBuf>,
    /// Other thresholds: lines of `name = number` (docs/diagnosis.md lists them)
    #[arg(long, value_name = "FILE")]
    thresholds: Option<PathBuf>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Where sysfs is mounted
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", value_parser = directory)]
    sysfs: PathBuf,
    /// Where procfs is mounted
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", value_parser = directory)]
    procfs: PathBuf,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (MIN_TIME..=MAX_TIME).contains(&time) {
        Ok(time)
    } else {
        Err("must be from 1s to 1h".to_owned())
    }
}

/// Prints the diagnosis. `open` loads and attaches the probes.
///
/// # Errors
/// When nothing can be counted, or a file not be read.
pub fn run<O>(args: Args, open: O) -> anyhow::Result<()>
where
    O: FnOnce(&SourceOptions) -> anyhow::Result<Arc<dyn SnapshotSource>>,
{
    let Args {
        duration,
        from,
        thresholds,
        output,
        sysfs,
        procfs,
    } = args;
    let thresholds = self::thresholds(thresholds.as_deref())?;
    let window = match from {
        Some(file) => {
            let recorded = recorded(&file)?;
            if turn(&recorded.rates, &thresholds).is_some() {
                eprintln!(
                    "vmdtrace: the rate changes in {0}: `vmdtrace compare {0}` compares before and \
                     after",
                    file.display()
                );
            }
            recorded.window
        }
        None => {
            let source = open(&SourceOptions {
                roots: Roots { sysfs, procfs },
                also_lines: Vec::new(),
                level: Level::Timing,
                kprobes: true,
                shares: false,
                activity: true,
            })?;
            let first = source.snapshot()?;
            eprintln!(
                "vmdtrace: looking at this host for {}",
                humantime::format_duration(duration)
            );
            std::thread::sleep(duration);
            Window::between(&first, &source.snapshot()?)?
        }
    };
    let picture = Picture::of(&window, &thresholds);
    print(&Diagnosis::of(picture, &thresholds), output)
}

pub(super) fn thresholds(file: Option<&Path>) -> anyhow::Result<Thresholds> {
    /// More is no file of thresholds.
    const MAX_BYTES: u64 = 1 << 20;
    let Some(file) = file else {
        return Ok(Thresholds::default());
    };
    let unreadable = || format!("cannot read {}", file.display());
    let size = std::fs::metadata(file).with_context(unreadable)?.len();
    ensure!(size <= MAX_BYTES, "{} is larger than 1 MiB", file.display());
    let text = std::fs::read_to_string(file).with_context(unreadable)?;
    Thresholds::parse(&text).with_context(|| file.display().to_string())
}

/// A recording; how it ends, where that is not well, is told.
pub(super) fn recorded(file: &Path) -> anyhow::Result<Recorded> {
    let unreadable = || format!("cannot read {}", file.display());
    let reader = Reader::open(file).with_context(unreadable)?;
    let recorded = Recorded::read(reader).with_context(unreadable)?;
    if let Some(ending) = &recorded.ending {
        eprintln!("vmdtrace: {}: {ending}", file.display());
    }
    Ok(recorded)
}

pub(super) fn print(diagnosis: &Diagnosis, output: Output) -> anyhow::Result<()> {
    let shown = match output {
        Output::Text => text::render(diagnosis),
        Output::Json => {
            serde_json::to_string_pretty(diagnosis).context("cannot write the diagnosis as JSON")?
                + "\n"
        }
    };
    output::print(&shown)
}
