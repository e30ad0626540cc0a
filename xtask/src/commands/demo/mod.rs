//! `cargo xtask demo`: the project's main job on real input, from nothing to a
//! table. What is measured and how is told in `xtask_lab::experiment`.

mod diagnosis;
mod inject;
mod report;
mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use vmd_device::{Latency, Service};
use xtask_lab::experiment::{Mode, Run, Session, Setting};
use xtask_lab::{Artifacts, CpuList, Folder, Load, Prometheus, SCRAPE_SECONDS, interrupt};

use diagnosis::Recording;
use xtask_setup::{DEFAULT_KERNEL, Profile, Setup};

/// The shortest load that has five scrapes within it, whenever they fall.
const MIN_SECONDS: u64 = 6 * SCRAPE_SECONDS + 1;

/// Measure one disk and all disks behind an emulated VMD, remapped and bypassed
///
/// Boots a virtual server twice, with the daemon in it and a real Prometheus
/// scraping it, and prints what the daemon, the kernel, the device, fio and
/// Prometheus counted, and what `vmdtrace diagnose` and `vmdtrace compare` make of
/// recordings of the same loads. Ends with status 1 if counts disagree anywhere.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// NVMe disks behind the VMD
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..=16))]
    disks: u8,
    /// CPUs of the virtual server
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// MSI-X vectors of the VMD; its driver keeps one of them for itself
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=256))]
    vectors: u16,
    /// Time that the emulated disks take for a read: 80us, uniform:60us:100us,
    /// tail:80us:5ms:1000 (one in 1,000 takes 5 ms); 0: none at all
    #[arg(long, default_value = "uniform:60us:100us")]
    latency: Latency,
    /// Length of each of the four loads; Prometheus scrapes every two seconds
    /// and needs at least five scrapes within one
    #[arg(long, default_value_t = MIN_SECONDS, value_parser = clap::value_parser!(u64).range(MIN_SECONDS..=3600))]
    seconds: u64,
    /// Series of Debian's kernel that the virtual server boots
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// CPUs that fio's threads are spread over when all disks are read, such as
    /// 0-2,5; one disk is read from the first of them [default: all]
    #[arg(long, value_name = "LIST")]
    fio_cpus: Option<CpuList>,
    /// End after the diagnoses instead of leaving the daemon and Prometheus open
    #[arg(long)]
    once: bool,
    /// Write all figures to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Instead: make a cause of slow I/O on purpose, and show its diagnosis, live and
    /// from recordings. `list` lists them. Ends with status 1 if it is another one
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = [
            "disks", "cpus", "vectors", "latency", "seconds", "kernel", "fio_cpus", "once", "json",
        ]
    )]
    inject: Option<String>,
    /// Say more on the way, and keep the guest's logs if something fails
    #[arg(long)]
    verbose: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(name) = &args.inject {
        return inject::run(name, args.verbose);
    }
    let cpus = fio_cpus(args)?;
    if let Some(path) = &args.json {
        // Better now than after the measurement.
        writable(path)?;
    }
    let setup = Setup::new()?;
    let artifacts = artifacts(&setup, &args.kernel)?;
    let programs = setup.prometheus()?;

    let teller = Teller::new(args.verbose);
    teller.step(&format!("starting Prometheus {}", programs.version));
    let prometheus = Prometheus::start(&programs.prometheus)?;
    teller.detail(&format!("Prometheus: http://{}", prometheus.address()));

    let folder = Folder::new("demo")?;
    let (mut runs, mut recordings) = (Vec::new(), Vec::new());
    let mut keep = |session: &Session<'_>| -> anyhow::Result<()> {
        for load in session.loads(&cpus, Duration::from_secs(args.seconds)) {
            let name = format!("{}.vmdtrace", recordings.len());
            let recording = folder.path().join(name);
            let run = measure(session, &load, &recording, args, &teller)?;
            recordings.push(Recording::of(&run, recording));
            runs.push(run);
        }
        Ok(())
    };
    let open = both_modes(args, &artifacts, &prometheus, &teller, &mut keep);
    if !runs.is_empty() {
        println!("\n{}", table::render(&runs));
    }
    // What was measured before a failure was shown; it is no whole result.
    let bypass = open?;
    println!("\n{}", diagnosis::of(&artifacts, &recordings)?);
    if let Some(path) = &args.json {
        report::write(path, &programs.version, &runs)?;
        teller.step(&format!("figures written to {}", path.display()));
    }
    if !args.once {
        println!("\nOpen until Ctrl-C (the guest of the last two rows is still running):");
        println!(
            "  the daemon's metrics  http://{}/metrics",
            bypass.guest().address()
        );
        println!(
            "  Prometheus            http://{}/graph",
            prometheus.address()
        );
        interrupt::wait();
    }
    teller.step("switching the guest off");
    bypass.end()?;
    verdict(&runs)
}

/// What a guest with this kernel is made of, with the daemon of now.
fn artifacts(setup: &Setup, kernel: &str) -> anyhow::Result<Artifacts> {
    let built = setup.build(Profile::Release)?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    let vmdtrace = Some(built.vmdtrace);
    Ok(Artifacts::prepare(setup, kernel, vmdtrace, this_program)?)
}

