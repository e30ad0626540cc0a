//! What vmdtrace costs. As a test it compares what does not depend on the
//! machine's mood with docs/cost.json; with `--bench` (`cargo xtask bench`) it
//! measures the rest.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "the fixture fails by panicking"
)]

#[expect(dead_code, reason = "the tests of streams use more of it")]
#[path = "../../tests/kernel/fixture.rs"]
mod actions;
mod allocations;
mod daemon;
mod kernel;
mod node_exporter;
mod programs;
mod record;
mod scrape;
mod simulated;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context as _;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use vmdtrace::host::Roots;
use vmdtrace::metrics::Detail;
use vmdtrace::probes::{object, privileges};

use record::Record;
use simulated::{Host, LARGEST};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Why nothing can be measured here; None if it can.
fn obstacle() -> Option<String> {
    if object::embedded().is_none() {
        return Some("built without the eBPF object: run `cargo xtask test`".into());
    }
    match privileges::missing(&Roots::default()) {
        Ok(Some(missing)) => Some(format!("missing {missing}")),
        Ok(None) => kernel::obstacle(),
        Err(error) => Some(error.to_string()),
    }
}

fn measured() -> anyhow::Result<Record> {
    let host = Host::new(LARGEST)?;
    let (scrape, instructions) = scrape::measure(&host, Detail::default())?;
    Ok(Record {
        host: host.shape(),
        scrape,
        verified_instructions: BTreeMap::from([(record::kernel_series()?, instructions)]),
    })
}

/// A scrape of the largest host, and the programs on this machine's kernel.
fn nothing_grew() -> Result<Completion, Failed> {
    if let Some(reason) = obstacle() {
        return Ok(Completion::ignored_with(reason));
    }
    let now = measured().map_err(|error| format!("{error:#}"))?;
    let recorded = Record::read().map_err(|error| format!("{error:#}"))?;
    let mut grown = record::growth(recorded.scrape.figures(), &now.scrape.figures());
    // Series are a promise, whatever is recorded.
    if now.scrape.series >= 2_000 {
        grown.push(format!("{} series", now.scrape.series));
    }
    // The verifier of another kernel counts differently.
    for (series, programs) in &now.verified_instructions {
        if let Some(before) = recorded.verified_instructions.get(series) {
            let programs = programs.iter().map(|(name, count)| (name.as_str(), *count));
            let before = before.iter().map(|(name, count)| (name.as_str(), *count));
            grown.extend(record::growth(before, &programs.collect()));
        }
    }
    if grown.is_empty() {
        Ok(Completion::Completed)
    } else {
        Err(grown.join("\n").into())
    }
}

fn bench(part: &str, json: Option<&String>) -> anyhow::Result<()> {
    if let Some(reason) = obstacle() {
        anyhow::bail!("nothing can be measured here: {reason}");
    }
    match part {
        "record" => {
            let mut now = measured()?;
            // Other kernels' figures stay.
            if let Ok(old) = Record::read() {
                for (series, programs) in old.verified_instructions {
                    now.verified_instructions.entry(series).or_insert(programs);
                }
            }
            now.write()?;
            println!("{}", serde_json::to_string_pretty(&now)?);
            write(json, &now)
        }
        "programs" => {
            let figures = programs::measure()?;
            programs::print(&figures);
            write(json, &figures)
        }
        "host" => {
            let (figures, peer) = (daemon::measure()?, node_exporter::measure()?);
            daemon::print(&figures);
            node_exporter::print(peer.as_ref());
            write(
                json,
                &serde_json::json!({"vmdtrace": figures, "node_exporter": peer}),
            )
        }
        other => anyhow::bail!("there is no part {other}"),
    }
}

fn write(json: Option<&String>, figures: &impl serde::Serialize) -> anyhow::Result<()> {
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(figures)? + "\n")
            .with_context(|| path.clone())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    // What cargo gives to a bench, and not to a test.
    if given.iter().any(|argument| argument == "--bench") {
        let mut words = given.iter().filter(|argument| !argument.starts_with('-'));
        let (part, json) = (words.next(), words.next());
        return match bench(part.map_or("", String::as_str), json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // What another test allocates would be counted.
    arguments.test_threads = Some(1);
    let trials = vec![
        Trial::test("growth_is_told", record::tells_growth),
        Trial::ignorable_test("nothing_costs_more_than_recorded", nothing_grew),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
