//! Temporary folders of the lab.

use tempfile::TempDir;

use crate::error::{LabError, Result};

/// A folder that is removed when it is dropped. Its name tells what it is for
/// and which process made it, should that be killed.
pub(crate) fn folder(purpose: &str) -> Result<TempDir> {
    let parent = std::env::temp_dir();
    tempfile::Builder::new()
        .prefix(&format!("vmdtrace-{purpose}-{}-", std::process::id()))
        .tempdir()
        .map_err(LabError::io(format!(
            "cannot make a folder in {}",
            parent.display()
        )))
}
