//! Whether this process may load and attach, told before it tries.

use std::{fs, path::Path};

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// The names of the capabilities that are missing; empty if none is.
/// None if `/proc/self/status` does not tell.
#[must_use]
pub fn missing(procfs: &Path) -> Option<Vec<&'static str>> {
    let status = fs::read_to_string(procfs.join("self/status")).ok()?;
    let last = fs::read_to_string(procfs.join("sys/kernel/cap_last_cap")).ok()?;
    missing_from(&status, last.trim().parse().ok()?)
}

fn missing_from(status: &str, last: u32) -> Option<Vec<&'static str>> {
    let text = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(text.trim(), 16).ok()?;
    let has = |capability: u32| effective >> capability & 1 == 1;
    if has(CAP_SYS_ADMIN) {
        return Some(Vec::new());
    }
    // Before 5.8 there was only the one.
    if last < CAP_BPF {
        return Some(vec!["CAP_SYS_ADMIN"]);
    }
    let needed = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")];
    Some(
        needed
            .into_iter()
            .filter(|(capability, _)| !has(*capability))
            .map(|(_, name)| name)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(effective: u64) -> String {
        format!("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t{effective:016x}\n")
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(
            missing_from(&status(0), 40),
            Some(vec!["CAP_BPF", "CAP_PERFMON"])
        );
        assert_eq!(
            missing_from(&status(1 << CAP_BPF), 40),
            Some(vec!["CAP_PERFMON"])
        );
        assert_eq!(
            missing_from(&status(1 << CAP_BPF | 1 << CAP_PERFMON), 40),
            Some(vec![])
        );
        assert_eq!(missing_from(&status(1 << CAP_SYS_ADMIN), 40), Some(vec![]));
        assert_eq!(missing_from(&status(0), 37), Some(vec!["CAP_SYS_ADMIN"]));
        assert_eq!(missing_from("CapEff: zz", 40), None);
    }
}
