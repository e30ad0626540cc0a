//! What a person sees of a set-up: one line per step, and how far it is.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// On a terminal the line is redrawn; elsewhere a new line is written, less often.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Writes steps and progress to stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    bar: Mutex<Bar>,
}

#[derive(Debug, Default)]
struct Bar {
    drawn: bool,
    last_plain: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            terminal: stderr().is_terminal(),
            bar: Mutex::default(),
        }
    }

    /// One line about a step that begins.
    pub(crate) fn step(&self, message: &str) {
        self.line(&format!("setup: {message}"));
    }

    /// How many bytes of the total are there.
    pub(crate) fn bytes(&self, what: &str, done: u64, total: u64) {
        let Ok(mut bar) = self.bar.lock() else { return };
        let text = format!(
            "setup:   {what}: {} of {} ({} %)",
            human_size(done),
            human_size(total),
            percent(done, total)
        );
        // A message that cannot be written is no reason to stop a set-up.
        if self.terminal {
            let _ = write!(stderr(), "\r\x1b[K{text}");
            let _ = stderr().flush();
            bar.drawn = true;
            return;
        }
        // What takes less than the interval needs no line at all.
        let last = *bar.last_plain.get_or_insert_with(Instant::now);
        if last.elapsed() >= PLAIN_INTERVAL {
            bar.last_plain = Some(Instant::now());
            let _ = writeln!(stderr(), "{text}");
        }
    }

    /// Ends the line that [`Progress::bytes`] keeps redrawing.
    pub(crate) fn finish(&self) {
        let Ok(mut bar) = self.bar.lock() else { return };
        if bar.drawn {
            let _ = writeln!(stderr());
        }
        *bar = Bar::default();
    }

    fn line(&self, text: &str) {
        self.finish();
        let _ = writeln!(stderr(), "{text}");
    }
}

fn percent(done: u64, total: u64) -> u64 {
    if total == 0 {
        100
    } else {
        (u128::from(done) * 100 / u128::from(total)).min(100) as u64
    }
}

/// A size in bytes for people, in decimal units as download sizes are given.
pub fn human_size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        assert_eq!(human_size(999), "999 B");
        assert_eq!(human_size(1_000), "1.0 kB");
        assert_eq!(human_size(37_909_852), "37.9 MB");
        assert_eq!(human_size(2_500_000_000), "2.5 GB");
    }

    #[test]
    fn percent_of_nothing_is_all_and_never_more() {
        assert_eq!(percent(0, 0), 100);
        assert_eq!(percent(1, 3), 33);
        assert_eq!(percent(5, 3), 100);
        assert_eq!(percent(u64::MAX, u64::MAX), 100);
    }
}
