//! `vmdtrace serve`: the daemon.

use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::Flags;
use crate::host::Roots;
use crate::logging;
use crate::metrics::Detail;
use crate::probes::{kallsyms, names};
use crate::service_manager;
use crate::snapshot::source::{Level, SnapshotSource, SourceOptions};
use crate::snapshot::{Probe, ProbeState, Snapshot};
use crate::uevent;
use crate::web::address::{DEFAULT_LISTEN_ADDRESS, ListenAddress};
use crate::web::{Answering, Control, DEFAULT_MAX_REQUESTS, Limits, MOST_REQUESTS, control, serve};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Settings as `name: value`, by the names of the flags without the dashes
    /// (YAML). A flag overrides the file. SIGHUP reads it again.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,

    /// Only say whether the settings are right.
    #[arg(long = "config.check", requires = "config_file")]
    config_check: bool,

    #[command(flatten)]
    flags: Flags<Settings>,
}

/// What may be set by flags and by the file.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct Settings {
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
        value_parser = clap::value_parser!(u16).range(1..=MOST_REQUESTS as i64)
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

    /// Count for each CPU, too, what it does for each controller: hardware
    /// interrupts, time in handlers, completions. Up to 3 series for each CPU and
    /// controller.
    #[arg(long = "metrics.cpus")]
    metrics_cpus: bool,

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

impl Settings {
    fn answering(&self) -> Answering {
        Answering {
            detail: Detail {
                lines: self.metrics_lines,
                vectors: self.metrics_vectors,
                disks: self.metrics_disks,
                cpus: self.metrics_cpus,
            },
            max_requests: self.max_requests.into(),
        }
    }

    /// These, with only what can change while the daemon runs taken from `wanted`;
    /// and the names of what else differs.
    fn changed_to(&self, wanted: Self) -> (Self, Vec<&'static str>) {
        let Self {
            listen_addresses,
            max_requests,
            metrics_lines,
            metrics_vectors,
            metrics_disks,
            metrics_cpus,
            also_lines,
            level,
            no_kprobes,
            sysfs,
            procfs,
            log_level,
            log_format,
        } = wanted;
        let fixed = [
            (
                "web.listen-address",
                listen_addresses != self.listen_addresses,
            ),
            ("metrics.cpus", metrics_cpus != self.metrics_cpus),
            ("also-lines", also_lines != self.also_lines),
            ("level", level != self.level),
            ("no-kprobes", no_kprobes != self.no_kprobes),
            ("path.sysfs", sysfs != self.sysfs),
            ("path.procfs", procfs != self.procfs),
            ("log.format", log_format != self.log_format),
        ];
        let differing = fixed.into_iter().filter(|(_, differs)| *differs);
        let settings = Self {
            max_requests,
            metrics_lines,
            metrics_vectors,
            metrics_disks,
            log_level,
            ..self.clone()
        };
        (settings, differing.map(|(name, _)| name).collect())
    }
}

/// Runs until SIGTERM or Ctrl-C. `open` loads and attaches the probes, and gives up
/// what privileges this process has; the addresses to listen on, which may take
/// some, are bound before that.
pub fn run<O>(args: Args, open: O) -> anyhow::Result<()>
where
    O: FnOnce(&SourceOptions, logging::Settings) -> anyhow::Result<Arc<dyn SnapshotSource>>,
{
    let Args {
        config_file,
        config_check,
        flags,
    } = args;
    let settings = checked(&flags, config_file.as_deref())?;
    if let (true, Some(file)) = (config_check, &config_file) {
        println!("{}: all settings are right", file.display());
        return Ok(());
    }
    logging::start(settings.log_level, settings.log_format)?;
    let listeners = settings
        .listen_addresses
        .iter()
        .map(ListenAddress::bind)
        .collect::<Result<Vec<_>, _>>()?;
    let options = SourceOptions {
        roots: Roots {
            sysfs: settings.sysfs.clone(),
            procfs: settings.procfs.clone(),
        },
        also_lines: settings.also_lines.clone(),
        level: settings.level,
        kprobes: !settings.no_kprobes,
        shares: settings.metrics_cpus,
        activity: false,
    };
    let log = logging::Settings {
        level: settings.log_level,
        format: settings.log_format,
    };
    // For the helper, where `open` starts one.
    let symbols = kallsyms::PassedOn::new();
    let source = open(&options, log)?;
    drop(symbols);
    log_host(&source.sums()?);
    let Answering {
        detail,
        max_requests,
    } = settings.answering();
    let limits = Limits {
        max_requests,
        ..Limits::default()
    };
    let reload = Reload {
        flags,
        file: config_file,
        settings: Mutex::new(settings),
        source: Arc::clone(&source),
    };
    serve_from(
        listeners,
        source,
        detail,
        limits,
        Devices::Follow,
        move || reload.again(),
    )
}

