//! What a program is hooked to: handing it to the verifier, attaching it, and
//! telling a kernel that lacks the hook from a refusal from a fault of ours.

use std::{io, os::fd::BorrowedFd};

use aya::{
    Btf, BtfError, Ebpf,
    programs::{FEntry, FExit, KProbe, Program, ProgramError, RawTracePoint},
};

use super::tracefs::KprobeError;
use crate::{host::Roots, snapshot::ProbeState};

/// A place in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A raw tracepoint of the program's own name, in the image or in a module.
    RawTracepoint { module: Option<&'static str> },
    /// Entry of a function of the image.
    FunctionEntry(&'static str),
    /// Return of a function of the image.
    FunctionExit(&'static str),
    /// Entry of a function of a module, now or whenever that is loaded: of each
    /// of these that it has.
    ModuleFunction {
        module: &'static str,
        functions: &'static [&'static str],
    },
}

impl Hook {
    /// The mechanism, as the probe list shows it.
    #[must_use]
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::RawTracepoint { .. } => "raw_tracepoint",
            Self::FunctionEntry(_) => "fentry",
            Self::FunctionExit(_) => "fexit",
            Self::ModuleFunction { .. } => "kprobe",
        }
    }

    /// Hands the program to the verifier. `btf` is the kernel's.
    ///
    /// # Errors
    /// If the object has no such program, or the kernel does not take it.
    pub fn load(self, ebpf: &mut Ebpf, program: &str, btf: Option<&Btf>) -> anyhow::Result<()> {
        let loaded = find(ebpf, program)?;
        let btf = || btf.ok_or_else(|| anyhow::anyhow!("the kernel's BTF cannot be read"));
        match self {
            Self::RawTracepoint { .. } => <&mut RawTracePoint>::try_from(loaded)?.load()?,
            Self::FunctionEntry(name) => <&mut FEntry>::try_from(loaded)?.load(name, btf()?)?,
            Self::FunctionExit(name) => <&mut FExit>::try_from(loaded)?.load(name, btf()?)?,
            Self::ModuleFunction { .. } => <&mut KProbe>::try_from(loaded)?.load()?,
        }
        // Since 5.16; what it costs to load, and a measure of what it does.
        if tracing::enabled!(tracing::Level::DEBUG)
            && let Ok(info) = find(ebpf, program)?.info()
            && let Some(count) = info.verified_instruction_count()
        {
            tracing::debug!("program {program}: {count} instructions verified");
        }
        Ok(())
    }

    /// Attaches the loaded program. It stays attached until the object is dropped.
    /// (What follows a module is attached by
    /// [`KprobeEvents`](super::tracefs::KprobeEvents).)
    ///
    /// # Errors
    /// If the kernel refuses, or the module is not there.
    pub fn attach(self, ebpf: &mut Ebpf, program: &str) -> anyhow::Result<()> {
        let loaded = find(ebpf, program)?;
        match self {
            Self::RawTracepoint { .. } => {
                <&mut RawTracePoint>::try_from(loaded)?.attach(program)?;
            }
            Self::FunctionEntry(_) => {
                <&mut FEntry>::try_from(loaded)?.attach()?;
            }
            Self::FunctionExit(_) => {
                <&mut FExit>::try_from(loaded)?.attach()?;
            }
            Self::ModuleFunction { .. } => anyhow::bail!("{program} is attached through tracefs"),
        }
        Ok(())
    }

    /// The state that a failure to load or attach leaves the program in, and why.
    #[must_use]
    pub fn why_not(
        self,
        program: &str,
        error: &anyhow::Error,
        roots: &Roots,
    ) -> (ProbeState, String) {
        const ENOENT: i32 = nix::errno::Errno::ENOENT as i32;
        const EPERM: i32 = nix::errno::Errno::EPERM as i32;
        const EACCES: i32 = nix::errno::Errno::EACCES as i32;
        const EBUSY: i32 = nix::errno::Errno::EBUSY as i32;
        const ENOTSUPP: i32 = 524;
        match (self, errno(error)) {
            (Self::RawTracepoint { module }, Some(ENOENT)) => match module {
                Some(module) if !roots.sysfs.join("module").join(module).exists() => (
                    ProbeState::NotApplicable,
                    // The module's uevent comes when its init is done.
                    format!(
                        "{module} is not loaded; attaches when it is (events in the first \
                         milliseconds after that are not seen)"
                    ),
                ),
                _ => (
                    ProbeState::Unsupported,
                    format!("this kernel has no tracepoint {program}"),
                ),
            },
            (Self::FunctionEntry(function) | Self::FunctionExit(function), _)
                if lacks_function(error) =>
            {
                (
                    ProbeState::Unsupported,
                    format!("this kernel has no traceable function {function}"),
                )
            }
            // The verifier's EACCES is about our code, not about permission.
            (_, Some(EACCES)) if is_of_verifier(error) => {
                (ProbeState::Broken, format!("{error:#}"))
            }
            (_, Some(EPERM | EACCES)) => (
                ProbeState::Blocked,
                format!(
                    "{error:#}; CAP_BPF and CAP_PERFMON are needed, and kernel lockdown must not be confidentiality"
                ),
            ),
            // No trampoline can be put in: the architecture or the build lacks it
            // (kernel/bpf/trampoline.c, register_fentry).
            (Self::FunctionEntry(function) | Self::FunctionExit(function), Some(ENOTSUPP)) => (
                ProbeState::Unsupported,
                format!("this kernel cannot trace functions such as {function}: {error:#}"),
            ),
            (Self::FunctionEntry(function) | Self::FunctionExit(function), Some(EBUSY)) => (
                ProbeState::Blocked,
                format!(
                    "another tracer or a live patch holds {function} (or function tracing is \
                     refused): {error:#}"
                ),
            ),
            _ => (ProbeState::Broken, format!("{error:#}")),
        }
    }
}

