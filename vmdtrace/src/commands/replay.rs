//! `vmdtrace replay`: a recording as metrics.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};

use super::serve::{Devices, log_host, serve_from};
use crate::logging;
use crate::metrics::Detail;
use crate::metrics::openmetrics::History;
use crate::snapshot::recording::{Ending, Reader, Replay};
use crate::snapshot::source::SnapshotSource as _;
use crate::snapshot::{self};
use crate::web::Limits;
use crate::web::address::{DEFAULT_LISTEN_ADDRESS, ListenAddress};

/// Serve a recording as /metrics, or write it for Prometheus to import
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The recording.
    file: PathBuf,

    /// Write all of it as OpenMetrics text with time stamps instead, for
    /// `promtool tsdb create-blocks-from openmetrics`.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["speed", "listen_addresses"])]
    openmetrics: Option<PathBuf>,

    /// How many times as fast as it was recorded.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = speed)]
    speed: f64,

    /// Where to serve /metrics: HOST:PORT, [IPV6]:PORT, or :PORT for all
    /// addresses. May be given more than once.
    #[arg(
        long = "web.listen-address",
        value_name = "ADDRESS",
        default_value = DEFAULT_LISTEN_ADDRESS
    )]
    listen_addresses: Vec<ListenAddress>,

    /// Every interrupt line's own counters, too; for a recording made with
    /// --lines.
    #[arg(long = "metrics.lines")]
    metrics_lines: bool,

    /// Of the lines, only the controllers' own vectors, which are few: up to 5
    /// series each.
    #[arg(long = "metrics.vectors")]
    metrics_vectors: bool,

    /// Where completions of each disk land and how long they take, too; for a
    /// recording made with --lines.
    #[arg(long = "metrics.disks")]
    metrics_disks: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if speed.is_finite() && speed > 0.0 {
        Ok(speed)
    } else {
        Err("not a positive number".to_owned())
    }
}

/// Serves until SIGTERM or Ctrl-C, or writes the text.
///
/// # Errors
/// When the recording cannot be read, or what it is turned into not written.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        file,
        openmetrics,
        speed,
        listen_addresses,
        metrics_lines,
        metrics_vectors,
        metrics_disks,
    } = args;
    logging::start(logging::Level::Info, logging::Format::Text)?;
    let reader = Reader::open(&file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(
        !(metrics_lines || metrics_vectors || metrics_disks)
            || reader.header().detail == snapshot::Detail::Lines,
        "{} holds sums only, so --metrics.lines, --metrics.vectors and --metrics.disks have nothing to show; record with --lines",
        file.display()
    );
    let detail = Detail {
        lines: metrics_lines,
        vectors: metrics_vectors,
        disks: metrics_disks,
        // No recording has them.
        cpus: false,
    };
    if let Some(out) = openmetrics {
        return write_openmetrics(reader, detail, &out)
            .with_context(|| format!("{} to {}", file.display(), out.display()));
    }
    let replay =
        Replay::new(reader, speed).with_context(|| format!("cannot read {}", file.display()))?;
    let source = Arc::new(replay);
    log_host(&source.snapshot()?);
    let listeners = listen_addresses
        .iter()
        .map(ListenAddress::bind)
        .collect::<Result<Vec<_>, _>>()?;
    serve_from(
        listeners,
        source,
        detail,
        Limits::default(),
        Devices::Ignore,
        || {
            tracing::warn!("SIGHUP: a replay has no settings to read again");
            None
        },
    )
}

fn write_openmetrics(
    mut reader: Reader<BufReader<File>>,
    detail: Detail,
    out: &Path,
) -> anyhow::Result<()> {
    let boot_unix_ns = reader.header().boot_unix_ns;
    let mut history = History::default();
    while let Some(snapshot) = reader.next_snapshot()? {
        let unix_ms = boot_unix_ns.saturating_add(snapshot.taken_ns) / 1_000_000;
        history.add(&snapshot, unix_ms, detail)?;
    }
    if let Some(ending @ (Ending::Cut { .. } | Ending::Damaged { .. })) = reader.ending() {
        tracing::warn!("{ending}");
    }
    let mut writer = BufWriter::new(File::create(out)?);
    let samples = history.write(&mut writer)?;
    writer.flush()?;
    tracing::info!("{samples} samples written to {}", out.display());
    Ok(())
}
