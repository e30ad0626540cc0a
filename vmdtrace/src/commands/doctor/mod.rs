//! `vmdtrace doctor`: what can be observed here and what not, why, and what to
//! do about it. Loads programs of its own, so that it needs no daemon and
//! disturbs none; nothing stays behind.

mod checks;
mod facts;
mod probes;
mod report;
mod self_test;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use self::facts::Facts;
use self::report::{ControllerReport, FORMAT, Report, SelfTest};
use super::output::{Output, print};
use crate::host::topology::Topology;
use crate::host::{self, HostError, Roots};
use crate::probes::LoadError;
use crate::probes::tracer::unloaded;
use crate::snapshot::Probe;
use crate::snapshot::source::{Level, SnapshotSource, SourceOptions};

/// Tell what can be observed on this host, what not, why, and what to do
///
/// It loads and attaches the eBPF programs as the daemon does, and lets them go
/// when it ends; a daemon that runs is not disturbed. Without privileges it says
/// what it cannot see.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 every probe is attached, unsupported or not applicable, and no \
                  check of the self-test failed; 1 something is blocked or broken, a check of \
                  the self-test failed, or an error, told on stderr; 2 no interrupts are \
                  accounted, or a wrong command line."
)]
pub struct Args {
    /// How to print it
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Also compare the counts with the kernel's and with a kprobe's, while the
    /// host works; best under I/O
    #[arg(long)]
    self_test: bool,
    /// How long the self-test measures, in seconds
    #[arg(
        long = "for",
        value_name = "SECONDS",
        default_value_t = 3,
        requires = "self_test",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    seconds: u64,
    /// Where sysfs is mounted
    #[arg(long = "path.sysfs", value_name = "DIR", default_value = "/sys", value_parser = super::directory)]
    sysfs: PathBuf,
    /// Where procfs is mounted
    #[arg(long = "path.procfs", value_name = "DIR", default_value = "/proc", value_parser = super::directory)]
    procfs: PathBuf,
}

/// Examines the host and prints what was found; the exit code says how it is.
/// `open` loads and attaches the probes.
///
/// # Errors
/// If no Snapshot can be taken, or standard output cannot be written.
pub fn run<S: SnapshotSource>(
    args: &Args,
    open: impl FnOnce(&SourceOptions) -> anyhow::Result<S>,
) -> anyhow::Result<ExitCode> {
    let report = examine(args, open)?;
    let shown = match args.output {
        Output::Text => text::render(&report),
        Output::Json => {
            serde_json::to_string_pretty(&report).context("cannot write the report as JSON")? + "\n"
        }
    };
    print(&shown)?;
    Ok(ExitCode::from(report.exit_status))
}

/// What the probes and sysfs say, whether or not programs could be loaded.
struct Examined {
    counts_interrupts: bool,
    probes: Vec<Probe>,
    topology: Topology,
    self_test: Option<SelfTest>,
}

fn examine<S: SnapshotSource>(
    args: &Args,
    open: impl FnOnce(&SourceOptions) -> anyhow::Result<S>,
) -> anyhow::Result<Report> {
    let roots = Roots {
        sysfs: args.sysfs.clone(),
        procfs: args.procfs.clone(),
    };
    let facts = Facts::read(&roots);
    let opened = open(&SourceOptions {
        roots: roots.clone(),
        also_lines: Vec::new(),
        level: Level::default(),
        kprobes: true,
        shares: false,
        activity: false,
    });
    let examined = match opened {
        Ok(source) => with_probes(&source, args, &roots, &facts)?,
        Err(error) => without_probes(error, args, &roots, &facts),
    };
    Ok(report(&facts, examined))
}

fn with_probes(
    source: &dyn SnapshotSource,
    args: &Args,
    roots: &Roots,
    facts: &Facts,
) -> anyhow::Result<Examined> {
    let snapshot = source.snapshot()?;
    let counting = snapshot.interrupt_accounting();
    let self_test = match (&counting, args.self_test) {
        (_, false) => None,
        (Ok(()), true) => Some(self_test::run(source, roots, facts, args.seconds)?),
        (Err(reason), true) => Some(self_test::not_measured(args.seconds, reason)),
    };
    Ok(Examined {
        counts_interrupts: counting.is_ok(),
        probes: snapshot.probes,
        topology: snapshot.topology,
        self_test,
    })
}

fn without_probes(error: anyhow::Error, args: &Args, roots: &Roots, facts: &Facts) -> Examined {
    let reason = format!("no program could be loaded: {error:#}");
    let error = error.downcast::<LoadError>().unwrap_or_else(|error| {
        // Before anything is loaded, the host is asked how large it is.
        error
            .downcast::<HostError>()
            .map_or_else(LoadError::Load, LoadError::Host)
    });
    Examined {
        counts_interrupts: false,
        probes: unloaded(&error, &facts.layout),
        topology: host::read(roots),
        self_test: args
            .self_test
            .then(|| self_test::not_measured(args.seconds, &reason)),
    }
}

fn report(facts: &Facts, examined: Examined) -> Report {
    let Examined {
        counts_interrupts,
        probes,
        topology,
        self_test,
    } = examined;
    let probes = probes::reports(&probes, facts);
    let controllers = topology.controllers.iter();
    Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION"),
        exit_status: report::exit_status(counts_interrupts, &probes, self_test.as_ref()),
        checks: checks::checks(facts, &topology),
        probes,
        controllers: controllers
            .map(|controller| ControllerReport {
                address: controller.address.clone(),
                mode: controller.mode,
                vectors: controller.vectors.len(),
                child_interrupts: controller.child_interrupts,
            })
            .collect(),
        disks: topology.disks.len(),
        self_test,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ProbeState;
    use crate::snapshot::live::Live;

    fn examined(error: anyhow::Error) -> Report {
        let folder = tempfile::tempdir().unwrap();
        let args = Args {
            output: Output::Json,
            self_test: true,
            seconds: 1,
            sysfs: folder.path().to_owned(),
            procfs: folder.path().to_owned(),
        };
        examine(&args, |_| -> anyhow::Result<Live> { Err(error) }).unwrap()
    }

    #[test]
    fn what_forbids_loading_is_every_probes_reason() {
        let report = examined(LoadError::Lockdown.into());
        assert_eq!(report.exit_status, 2);
        assert!(!report.probes.is_empty());
        for probe in &report.probes {
            assert_eq!(probe.state, ProbeState::Blocked);
            assert!(probe.reason.as_deref().unwrap().contains("lockdown"));
            assert!(probe.remedy.is_some());
        }
        for test in report.self_test.unwrap().checks {
            assert!(test.found.contains("lockdown"), "{test:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_and_not_the_kernels_refusal() {
        let missing = HostError::Unreadable {
            path: "/sys/kernel/irq".into(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        let report = examined(missing.into());
        assert_eq!(report.exit_status, 2);
        let probe = &report.probes[0];
        assert_eq!(probe.state, ProbeState::Broken);
        let reason = probe.reason.as_deref().unwrap();
        assert!(
            reason.starts_with("cannot read /sys/kernel/irq"),
            "{reason}"
        );
    }

    #[test]
    fn the_text_has_every_probe_and_remedy() {
        let report = examined(LoadError::Privileges("CAP_BPF".to_owned()).into());
        let text = text::render(&report);
        for probe in &report.probes {
            assert!(text.contains(&probe.name), "{text}");
            assert!(text.contains(probe.remedy.as_deref().unwrap()), "{text}");
        }
        for check in &report.checks {
            assert!(text.contains(check.id), "{text}");
        }
        assert!(text.contains("Interrupts are not accounted"), "{text}");
    }
}