/// Measures both loads in both modes; the guest of the second mode stays.
fn both_modes<'a>(
    args: &Args,
    artifacts: &'a Artifacts,
    prometheus: &'a Prometheus,
    teller: &Teller,
    keep: &mut dyn FnMut(&Session<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Session<'a>> {
    let remap = boot(args, artifacts, prometheus, Mode::Remap, teller)?;
    keep(&remap)?;
    teller.step("switching the guest off");
    remap.end()?;
    let bypass = boot(args, artifacts, prometheus, Mode::Bypass, teller)?;
    keep(&bypass)?;
    Ok(bypass)
}

/// Where fio's threads run.
fn fio_cpus(args: &Args) -> anyhow::Result<CpuList> {
    let Some(list) = &args.fio_cpus else {
        return Ok(CpuList::first(args.cpus));
    };
    if let Some(cpu) = list.cpus().iter().find(|cpu| **cpu >= args.cpus) {
        bail!(
            "--fio-cpus {list} names CPU {cpu}, and the virtual server has CPUs 0 to {}: raise --cpus",
            args.cpus - 1
        );
    }
    Ok(list.clone())
}

fn writable(path: &Path) -> anyhow::Result<()> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("--json {}: cannot be written", path.display()))
        .map(drop)
}

fn boot<'a>(
    args: &Args,
    artifacts: &'a Artifacts,
    prometheus: &'a Prometheus,
    mode: Mode,
    teller: &Teller,
) -> anyhow::Result<Session<'a>> {
    teller.step(&format!(
        "{}: booting kernel {} with {} CPUs and {} disks behind a VMD {:04x} with {} vectors",
        mode.name(),
        artifacts.kernel.package_version,
        args.cpus,
        args.disks,
        mode.device_id().pci_id(),
        args.vectors
    ));
    let setting = Setting {
        mode,
        cpus: args.cpus,
        disks: args.disks,
        vectors: args.vectors,
        service: Service {
            latency: args.latency,
            ..Service::default()
        },
        detailed: false,
        keep_logs: args.verbose,
    };
    let session = Session::start(artifacts, prometheus, setting)?;
    teller.detail(&format!(
        "metrics: http://{}/metrics",
        session.guest().address()
    ));
    Ok(session)
}

fn measure(
    session: &Session<'_>,
    load: &Load,
    recording: &Path,
    args: &Args,
    teller: &Teller,
) -> anyhow::Result<Run> {
    teller.step(&describe(session.setting().mode, load, args.seconds));
    teller.detail(&load.command().to_string());
    let run = session.measure(load, recording)?;
    teller.detail(&format!(
        "{} reads, {} hardware interrupts, {} completions, {} scrapes",
        run.fio_ios,
        run.hardware_interrupts,
        run.completions + run.completions_outside,
        run.prometheus_scrapes_between
    ));
    Ok(run)
}

fn describe(mode: Mode, load: &Load, seconds: u64) -> String {
    let disks = match load.disks.len() {
        1 => "one disk".to_owned(),
        count => format!("{count} disks"),
    };
    let cpus = if let [cpu] = load.cpus.cpus() {
        format!("CPU {cpu}")
    } else {
        format!("CPUs {}, one for each fio thread in turn", load.cpus)
    };
    format!(
        "{}: reading {disks} from {cpus} for {seconds} s, 4 KiB at random, {} in flight on each disk",
        mode.name(),
        load.depth
    )
}

/// The counts agree, or an error that says where they do not.
fn verdict(runs: &[Run]) -> anyhow::Result<()> {
    let mut problems = String::new();
    for run in runs {
        for problem in run.disagreements() {
            let (mode, disks) = (run.mode.name(), run.disks_busy);
            problems.push_str(&format!("\n  {mode}, disks read: {disks}: {problem}"));
        }
    }
    ensure!(
        problems.is_empty(),
        "counts that should be equal are not:{problems}"
    );
    Ok(())
}

/// Tells on stderr what is being done, and when.
struct Teller {
    start: Instant,
    verbose: bool,
}

impl Teller {
    fn new(verbose: bool) -> Self {
        Self {
            start: Instant::now(),
            verbose,
        }
    }

    fn step(&self, text: &str) {
        eprintln!("demo [{:>3} s]: {text}", self.start.elapsed().as_secs());
    }

    fn detail(&self, text: &str) {
        if self.verbose {
            self.step(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn parse(options: &[&str]) -> Result<Args, clap::Error> {
        Program::try_parse_from(["demo"].iter().chain(options)).map(|program| program.args)
    }

    #[test]
    fn by_default_the_first_sources_server_is_imitated() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.disks, args.cpus, args.vectors), (12, 6, 8));
        assert_eq!(fio_cpus(&args).unwrap().to_string(), "0-5");
    }

    #[test]
    fn fio_cannot_be_put_on_a_cpu_that_is_not_there() {
        let args = parse(&["--cpus", "4", "--fio-cpus", "0-1,4"]).unwrap();
        let error = fio_cpus(&args).unwrap_err().to_string();
        assert!(error.contains("names CPU 4"), "{error}");
        assert!(parse(&["--fio-cpus", "x"]).is_err());
    }

    #[test]
    fn a_cause_is_made_in_a_server_of_its_own() {
        assert!(parse(&["--inject", "pinned", "--verbose"]).is_ok());
        let error = parse(&["--inject", "pinned", "--disks", "4"]).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict);
    }

    #[test]
    fn a_load_too_short_for_five_scrapes_is_refused() {
        assert!(parse(&["--seconds", "12"]).is_err());
        assert!(parse(&["--seconds", "13"]).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_found_at_once() {
        let error = writable(Path::new("/nonexistent/figures.json"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("--json /nonexistent/figures.json"),
            "{error}"
        );
    }
}
