//! node_exporter, with its collector of interrupts alone: what reads the kernel's own
//! counts on the same machine takes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use serde::Serialize;

use crate::daemon::{SCRAPES, Spread, cpu_ns, fetch, memory};
use crate::kernel::SystemCalls;

/// The program and what it is started by, one argument a line (set by `cargo xtask
/// bench`).
const PROGRAM: &str = "VMDTRACE_COST_NODE_EXPORTER";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    series: usize,
    bytes: usize,
    scrape_cpu_ms: Spread,
    /// Of one scrape.
    system_calls: u64,
    anonymous_kib: u64,
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// None where there is no node_exporter.
pub(crate) fn measure() -> anyhow::Result<Option<Figures>> {
    let Ok(words) = std::env::var(PROGRAM) else {
        return Ok(None);
    };
    let mut words = words.lines();
    let mut command = Command::new(words.next().context("no program")?);
    command.args(words).args([
        "--collector.disable-defaults",
        "--collector.interrupts",
        "--web.disable-exporter-metrics",
        "--web.listen-address=127.0.0.1:0",
    ]);
    let child = command.stderr(Stdio::piped()).spawn()?;
    let mut running = Running(child);
    let said = running.0.stderr.take().context("no log")?;
    let mut lines = BufReader::new(said).lines();
    let mut address = None;
    for line in lines.by_ref() {
        let line = line?;
        let said = line.split_once("address=127.0.0.1:");
        if let Some((_, port)) = said.filter(|_| line.contains("Listening on")) {
            let port = port.split(|c: char| !c.is_ascii_digit()).next();
            address = port.map(|port| format!("127.0.0.1:{port}"));
            break;
        }
    }
    let address = address.context("node_exporter never listened")?;
    // What it says later is not kept.
    std::thread::spawn(move || lines.for_each(drop));
    let process = running.0.id();
    fetch(&address)?;
    let calls = SystemCalls::of(process)?;
    let (mut cpu, mut made) = (Vec::new(), Vec::new());
    let mut text = String::new();
    for _ in 0..SCRAPES {
        let (before, calls_before) = (cpu_ns(process)?, calls.count()?);
        text = fetch(&address)?;
        cpu.push((cpu_ns(process)? - before) as f64 / 1e6);
        made.push(calls.count()? - calls_before);
    }
    let interrupts = "node_interrupts_total{";
    anyhow::ensure!(text.contains(interrupts), "it told no interrupts");
    // Its runtime adds some at any time: the middle one.
    made.sort_unstable();
    Ok(Some(Figures {
        series: text.lines().filter(|line| !line.starts_with('#')).count(),
        bytes: text.len(),
        scrape_cpu_ms: Spread::of(cpu),
        system_calls: made.get(SCRAPES / 2).copied().unwrap_or_default(),
        anonymous_kib: memory(process, "RssAnon")?,
    }))
}

pub(crate) fn print(figures: Option<&Figures>) {
    let Some(figures) = figures else {
        println!("node_exporter was not there to be compared with");
        return;
    };
    let Figures {
        series,
        bytes,
        scrape_cpu_ms,
        system_calls,
        anonymous_kib,
    } = figures;
    println!(
        "node_exporter, interrupts alone, this machine: {series} series, {bytes} bytes, \
         {scrape_cpu_ms} ms of CPU, {system_calls} system calls, {anonymous_kib} KiB RssAnon"
    );
}
