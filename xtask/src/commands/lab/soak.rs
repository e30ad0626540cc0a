//! `cargo xtask lab soak`.

use std::time::Instant;

use anyhow::{Context as _, bail};
use xtask_lab::soak::{Footprint, boot_once};
use xtask_lab::{Artifacts, LabError, guests_at_once, interrupt};
use xtask_setup::{DEFAULT_KERNEL, Setup};

use crate::commands::test::{kernels, series};

/// Boot many guests and tell which hung and what leaked
///
/// Alternates between a VMD that is remapped and one that is bypassed, and goes
/// through the kernels in turn. Each guest finds its disks, reads them twice,
/// and is switched off. After each round nothing may be left of it: no process,
/// no file, no descriptor, no thread; and the emulated device must not need more
/// memory for the second load than for the first. Logs of a guest that failed are
/// kept. Ends with status 1 if anything failed.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Guests to boot
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
    /// Kernels to boot, by series, or all that the tests know
    #[arg(long, value_name = "SERIES,...|all", value_delimiter = ',', value_parser = series(), default_value = DEFAULT_KERNEL)]
    kernels: Vec<String>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    let this_program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut artifacts = Vec::new();
    for series in kernels(&args.kernels, &[]) {
        artifacts.push(Artifacts::prepare(
            &setup,
            series,
            None,
            this_program.clone(),
        )?);
    }
    interrupt::listen()?;
    let at_once = guests_at_once();
    let start = Instant::now();
    let (mut failed, mut booted) = (Vec::new(), 0);
    let mut at_first: Option<Footprint> = None;
    let mut numbers = 0..args.boots;
    loop {
        let round: Vec<u32> = numbers.by_ref().take(at_once).collect();
        if round.is_empty() || interrupt::check().is_err() {
            break;
        }
        let results = one_round(&artifacts, &round);
        for (number, result) in round.iter().zip(results) {
            booted += 1;
            match result {
                Ok(told) => eprintln!("soak {}/{}: {told}", number + 1, args.boots),
                Err(error) => {
                    eprintln!("soak {}/{}: FAILED: {error}", number + 1, args.boots);
                    failed.push(number + 1);
                }
            }
        }
        // What the first round makes once (threads, handlers) stays.
        match &at_first {
            None => at_first = Some(Footprint::settled()?),
            Some(at_first) => {
                if let Err(error) = at_first.require_no_more(failed.len()) {
                    eprintln!("soak: after guest {booted}: {error}");
                    failed.push(booted);
                }
            }
        }
    }
    println!(
        "{booted} guests booted in {} s, {at_once} at once: {} failed",
        start.elapsed().as_secs(),
        failed.len()
    );
    interrupt::check()?;
    if !failed.is_empty() {
        bail!("guests that failed or left something behind: {failed:?}; see above");
    }
    Ok(())
}

/// Boots some guests at once; what became of each.
fn one_round(artifacts: &[Artifacts], round: &[u32]) -> Vec<Result<String, LabError>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = round
            .iter()
            .map(|number| scope.spawn(move || boot_once(artifacts, *number)))
            .collect();
        running
            .into_iter()
            .map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(LabError::Invalid("the boot's thread panicked".to_owned()))
                })
            })
            .collect()
    })
}
