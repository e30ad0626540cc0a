//! Whether this process is inside a container, and what it sees from there.

use std::{fs, io::ErrorKind};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{Fact, HostError, Roots, capabilities, fact};

/// Inode of the first PID namespace (`PROC_PID_INIT_INO` in
/// include/linux/proc_ns.h): fixed, the same on every kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Namespaces, control group and mounts.
#[derive(Debug)]
pub struct Containment {
    /// Whether capabilities are the host's.
    pub in_initial_user_namespace: Fact<bool>,
    pub in_initial_pid_namespace: Fact<bool>,
    /// Control group of this process, as its namespace shows it.
    pub control_group: Fact<String>,
    /// Whether sysfs is mounted read-only, as container engines do.
    pub sysfs_is_read_only: Result<bool, HostError>,
}

impl Containment {
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let own = roots.procfs.join("self");
        let pid = own.join("ns/pid");
        let sysfs_is_read_only = match statvfs(&roots.sysfs) {
            Ok(found) => Ok(found.flags().contains(FsFlags::ST_RDONLY)),
            Err(error) => Err(HostError::Unreadable {
                path: roots.sysfs.clone(),
                source: error.into(),
            }),
        };
        Self {
            in_initial_user_namespace: capabilities(roots)
                .map(|found| found.in_initial_user_namespace),
            in_initial_pid_namespace: match fs::read_link(&pid) {
                Ok(target) => Ok(Some(target.as_os_str() == INITIAL_PID_NAMESPACE)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(source) => Err(HostError::Unreadable { path: pid, source }),
            },
            // The line of the unified hierarchy, else the first one (cgroups(7)).
            control_group: fact(own.join("cgroup"), "a list of control groups", |text| {
                let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
                let first = || text.lines().next()?.splitn(3, ':').nth(2);
                unified.or_else(first).map(str::to_owned)
            }),
            sysfs_is_read_only,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_container_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("self");
        fs::create_dir_all(own.join("ns")).unwrap();
        symlink("pid:[4026532000]", own.join("ns/pid")).unwrap();
        symlink("user:[4026532001]", own.join("ns/user")).unwrap();
        fs::write(own.join("status"), "CapEff:\t0\n").unwrap();
        fs::write(own.join("cgroup"), "1:cpu:/a:b\n0::/box\n").unwrap();
        let found = Containment::read(&Roots {
            sysfs: dir.path().to_owned(),
            procfs: dir.path().to_owned(),
        });
        assert_eq!(found.in_initial_user_namespace.unwrap(), Some(false));
        assert_eq!(found.in_initial_pid_namespace.unwrap(), Some(false));
        assert_eq!(found.control_group.unwrap().as_deref(), Some("/box"));
        assert!(!found.sysfs_is_read_only.unwrap());
    }

    #[test]
    fn of_this_process() {
        let found = Containment::read(&Roots::default());
        assert!(found.in_initial_pid_namespace.unwrap().is_some());
        found.sysfs_is_read_only.unwrap();
    }
}
