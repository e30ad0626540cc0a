//! Everything doctor reads of kernel, host and process, before it judges.

use crate::host::{
    Capabilities, Capability, Containment, HostError, Lockdown, Roots, Security, Settings,
    TracingFiles, capabilities,
};
use crate::probes::kernel::KernelLayout;
use crate::probes::object;

/// Number of CAP_BPF, which came with 5.8.
const CAP_BPF: i64 = 39;
/// What Debian's patch of perf_event_open asks CAP_SYS_ADMIN for.
const PARANOID_BEYOND_PERFMON: i64 = 3;

#[derive(Debug)]
pub(super) struct Facts {
    pub(super) settings: Settings,
    pub(super) security: Security,
    pub(super) containment: Containment,
    pub(super) tracing_files: TracingFiles,
    pub(super) layout: KernelLayout,
    pub(super) capabilities: Result<Capabilities, HostError>,
    /// Whether the eBPF object is inside this program.
    pub(super) has_object: bool,
}

impl Facts {
    pub(super) fn read(roots: &Roots) -> Self {
        Self {
            settings: Settings::read(roots),
            security: Security::read(roots),
            containment: Containment::read(roots),
            tracing_files: TracingFiles::read(roots),
            layout: KernelLayout::read(roots),
            capabilities: capabilities(roots),
            has_object: object::embedded().is_some(),
        }
    }

    /// What loading and attaching eBPF programs needs.
    pub(super) fn for_programs(&self) -> Vec<Capability> {
        match self.settings.last_capability {
            Ok(Some(last)) if last < CAP_BPF => vec![Capability::SysAdmin],
            _ => vec![Capability::Bpf, Capability::Perfmon],
        }
    }

    /// What a kprobe needs, which is attached by perf_event_open.
    pub(super) fn for_kprobes(&self) -> Vec<Capability> {
        match self.settings.perf_event_paranoid {
            Ok(Some(level)) if level >= PARANOID_BEYOND_PERFMON => {
                let mut needed = self.for_programs();
                needed.retain(|one| *one == Capability::Bpf);
                needed.push(Capability::SysAdmin);
                needed
            }
            _ => self.for_programs(),
        }
    }

    /// Which of these this process lacks; none where that cannot be told.
    pub(super) fn lacks(&self, needed: &[Capability]) -> Option<Vec<Capability>> {
        let ours = self.capabilities.as_ref().ok()?;
        Some(ours.missing(needed))
    }

    /// What may stand behind a refusal, most certain first, each with its remedy.
    /// `reason` is the refusal's text.
    pub(super) fn refusers(&self, needed: &[Capability], reason: &str) -> Vec<String> {
        let mut refusers = Vec::new();
        let lacking = self.lacks(needed).unwrap_or_default();
        if !lacking.is_empty() {
            refusers.push(format!(
                "run as root, or give the program {}",
                names(&lacking).join(" and ")
            ));
        }
        if let Ok(Some(false)) = self.containment.in_initial_user_namespace {
            refusers.push(
                "run in the host's user namespace: capabilities of a container's own do not count"
                    .to_owned(),
            );
        }
        if let Ok(Some(Lockdown::Confidentiality)) = self.security.lockdown {
            refusers.push("boot with lockdown=integrity or lockdown=none".to_owned());
        }
        if !refusers.is_empty() {
            return refusers;
        }
        let label = match &self.security.label {
            Ok(Some(label)) => label.as_str(),
            _ => "unknown",
        };
        let selinux = matches!(self.security.selinux_enforcing, Ok(Some(true)));
        // SELinux refuses with EACCES (security/selinux/hooks.c, selinux_bpf).
        if selinux && reason.contains(&format!("os error {}", nix::libc::EACCES)) {
            refusers.push(format!(
                "SELinux is enforcing and refuses the context {label}: allow it the class bpf \
                 (and perf_event), see `ausearch -m avc -ts recent`"
            ));
        } else if !selinux && is_confined_by_apparmor(label) {
            refusers.push(format!(
                "the AppArmor profile {label} confines this process: allow it the capabilities \
                 bpf and perfmon, see the kernel's log"
            ));
        }
        if let Ok(Some(true)) = self.security.filters_system_calls {
            refusers.push(
                "a seccomp filter is on this process: it has to allow bpf and perf_event_open"
                    .to_owned(),
            );
        }
        if refusers.is_empty() {
            refusers.push(
                "nothing seen from here explains it: see the kernel's log and the audit log"
                    .to_owned(),
            );
        }
        refusers
    }
}

/// Profiles end with their mode; `unconfined` stands alone (apparmor(7)).
fn is_confined_by_apparmor(label: &str) -> bool {
    label.ends_with("(enforce)") || label.ends_with("(kill)")
}

pub(super) fn names(capabilities: &[Capability]) -> Vec<&'static str> {
    capabilities.iter().map(|one| one.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Capability::{Bpf, Perfmon, SysAdmin};

    /// A host on which nothing stands in the way.
    fn facts() -> (tempfile::TempDir, Facts) {
        let dir = tempfile::tempdir().unwrap();
        let mut facts = Facts::read(&Roots {
            sysfs: dir.path().to_owned(),
            procfs: dir.path().to_owned(),
        });
        facts.containment.in_initial_user_namespace = Ok(Some(true));
        (dir, facts)
    }

    #[test]
    fn kprobes_need_more_where_perf_is_restricted() {
        let (_dir, mut facts) = facts();
        assert_eq!(facts.for_kprobes(), [Bpf, Perfmon]);
        facts.settings.perf_event_paranoid = Ok(Some(2));
        assert_eq!(facts.for_kprobes(), [Bpf, Perfmon]);
        facts.settings.perf_event_paranoid = Ok(Some(3));
        assert_eq!(facts.for_kprobes(), [Bpf, SysAdmin]);
        facts.settings.last_capability = Ok(Some(37));
        assert_eq!(facts.for_programs(), [SysAdmin]);
        assert_eq!(facts.for_kprobes(), [SysAdmin]);
    }

    #[test]
    fn who_refuses_is_named_by_what_is_seen() {
        let (_dir, mut facts) = facts();
        let said = |facts: &Facts, reason: &str| facts.refusers(&[], reason).join("; ");
        let denied = "Permission denied (os error 13)";
        assert!(said(&facts, denied).contains("audit log"));

        facts.security.filters_system_calls = Ok(Some(true));
        assert!(said(&facts, denied).contains("seccomp"));
        facts.security.filters_system_calls = Ok(Some(false));

        facts.security.label = Ok(Some("/usr/bin/box (enforce)".to_owned()));
        let text = said(&facts, denied);
        assert!(text.contains("AppArmor profile /usr/bin/box"), "{text}");

        facts.security.label = Ok(Some("system_u:system_r:init_t:s0".to_owned()));
        facts.security.selinux_enforcing = Ok(Some(true));
        let text = said(&facts, denied);
        assert!(text.contains("SELinux is enforcing"), "{text}");
        assert!(text.contains("init_t"), "{text}");
        // Not its error number.
        let text = said(&facts, "Operation not permitted (os error 1)");
        assert!(!text.contains("SELinux"), "{text}");

        facts.security.lockdown = Ok(Some(Lockdown::Confidentiality));
        assert_eq!(
            said(&facts, denied),
            "boot with lockdown=integrity or lockdown=none"
        );
        facts.containment.in_initial_user_namespace = Ok(Some(false));
        assert!(said(&facts, denied).starts_with("run in the host's user namespace"));
    }
}
