//! `vmdtrace record`: Snapshots into a file, while a command runs or until told
//! to stop.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use super::directory;
use super::serve::{follow_uevents, log_host};
use crate::host::Roots;
use crate::snapshot::Detail;
use crate::snapshot::recording::{Header, Writer};
use crate::snapshot::source::{Level, SnapshotSource, SourceOptions};

/// The kernel's own counts of CPUs are in ticks of 10 ms at best.
const MIN_EVERY: Duration = Duration::from_millis(10);
/// A year: anything longer is a typing error.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// What shells return for a command that cannot be run, and for one that there
/// is not.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Record what is counted into a file, for a time or while a command runs
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file to write. One that is there already is left alone.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Write over a file that is there already.
    #[arg(long)]
    force: bool,

    /// Time between two Snapshots, such as 1s or 250ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    every: Duration,

    /// Stop after this time, such as 60s or 10m. A command goes on without
    /// being recorded.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,

    /// Keep every interrupt line and CPU in every Snapshot, not only in the
    /// first, in the last and every five minutes: up to ten times as large.
    #[arg(long)]
    lines: bool,

    /// A note of your own, kept in the file.
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Watch other interrupt lines, too, by action name (the last column of
    /// /proc/interrupts), such as 'eth0-*'. May be given more than once.
    #[arg(long, value_name = "GLOB", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    also_lines: Vec<String>,

    /// How much is measured: `counters` reads no clock and costs less.
    #[arg(long, value_enum, default_value_t)]
    level: Level,

    /// Where sysfs is mounted.
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", value_parser = directory)]
    sysfs: PathBuf,

    /// Where procfs is mounted.
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", value_parser = directory)]
    procfs: PathBuf,

    /// A command to run: the recording lasts as long as it does, and its exit
    /// status is passed through. It is not kept in the file.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (MIN_EVERY..=MAX_TIME).contains(&time) {
        Ok(time)
    } else {
        Err("must be from 10ms to a year".to_owned())
    }
}

/// Records, and returns the exit status: the command's where one ran. `open`
/// loads and attaches the probes.
///
/// # Errors
/// When nothing can be counted or the file cannot be written.
pub fn run<O>(args: Args, open: O) -> anyhow::Result<u8>
where
    O: FnOnce(&SourceOptions) -> anyhow::Result<Arc<dyn SnapshotSource>>,
{
    let Args {
        output,
        force,
        every,
        duration,
        lines,
        note,
        also_lines,
        level,
        sysfs,
        procfs,
        command,
    } = args;
    let source = open(&SourceOptions {
        roots: Roots { sysfs, procfs },
        also_lines,
        level,
        kprobes: true,
        shares: false,
        activity: true,
    })?;
    let file = create(&output, force)?;
    let header = Header {
        created_by: concat!("vmdtrace ", env!("CARGO_PKG_VERSION")).to_owned(),
        boot_unix_ns: boot_unix_ns().context("cannot read the clock")?,
        every_ns: every.as_nanos() as u64,
        detail: if lines { Detail::Lines } else { Detail::Sums },
        note,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the asynchronous runtime")?;
    let recorder = Recorder {
        writer: Writer::new(file, &header)
            .with_context(|| format!("cannot write {}", output.display()))?,
        source: Arc::clone(&source),
        path: output,
        started: Instant::now(),
        shows_progress: std::io::stderr().is_terminal(),
    };
    let status = runtime.block_on(record(recorder, every, duration, &command));
    source.close();
    let status = status?;
    Ok(u8::try_from(status).unwrap_or(u8::MAX))
}

fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(path).map_err(|error| {
        let remedy = if error.kind() == ErrorKind::AlreadyExists {
            ": take another name, or --force to write over it"
        } else {
            ""
        };
        anyhow::anyhow!("cannot create {}: {error}{remedy}", path.display())
    })
}

/// Nanoseconds since 1970 when the clock of Snapshots was 0.
fn boot_unix_ns() -> nix::Result<u64> {
    let nanoseconds = |clock| clock_gettime(clock).map(|it| Duration::from(it).as_nanos() as u64);
    let since_boot = nanoseconds(ClockId::CLOCK_BOOTTIME)?;
    Ok(nanoseconds(ClockId::CLOCK_REALTIME)?.saturating_sub(since_boot))
}

struct Recorder {
    writer: Writer<File>,
    source: Arc<dyn SnapshotSource>,
    path: PathBuf,
    started: Instant,
    shows_progress: bool,
}

impl Recorder {
    fn take(&mut self) -> anyhow::Result<()> {
        let snapshot = self.source.snapshot()?;
        let written = self.writer.write(&snapshot);
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        if self.shows_progress {
            eprint!("\rvmdtrace: {}", self.progress());
        }
        Ok(())
    }

