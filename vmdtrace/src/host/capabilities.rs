//! What this process is allowed to do.

use std::fs;

use super::{HostError, Roots, files};

/// Inode of the first user namespace (`PROC_USER_INIT_INO` in
/// include/linux/proc_ns.h): fixed, the same on every kernel.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// A capability that loading and attaching eBPF programs may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Anything CAP_BPF and CAP_PERFMON are not enough for, and all of it before 5.8.
    SysAdmin,
    /// Raising the locked-memory limit, which charges maps before 5.11.
    SysResource,
    /// Seeing the kernel's addresses in /proc/kallsyms.
    Syslog,
    /// Reading the kernel's memory and attaching to its tracepoints (5.8).
    Perfmon,
    /// Creating maps and loading programs (5.8).
    Bpf,
}

impl Capability {
    /// Its name as in capabilities(7).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Syslog => "CAP_SYSLOG",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    /// Its number (include/uapi/linux/capability.h).
    fn bit(self) -> u32 {
        match self {
            Self::SysAdmin => 21,
            Self::SysResource => 24,
            Self::Syslog => 34,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }
}

/// The effective capabilities of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    effective: u64,
    /// Whether they are the host's: inside another user namespace (a rootless
    /// container) they do not count for eBPF. Absent where it cannot be told.
    pub in_initial_user_namespace: Option<bool>,
}

impl Capabilities {
    /// Whether it is in the effective set.
    #[must_use]
    pub fn has(self, capability: Capability) -> bool {
        self.effective & (1 << capability.bit()) != 0
    }

    /// Which of `wanted` are missing. `CAP_SYS_ADMIN` stands for `CAP_BPF` and
    /// `CAP_PERFMON` too (`bpf_capable`, `perfmon_capable`).
    #[must_use]
    pub fn missing(self, wanted: &[Capability]) -> Vec<Capability> {
        let covered = |capability| match capability {
            Capability::Bpf | Capability::Perfmon => self.has(Capability::SysAdmin),
            Capability::SysAdmin | Capability::SysResource | Capability::Syslog => false,
        };
        wanted
            .iter()
            .copied()
            .filter(|&capability| !self.has(capability) && !covered(capability))
            .collect()
    }
}

/// Reads what this process may do.
pub fn capabilities(roots: &Roots) -> Result<Capabilities, HostError> {
    let path = roots.procfs.join("self/status");
    let text = match files::read_text(&path) {
        Ok(text) => text,
        Err(source) => return Err(HostError::Unreadable { path, source }),
    };
    let Some(effective) = text.lines().find_map(|line| line.strip_prefix("CapEff:")) else {
        return Err(HostError::Nonsense {
            path,
            what: "has no CapEff line".to_owned(),
        });
    };
    let Ok(effective) = u64::from_str_radix(effective.trim(), 16) else {
        return Err(HostError::Nonsense {
            path,
            what: format!(
                "CapEff {} is not a hexadecimal number",
                files::quoted(effective)
            ),
        });
    };
    let namespace = fs::read_link(roots.procfs.join("self/ns/user")).ok();
    Ok(Capabilities {
        effective,
        in_initial_user_namespace: namespace
            .map(|target| target.as_os_str() == INITIAL_USER_NAMESPACE),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(status: &str, namespace: &str) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().into(),
            procfs: dir.path().into(),
        };
        fs::create_dir_all(dir.path().join("self/ns")).unwrap();
        fs::write(dir.path().join("self/status"), status).unwrap();
        symlink(namespace, dir.path().join("self/ns/user")).unwrap();
        (dir, roots)
    }

    #[test]
    fn names_what_is_missing() {
        let wanted = [
            Capability::Bpf,
            Capability::Perfmon,
            Capability::SysResource,
        ];
        // CAP_PERFMON alone.
        let (_dir, roots) = process("Name:\tx\nCapEff:\t0000004000000000\n", "user:[4026531837]");
        let found = capabilities(&roots).unwrap();
        assert_eq!(
            found.missing(&wanted),
            [Capability::Bpf, Capability::SysResource]
        );
        assert_eq!(found.in_initial_user_namespace, Some(true));
        // CAP_SYS_ADMIN alone.
        let (_dir, roots) = process("CapEff:\t0000000000200000\n", "user:[4026532000]");
        let found = capabilities(&roots).unwrap();
        assert_eq!(found.missing(&wanted), [Capability::SysResource]);
        assert_eq!(found.in_initial_user_namespace, Some(false));
    }

    #[test]
    fn nonsense_is_an_error() {
        let (_dir, roots) = process("CapEff:\tzz\n", "x");
        assert!(
            capabilities(&roots)
                .unwrap_err()
                .to_string()
                .contains("self/status: CapEff")
        );
        let (_dir, roots) = process("\u{0}", "x");
        assert!(
            capabilities(&roots)
                .unwrap_err()
                .to_string()
                .contains("has no CapEff line")
        );
    }

    #[test]
    fn of_this_process() {
        let found = capabilities(&Roots::default()).unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let none = status.contains("CapEff:\t0000000000000000");
        assert_eq!(none, found.effective == 0);
    }
}
