//! Parts that boot a virtual server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use vmd_device::{Config, DeviceId, Service};
use xtask_lab::{
    Artifacts, Background, Bound, CpuList, Done, Guest, GuestCommand, GuestConfig, GuestFile, Load,
    VMDTRACE, interrupt,
};
use xtask_setup::{Profile, Setup};

pub(super) const PATIENCE: Duration = Duration::from_secs(120);
const LEVELS: [&str; 2] = ["counters", "timing"];
/// Each of a load without the daemon, one with it, and another without.
const ROUNDS: usize = 6;
pub(super) const LOAD: Duration = Duration::from_secs(4);
/// Ahead of each measured load, whatever runs: what a daemon that was just started
/// has left to do is over then, and caches are warm.
pub(super) const WARM_UP: Duration = Duration::from_secs(2);

pub(super) fn artifacts(setup: &Setup, kernel: &str) -> anyhow::Result<Artifacts> {
    let built = setup.build(Profile::Release)?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    Ok(Artifacts::prepare(
        setup,
        kernel,
        Some(built.vmdtrace),
        this_program,
    )?)
}

pub(super) fn boot(artifacts: &Artifacts, files: Vec<GuestFile>) -> anyhow::Result<Guest> {
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
        // bpftrace's libraries are large.
        memory_mib: 2048,
        files,
        ..GuestConfig::default()
    };
    eprintln!("lab: booting kernel {}", artifacts.kernel.package_version);
    let guest = Guest::boot(artifacts, &config)?;
    guest.await_disks(PATIENCE)?;
    Ok(guest)
}

/// Starts the daemon and waits until it counts.
pub(super) fn daemon(guest: &Guest, level: &str) -> anyhow::Result<Background> {
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
        let guest = boot(&artifacts, Vec::new())?;
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
    without_again: Vec<f64>,
    /// Of one round, with to without.
    ratios: Vec<f64>,
    /// Of one round, without to without: what chance alone does.
    controls: Vec<f64>,
}

/// What is measured in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Without,
    With,
    WithoutAgain,
}

/// Each comes first, second and last equally often, and each before another as
/// often as after it.
const ORDERS: [[Case; 3]; 6] = {
    use Case::{With, Without, WithoutAgain};
    [
        [Without, With, WithoutAgain],
        [WithoutAgain, With, Without],
        [With, WithoutAgain, Without],
        [Without, WithoutAgain, With],
        [WithoutAgain, Without, With],
        [With, Without, WithoutAgain],
    ]
};

pub(super) fn load(guest: &Guest, time: Duration) -> anyhow::Result<Load> {
    let disks = guest.await_disks(PATIENCE)?;
    Ok(Load {
        disks: disks
            .iter()
            .filter_map(|disk| disk.namespaces.first().cloned())
            .collect(),
        cpus: CpuList::first(2),
        depth: 16,
        bound: Bound::Time(time),
    })
}

pub(super) fn measure(guest: &Guest, load: &Load) -> anyhow::Result<Done> {
    let output = guest.check(&load.command(), LOAD + PATIENCE)?;
    Ok(Done::parse(&output.stdout_text(), load)?)
}

pub(super) fn rates(setup: &Setup, kernel: &str) -> anyhow::Result<Vec<Rates>> {
    let artifacts = artifacts(setup, kernel)?;
    let guest = boot(&artifacts, Vec::new())?;
    let (warm_up, timed) = (load(&guest, WARM_UP)?, load(&guest, LOAD)?);
    let rate = || -> anyhow::Result<f64> {
        measure(&guest, &warm_up)?;
        Ok(measure(&guest, &timed)?.iops())
    };
    let mut all = Vec::new();
    for level in LEVELS {
        let mut rates = Rates {
            kernel: artifacts.kernel.package_version.clone(),
            level,
            without: Vec::new(),
            with: Vec::new(),
            without_again: Vec::new(),
            ratios: Vec::new(),
            controls: Vec::new(),
        };
        for order in ORDERS.iter().cycle().take(ROUNDS) {
            for case in order {
                match case {
                    Case::Without => rates.without.push(rate()?),
                    Case::WithoutAgain => rates.without_again.push(rate()?),
                    Case::With => {
                        let daemon = daemon(&guest, level)?;
                        rates.with.push(rate()?);
                        daemon.stop(PATIENCE)?;
                    }
                }
            }
        }
        rates.ratios = quotients(&rates.with, &rates.without);
        rates.controls = quotients(&rates.without_again, &rates.without);
        println!(
            "kernel {}, level {level}, {ROUNDS} rounds of {} s:",
            rates.kernel,
            LOAD.as_secs()
        );
        for (name, values) in [
            ("without, reads/s", &rates.without),
            ("with, reads/s", &rates.with),
            ("again without", &rates.without_again),
            ("with / without", &rates.ratios),
            ("without / without", &rates.controls),
        ] {
            let [least, median, most] = spread(values);
            println!("  {name:<18} {median:>9.3} ({least:.3} to {most:.3})");
        }
        let beyond = beyond_chance(&rates.ratios, &rates.controls);
        println!(
            "  the difference is {} than what two loads without differ by",
            if beyond { "more" } else { "not more" }
        );
        all.push(rates);
    }
    guest.power_off()?;
    Ok(all)
}

pub(super) fn quotients(dividends: &[f64], divisors: &[f64]) -> Vec<f64> {
    let pairs = dividends.iter().zip(divisors);
    pairs
        .map(|(dividend, divisor)| dividend / divisor)
        .collect()
}

/// Whether the median lies outside of everything that was seen by chance.
fn beyond_chance(ratios: &[f64], controls: &[f64]) -> bool {
    let ([_, median, _], [least, _, most]) = (spread(ratios), spread(controls));
    !(least..=most).contains(&median)
}

/// Least, median and most.
pub(super) fn spread(values: &[f64]) -> [f64; 3] {
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
    fn cases_take_turns() {
        for place in 0..3 {
            let first = ORDERS.iter().filter(|it| it[place] == Case::With).count();
            assert_eq!(first, 2);
        }
    }

    #[test]
    fn what_chance_does_is_no_difference() {
        let controls = [0.8, 1.0, 1.1];
        assert!(!beyond_chance(&[0.7, 0.85, 0.9], &controls));
        assert!(beyond_chance(&[0.7, 0.79, 0.9], &controls));
        assert_eq!(quotients(&[1.0, 3.0], &[2.0, 2.0]), [0.5, 1.5]);
    }

    #[test]
    fn the_middle_of_few_values() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), [1.0, 2.5, 4.0]);
        assert!(spread(&[]).iter().all(|value| value.is_nan()));
    }
}
