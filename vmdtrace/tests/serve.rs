//! The whole daemon in this process, with a source of Snapshots made by hand.
//! One test only: signals and logging belong to the whole process.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::serve;
use vmdtrace::host::topology::Topology;
use vmdtrace::logging;
use vmdtrace::snapshot::source::{Level, SnapshotError, SnapshotSource};
use vmdtrace::snapshot::{
    Counters, Host, LineCounts, LineKind, Probe, ProbeState, RunCounts, Snapshot, probes,
};

/// Only a failure waits for this long.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct FakeSource {
    attach_pending: AtomicUsize,
    topology_changed: AtomicUsize,
    closed: AtomicUsize,
}

impl SnapshotSource for FakeSource {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot {
            taken_ns: 0,
            counting_since_ns: None,
            detail: Default::default(),
            activity: None,
            host: Host::default(),
            topology: Topology::default(),
            counters: Counters {
                lines: vec![vector()],
                ..Counters::default()
            },
            probes: [probes::IRQ_HANDLER_ENTRY, probes::IRQ_HANDLER_EXIT]
                .map(attached)
                .into(),
        })
    }

    fn attach_pending(&self) {
        self.attach_pending.fetch_add(1, Ordering::SeqCst);
    }

    fn cpus_changed(&self) {}

    fn topology_changed(&self) {
        self.topology_changed.fetch_add(1, Ordering::SeqCst);
    }

    fn close(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn attached(name: &str) -> Probe {
    Probe {
        name: name.to_owned(),
        state: ProbeState::Attached,
        mechanism: "raw_tracepoint".to_owned(),
        reason: None,
        missed_runs: None,
        runs: None,
    }
}

/// A controller's vector that ran 7 times.
fn vector() -> LineCounts {
    LineCounts {
        irq: 41,
        action: "vmd0".to_owned(),
        kind: LineKind::VmdVector,
        controller: None,
        disk: None,
        path: None,
        parent_irq: None,
        counts: RunCounts {
            depth0_runs: 7,
            ..RunCounts::default()
        },
    }
}

#[test]
fn serves_until_sigterm_and_sleeps_between_scrapes() {
    let (first, second) = (free_port(), free_port());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    fs::write(
        &file,
        "level: timing\nno-kprobes: true\nmetrics.cpus: true\n",
    )
    .unwrap();
    let arguments = [
        "vmdtrace",
        "serve",
        &format!("--config.file={}", file.display()),
        &format!("--web.listen-address=127.0.0.1:{first}"),
        &format!("--web.listen-address=localhost:{second}"),
        "--also-lines=virtio*",
        "--level=counters",
        "--log.level=warn",
    ];
    let Command::Serve(args) = Cli::try_parse_from(arguments).unwrap().command else {
        panic!("not serve");
    };
    let source = Arc::new(FakeSource::default());
    let opened = Arc::clone(&source);
    let daemon = std::thread::Builder::new()
        .name("daemon".to_owned())
        .spawn(move || {
            serve::run(args, |options, log| {
                assert_eq!(log.level, logging::Level::Warn);
                assert_eq!(options.also_lines, ["virtio*"]);
                assert_eq!(options.level, Level::Counters);
                assert!(!options.kprobes);
                assert!(options.shares);
                Ok(opened)
            })
        })
        .unwrap();

    let started = Instant::now();
    let mut answer = None;
    while answer.is_none() && started.elapsed() < PATIENCE {
        answer = get(first, "/healthz");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(answer.unwrap().ends_with("ok\n"));
    let metrics = get(second, "/metrics").unwrap();
    assert!(metrics.contains("vmdtrace_build_info{"), "{metrics}");
    let line = "vmdtrace_line_hardware_interrupts_total\
                {controller=\"\",disk=\"\",irq=\"41\",action=\"vmd0\"} 7\n";
    assert!(!metrics.contains(line), "{metrics}");
    fs::write(&file, "metrics.lines: true\n").unwrap();
    kill(Pid::this(), Signal::SIGHUP).unwrap();
    let started = Instant::now();
    while !get(second, "/metrics").unwrap().contains(line) {
        assert!(started.elapsed() < PATIENCE, "SIGHUP changed nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(get(first, "/readyz").unwrap().contains("200 OK"));
    // What changed before the daemon listened for changes was not missed.
    assert!(source.attach_pending.load(Ordering::SeqCst) > 0);
    assert!(source.topology_changed.load(Ordering::SeqCst) > 0);

    // Devices of this machine may send uevents at any time; a timer of ours
    // would show in every window.
    let quiet = (0..5).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        let before = wake_ups();
        std::thread::sleep(Duration::from_secs(1));
        wake_ups() == before
    });
    assert!(quiet, "the daemon wakes up without a request");

    kill(Pid::this(), Signal::SIGTERM).unwrap();
    let started = Instant::now();
    while !daemon.is_finished() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(daemon.is_finished(), "SIGTERM did not stop it");
    daemon.join().unwrap().unwrap();
    assert_eq!(source.closed.load(Ordering::SeqCst), 1);
    assert_eq!(get(first, "/healthz"), None);
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// The whole answer, or nothing while nobody listens.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    Some(answer)
}

/// How often each of the daemon's threads gave up the CPU and came back, as
/// (thread, switches).
fn wake_ups() -> Vec<(String, String)> {
    let mut counts: Vec<_> = fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| task.unwrap().path())
        .filter_map(|task| {
            let name = fs::read_to_string(task.join("comm"))
                .ok()?
                .trim()
                .to_owned();
            let ours = ["daemon", "tokio-rt-worker", "uevents"].contains(&name.as_str());
            let status = ours
                .then(|| fs::read_to_string(task.join("status")).ok())
                .flatten()?;
            let switches = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt"))?;
            Some((format!("{name} {}", task.display()), switches.to_owned()))
        })
        .collect();
    counts.sort();
    assert!(
        counts.len() >= 3,
        "not all threads of the daemon were found: {counts:?}"
    );
    counts
}
