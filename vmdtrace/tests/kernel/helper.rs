//! The daemon is two processes: a server without capabilities, and a helper.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use libtest_mimic::{Completion, Failed};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use vmdtrace::{
    helper::{
        channel::Channel,
        process::COMMAND,
        protocol::{MAX_BYTES, Reply},
    },
    logging,
};

use crate::disk_line::{direct_io, disk_lines};

/// Only a failure waits for this long.
const PATIENCE: Duration = Duration::from_secs(60);

const SETPCAP: u32 = 8;
const DAC_OVERRIDE: u32 = 1;
const SYS_ADMIN: u32 = 21;
const PERFMON: u32 = 38;
const BPF: u32 = 39;

/// A daemon that listens.
struct Daemon {
    server: Child,
    log: BufReader<ChildStderr>,
    address: String,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        Self::start_by(&mut Command::new(env!("CARGO_BIN_EXE_vmdtrace")), arguments)
    }

    fn start_by(command: &mut Command, arguments: &[&str]) -> Self {
        let mut server = command
            .args(["serve", "--web.listen-address=127.0.0.1:0"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(server.stderr.take().unwrap());
        let mut daemon = Self {
            server,
            log,
            address: String::new(),
        };
        let said = daemon.log_until("http://");
        let (_, address) = said.rsplit_once("http://").unwrap();
        daemon.address = address.trim().trim_end_matches("/metrics").to_owned();
        daemon
    }

    fn server(&self) -> Process {
        Process(self.server.id())
    }

    /// The only child.
    fn helper(&self) -> Process {
        let children: Vec<_> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .map(Process)
            .filter(|process| process.status("PPid") == Some(self.server.id().to_string()))
            .collect();
        let [helper] = <[Process; 1]>::try_from(children).unwrap();
        helper
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Its log up to a line with this in it.
    fn log_until(&mut self, part: &str) -> String {
        let mut said = String::new();
        loop {
            let start = said.len();
            assert_ne!(self.log.read_line(&mut said).unwrap(), 0, "{said}");
            if said[start..].contains(part) {
                return said;
            }
        }
    }

    /// Waits until all of it has ended; its exit code, and the rest of its log.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        // Server and helper hold this pipe.
        self.log.read_to_string(&mut said).unwrap();
        (self.server.wait().unwrap().code(), said)
    }
}

impl Drop for Daemon {
    /// A test that failed leaves none behind; the helper ends with it.
    fn drop(&mut self) {
        // It has ended where this fails.
        let _ended = self.server.kill();
        let _status = self.server.wait();
    }
}

#[derive(Clone, Copy, Debug)]
struct Process(u32);

impl Process {
    fn folder(self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.0))
    }

    fn status(self, field: &str) -> Option<String> {
        status(&self.folder(), field)
    }

    fn signal(self, signal: Signal) {
        kill(Pid::from_raw(self.0.try_into().unwrap()), signal).unwrap();
    }

    fn is_there(self) -> bool {
        self.status("State")
            .is_some_and(|state| !state.starts_with('Z'))
    }

    /// How many of its descriptors are of this kind.
    fn descriptors(self, kind: &str) -> usize {
        let kind = PathBuf::from(format!("anon_inode:{kind}"));
        self.targets().filter(|target| *target == kind).count()
    }

    fn opened(self, file: &str) -> bool {
        self.targets().any(|target| target == Path::new(file))
    }

    /// What its descriptors are of.
    fn targets(self) -> impl Iterator<Item = PathBuf> {
        fs::read_dir(self.folder().join("fd"))
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
    }
}

