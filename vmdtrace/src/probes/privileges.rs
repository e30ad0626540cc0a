//! Whether this process may load and attach, told before it tries.

use std::fs;

use crate::host::{Capability, HostError, Roots, capabilities};

/// Number of CAP_BPF; kernels that do not know it (before 5.8) ask for
/// CAP_SYS_ADMIN instead.
const CAP_BPF: u32 = 39;

/// What is missing to load and attach the programs, in words; None if nothing is.
///
/// # Errors
/// If the process's capabilities cannot be read.
pub fn missing(roots: &Roots) -> Result<Option<String>, HostError> {
    let ours = capabilities(roots)?;
    let wanted: &[Capability] = if knows_cap_bpf(roots) {
        &[Capability::Bpf, Capability::Perfmon]
    } else {
        &[Capability::SysAdmin]
    };
    let missing: Vec<_> = ours
        .missing(wanted)
        .into_iter()
        .map(Capability::name)
        .collect();
    if !missing.is_empty() {
        return Ok(Some(missing.join(" and ")));
    }
    if ours.in_initial_user_namespace == Some(false) {
        return Ok(Some(
            "the host's user namespace (capabilities of a container's own do not count)".to_owned(),
        ));
    }
    Ok(None)
}

/// Whether this kernel knows CAP_BPF and CAP_PERFMON.
#[must_use]
pub fn knows_cap_bpf(roots: &Roots) -> bool {
    fs::read_to_string(roots.procfs.join("sys/kernel/cap_last_cap"))
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .is_none_or(|last| last >= CAP_BPF)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn roots(directory: &Path, effective: u64, last: u32) -> Roots {
        let procfs = directory.join("proc");
        fs::create_dir_all(procfs.join("self/ns")).unwrap();
        fs::create_dir_all(procfs.join("sys/kernel")).unwrap();
        fs::write(
            procfs.join("self/status"),
            format!("Name:\tx\nCapEff:\t{effective:016x}\n"),
        )
        .unwrap();
        fs::write(procfs.join("sys/kernel/cap_last_cap"), format!("{last}\n")).unwrap();
        Roots {
            sysfs: directory.join("sys"),
            procfs,
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = |effective, last| missing(&roots(directory.path(), effective, last)).unwrap();
        assert_eq!(missing(0, 40).as_deref(), Some("CAP_BPF and CAP_PERFMON"));
        assert_eq!(missing(1 << 39, 40).as_deref(), Some("CAP_PERFMON"));
        assert_eq!(missing(1 << 39 | 1 << 38, 40), None);
        assert_eq!(missing(1 << 21, 40), None);
        assert_eq!(missing(0, 37).as_deref(), Some("CAP_SYS_ADMIN"));
    }
}
