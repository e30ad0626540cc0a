//! `vmdtrace serve`: the daemon.

use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::host::Roots;
use crate::logging;
use crate::metrics::Detail;
use crate::snapshot::source::{Level, SnapshotSource, SourceOptions};
use crate::snapshot::{Probe, ProbeState, Snapshot};
use crate::uevent;
use crate::web::address::{DEFAULT_LISTEN_ADDRESS, ListenAddress};
use crate::web::{DEFAULT_MAX_REQUESTS, Limits, serve};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to serve /metrics: HOST:PORT, [IPV6]:PORT, or :PORT for all
    /// addresses. May be given more than once.
    #[arg(
        long = "web.listen-address",
        value_name = "ADDRESS",
        default_value = DEFAULT_LISTEN_ADDRESS
    )]
    listen_addresses: Vec<ListenAddress>,

    /// Scrapes that may run at the same time; more are answered with 503.
    #[arg(
        long = "web.max-requests",
        value_name = "N",
        default_value_t = DEFAULT_MAX_REQUESTS as u16,
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    max_requests: u16,

    /// Export every interrupt line's own counters, too, beside the sums per
    /// disk: up to 7 series a line, so thousands on a large server.
    #[arg(long = "metrics.lines")]
    metrics_lines: bool,

    /// Of the lines, only the controllers' own vectors, which are few: up to 5
    /// series each.
    #[arg(long = "metrics.vectors")]
    metrics_vectors: bool,

    /// Export for each disk, too, beside the sums per controller: where its
    /// completions land, how long they take, time-outs and lost interrupts; and
    /// operations on interrupts by controller. 24 series a disk.
    #[arg(long = "metrics.disks")]
    metrics_disks: bool,

    /// Watch other interrupt lines, too, by action name (the last column of
    /// /proc/interrupts), such as 'eth0-*'. May be given more than once.
    #[arg(long, value_name = "GLOB", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    also_lines: Vec<String>,

    /// How much is measured: `counters` reads no clock and costs less.
    #[arg(long, value_enum, default_value_t)]
    level: Level,

    /// Make no kprobes: time-outs and lost interrupts are then not counted.
    #[arg(long)]
    no_kprobes: bool,

    /// Where sysfs is mounted.
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", value_parser = super::directory)]
    sysfs: PathBuf,

    /// Where procfs is mounted.
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", value_parser = super::directory)]
    procfs: PathBuf,

    /// Least severe log records to write.
    #[arg(long = "log.level", value_enum, value_name = "LEVEL", default_value_t)]
    log_level: logging::Level,

    /// How log records are written.
    #[arg(
        long = "log.format",
        value_enum,
        value_name = "FORMAT",
        default_value_t
    )]
    log_format: logging::Format,
}

/// Runs until SIGTERM or Ctrl-C. `open` loads and attaches the probes; its
/// error is the first there is, so a missing privilege is told before anything
/// else.
pub fn run<O>(args: Args, open: O) -> anyhow::Result<()>
where
    O: FnOnce(&SourceOptions) -> anyhow::Result<Arc<dyn SnapshotSource>>,
{
    let Args {
        listen_addresses,
        max_requests,
        metrics_lines,
        metrics_vectors,
        metrics_disks,
        also_lines,
        level,
        no_kprobes,
        sysfs,
        procfs,
        log_level,
        log_format,
    } = args;
    logging::start(log_level, log_format)?;
    let source = open(&SourceOptions {
        roots: Roots { sysfs, procfs },
        also_lines,
        level,
        kprobes: !no_kprobes,
        activity: false,
    })?;
    log_host(&source.sums()?);
    let listeners = listen_addresses
        .iter()
        .map(ListenAddress::bind)
        .collect::<Result<Vec<_>, _>>()?;
    let limits = Limits {
        max_requests: max_requests.into(),
        ..Limits::default()
    };

    let detail = Detail {
        lines: metrics_lines,
        vectors: metrics_vectors,
        disks: metrics_disks,
    };

    serve_from(listeners, source, detail, limits, Devices::Follow)
}