/// The settings, as far as they can be judged before they are used.
fn checked(flags: &Flags<Settings>, file: Option<&Path>) -> anyhow::Result<Settings> {
    let settings = flags.settings(file)?;
    names::compile(&settings.also_lines)?;
    Ok(settings)
}

/// Reads the settings again.
struct Reload {
    flags: Flags<Settings>,
    file: Option<PathBuf>,
    /// In force.
    settings: Mutex<Settings>,
    source: Arc<dyn SnapshotSource>,
}

impl Reload {
    /// What is answered from now on; the rest is done, and all of it logged.
    fn again(&self) -> Option<Answering> {
        let Some(file) = &self.file else {
            tracing::warn!("SIGHUP: there is no --config.file to read again");
            return None;
        };
        let wanted = match checked(&self.flags, Some(file)) {
            Ok(wanted) => wanted,
            Err(error) => {
                tracing::error!("SIGHUP: the settings stay as they were: {error:#}");
                return None;
            }
        };
        // A panic while it was held leaves the old settings.
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, differing) = settings.changed_to(wanted);
        if now.log_level != settings.log_level {
            let told = [
                logging::set_level(now.log_level),
                self.source.set_log_level(now.log_level),
            ];
            for error in told.into_iter().filter_map(Result::err) {
                tracing::error!(
                    "SIGHUP: the level of the log does not change everywhere: {error:#}"
                );
            }
        }
        tracing::info!(
            "SIGHUP: {} read again; in force: web.max-requests {}, metrics.lines {}, \
             metrics.vectors {}, metrics.disks {}",
            file.display(),
            now.max_requests,
            now.metrics_lines,
            now.metrics_vectors,
            now.metrics_disks,
        );
        if !differing.is_empty() {
            tracing::warn!(
                "SIGHUP: {} changed, too: restart vmdtrace for that to take effect",
                differing.join(", ")
            );
        }
        *settings = now;
        Some(settings.answering())
    }
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
    reload: impl Fn() -> Option<Answering> + Send + Sync + 'static,
) -> anyhow::Result<()> {
    // One thread drives everything; scrapes run on blocking threads. Those are
    // kept, since a thread's end between two scrapes would be a wake-up. The
    // watchdog and a reload have their own, however many requests hang.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MOST_REQUESTS + 2)
        .thread_keep_alive(Duration::from_secs(3600))
        .build()
        .context("cannot start the asynchronous runtime")?;
    let kept = Arc::clone(&source);
    let result = runtime.block_on(serve_until_signal(
        listeners,
        source,
        detail,
        limits,
        devices,
        Arc::new(reload),
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
    reload: Arc<impl Fn() -> Option<Answering> + Send + Sync + 'static>,
) -> anyhow::Result<()> {
    let stop = stop_signal().context("cannot catch signals")?;
    let hangups = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
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
    let (control, controlled) = control();
    tokio::spawn(follow_hangups(hangups, reload, control.clone()));
    if let Some(limit) = service_manager::watchdog() {
        let source = Arc::clone(&source);
        tokio::spawn(service_manager::feed_watchdog(limit, move || {
            can_answer(control.clone(), Arc::clone(&source))
        }));
    }
    let end = source.take_end();
    let mut ended = None;
    let stop = async {
        tokio::select! {
            () = stop => service_manager::stopping(),
            reason = end_of(end) => ended = Some(reason),
        }
    };
    service_manager::ready();
    serve(listeners, source, detail, limits, controlled, stop).await;
    match ended {
        None => {
            tracing::info!("stopped");
            Ok(())
        }
        // What is served from now on would only look as if it was counted.
        Some(reason) => Err(anyhow::anyhow!(reason)),
    }
}

/// Ready when nothing is counted any more; says why.
async fn end_of(end: Option<oneshot::Receiver<String>>) -> String {
    match end {
        Some(end) => match end.await {
            Ok(reason) => reason,
            // Nobody is left to tell.
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Reads the settings again whenever SIGHUP asks for it.
async fn follow_hangups(
    mut hangups: Signal,
    reload: Arc<impl Fn() -> Option<Answering> + Send + Sync + 'static>,
    control: Control,
) {
    while hangups.recv().await.is_some() {
        service_manager::reloading();
        let reload = Arc::clone(&reload);
        // The disk that the file is on may be the one that hangs.
        match tokio::task::spawn_blocking(move || reload()).await {
            Ok(Some(answering)) => {
                // The server is gone only when the process is about to end.
                let _there = control.change(answering).await;
            }
            Ok(None) => {}
            Err(error) => tracing::error!("SIGHUP: the settings were not read: {error}"),
        }
        service_manager::ready();
    }
}

/// Whether a scrape would be answered, found out by what a scrape needs: that
/// connections are accepted, and that a Snapshot can be taken. An error is an
/// answer, too.
async fn can_answer(control: Control, source: Arc<dyn SnapshotSource>) -> bool {
    let taken = tokio::task::spawn_blocking(move || drop(source.snapshot()));
    control.accepts().await && taken.await.is_ok()
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::snapshot::source::SnapshotError;

    /// Only told of levels.
    #[derive(Default)]
    struct Levels(Mutex<Vec<logging::Level>>);

    impl SnapshotSource for Levels {
        fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
            Err(SnapshotError::new("nobody asks"))
        }

        fn attach_pending(&self) {}

        fn topology_changed(&self) {}

        fn cpus_changed(&self) {}

        fn set_log_level(&self, level: logging::Level) -> anyhow::Result<()> {
            self.0.lock().unwrap().push(level);
            Ok(())
        }
    }

    fn reload(file: &Path, arguments: &[&str], source: Arc<Levels>) -> Reload {
        let fixed = ["vmdtrace", "serve", "--config.file", file.to_str().unwrap()];
        let arguments = fixed.iter().chain(arguments);
        let Command::Serve(args) = Cli::try_parse_from(arguments).unwrap().command else {
            panic!("not serve");
        };
        let settings = args.flags.settings(Some(file)).unwrap();
        Reload {
            flags: args.flags,
            file: args.config_file,
            settings: Mutex::new(settings),
            source,
        }
    }

    #[test]
    fn a_reload_changes_what_it_can_and_a_bad_file_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("settings.yaml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("web.max-requests: 2\n");
        let levels = Arc::new(Levels::default());
        let reload = reload(&file, &["--metrics.disks"], Arc::clone(&levels));
        let before = reload.settings.lock().unwrap().clone();
        assert_eq!(before.answering().max_requests, 2);

        for bad in [
            "web.max-requests: 0\n",
            "web.max-request: 3\n",
            "also-lines: 'a['\n",
            "a",
        ] {
            write(bad);
            assert_eq!(reload.again(), None, "{bad}");
            assert_eq!(*reload.settings.lock().unwrap(), before, "{bad}");
        }

        write(
            "web.max-requests: 3\nmetrics.lines: true\nmetrics.disks: false\nlog.level: warn\n\
             level: counters\nmetrics.cpus: true\nweb.listen-address: ':1'\n",
        );
        let answering = reload.again().unwrap();
        assert_eq!(answering.max_requests, 3);
        // The flag still overrides the file.
        let lines_and_disks = Detail {
            lines: true,
            vectors: false,
            disks: true,
            cpus: false,
        };
        assert_eq!(answering.detail, lines_and_disks);
        let after = reload.settings.lock().unwrap().clone();
        let expected = Settings {
            max_requests: 3,
            metrics_lines: true,
            log_level: logging::Level::Warn,
            ..before.clone()
        };
        assert_eq!(after, expected);
        let wanted = reload.flags.settings(Some(&file)).unwrap();
        assert_eq!(
            before.changed_to(wanted).1,
            ["web.listen-address", "metrics.cpus", "level"],
            "what needs a restart is named"
        );

        // What is no longer in the file is at its default again.
        write("");
        assert_eq!(reload.again().unwrap().max_requests, DEFAULT_MAX_REQUESTS);
        assert!(reload.again().is_some());
        let told = [logging::Level::Warn, logging::Level::Info];
        assert_eq!(*levels.0.lock().unwrap(), told, "only what changed is told");
    }

    /// Its Snapshots wait for a word, and panic when nobody is left to say it.
    struct Held(Mutex<mpsc::Receiver<()>>);

    impl SnapshotSource for Held {
        fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
            self.0.lock().unwrap().recv().unwrap();
            Err(SnapshotError::new("an error is an answer"))
        }

        fn attach_pending(&self) {}

        fn topology_changed(&self) {}

        fn cpus_changed(&self) {}
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_only_while_a_scrape_would_be_answered() {
        const MOMENT: Duration = Duration::from_millis(50);
        let (go, held) = mpsc::channel();
        let source: Arc<dyn SnapshotSource> = Arc::new(Held(Mutex::new(held)));
        let (control, controlled) = control();
        let answers = || can_answer(control.clone(), Arc::clone(&source));

        // Nobody accepts.
        go.send(()).unwrap();
        assert!(tokio::time::timeout(MOMENT, answers()).await.is_err());

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = tokio::spawn(serve(
            vec![listener],
            Arc::clone(&source),
            Detail::default(),
            Limits::default(),
            controlled,
            std::future::pending::<()>(),
        ));
        go.send(()).unwrap();
        assert!(answers().await);

        // No Snapshot comes.
        assert!(tokio::time::timeout(MOMENT, answers()).await.is_err());
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(answers().await);

        drop(go);
        assert!(!answers().await, "the source panics");
        server.abort();
    }
}
