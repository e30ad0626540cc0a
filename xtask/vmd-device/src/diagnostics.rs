//! Lines on stderr: lifecycle, and rejected input at a bounded rate.

use std::fmt;
use std::time::{Duration, Instant};

/// Lines about rejected input per second; the rest is only counted.
const LINES_PER_SECOND: u32 = 10;

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
        self.warn(what);
    }

    /// Logs something odd that is nobody's malformed request.
    pub(crate) fn warn(&mut self, what: fmt::Arguments<'_>) {
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

    /// Logs a lifecycle event.
    pub(crate) fn info(&self, what: fmt::Arguments<'_>) {
        eprintln!("vmd-device: {what}");
    }

    /// Logs a detail that is only wanted with `--verbose`.
    pub(crate) fn detail(&self, what: fmt::Arguments<'_>) {
        if self.verbose {
            eprintln!("vmd-device: {what}");
        }
    }
}
