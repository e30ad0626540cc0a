//! Counts that never go back, looked at again and again.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xtask_lab::{Guest, Sample, Scrape};

/// Between one look and the next: the guest has other things to do.
const PAUSE: Duration = Duration::from_millis(200);

/// Looks at /metrics while something happens. Panics if a scrape fails or a counter
/// goes back meanwhile.
pub(super) fn during(guest: &Guest, work: impl FnOnce()) {
    let done = AtomicBool::new(false);
    let looked = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| look_until(&done, guest));
        // Ends the watcher in any case.
        let worked = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let looked = watcher.join();
        if let Err(reason) = worked {
            resume_unwind(reason);
        }
        looked
    });
    match looked {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{error}"),
        Err(reason) => resume_unwind(reason),
    }
}

/// At least twice: the last time when it is done.
fn look_until(done: &AtomicBool, guest: &Guest) -> Result<(), String> {
    let scrape = || guest.scrape().map_err(|error| error.to_string());
    let mut last = scrape()?;
    loop {
        let is_last = done.load(Ordering::Relaxed);
        let now = scrape()?;
        never_back(&last, &now)?;
        if is_last {
            return Ok(());
        }
        last = now;
        std::thread::sleep(PAUSE);
    }
}

fn is_counter(sample: &Sample) -> bool {
    ["_total", "_bucket", "_sum", "_count"]
        .iter()
        .any(|end| sample.name.ends_with(end))
}

/// Name and labels.
type Series<'a> = (&'a str, &'a [(String, String)]);

fn counters(scrape: &Scrape) -> BTreeMap<Series<'_>, f64> {
    let samples = scrape.samples.iter().filter(|it| is_counter(it));
    samples
        .map(|it| ((it.name.as_str(), it.labels.as_slice()), it.value))
        .collect()
}

/// What counted something is still there, and has not gone back.
pub(super) fn never_back(earlier: &Scrape, later: &Scrape) -> Result<(), String> {
    let now = counters(later);
    let mut wrong = Vec::new();
    for (series, before) in counters(earlier) {
        // That of a disk which is gone may go, if there was nothing in it.
        let after = now.get(&series).copied().unwrap_or_default();
        if after < before {
            wrong.push(format!("{series:?} went back from {before} to {after}"));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}
