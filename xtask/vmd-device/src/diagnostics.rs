//! Lines on stderr, at a bounded rate: lifecycle, and rejected input.

use std::fmt;
use std::time::{Duration, Instant};

/// Lines per second; the rest is only counted.
pub(crate) const LINES_PER_SECOND: u32 = 10;

/// Counts rejected input and says what it was.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    rejected: u64,
    window: Instant,
    lines: u32,
    suppressed: u64,
    verbose: bool,
}

impl Diagnostics {
    pub(crate) fn new(verbose: bool) -> Self {
        Self {
            rejected: 0,
            window: Instant::now(),
            lines: 0,
            suppressed: 0,
            verbose,
        }
    }

    /// Requests rejected so far.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Counts one rejected request and logs it unless there were many lately.
    pub(crate) fn reject(&mut self, what: fmt::Arguments<'_>) {
        self.rejected += 1;
        self.info(what);
    }

    /// Logs what is nobody's malformed request, unless there were many lines lately:
    /// guest and client decide how often it happens.
    pub(crate) fn info(&mut self, what: fmt::Arguments<'_>) {
        if self.window.elapsed() >= Duration::from_secs(1) {
            if self.suppressed > 0 {
                eprintln!("vmd-device: {} more such lines suppressed", self.suppressed);
            }
            self.window = Instant::now();
            self.lines = 0;
            self.suppressed = 0;
        }
        if self.lines < LINES_PER_SECOND {
            self.lines += 1;
            eprintln!("vmd-device: {what}");
        } else {
            self.suppressed += 1;
        }
    }

    /// Lines left out and not yet mentioned.
    #[cfg(test)]
    pub(crate) fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Logs a detail that is only wanted with `--verbose`.
    pub(crate) fn detail(&self, what: fmt::Arguments<'_>) {
        if self.verbose {
            eprintln!("vmd-device: {what}");
        }
    }
}
