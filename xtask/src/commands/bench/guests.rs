//! Parts that boot a virtual server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use vmd_device::{Config, DeviceId, Service};
use xtask_lab::{
    Artifacts, Background, Bound, CpuList, Done, Guest, GuestCommand, GuestConfig, Load, VMDTRACE,
    interrupt,
};
use xtask_setup::{Profile, Setup};

const PATIENCE: Duration = Duration::from_secs(120);
const LEVELS: [&str; 2] = ["counters", "timing"];
/// Loads without and with the daemon, each.
const ROUNDS: usize = 8;
const LOAD: Duration = Duration::from_secs(5);

fn artifacts(setup: &Setup, kernel: &str) -> anyhow::Result<Artifacts> {
    let built = setup.build(Profile::Release)?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    Ok(Artifacts::prepare(
        setup,
        kernel,
        Some(built.vmdtrace),
        this_program,
    )?)
}

fn boot(artifacts: &Artifacts) -> anyhow::Result<Guest> {
    let config = GuestConfig {
        controllers: vec![Config {
            id: DeviceId::Remap201d,
            disks: 2,
            vectors: 3,
            service: Service {
                latency: "80us".parse().map_err(anyhow::Error::msg)?,
                ..Service::default()
            },
            ..Config::default()
        }],
        ..GuestConfig::default()
    };
    eprintln!("lab: booting kernel {}", artifacts.kernel.package_version);
    let guest = Guest::boot(artifacts, &config)?;
    guest.await_disks(PATIENCE)?;
    Ok(guest)
}

/// Starts the daemon and waits until it counts.
fn daemon(guest: &Guest, level: &str) -> anyhow::Result<Background> {
    let daemon = guest.spawn(&GuestCommand::new(VMDTRACE).args([
        "serve",
        "--web.listen-address",
        "0.0.0.0:10973",
        "--log.level",
        "debug",
        "--level",
        level,
    ]))?;
    interrupt::until("waiting for the daemon", PATIENCE, || {
        daemon.check_running()?;
        let ready = guest.http_get("/readyz").is_ok_and(|it| it.status == 200);
        Ok(ready.then_some(()))
    })?;
    Ok(daemon)
}

/// Verified instructions by kernel, level and program.
pub(super) type Instructions = BTreeMap<String, BTreeMap<String, BTreeMap<String, u64>>>;

pub(super) fn instructions(setup: &Setup, kernels: &[&str]) -> anyhow::Result<Instructions> {
    let mut all = Instructions::new();
    for kernel in kernels {
        let artifacts = artifacts(setup, kernel)?;
        let guest = boot(&artifacts)?;
        for level in LEVELS {
            let output = daemon(&guest, level)?.stop(PATIENCE)?;
            let programs = verified(&output.stderr_text());
            all.entry(artifacts.kernel.package_version.clone())
                .or_default()
                .insert(level.to_owned(), programs);
        }
        guest.power_off()?;
    }
    for (kernel, levels) in &all {
        println!("verified instructions on {kernel}:");
        let of = |level: &str, name: &str| {
            let count = levels.get(level).and_then(|it| it.get(name));
            count.map_or_else(|| "-".to_owned(), u64::to_string)
        };
        println!("  {:<32} {:>9} {:>9}", "", LEVELS[0], LEVELS[1]);
        let names: std::collections::BTreeSet<_> =
            levels.values().flat_map(BTreeMap::keys).collect();
        for name in names {
            println!(
                "  {name:<32} {:>9} {:>9}",
                of(LEVELS[0], name),
                of(LEVELS[1], name)
            );
        }
        if levels.values().all(BTreeMap::is_empty) {
            println!("  this kernel does not tell (it does since 5.16)");
        }
    }
    Ok(all)
}

/// What the daemon says at debug level: `program NAME: N instructions verified`.
fn verified(log: &str) -> BTreeMap<String, u64> {
    let mut programs = BTreeMap::new();
    for line in log.lines() {
        let Some((_, rest)) = line.split_once("program ") else {
            continue;
        };
        if let Some((name, rest)) = rest.split_once(": ")
            && let Some(count) = rest.strip_suffix(" instructions verified")
            && let Ok(count) = count.parse()
        {
            programs.insert(name.to_owned(), count);
        }
    }
    programs
}

/// I/O rates of one level, and of no daemon in between.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    kernel: String,
    level: &'static str,
    without: Vec<f64>,
    with: Vec<f64>,
    /// Of neighbours, with to without.
    ratios: Vec<f64>,
}

pub(super) fn rates(setup: &Setup, kernel: &str) -> anyhow::Result<Vec<Rates>> {
    let artifacts = artifacts(setup, kernel)?;
    let guest = boot(&artifacts)?;
    let disks = guest.await_disks(PATIENCE)?;
    let load = Load {
        disks: disks
            .iter()
            .filter_map(|disk| disk.namespaces.first().cloned())
            .collect(),
        cpus: CpuList::first(2),
        depth: 16,
        bound: Bound::Time(LOAD),
    };
    let measure = || -> anyhow::Result<f64> {
        let output = guest.check(&load.command(), LOAD + PATIENCE)?;
        Ok(Done::parse(&output.stdout_text(), &load)?.iops())
    };
    measure()?;
    let mut all = Vec::new();
    for level in LEVELS {
        let mut rates = Rates {
            kernel: artifacts.kernel.package_version.clone(),
            level,
            without: Vec::new(),
            with: Vec::new(),
            ratios: Vec::new(),
        };
        for round in 0..ROUNDS {
            let with = || -> anyhow::Result<f64> {
                let daemon = daemon(&guest, level)?;
                let rate = measure()?;
                daemon.stop(PATIENCE)?;
                Ok(rate)
            };
            // In turns, so that a slow drift speaks for neither.
            let (with, without) = if round % 2 == 0 {
                let without = measure()?;
                (with()?, without)
            } else {
                (with()?, measure()?)
            };
            rates.with.push(with);
            rates.without.push(without);
            rates.ratios.push(with / without);
        }
        println!("level {level}, {ROUNDS} rounds of {} s:", LOAD.as_secs());
        for (name, values) in [
            ("without, reads/s", &rates.without),
            ("with, reads/s", &rates.with),
            ("with / without", &rates.ratios),
        ] {
            let [least, median, most] = spread(values);
            println!("  {name:<18} {median:>9.3} ({least:.3} to {most:.3})");
        }
        all.push(rates);
    }
    guest.power_off()?;
    Ok(all)
}

/// Least, median and most.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let middle = values.len() / 2;
    let median = if values.len().is_multiple_of(2) {
        f64::midpoint(at(middle.saturating_sub(1)), at(middle))
    } else {
        at(middle)
    };
    [at(0), median, at(values.len().saturating_sub(1))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_found_in_the_log() {
        let log = "2026-01-01T00:00:00Z DEBUG vmdtrace::probes::hook: program nvme_sq: 2356 instructions verified\n\
                   2026-01-01T00:00:00Z  INFO x: program nvme_sq: attached\n\
                   program bio_put: x instructions verified\n";
        assert_eq!(
            verified(log),
            BTreeMap::from([("nvme_sq".to_owned(), 2356)])
        );
    }

    #[test]
    fn the_middle_of_few_values() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), [1.0, 2.5, 4.0]);
        assert!(spread(&[]).iter().all(|value| value.is_nan()));
    }
}
