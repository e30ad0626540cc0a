//! The finished program on made-up hosts: times, memory, system calls, and how
//! they grow. It is two processes: a server, and a helper that holds the probes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use vmdtrace::metrics::Detail;

use crate::kernel::SystemCalls;
use crate::scrape;
use crate::simulated::{Host, LARGEST, Shape};

/// Where the finished program is (set by `cargo xtask bench`).
const PROGRAM: &str = "VMDTRACE_COST_PROGRAM";
pub(crate) const SCRAPES: usize = 15;
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    host: Option<Shape>,
    /// What was switched on.
    switch: Option<&'static str>,
    lines: u32,
    series: usize,
    bytes: usize,
    /// From the process's start until it says where it listens.
    start_ms: f64,
    /// The first scrape after lines came reads `/sys`.
    first_scrape_ms: f64,
    /// CPU time of one scrape with everything around it, in both processes.
    scrape_cpu_ms: Spread,
    /// From the request to the end of the answer.
    scrape_ms: Spread,
    /// Of one scrape, in both.
    system_calls: u64,
    /// Of one scrape, where they were counted.
    allocations: Option<u64>,
    server: Process,
    helper: Process,
}

/// What is there of one of the two.
#[derive(Clone, Copy, Debug, Serialize)]
struct Process {
    /// Between scrapes.
    idle_system_calls: u64,
    idle_switches: u64,
    anonymous_kib: u64,
    file_kib: u64,
}

impl Process {
    /// Nothing is asked of it while this looks. Devices of this machine may come or
    /// go at any time: the quietest of some.
    fn at_rest(process: u32, calls: &SystemCalls) -> anyhow::Result<Self> {
        let (mut idle_system_calls, mut idle_switches) = (u64::MAX, u64::MAX);
        for _ in 0..3 {
            let (calls_before, before) = (calls.count()?, switches(process)?);
            std::thread::sleep(QUIET);
            idle_system_calls = idle_system_calls.min(calls.count()? - calls_before);
            idle_switches = idle_switches.min(switches(process)? - before);
        }
        Ok(Self {
            idle_system_calls,
            idle_switches,
            anonymous_kib: memory(process, "RssAnon")?,
            file_kib: memory(process, "RssFile")?,
        })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(values.len() / 2),
            least: at(0),
            most: at(values.len().saturating_sub(1)),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:.2} ({least:.2}-{most:.2})")
    }
}

struct Daemon {
    child: Child,
    helper: u32,
    address: String,
    start: Duration,
}

impl Daemon {
    fn start(host: Option<&Host>, switch: Option<&str>) -> anyhow::Result<Self> {
        let program = std::env::var_os(PROGRAM).context("run `cargo xtask bench host`")?;
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--web.listen-address",
            "127.0.0.1:0",
            "--no-kprobes",
        ]);
        command.args(switch);
        if let Some(host) = host {
            let roots = host.roots();
            command.arg("--path.sysfs").arg(roots.sysfs);
            command.arg("--path.procfs").arg(roots.procfs);
        }
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().context("no log")?;
        let mut daemon = Self {
            child,
            helper: 0,
            address: String::new(),
            start: Duration::ZERO,
        };
        let mut lines = BufReader::new(said).lines();
        for line in lines.by_ref() {
            if let Some((_, rest)) = line?.split_once("http://") {
                daemon.address = rest.trim_end_matches("/metrics").to_owned();
                break;
            }
        }
        daemon.start = started.elapsed();
        anyhow::ensure!(!daemon.address.is_empty(), "the daemon never listened");
        daemon.helper = child_of(daemon.child.id())?;
        // What it says later is not kept.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(daemon)
    }

    fn scrape(&self) -> anyhow::Result<String> {
        fetch(&self.address)
    }

    /// Of both processes.
    fn cpu_ns(&self) -> anyhow::Result<u64> {
        Ok(cpu_ns(self.child.id())? + cpu_ns(self.helper)?)
    }
}

/// What is served at `/metrics`.
pub(crate) fn fetch(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
    let is_good = head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.0 200");
    anyhow::ensure!(is_good, "{head}");
    Ok(text.to_owned())
}

/// The only process that another started.
fn child_of(parent: u32) -> anyhow::Result<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let mut children = text.split_whitespace();
    match (children.next(), children.next()) {
        (Some(child), None) => Ok(child.parse()?),
        _ => anyhow::bail!("{path}: {text:?}, where one helper was expected"),
    }
}

/// Sums one figure of all threads.
fn of_threads(
    process: u32,
    file: &str,
    figure: impl Fn(&str) -> Option<u64>,
) -> anyhow::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(thread?.path().join(file))?;
        sum += figure(&text).with_context(|| format!("{file}: {text}"))?;
    }
    Ok(sum)
}

pub(crate) fn cpu_ns(process: u32) -> anyhow::Result<u64> {
    of_threads(process, "schedstat", |text| {
        text.split(' ').next()?.parse().ok()
    })
}

fn switches(process: u32) -> anyhow::Result<u64> {
    of_threads(process, "status", |text| {
        status(text, "voluntary_ctxt_switches")
    })
}

