//! `vmdtrace generate`: manual pages and shell completions, made of the command
//! line itself, for whoever packages the program.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// Write the manual pages and the completions of bash, zsh and fish.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to write them to; it is made if missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes all of them.
///
/// # Errors
/// When a file cannot be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { folder } = args;
    let write = || {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Cli::command(), folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut Cli::command(), "vmdtrace", folder)?;
        }
        std::io::Result::Ok(())
    };
    write().with_context(|| format!("cannot write to {}", folder.display()))
}
