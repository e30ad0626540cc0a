//! Kernel settings (sysctl) that decide what eBPF programs may do.

use super::{Fact, Roots, fact};

/// Each is none where the kernel has no such setting.
#[derive(Debug)]
pub struct Settings {
    /// `uname -r`, for display only: nothing is decided by it.
    pub release: Fact<String>,
    /// 2 hides kernel addresses from everybody.
    pub kptr_restrict: Fact<i64>,
    /// Above 2 (a patch of Debian's) perf_event_open needs CAP_SYS_ADMIN.
    pub perf_event_paranoid: Fact<i64>,
    /// Not 0: eBPF is for privileged processes only.
    pub unprivileged_bpf_disabled: Fact<i64>,
    /// 0: function tracing is switched off.
    pub ftrace_enabled: Fact<i64>,
    /// Highest capability the kernel knows.
    pub last_capability: Fact<i64>,
}

impl Settings {
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let kernel = roots.procfs.join("sys/kernel");
        let number = |name: &str| fact(kernel.join(name), "a number", |text| text.parse().ok());
        Self {
            release: fact(kernel.join("osrelease"), "a release", |text| {
                (!text.is_empty()).then(|| text.to_owned())
            }),
            kptr_restrict: number("kptr_restrict"),
            perf_event_paranoid: number("perf_event_paranoid"),
            unprivileged_bpf_disabled: number("unprivileged_bpf_disabled"),
            ftrace_enabled: number("ftrace_enabled"),
            last_capability: number("cap_last_cap"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn absent_negative_and_nonsense() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("perf_event_paranoid"), "-1\n").unwrap();
        fs::write(kernel.join("kptr_restrict"), "many\n").unwrap();
        let found = Settings::read(&Roots {
            procfs: dir.path().to_owned(),
            ..Roots::default()
        });
        assert_eq!(found.perf_event_paranoid.unwrap(), Some(-1));
        assert_eq!(found.ftrace_enabled.unwrap(), None);
        let error = found.kptr_restrict.unwrap_err().to_string();
        assert!(error.contains("sys/kernel/kptr_restrict"), "{error}");
    }

    #[test]
    fn of_this_kernel() {
        let found = Settings::read(&Roots::default());
        assert!(found.release.unwrap().is_some());
        assert!(found.last_capability.unwrap().is_some_and(|last| last > 30));
    }
}