/// The same for a kprobe that was not made.
#[must_use]
pub fn why_no_kprobe(error: &KprobeError) -> (ProbeState, String) {
    let state = match error {
        KprobeError::NoKprobes(_) | KprobeError::NoFunction { .. } => ProbeState::Unsupported,
        KprobeError::NotMounted(_) => ProbeState::Blocked,
        refused if refused.is_refusal() => {
            return (
                ProbeState::Blocked,
                format!(
                    "{error}; root's access to tracefs is needed, and CAP_SYS_ADMIN where \
                     kernel.perf_event_paranoid is above 2"
                ),
            );
        }
        KprobeError::File { .. } | KprobeError::Perf { .. } => ProbeState::Broken,
    };
    (state, error.to_string())
}

/// Descriptor of a loaded program.
#[must_use]
pub fn descriptor(ebpf: &Ebpf, program: &str) -> Option<i32> {
    use std::os::fd::AsRawFd as _;
    Some(borrowed(ebpf, program)?.as_raw_fd())
}

/// The same, for calls.
#[must_use]
pub fn borrowed<'a>(ebpf: &'a Ebpf, program: &str) -> Option<BorrowedFd<'a>> {
    use std::os::fd::AsFd as _;
    let fd = match ebpf.program(program)? {
        Program::RawTracePoint(program) => program.fd(),
        Program::FEntry(program) => program.fd(),
        Program::FExit(program) => program.fd(),
        Program::KProbe(program) => program.fd(),
        _ => return None,
    };
    Some(fd.ok()?.as_fd())
}

fn find<'a>(ebpf: &'a mut Ebpf, program: &str) -> anyhow::Result<&'a mut Program> {
    ebpf.program_mut(program)
        .ok_or_else(|| anyhow::anyhow!("the eBPF object has no such program"))
}

/// Whether permission was refused, by the kernel itself or a security module.
#[must_use]
pub(super) fn is_refusal(error: &anyhow::Error) -> bool {
    const EPERM: i32 = nix::errno::Errno::EPERM as i32;
    const EACCES: i32 = nix::errno::Errno::EACCES as i32;
    match errno(error) {
        Some(EPERM) => true,
        Some(EACCES) => !is_of_verifier(error),
        _ => false,
    }
}

