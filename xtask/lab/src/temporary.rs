//! Temporary folders of the lab.

use std::path::Path;

use tempfile::TempDir;

use crate::error::{LabError, Result};

/// A folder that is removed when it is dropped, but for its logs if they are to be
/// kept.
#[derive(Debug)]
pub struct Folder {
    folder: Option<TempDir>,
    keep: bool,
}

impl Folder {
    /// Makes a folder. Its name tells what it is for and which process made it,
    /// should that be killed.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(purpose: &str) -> Result<Self> {
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

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Whether its logs stay, and its name is told, when it is dropped.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.keep = keep;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep
            && let Some(folder) = self.folder.take()
        {
            let path = folder.keep();
            // What else there is (the initramfs, disks) is large and explains nothing.
            // A file that cannot be removed does no harm.
            for item in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                if item.path().extension().is_none_or(|it| it != "log") {
                    let _ = std::fs::remove_file(item.path());
                }
            }
            eprintln!("logs are kept in {}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_but_for_its_logs_if_they_are_kept() {
        let mut folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        for name in ["initramfs", "native0.disk", "console.log"] {
            std::fs::write(path.join(name), name).unwrap();
        }
        folder.keep(true);
        drop(folder);
        let left = std::fs::read_dir(&path).unwrap();
        let left: Vec<_> = left.map(|item| item.unwrap().file_name()).collect();
        assert_eq!(left, ["console.log"]);
        std::fs::remove_dir_all(&path).unwrap();
        let folder = Folder::new("test").unwrap();
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
