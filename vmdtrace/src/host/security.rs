//! What may refuse to load or attach programs, beside capabilities: lockdown and
//! security modules.

use super::{Fact, Roots, fact};

/// Mode of kernel lockdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    None,
    /// Forbids changing the running kernel: nothing that is done here.
    Integrity,
    /// Forbids reading it, too.
    Confidentiality,
}

impl Lockdown {
    /// As the kernel calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Confidentiality => "confidentiality",
        }
    }

    /// The file names all modes and puts the one in force in brackets
    /// (security/lockdown/lockdown.c). None without that file: the kernel has no
    /// lockdown, or securityfs is not mounted.
    ///
    /// # Errors
    /// If the file cannot be read or understood.
    pub fn read(roots: &Roots) -> Fact<Self> {
        let path = roots.sysfs.join("kernel/security/lockdown");
        fact(path, "a list of modes with one in brackets", |modes| {
            [Self::None, Self::Integrity, Self::Confidentiality]
                .into_iter()
                .find(|mode| modes.contains(&format!("[{}]", mode.as_str())))
        })
    }
}

/// Lockdown and security modules, as this process meets them.
#[derive(Debug)]
pub struct Security {
    pub lockdown: Fact<Lockdown>,
    /// Active modules, in the order they are asked.
    pub modules: Fact<String>,
    /// Whether SELinux refuses, or only reports.
    pub selinux_enforcing: Fact<bool>,
    /// What a security module calls this process: an SELinux context, or an
    /// AppArmor profile such as `unconfined`.
    pub label: Fact<String>,
    /// Whether system calls of this process are filtered (seccomp).
    pub filters_system_calls: Fact<bool>,
}

impl Security {
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let Roots { sysfs, procfs } = roots;
        let text = |text: &str| Some(text.trim_end_matches('\0').to_owned());
        let mut label = fact(procfs.join("self/attr/current"), "a label", text);
        // Without a module that has labels the read is refused with EINVAL
        // (fs/proc/base.c, proc_pid_attr_read).
        if let Err(super::HostError::Unreadable { source, .. }) = &label
            && source.kind() == std::io::ErrorKind::InvalidInput
        {
            label = Ok(None);
        }
        Self {
            lockdown: Lockdown::read(roots),
            modules: fact(sysfs.join("kernel/security/lsm"), "a list", text),
            selinux_enforcing: fact(
                sysfs.join("fs/selinux/enforce"),
                "0 or 1",
                |text| match text {
                    "0" => Some(false),
                    "1" => Some(true),
                    _ => None,
                },
            ),
            label,
            // No such line: the kernel has no seccomp.
            filters_system_calls: fact(procfs.join("self/status"), "a status", |text| {
                let mode = text.lines().find_map(|it| it.strip_prefix("Seccomp:"));
                Some(mode.is_some_and(|mode| mode.trim() != "0"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lockdown_is_told_by_the_mode_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().to_owned(),
            ..Roots::default()
        };
        assert_eq!(Lockdown::read(&roots).unwrap(), None, "no securityfs");
        fs::create_dir_all(dir.path().join("kernel/security")).unwrap();
        for (modes, expected) in [
            (
                "none integrity [confidentiality]\n",
                Lockdown::Confidentiality,
            ),
            ("none [integrity] confidentiality\n", Lockdown::Integrity),
            ("[none] integrity confidentiality\n", Lockdown::None),
        ] {
            fs::write(dir.path().join("kernel/security/lockdown"), modes).unwrap();
            assert_eq!(Lockdown::read(&roots).unwrap(), Some(expected), "{modes}");
        }
        fs::write(dir.path().join("kernel/security/lockdown"), "strict").unwrap();
        let error = Lockdown::read(&roots).unwrap_err().to_string();
        assert!(error.contains("security/lockdown"), "{error}");
        assert!(error.contains("\"strict\""), "{error}");
    }

    #[test]
    fn modules_and_this_processs_label() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().join("sys"),
            procfs: dir.path().join("proc"),
        };
        for (path, text) in [
            ("sys/kernel/security/lsm", "lockdown,capability,selinux"),
            ("sys/fs/selinux/enforce", "1"),
            ("proc/self/attr/current", "system_u:system_r:init_t:s0\0"),
            ("proc/self/status", "Name:\tx\nSeccomp:\t2\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = Security::read(&roots);
        assert_eq!(
            found.modules.unwrap().as_deref(),
            Some("lockdown,capability,selinux")
        );
        assert_eq!(found.selinux_enforcing.unwrap(), Some(true));
        assert_eq!(
            found.label.unwrap().as_deref(),
            Some("system_u:system_r:init_t:s0")
        );
        assert_eq!(found.filters_system_calls.unwrap(), Some(true));
        assert!(found.lockdown.unwrap().is_none());
    }

    #[test]
    fn of_this_process() {
        let found = Security::read(&Roots::default());
        assert!(found.filters_system_calls.unwrap().is_some());
        found.label.unwrap();
    }
}