fn status(folder: &Path, field: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join("status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.strip_prefix(':')?.trim().to_owned())
}

fn capabilities(folder: &Path, set: &str) -> u64 {
    u64::from_str_radix(&status(folder, set).unwrap(), 16).unwrap()
}

/// Interrupts of the watched lines, as the daemon counts them.
fn interrupts(metrics: &str) -> u64 {
    metrics
        .lines()
        .filter(|line| line.starts_with("vmdtrace_watched_hardware_interrupts_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64)
        .sum()
}

pub(crate) fn a_server_without_capabilities_counts_on() -> Result<Completion, Failed> {
    let actions = |irq| fs::read_to_string(format!("/sys/kernel/irq/{irq}/actions"));
    let is_virtio = |irq| actions(irq).is_ok_and(|it| it.starts_with("virtio"));
    if !disk_lines().into_iter().any(is_virtio) {
        return Ok(Completion::ignored_with(
            "this machine has no virtio disk with an interrupt",
        ));
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("direct-io-of-helper");
    fs::write(&path, vec![7u8; 64 * 4096])?;
    fs::File::open(&path)?.sync_all()?;
    if let Err(reason) = direct_io(&path) {
        return Ok(Completion::ignored_with(reason));
    }
    let daemon = Daemon::start(&["--also-lines=virtio*-req*"]);
    let metrics = daemon.metrics();
    let before = interrupts(&metrics);
    // Told by the helper: the server has no maps, only mappings.
    assert!(
        metrics.contains("\nvmdtrace_map_memory_bytes "),
        "{metrics}"
    );

    // Capabilities belong to threads.
    let tasks: Vec<_> = fs::read_dir(daemon.server().folder().join("task"))?
        .map(|task| task.unwrap().path())
        .collect();
    assert!(tasks.len() > 2, "{tasks:?}");
    let may_drop_bounding = capabilities(Path::new("/proc/self"), "CapEff") & 1 << SETPCAP != 0;
    for task in &tasks {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(capabilities(task, set), 0, "{set} of {}", task.display());
        }
        if may_drop_bounding {
            assert_eq!(capabilities(task, "CapBnd"), 0, "{}", task.display());
        }
        assert_eq!(status(task, "NoNewPrivs").as_deref(), Some("1"));
    }
    let helper = daemon.helper();
    assert_eq!(helper.status("Name").as_deref(), Some("vmdtrace-helper"));
    assert_eq!(helper.status("NoNewPrivs").as_deref(), Some("1"));
    let allowed = [DAC_OVERRIDE, SYS_ADMIN, PERFMON, BPF];
    let allowed = allowed.iter().fold(0, |set, bit| set | 1u64 << bit);
    for task in fs::read_dir(helper.folder().join("task"))? {
        assert_eq!(capabilities(&task?.path(), "CapPrm") & !allowed, 0);
    }

    // What could change the programs, or let one be attached, the server has not.
    let server = daemon.server();
    assert_eq!(server.descriptors("bpf-map"), 0);
    assert_eq!(server.descriptors("bpf_link"), 0);
    assert_eq!(server.descriptors("[perf_event]"), 0);
    assert!(server.descriptors("bpf-prog") > 0);
    assert!(helper.descriptors("bpf-map") > 0);
    assert!(helper.descriptors("bpf_link") > 0);

    direct_io(&path)?;
    let after = interrupts(&daemon.metrics());
    // Every read of one block at a time is an interrupt, unless the kernel looks first.
    assert!(after >= before + 100, "{before} and then {after}");
    server.signal(Signal::SIGTERM);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!helper.is_there());
    Ok(Completion::Completed)
}

pub(crate) fn without_kprobes_the_helper_has_less() -> Result<Completion, Failed> {
    let daemon = Daemon::start(&["--no-kprobes"]);
    let helper = daemon.helper().folder();
    let allowed = 1u64 << BPF | 1 << PERFMON;
    assert_eq!(capabilities(&helper, "CapPrm") & !allowed, 0);
    let metrics = daemon.metrics();
    for probe in ["irq_handler_entry", "irq_handler_exit"] {
        let attached = format!("vmdtrace_probe_attached{{probe=\"{probe}\"}} 1\n");
        assert!(metrics.contains(&attached), "{metrics}");
    }
    let kprobe = |line: &&str| line.starts_with("vmdtrace_probe_info{") && line.contains("kprobe");
    let kprobes: Vec<_> = metrics.lines().filter(kprobe).collect();
    assert!(!kprobes.is_empty());
    for probe in kprobes {
        assert!(probe.contains("state=\"blocked\""), "{probe}");
    }
    daemon.server().signal(Signal::SIGINT);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    Ok(Completion::Completed)
}

/// As a unit of systemd does it, with a user of its own.
pub(crate) fn another_user_with_two_capabilities_serves() -> Result<Completion, Failed> {
    const NOBODY: &str = "65534";
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let program = folder.path().join("vmdtrace");
    fs::copy(env!("CARGO_BIN_EXE_vmdtrace"), &program)?;
    let as_nobody = |program: &Path| {
        let mut command = Command::new("setpriv");
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let sets = ["inh-caps", "ambient-caps", "bounding-set"];
        command
            .args(user)
            .args(["--clear-groups", "--no-new-privs"])
            .args(sets.map(|set| format!("--{set}=-all,+bpf,+perfmon")))
            .arg(program)
            .current_dir("/");
        command
    };
    match as_nobody(&program).arg("--version").output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            return Ok(Completion::ignored_with(said.trim().to_owned()));
        }
        Err(error) => return Ok(Completion::ignored_with(format!("setpriv: {error}"))),
    }
    let mut command = as_nobody(&program);
    command.stdin(fs::File::open("/proc/kallsyms")?);
    let daemon = Daemon::start_by(&mut command, &["--no-kprobes"]);
    let (server, helper) = (daemon.server(), daemon.helper());
    // The list that root opened went to the one who needs it.
    assert!(!server.opened("/proc/kallsyms"));
    assert!(helper.opened("/proc/kallsyms"));
    assert!(server.status("Uid").unwrap().starts_with(NOBODY));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(capabilities(&server.folder(), set), 0, "{set}");
    }
    let two = 1u64 << BPF | 1 << PERFMON;
    assert_eq!(capabilities(&helper.folder(), "CapEff"), two);
    let metrics = daemon.metrics();
    let attached = "vmdtrace_probe_attached{probe=\"irq_handler_entry\"} 1\n";
    assert!(metrics.contains(attached), "{metrics}");
    assert!(
        metrics.contains("\nvmdtrace_topology_problems 0\n"),
        "{metrics}"
    );
    server.signal(Signal::SIGTERM);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    Ok(Completion::Completed)
}