pub(crate) fn memory(process: u32, name: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    status(&text, name).with_context(|| format!("no {name}"))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // It may have ended by itself.
            let _ended = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _reaped = self.child.wait();
    }
}

fn status(text: &str, name: &str) -> Option<u64> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

fn of(host: Option<&Host>, switch: Option<&'static str>) -> anyhow::Result<Figures> {
    let daemon = Daemon::start(host, switch)?;
    // The thread that follows devices looks once more after the start.
    daemon.scrape()?;
    if let Some(host) = host {
        host.count()?;
    }
    let started = Instant::now();
    daemon.scrape()?;
    let first = started.elapsed();
    let of_server = SystemCalls::of(daemon.child.id())?;
    let of_helper = SystemCalls::of(daemon.helper)?;
    let calls = || anyhow::Ok(of_server.count()? + of_helper.count()?);
    let (mut cpu, mut wall, mut made) = (Vec::new(), Vec::new(), u64::MAX);
    let mut text = String::new();
    for _ in 0..SCRAPES {
        let (before, calls_before) = (daemon.cpu_ns()?, calls()?);
        let started = Instant::now();
        text = daemon.scrape()?;
        wall.push(started.elapsed().as_secs_f64() * 1e3);
        cpu.push((daemon.cpu_ns()? - before) as f64 / 1e6);
        made = made.min(calls()? - calls_before);
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    Ok(Figures {
        host: host.map(Host::shape),
        switch,
        allocations: None,
        lines: host.map_or(0, |host| host.shape().lines()),
        series,
        bytes: text.len(),
        start_ms: daemon.start.as_secs_f64() * 1e3,
        first_scrape_ms: first.as_secs_f64() * 1e3,
        scrape_cpu_ms: Spread::of(cpu),
        scrape_ms: Spread::of(wall),
        system_calls: made,
        server: Process::at_rest(daemon.child.id(), &of_server)?,
        helper: Process::at_rest(daemon.helper, &of_helper)?,
    })
}

/// What may be switched on, beside what is served without.
const DETAILS: [(&str, Detail); 4] = [
    (
        "--metrics.vectors",
        Detail {
            vectors: true,
            ..OFF
        },
    ),
    ("--metrics.disks", Detail { disks: true, ..OFF }),
    ("--metrics.cpus", Detail { cpus: true, ..OFF }),
    ("--metrics.lines", Detail { lines: true, ..OFF }),
];

const OFF: Detail = Detail {
    lines: false,
    vectors: false,
    disks: false,
    cpus: false,
};

/// This machine as it is, the largest host, hosts that differ from it in one
/// respect, and the largest with more to tell.
pub(crate) fn measure() -> anyhow::Result<Vec<Figures>> {
    let mut figures = vec![of(None, None)?];
    for shape in [
        LARGEST,
        Shape {
            disks: 12,
            ..LARGEST
        },
        Shape {
            disks: 6,
            ..LARGEST
        },
        Shape {
            cpus: 128,
            ..LARGEST
        },
        Shape {
            cpus: 64,
            ..LARGEST
        },
        Shape {
            vectors: 16,
            ..LARGEST
        },
    ] {
        figures.push(of(Some(&Host::new(shape)?), None)?);
    }
    let largest = Host::new(LARGEST)?;
    for (switch, detail) in DETAILS {
        let mut with = of(Some(&largest), Some(switch))?;
        // In this process.
        with.allocations = Some(scrape::measure(&largest, detail)?.0.allocations);
        figures.push(with);
    }
    Ok(figures)
}

pub(crate) fn print(figures: &[Figures]) {
    println!(
        "{:<52} {:>6} {:>6} {:>8} {:>6} {:>6} {:>17} {:>6} {:>6} {:>6} {:>13} {:>13} {:>13}",
        "host",
        "lines",
        "series",
        "bytes",
        "start",
        "first",
        "scrape, ms of CPU",
        "ms",
        "calls",
        "allocs",
        "idle",
        "anon",
        "file"
    );
    for figure in figures {
        let host = match (figure.switch, figure.host) {
            (Some(switch), _) => format!("the largest, {switch}"),
            (None, Some(host)) => host.to_string(),
            (None, None) => "this machine".to_owned(),
        };
        let both =
            |of: fn(&Process) -> u64| format!("{}+{}", of(&figure.server), of(&figure.helper));
        let allocations = figure.allocations.map(|it| it.to_string());
        println!(
            "{host:<52} {:>6} {:>6} {:>8} {:>6.0} {:>6.0} {:>17} {:>6.2} {:>6} {:>6} {:>13} {:>13} {:>13}",
            figure.lines,
            figure.series,
            figure.bytes,
            figure.start_ms,
            figure.first_scrape_ms,
            figure.scrape_cpu_ms.to_string(),
            figure.scrape_ms.median,
            figure.system_calls,
            allocations.unwrap_or_default(),
            both(|it| it.idle_system_calls.max(it.idle_switches)),
            both(|it| it.anonymous_kib),
            both(|it| it.file_kib),
        );
    }
}
