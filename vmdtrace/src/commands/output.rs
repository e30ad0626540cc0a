//! How commands that look print what they found.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;

/// How to print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people, 100 columns wide
    #[default]
    Text,
    /// For programs: one object
    Json,
}

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written. A reader that has seen enough (`head`, a pager) is
/// no error.
pub fn print(shown: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}