    /// Takes a last Snapshot, with everything in it, and ends the file.
    fn finish(mut self, command_status: Option<i32>) -> anyhow::Result<()> {
        let snapshot = self.source.snapshot()?;
        let unwritable = || format!("cannot write {}", self.path.display());
        self.writer
            .write_whole(&snapshot)
            .with_context(unwritable)?;
        let begin = if self.shows_progress { "\r" } else { "" };
        let progress = self.progress();
        self.writer
            .finish(command_status)
            .with_context(unwritable)?;
        eprintln!("{begin}vmdtrace: {progress}, in {}", self.path.display());
        Ok(())
    }

    fn progress(&self) -> String {
        format!(
            "{} snapshots, {} kB, {} s",
            self.writer.snapshots(),
            self.writer.bytes().div_ceil(1000),
            self.started.elapsed().as_secs()
        )
    }
}

/// Records until there is a reason to stop; returns the exit status.
async fn record(
    mut recorder: Recorder,
    every: Duration,
    duration: Option<Duration>,
    command: &[OsString],
) -> anyhow::Result<i32> {
    let mut signals = Signals::catch().context("cannot catch signals")?;
    log_host(&recorder.source.snapshot()?);
    follow_uevents(Arc::clone(&recorder.source));
    recorder.take()?;
    let mut running = match command.split_first() {
        None => None,
        Some((program, arguments)) => match Command::new(program).args(arguments).spawn() {
            Ok(child) => Some(Running::new(child)),
            Err(error) => {
                let status = if error.kind() == ErrorKind::NotFound {
                    NOT_FOUND
                } else {
                    CANNOT_RUN
                };
                recorder.finish(Some(status))?;
                eprintln!(
                    "vmdtrace: error: cannot run {}: {error}",
                    Path::new(program).display()
                );
                return Ok(status);
            }
        },
    };
    let recorded = record_until_done(
        &mut recorder,
        every,
        duration,
        &mut signals,
        running.as_mut(),
    )
    .await;
    let status = running.as_ref().and_then(|running| running.status);
    // The command is waited for whatever becomes of the file.
    let recorded = recorded.and_then(|()| recorder.finish(status));
    if let Err(error) = &recorded
        && running.is_some()
        && status.is_none()
    {
        eprintln!("vmdtrace: error: {error:#}; the command goes on without being recorded");
    }
    let status = match running {
        Some(mut running) => running.wait(&mut signals).await?,
        None => 0,
    };
    recorded.map(|()| status)
}

async fn record_until_done(
    recorder: &mut Recorder,
    every: Duration,
    duration: Option<Duration>,
    signals: &mut Signals,
    mut running: Option<&mut Running>,
) -> anyhow::Result<()> {
    let begin = recorder.started;
    let mut ticks = interval_at(begin + every, every);
    // Where one took too long, the next is taken when it would have been anyway.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let until = begin + duration.unwrap_or(MAX_TIME);
    loop {
        tokio::select! {
            biased;
            ended = ended(running.as_deref_mut()) => {
                ended.context("cannot wait for the command")?;
                return Ok(());
            }
            signal = signals.next() => match running.as_deref_mut() {
                Some(running) => running.pass_on(signal),
                None => return Ok(()),
            },
            () = sleep_until(until) => return Ok(()),
            _ = ticks.tick() => recorder.take()?,
        }
    }
}

/// Ready when the command has ended; never where there is none.
async fn ended(running: Option<&mut Running>) -> std::io::Result<()> {
    match running {
        Some(running) => running.ended().await.map(|_| ()),
        None => std::future::pending().await,
    }
}

/// The command.
struct Running {
    child: Child,
    /// 128 and the signal's number where one ended it.
    status: Option<i32>,
    was_asked_to_stop: bool,
}

impl Running {
    fn new(child: Child) -> Self {
        Self {
            child,
            status: None,
            was_asked_to_stop: false,
        }
    }

    async fn ended(&mut self) -> std::io::Result<i32> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        let status = exit_status(self.child.wait().await?);
        self.status = Some(status);
        Ok(status)
    }

    /// Waits for its end, and passes signals on meanwhile.
    async fn wait(&mut self, signals: &mut Signals) -> anyhow::Result<i32> {
        loop {
            tokio::select! {
                biased;
                status = self.ended() => return status.context("cannot wait for the command"),
                signal = signals.next() => self.pass_on(signal),
            }
        }
    }

    /// Asks it to stop; the second time it has to.
    fn pass_on(&mut self, signal: Signal) {
        // A terminal sends Ctrl-C to the command, too; twice means something
        // else to many.
        let has_it = signal == Signal::SIGINT && std::io::stdin().is_terminal();
        if has_it && !self.was_asked_to_stop {
            self.was_asked_to_stop = true;
            return;
        }
        // Not yet waited for, so the number is still its own.
        let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()) else {
            return;
        };
        let signal = if self.was_asked_to_stop {
            Signal::SIGKILL
        } else {
            signal
        };
        self.was_asked_to_stop = true;
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            tracing::warn!("cannot pass {signal} on to the command: {error}");
        }
    }
}

fn exit_status(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Requests to stop.
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::SIGINT,
            _ = self.terminate.recv() => Signal::SIGTERM,
        }
    }
}