/// Whether the source of Snapshots wants to know of devices that come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Devices {
    Follow,
    Ignore,
}

/// Serves until SIGTERM or Ctrl-C.
pub(super) fn serve_from(
    listeners: Vec<TcpListener>,
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    limits: Limits,
    devices: Devices,
) -> anyhow::Result<()> {
    // One thread drives everything; scrapes run on blocking threads. Those are
    // kept, since a thread's end between two scrapes would be a wake-up.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(limits.max_requests)
        .thread_keep_alive(Duration::from_secs(3600))
        .build()
        .context("cannot start the asynchronous runtime")?;
    let kept = Arc::clone(&source);
    let result = runtime.block_on(serve_until_signal(
        listeners, source, detail, limits, devices,
    ));
    kept.close();
    // A scrape that hangs in the kernel must not hold up the exit.
    runtime.shutdown_background();
    result
}

async fn serve_until_signal(
    listeners: Vec<TcpListener>,
    source: Arc<dyn SnapshotSource>,
    detail: Detail,
    limits: Limits,
    devices: Devices,
) -> anyhow::Result<()> {
    let stop = stop_signal().context("cannot catch signals")?;
    let listeners = listeners
        .into_iter()
        .map(tokio::net::TcpListener::from_std)
        .collect::<Result<Vec<_>, _>>()
        .context("cannot wait for connections")?;
    for listener in &listeners {
        let address = listener
            .local_addr()
            .context("cannot tell a listening address")?;
        tracing::info!("listening on http://{address}/metrics");
    }
    if devices == Devices::Follow {
        follow_uevents(Arc::clone(&source));
    }
    serve(listeners, source, detail, limits, stop).await;
    tracing::info!("stopped");
    Ok(())
}

/// Ready when the process is asked to stop. The handlers are in place when
/// this returns.
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "Ctrl-C",
        };
        tracing::info!("{name}: stopping");
    })
}

/// Follows the kernel's device events on a thread that ends with the process.
pub(super) fn follow_uevents(source: Arc<dyn SnapshotSource>) {
    let started = uevent::Listener::open().and_then(|listener| {
        std::thread::Builder::new()
            .name("uevents".to_owned())
            .spawn(move || {
                // What came between opening the source and listening was missed.
                source.attach_pending();
                source.topology_changed();
                warn_of_lost_uevents(&listener.run(&*source));
            })
    });
    if let Err(error) = started {
        warn_of_lost_uevents(&error);
    }
}

fn warn_of_lost_uevents(error: &std::io::Error) {
    tracing::warn!(
        "cannot follow the kernel's device events ({error}): disks and kernel modules that come \
         or go from now on are not noticed; restart vmdtrace after such a change"
    );
}

pub(super) fn log_host(snapshot: &Snapshot) {
    for problem in &snapshot.topology.problems {
        tracing::warn!("{problem}");
    }
    for Probe {
        name,
        state,
        mechanism,
        reason,
        ..
    } in &snapshot.probes
    {
        let reason = reason.as_deref().unwrap_or("no reason given");
        match state {
            // What attached it said so when it did.
            ProbeState::Attached => {}
            ProbeState::NotApplicable => tracing::info!("probe {name} is {state}: {reason}"),
            // A driver without the function does not do what it would do.
            ProbeState::Unsupported if mechanism == "kprobe" => {
                tracing::info!("probe {name} is {state}: {reason}");
            }
            ProbeState::Unsupported | ProbeState::Blocked | ProbeState::Broken => {
                tracing::warn!("probe {name} is {state}: {reason}");
            }
        }
    }
    let (controllers, disks) = (
        snapshot.topology.controllers.len(),
        snapshot.topology.disks.len(),
    );
    if controllers == 0 {
        tracing::info!("no VMD controller found; {disks} NVMe disks not behind one are counted");
    } else {
        tracing::info!("{controllers} VMD controllers and {disks} NVMe disks found");
    }
}