/// Whether the verifier said something: a security module that refuses the same
/// call (SELinux with EACCES, too) leaves its log empty.
fn is_of_verifier(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(
            cause.downcast_ref::<ProgramError>(),
            Some(ProgramError::LoadError { verifier_log, .. })
                if !verifier_log.to_string().trim().is_empty()
        )
    })
}

/// The system call's error number.
pub(super) fn errno(error: &anyhow::Error) -> Option<i32> {
    error
        .chain()
        .find_map(|cause| match cause.downcast_ref::<io::Error>() {
            Some(error) => error.raw_os_error(),
            None => match cause.downcast_ref::<ProgramError>() {
                Some(ProgramError::SyscallError(error)) => error.io_error.raw_os_error(),
                Some(ProgramError::LoadError { io_error, .. }) => io_error.raw_os_error(),
                Some(ProgramError::IOError(error)) => error.raw_os_error(),
                _ => None,
            },
        })
}

fn lacks_function(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        matches!(
            cause.downcast_ref::<BtfError>(),
            Some(BtfError::UnknownBtfTypeName { .. })
        ) || matches!(
            cause.downcast_ref::<ProgramError>(),
            Some(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. }))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_NVME: Hook = Hook::RawTracepoint {
        module: Some("nvme_core"),
    };
    const OF_IMAGE: Hook = Hook::RawTracepoint { module: None };
    const FUNCTION: Hook = Hook::FunctionEntry("bio_put");

    #[test]
    fn reasons_are_told_apart() {
        let errno = |code| anyhow::Error::from(io::Error::from_raw_os_error(code));
        let sysfs = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: sysfs.path().to_owned(),
            ..Roots::default()
        };
        let state = |hook: Hook, error| hook.why_not("x", &error, &roots).0;
        assert_eq!(state(OF_NVME, errno(2)), ProbeState::NotApplicable);
        // Loaded, and yet without the tracepoint: completions are not 0 but unknown.
        std::fs::create_dir_all(sysfs.path().join("module/nvme_core")).unwrap();
        assert_eq!(state(OF_NVME, errno(2)), ProbeState::Unsupported);
        assert_eq!(state(OF_IMAGE, errno(2)), ProbeState::Unsupported);
        assert_eq!(state(OF_IMAGE, errno(1)), ProbeState::Blocked);
        assert_eq!(state(OF_IMAGE, errno(22)), ProbeState::Broken);
        assert_eq!(state(FUNCTION, errno(524)), ProbeState::Unsupported);
        assert_eq!(state(FUNCTION, errno(16)), ProbeState::Blocked);
    }

    #[test]
    fn kprobes_that_are_refused_are_told_from_those_there_cannot_be() {
        let state = |error: KprobeError| why_no_kprobe(&error).0;
        let refused = |code| KprobeError::File {
            path: "kprobe_events".into(),
            source: io::Error::from_raw_os_error(code),
        };
        assert_eq!(state(refused(1)), ProbeState::Blocked);
        assert_eq!(state(refused(13)), ProbeState::Blocked);
        assert_eq!(state(refused(22)), ProbeState::Broken);
        assert_eq!(
            state(KprobeError::NotMounted("tracing".into())),
            ProbeState::Blocked
        );
        assert_eq!(
            state(KprobeError::NoKprobes("kprobe_events".into())),
            ProbeState::Unsupported
        );
        assert_eq!(
            state(KprobeError::NoFunction {
                module: "vmd".into(),
                function: "x".into()
            }),
            ProbeState::Unsupported
        );
    }

    #[test]
    fn a_missing_function_is_the_kernels() {
        let roots = Roots::default();
        let missing = ProgramError::Btf(BtfError::UnknownBtfTypeName {
            type_name: "bio_put".to_owned(),
        });
        assert_eq!(
            FUNCTION.why_not("x", &missing.into(), &roots).0,
            ProbeState::Unsupported
        );
    }
}
