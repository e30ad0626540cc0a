//! The finished program on made-up hosts: times, memory, system calls, and how
//! they grow.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::kernel::SystemCalls;
use crate::simulated::{Host, LARGEST, Shape};

/// Where the finished program is (set by `cargo xtask bench`).
const PROGRAM: &str = "VMDTRACE_COST_PROGRAM";
const SCRAPES: usize = 15;
const QUIET: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    host: Option<Shape>,
    lines: u32,
    series: usize,
    bytes: usize,
    /// From the process's start until it says where it listens.
    start_ms: f64,
    /// The first scrape after lines came reads `/sys`.
    first_scrape_ms: f64,
    /// CPU time of one scrape with everything around it.
    scrape_cpu_ms: Spread,
    /// From the request to the end of the answer.
    scrape_ms: Spread,
    system_calls: u64,
    /// Between scrapes.
    idle_system_calls: u64,
    idle_switches: u64,
    anonymous_kib: u64,
    file_kib: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(values.len() / 2),
            least: at(0),
            most: at(values.len().saturating_sub(1)),
        }
    }
}

struct Daemon {
    child: Child,
    address: String,
    start: Duration,
}

impl Daemon {
    fn start(host: Option<&Host>) -> anyhow::Result<Self> {
        let program = std::env::var_os(PROGRAM).context("run `cargo xtask bench host`")?;
        let started = Instant::now();
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--web.listen-address",
            "127.0.0.1:0",
            "--no-kprobes",
        ]);
        if let Some(host) = host {
            let roots = host.roots();
            command.arg("--path.sysfs").arg(roots.sysfs);
            command.arg("--path.procfs").arg(roots.procfs);
        }
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().context("no log")?;
        let mut daemon = Self {
            child,
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
        // What it says later is not kept.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(daemon)
    }

    fn scrape(&self) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
        anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        Ok(text.to_owned())
    }

    /// Sums one figure of all threads.
    fn of_threads(&self, file: &str, figure: impl Fn(&str) -> Option<u64>) -> anyhow::Result<u64> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(thread?.path().join(file))?;
            sum += figure(&text).with_context(|| format!("{file}: {text}"))?;
        }
        Ok(sum)
    }

    fn cpu_ns(&self) -> anyhow::Result<u64> {
        self.of_threads("schedstat", |text| text.split(' ').next()?.parse().ok())
    }

    fn switches(&self) -> anyhow::Result<u64> {
        self.of_threads("status", |text| status(text, "voluntary_ctxt_switches"))
    }

    fn memory(&self, name: &str) -> anyhow::Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        status(&text, name).with_context(|| format!("no {name}"))
    }
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

fn of(host: Option<&Host>) -> anyhow::Result<Figures> {
    let daemon = Daemon::start(host)?;
    // The thread that follows devices looks once more after the start.
    daemon.scrape()?;
    if let Some(host) = host {
        host.count()?;
    }
    let started = Instant::now();
    daemon.scrape()?;
    let first = started.elapsed();
    let calls = SystemCalls::of(daemon.child.id())?;
    let (mut cpu, mut wall, mut made) = (Vec::new(), Vec::new(), u64::MAX);
    let mut text = String::new();
    for _ in 0..SCRAPES {
        let (before, calls_before) = (daemon.cpu_ns()?, calls.count()?);
        let started = Instant::now();
        text = daemon.scrape()?;
        wall.push(started.elapsed().as_secs_f64() * 1e3);
        cpu.push((daemon.cpu_ns()? - before) as f64 / 1e6);
        made = made.min(calls.count()? - calls_before);
    }
    // Devices of this machine may come or go at any time: the quietest of some.
    let (mut idle_calls, mut idle_switches) = (u64::MAX, u64::MAX);
    for _ in 0..3 {
        let (calls_before, before) = (calls.count()?, daemon.switches()?);
        std::thread::sleep(QUIET);
        idle_calls = idle_calls.min(calls.count()? - calls_before);
        idle_switches = idle_switches.min(daemon.switches()? - before);
    }
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    Ok(Figures {
        host: host.map(Host::shape),
        lines: host.map_or(0, |host| host.shape().lines()),
        series,
        bytes: text.len(),
        start_ms: daemon.start.as_secs_f64() * 1e3,
        first_scrape_ms: first.as_secs_f64() * 1e3,
        scrape_cpu_ms: Spread::of(cpu),
        scrape_ms: Spread::of(wall),
        system_calls: made,
        idle_system_calls: idle_calls,
        idle_switches,
        anonymous_kib: daemon.memory("RssAnon")?,
        file_kib: daemon.memory("RssFile")?,
    })
}

/// This machine as it is, the largest host, and hosts that differ from it in one
/// respect.
pub(crate) fn measure() -> anyhow::Result<Vec<Figures>> {
    let mut figures = vec![of(None)?];
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
        figures.push(of(Some(&Host::new(shape)?))?);
    }
    Ok(figures)
}

pub(crate) fn print(figures: &[Figures]) {
    println!(
        "{:<52} {:>6} {:>6} {:>7} {:>6} {:>6} {:>17} {:>6} {:>6} {:>5} {:>7} {:>7}",
        "host",
        "lines",
        "series",
        "bytes",
        "start",
        "first",
        "scrape, ms of CPU",
        "ms",
        "calls",
        "idle",
        "anon",
        "file"
    );
    for figure in figures {
        let host = figure
            .host
            .map_or_else(|| "this machine".to_owned(), |host| host.to_string());
        let Spread {
            median,
            least,
            most,
        } = figure.scrape_cpu_ms;
        println!(
            "{host:<52} {:>6} {:>6} {:>7} {:>6.0} {:>6.0} {median:>5.2} ({least:.2}-{most:.2}) {:>6.2} {:>6} {:>5} {:>7} {:>7}",
            figure.lines,
            figure.series,
            figure.bytes,
            figure.start_ms,
            figure.first_scrape_ms,
            figure.scrape_ms.median,
            figure.system_calls,
            figure.idle_system_calls.max(figure.idle_switches),
            figure.anonymous_kib,
            figure.file_kib,
        );
    }
}
