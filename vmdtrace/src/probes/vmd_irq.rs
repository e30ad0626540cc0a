//! Counts calls of the vmd driver's interrupt handler with a kprobe: what the
//! self-test compares the handler tracepoints with. Only `vmdtrace doctor` uses
//! it; it has an object, and so maps, of its own.

use std::fmt;

use aya::{
    Ebpf, EbpfLoader,
    maps::Map,
    programs::{KProbe, ProgramError, kprobe::KProbeError},
};
use nix::errno::Errno;

use super::{fdinfo, hook, mapped::MappedArray, object};
use crate::{host::Roots, snapshot::ProbeState};

/// Program, and function of the kernel.
const VMD_IRQ: &str = "vmd_irq";
const CALLS: &str = "VMD_IRQ_CALLS";

/// Why it does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotCounting {
    pub state: ProbeState,
    pub reason: String,
}

/// Counts from [`VmdIrqCounter::attach`] until it is dropped.
pub struct VmdIrqCounter {
    calls: MappedArray<u64>,
    ebpf: Ebpf,
    roots: Roots,
}

impl fmt::Debug for VmdIrqCounter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("VmdIrqCounter")
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

impl VmdIrqCounter {
    /// Loads and attaches the kprobe; interrupt numbers below `interrupts` are
    /// counted.
    ///
    /// # Errors
    /// If the function is not there, or the kernel refuses.
    pub fn attach(roots: &Roots, interrupts: u32) -> Result<Self, NotCounting> {
        let broken = |reason: String| NotCounting {
            state: ProbeState::Broken,
            reason,
        };
        let object = object::embedded()
            .ok_or_else(|| broken("this program was built without its eBPF object".to_owned()))?;
        let interrupts = interrupts.max(1);
        let mut ebpf = EbpfLoader::new()
            .map_max_entries(CALLS, interrupts)
            .load(object)
            .map_err(|error| refused(&error.into()))?;
        let Some(Map::Array(map)) = ebpf.map(CALLS) else {
            return Err(broken(format!("the eBPF object has no array {CALLS}")));
        };
        let calls = MappedArray::new(map.fd(), interrupts)
            .map_err(|error| broken(format!("map {CALLS}: {error}")))?;
        let program: &mut KProbe = ebpf
            .program_mut(VMD_IRQ)
            .ok_or_else(|| broken(format!("the eBPF object has no program {VMD_IRQ}")))?
            .try_into()
            .map_err(|error: ProgramError| broken(error.to_string()))?;
        program.load().map_err(|error| refused(&error.into()))?;
        if let Err(error) = program.attach(VMD_IRQ, 0) {
            return Err(why_not_attached(error, roots));
        }
        Ok(Self {
            calls,
            ebpf,
            roots: roots.clone(),
        })
    }

    /// Calls for this interrupt number; None beyond the table.
    #[must_use]
    pub fn calls(&self, irq: u32) -> Option<u64> {
        self.calls.get(irq)
    }

    /// Calls that the kernel did not let the program see, because another kprobe
    /// program was running on that CPU (kernel/trace/bpf_trace.c,
    /// trace_call_bpf). Kernels before 6.7 leave this at 0 in any case.
    #[must_use]
    pub fn missed(&self) -> u64 {
        hook::descriptor(&self.ebpf, VMD_IRQ)
            .and_then(|descriptor| {
                fdinfo::read(&self.roots.procfs, descriptor, false).recursion_misses
            })
            .unwrap_or_default()
    }
}

fn refused(error: &anyhow::Error) -> NotCounting {
    let state = if hook::is_refusal(error) {
        ProbeState::Blocked
    } else {
        ProbeState::Broken
    };
    NotCounting {
        state,
        reason: format!("loading the kprobe on {VMD_IRQ}: {error:#}"),
    }
}

fn why_not_attached(error: ProgramError, roots: &Roots) -> NotCounting {
    if let ProgramError::KProbeError(KProbeError::FileError { filename, io_error }) = &error {
        return NotCounting {
            state: ProbeState::Unsupported,
            reason: format!(
                "{}: {io_error}; the kernel must be built with CONFIG_KPROBE_EVENTS",
                filename.display()
            ),
        };
    }
    let error = anyhow::Error::from(error);
    let (state, reason) = match hook::errno(&error).map(Errno::from_raw) {
        Some(Errno::ENOENT) if !roots.sysfs.join("module/vmd").exists() => (
            ProbeState::NotApplicable,
            "the vmd driver is not loaded".to_owned(),
        ),
        Some(Errno::ENOENT) => (
            ProbeState::Unsupported,
            format!("this kernel's vmd driver has no function {VMD_IRQ}"),
        ),
        Some(Errno::EPERM | Errno::EACCES) => (ProbeState::Blocked, format!("{error:#}")),
        // Functions that may not be probed (kernel/kprobes.c, check_kprobe_address_safe).
        Some(Errno::EINVAL | Errno::EOPNOTSUPP) => (
            ProbeState::Unsupported,
            format!("this kernel does not let {VMD_IRQ} be probed: {error:#}"),
        ),
        _ => (ProbeState::Broken, format!("{error:#}")),
    };
    NotCounting { state, reason }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn reasons_are_told_apart() {
        let sysfs = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: sysfs.path().to_owned(),
            ..Roots::default()
        };
        let failed = |errno: i32| ProgramError::IOError(io::Error::from_raw_os_error(errno));
        let state = |error| why_not_attached(error, &roots).state;
        assert_eq!(state(failed(2)), ProbeState::NotApplicable);
        std::fs::create_dir_all(sysfs.path().join("module/vmd")).unwrap();
        assert_eq!(state(failed(2)), ProbeState::Unsupported);
        assert_eq!(state(failed(13)), ProbeState::Blocked);
        assert_eq!(state(failed(1)), ProbeState::Blocked);
        assert_eq!(state(failed(22)), ProbeState::Unsupported);
        assert_eq!(state(failed(12)), ProbeState::Broken);
        let no_kprobes = KProbeError::FileError {
            filename: "/sys/bus/event_source/devices/kprobe/type".into(),
            io_error: io::Error::from_raw_os_error(2),
        };
        let said = why_not_attached(no_kprobes.into(), &roots);
        assert_eq!(said.state, ProbeState::Unsupported);
        assert!(said.reason.contains("kprobe/type"), "{said}");
    }
}
