//! Temporary folders of the lab.

use std::path::Path;

use tempfile::TempDir;

use crate::error::{LabError, Result};

/// A folder that is removed when it is dropped, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Folder {
    folder: Option<TempDir>,
    keep: bool,
}

impl Folder {
    /// Makes a folder. Its name tells what it is for and which process made it,
    /// should that be killed.
    pub(crate) fn new(purpose: &str) -> Result<Self> {
        let parent = std::env::temp_dir();
        let folder = tempfile::Builder::new()
            .prefix(&format!("vmdtrace-{purpose}-{}-", std::process::id()))
            .tempdir()
            .map_err(LabError::io(format!(
                "cannot make a folder in {}",
                parent.display()
            )))?;
        Ok(Self {
            folder: Some(folder),
            keep: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Whether it stays, and its name is told, when it is dropped.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.keep = keep;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep
            && let Some(folder) = self.folder.take()
        {
            eprintln!("logs are kept in {}", folder.keep().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_unless_it_is_kept() {
        let mut folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        folder.keep(true);
        drop(folder);
        assert!(path.is_dir());
        std::fs::remove_dir(&path).unwrap();
        let folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
