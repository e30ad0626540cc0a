//! Giving capabilities up, for good. They belong to a thread and are handed on to
//! the threads that it starts, so this is done before there is a second one.

use rustix::{
    io::{self, Errno},
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use crate::{host::Roots, probes::privileges::knows_cap_bpf};

/// Gives up all capabilities but these, in every set, and the chance to gain any by
/// starting another program. (Without CAP_SETPCAP the bounding set stays: it says
/// what a program that is started may gain, which is nothing from then on.)
///
/// # Errors
/// What the kernel says.
pub fn keep_only(kept: CapabilitySet) -> io::Result<()> {
    let held = capabilities(None)?;
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for one in all().filter(|one| !kept.contains(*one)) {
            match remove_capability_from_bounding_set(one) {
                Ok(()) => {}
                // Beyond the last one that this kernel knows.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error),
            }
        }
    }
    clear_ambient_capability_set()?;
    let left = held.permitted.intersection(kept);
    set_capabilities(
        None,
        CapabilitySets {
            effective: left,
            permitted: left,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_no_new_privs(true)
}

/// Every capability there could be, the kernel's order.
fn all() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number))
}

/// What the helper needs to load.
#[must_use]
pub fn to_load(kprobes: bool, roots: &Roots) -> CapabilitySet {
    // The kernel's addresses; memory for maps before 5.11.
    to_attach(kprobes, roots) | CapabilitySet::SYSLOG | CapabilitySet::SYS_RESOURCE
}

/// What the helper needs to attach, and to read maps.
#[must_use]
pub fn to_attach(kprobes: bool, roots: &Roots) -> CapabilitySet {
    let mut needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
    if kprobes {
        // Where kernel.perf_event_paranoid is above 2; tracefs, unless it is root's
        // helper.
        needed |= CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_OVERRIDE;
    }
    if !knows_cap_bpf(roots) {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread: the others of this process keep what they have.
    fn in_a_thread<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(test).join().unwrap()
    }

    #[test]
    fn what_is_not_kept_is_gone_and_stays_away() {
        in_a_thread(|| {
            let before = capabilities(None).unwrap();
            keep_only(CapabilitySet::BPF).unwrap();
            let after = capabilities(None).unwrap();
            assert_eq!(after.permitted, before.permitted & CapabilitySet::BPF);
            assert_eq!(after.effective, after.permitted);
            assert_eq!(after.inheritable, CapabilitySet::empty());
            keep_only(CapabilitySet::empty()).unwrap();
            let none = capabilities(None).unwrap();
            assert_eq!(none.permitted, CapabilitySet::empty());
            assert_eq!(none.effective, CapabilitySet::empty());
            assert!(rustix::thread::no_new_privs().unwrap());
            if before.permitted.contains(CapabilitySet::BPF) {
                set_capabilities(None, before).unwrap_err();
            }
        });
    }

    #[test]
    fn without_kprobes_few_are_needed() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: folder.path().to_owned(),
            procfs: folder.path().to_owned(),
        };
        let kernel = folder.path().join("sys/kernel");
        std::fs::create_dir_all(&kernel).unwrap();
        std::fs::write(kernel.join("cap_last_cap"), "40\n").unwrap();
        let few = CapabilitySet::BPF | CapabilitySet::PERFMON;
        assert_eq!(to_attach(false, &roots), few);
        assert!(to_attach(true, &roots).contains(few | CapabilitySet::SYS_ADMIN));
        assert!(to_load(false, &roots).contains(few | CapabilitySet::SYSLOG));
        // Before 5.8.
        std::fs::write(kernel.join("cap_last_cap"), "37\n").unwrap();
        assert!(to_attach(false, &roots).contains(CapabilitySet::SYS_ADMIN));
    }
}
