//! One file per command, each thin: what it needs is computed elsewhere.

pub mod compare;
pub mod diagnose;
pub mod doctor;
pub mod generate;
pub mod output;
pub mod record;
pub mod replay;
pub mod serve;
pub mod topology;

use std::path::PathBuf;

/// A directory on the command line.
fn directory(text: &str) -> Result<PathBuf, String> {
    match std::fs::metadata(text) {
        Ok(metadata) if metadata.is_dir() => Ok(PathBuf::from(text)),
        Ok(_) => Err("not a directory".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
