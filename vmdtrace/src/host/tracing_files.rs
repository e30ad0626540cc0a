//! The kernel's tracing files (tracefs): where they are, and whether this
//! process may use them.

use std::{fs, io::ErrorKind, path::PathBuf};

use super::{HostError, Roots};

/// Where tracefs is.
#[derive(Debug)]
pub enum TracingFiles {
    Reachable(PathBuf),
    /// Neither mounted at its own place nor below debugfs.
    NotMounted,
    Refused(HostError),
}

impl TracingFiles {
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let mut refused = None;
        for below in ["kernel/tracing", "kernel/debug/tracing"] {
            let path = roots.sysfs.join(below);
            // An empty mount point is no tracefs; only root may enter one.
            match fs::metadata(path.join("events")) {
                Ok(_) => return Self::Reachable(path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => {
                    refused.get_or_insert(HostError::Unreadable { path, source });
                }
            }
        }
        refused.map_or(Self::NotMounted, Self::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_place_will_do() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().to_owned(),
            ..Roots::default()
        };
        assert!(matches!(
            TracingFiles::read(&roots),
            TracingFiles::NotMounted
        ));
        let below = dir.path().join("kernel/debug/tracing");
        fs::create_dir_all(below.join("events")).unwrap();
        fs::create_dir_all(dir.path().join("kernel/tracing")).unwrap();
        assert!(
            matches!(TracingFiles::read(&roots), TracingFiles::Reachable(path) if path == below)
        );
    }

    #[test]
    fn a_refusal_is_not_an_absence() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("kernel")).unwrap();
        // A file where a folder should be: any error but absence.
        fs::write(dir.path().join("kernel/tracing"), "").unwrap();
        let found = TracingFiles::read(&Roots {
            sysfs: dir.path().to_owned(),
            ..Roots::default()
        });
        let TracingFiles::Refused(error) = found else {
            panic!("{found:?}");
        };
        assert!(error.to_string().contains("kernel/tracing"), "{error}");
    }
}