pub(crate) fn a_reload_changes_what_the_helper_logs() -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("settings.yaml");
    fs::write(&file, "log.level: info\nno-kprobes: true\n")?;
    let mut daemon = Daemon::start(&[&format!("--config.file={}", file.display())]);
    let helper_says = |said: &str| said.contains("DEBUG vmdtrace::helper::process: the level");
    fs::write(&file, "log.level: debug\nno-kprobes: true\n")?;
    daemon.server().signal(Signal::SIGHUP);
    let said = daemon.log_until("SIGHUP: ");
    assert!(helper_says(&said), "{said}");
    // Above that, it says nothing of it.
    fs::write(&file, "log.level: info\nno-kprobes: true\n")?;
    daemon.server().signal(Signal::SIGHUP);
    let said = daemon.log_until("SIGHUP: ");
    assert!(said.contains("read again"), "{said}");
    assert!(!helper_says(&said), "{said}");
    daemon.server().signal(Signal::SIGTERM);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(0), "{said}");
    Ok(Completion::Completed)
}

pub(crate) fn a_killed_server_takes_its_helper_along() -> Result<Completion, Failed> {
    let daemon = Daemon::start(&[]);
    let helper = daemon.helper();
    // It ends when the server does, and only then.
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGABRT] {
        helper.signal(signal);
    }
    daemon.metrics();
    assert!(helper.is_there());
    daemon.server().signal(Signal::SIGKILL);
    let (code, _) = daemon.end();
    assert_eq!(code, None);
    let started = Instant::now();
    while helper.is_there() {
        assert!(started.elapsed() < PATIENCE, "the helper lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(Completion::Completed)
}

pub(crate) fn a_server_whose_helper_is_killed_ends() -> Result<Completion, Failed> {
    let daemon = Daemon::start(&[]);
    daemon.helper().signal(Signal::SIGKILL);
    let (code, said) = daemon.end();
    assert_eq!(code, Some(1), "{said}");
    let error = said.lines().last().unwrap();
    assert!(error.starts_with("vmdtrace: error: the helper"), "{said}");
    for part in ["SIGKILL", "nothing is counted", "start vmdtrace again"] {
        assert!(error.contains(part), "{error}");
    }
    Ok(Completion::Completed)
}

pub(crate) fn garbage_ends_the_helper() -> Result<Completion, Failed> {
    let (server, for_requests) = Channel::pair()?;
    let (events, for_events) = Channel::pair()?;
    let mut helper = Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args([COMMAND, "--no-kprobes"])
        .stdin(OwnedFd::from(for_requests))
        .stdout(OwnedFd::from(for_events))
        .stderr(Stdio::piped())
        .spawn()?;
    let loaded = server.receive(MAX_BYTES)?.unwrap();
    let Reply::Loaded {
        programs, states, ..
    } = Reply::decode(&loaded.bytes)?
    else {
        panic!("not loaded");
    };
    assert!(!programs.is_empty() && !states.is_empty());
    server.send(&[1], &[])?;
    assert_eq!(
        Reply::decode(&server.receive(MAX_BYTES)?.unwrap().bytes)?,
        Reply::Losses(Vec::new())
    );
    server.send(&[3], &[])?;
    let outside = Reply::decode(&server.receive(MAX_BYTES)?.unwrap().bytes)?;
    assert!(matches!(outside, Reply::Outside(_)), "{outside:?}");
    server.send(&[4, logging::Level::Error as u8], &[])?;
    assert_eq!(
        Reply::decode(&server.receive(MAX_BYTES)?.unwrap().bytes)?,
        Reply::Done
    );
    server.send(b"attach /etc/passwd", &[])?;
    assert!(server.receive(MAX_BYTES)?.is_none());
    assert!(events.receive(MAX_BYTES)?.is_none());
    let mut said = String::new();
    helper.stderr.take().unwrap().read_to_string(&mut said)?;
    assert_eq!(helper.wait()?.code(), Some(1));
    assert!(said.contains("the server sent no request"), "{said}");
    Ok(Completion::Completed)
}
