//! Kprobes on functions of modules, made through tracefs: only those wait for a
//! module that is not loaded yet, and come back when it is loaded again
//! (kernel/trace/trace_kprobe.c, trace_kprobe_module_callback).
//!
//! They outlive the process that made them unless it removes them, so their
//! names are of a group of ours and hold our process number, and what others of
//! ours left behind is removed at the start.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use thiserror::Error;

use super::perf;
use crate::host::Roots;

const GROUP: &str = "vmdtrace";

/// Why there is no kprobe.
#[derive(Debug, Error)]
pub enum KprobeError {
    #[error("{} is empty: tracefs is not mounted there; run `mount -t tracefs tracefs {}`", .0.display(), .0.display())]
    NotMounted(PathBuf),
    #[error("this kernel has no kprobe events ({} is missing)", .0.display())]
    NoKprobes(PathBuf),
    #[error("{path}: {source}", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("this kernel's module {module} has no function {function}")]
    NoFunction { module: String, function: String },
    #[error("cannot open the kprobe of {function}: {source}")]
    Perf { function: String, source: io::Error },
}

impl KprobeError {
    /// Whether it is about permission.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::File { source, .. } | Self::Perf { source, .. } => matches!(
                source.raw_os_error(),
                Some(nix::libc::EPERM | nix::libc::EACCES)
            ),
            _ => false,
        }
    }
}

/// The kernel's list of kprobe events.
#[derive(Clone, Debug)]
pub struct KprobeEvents {
    /// Where tracefs is mounted.
    tracefs: PathBuf,
    /// The kernel's list of functions.
    kallsyms: PathBuf,
}

impl KprobeEvents {
    /// Finds the list.
    ///
    /// # Errors
    /// If tracefs is not mounted, may not be looked at, or has no such list.
    pub fn open(roots: &Roots) -> Result<Self, KprobeError> {
        let tracefs = roots.sysfs.join("kernel/tracing");
        let list = tracefs.join("kprobe_events");
        let kallsyms = roots.procfs.join("kallsyms");
        match list.try_exists() {
            Ok(true) => return Ok(Self { tracefs, kallsyms }),
            Ok(false) => {}
            Err(source) => return Err(KprobeError::File { path: list, source }),
        }
        // Mounted of itself where debugfs is.
        let older = roots.sysfs.join("kernel/debug/tracing");
        if older.join("kprobe_events").exists() {
            return Ok(Self {
                tracefs: older,
                kallsyms,
            });
        }
        match fs::read_dir(&tracefs).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Err(KprobeError::NotMounted(tracefs)),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                Err(KprobeError::File {
                    path: tracefs,
                    source,
                })
            }
            _ => Err(KprobeError::NoKprobes(list)),
        }
    }

    fn list(&self) -> PathBuf {
        self.tracefs.join("kprobe_events")
    }

    fn command(&self, command: &str) -> Result<(), KprobeError> {
        let path = self.list();
        // Without O_APPEND all events of everybody would be removed.
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut list| list.write_all(format!("{command}\n").as_bytes()))
            .map_err(|source| KprobeError::File { path, source })
    }

    /// Removes what earlier processes of ours left behind. Events in use, those
    /// of another daemon that runs, stay: the kernel refuses.
    pub fn remove_stale(&self) {
        let listed = fs::read_to_string(self.list()).unwrap_or_default();
        for event in events_of_ours(&listed) {
            match self.command(&format!("-:{GROUP}/{event}")) {
                Ok(()) => tracing::debug!("removed the stale kprobe event {event}"),
                Err(error) => tracing::debug!("kprobe event {event} stays: {error}"),
            }
        }
    }

    /// Whether an event was refused because the module has no such function: ENOENT, since
    /// 6.9 EINVAL, which says many other things too (kernel/trace/trace_kprobe.c,
    /// __trace_kprobe_create).
    fn is_missing(&self, module: &Module<'_>, function: &str, refusal: &io::Error) -> bool {
        if module.state == ModuleState::Absent {
            return false;
        }
        match refusal.kind() {
            io::ErrorKind::NotFound => true,
            io::ErrorKind::InvalidInput if module.state == ModuleState::Loaded => {
                has_function(&self.kallsyms, module.name, &[function]).is_ok_and(|has| !has)
            }
            _ => false,
        }
    }

    /// Makes an event for a function and lets it run a loaded kprobe program.
    ///
    /// # Errors
    /// See [`KprobeError`].
    pub fn attach(
        &self,
        module: &Module<'_>,
        function: &str,
        program: BorrowedFd<'_>,
    ) -> Result<KprobeEvent, KprobeError> {
        let name = format!("{function}_{}", std::process::id());
        let place = match module.state {
            ModuleState::BuiltIn => function.to_owned(),
            _ => format!("{}:{function}", module.name),
        };
        self.command(&format!("p:{GROUP}/{name} {place}"))
            .map_err(|error| match error {
                KprobeError::File { source, .. } if self.is_missing(module, function, &source) => {
                    KprobeError::NoFunction {
                        module: module.name.to_owned(),
                        function: function.to_owned(),
                    }
                }
                other => other,
            })?;
        let mut event = KprobeEvent {
            events: self.clone(),
            name,
            perf: None,
        };
        let id = event.id()?;
        event.perf =
            Some(
                perf::run_on_tracepoint(id, program).map_err(|source| KprobeError::Perf {
                    function: function.to_owned(),
                    source,
                })?,
            );
        Ok(event)
    }
}

/// Names of our events in the list: `p:GROUP/NAME PLACE`, one a line.
fn events_of_ours(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| {
        let (_, event) = line.split_whitespace().next()?.split_once(':')?;
        let (group, name) = event.split_once('/')?;
        (group == GROUP).then_some(name)
    })
}

/// A kprobe event of ours, with a program; gone when it is dropped.
#[derive(Debug)]
pub struct KprobeEvent {
    events: KprobeEvents,
    name: String,
    perf: Option<OwnedFd>,
}

impl KprobeEvent {
    fn id(&self) -> Result<u64, KprobeError> {
        let path = self
            .events
            .tracefs
            .join(format!("events/{GROUP}/{}/id", self.name));
        let text = fs::read_to_string(&path).and_then(|text| {
            text.trim()
                .parse()
                .map_err(|_| io::Error::other(format!("{:?} is no number", text.trim())))
        });
        text.map_err(|source| KprobeError::File { path, source })
    }
}

impl Drop for KprobeEvent {
    fn drop(&mut self) {
        // In use, it could not be removed.
        self.perf = None;
        if let Err(error) = self.events.command(&format!("-:{GROUP}/{}", self.name)) {
            tracing::debug!("kprobe event {} stays: {error}", self.name);
        }
    }
}

/// Whether a module's functions are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// Not loaded, or not ready yet.
    Absent,
    Loaded,
    /// Part of the kernel's image.
    BuiltIn,
}

/// A module by name, with its state.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    pub name: &'a str,
    pub state: ModuleState,
}

impl<'a> Module<'a> {
    /// Looks at /sys/module: only modules that were loaded have an `initstate`
    /// (kernel/module, module_initstate); it is `going` while one is unloaded.
    #[must_use]
    pub fn look(roots: &Roots, name: &'a str) -> Self {
        let folder = roots.sysfs.join("module").join(name);
        let state = match fs::read_to_string(folder.join("initstate")) {
            Ok(state) if matches!(state.trim(), "live" | "coming") => ModuleState::Loaded,
            Ok(_) => ModuleState::Absent,
            Err(_) if folder.exists() => ModuleState::BuiltIn,
            Err(_) => ModuleState::Absent,
        };
        Self { name, state }
    }
}

/// Whether kallsyms lists one of these functions of a loaded module. Names are shown even
/// where addresses are not.
///
/// # Errors
/// If it cannot be read.
pub fn has_function(kallsyms: &Path, module: &str, functions: &[&str]) -> io::Result<bool> {
    let text = fs::read(kallsyms)?;
    let tails: Vec<_> = functions
        .iter()
        .map(|function| format!(" {function}\t[{module}]").into_bytes())
        .collect();
    Ok(text
        .split(|byte| *byte == b'\n')
        .any(|line| tails.iter().any(|tail| line.ends_with(tail))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_events_are_ours() {
        let list = "p:kprobes/p_a_0 a\n\
                    p:vmdtrace/nvme_timeout_17 nvme:nvme_timeout\n\
                    r4:vmdtrace/x_9 x\np:vmdtrace2/y y\n\n";
        assert_eq!(
            events_of_ours(list).collect::<Vec<_>>(),
            ["nvme_timeout_17", "x_9"]
        );
    }

    #[test]
    fn tracefs_that_is_not_there_is_told_apart() {
        let sysfs = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: sysfs.path().to_owned(),
            ..Roots::default()
        };
        let open = || KprobeEvents::open(&roots);
        assert!(matches!(open(), Err(KprobeError::NoKprobes(_))));
        let tracefs = sysfs.path().join("kernel/tracing");
        fs::create_dir_all(&tracefs).unwrap();
        let error = open().unwrap_err();
        assert!(matches!(error, KprobeError::NotMounted(_)));
        assert!(error.to_string().contains("mount -t tracefs"), "{error}");
        fs::write(tracefs.join("trace"), "").unwrap();
        assert!(matches!(open(), Err(KprobeError::NoKprobes(_))));
        fs::write(tracefs.join("kprobe_events"), "p:other/a a\n").unwrap();
        // What others made stays.
        open().unwrap().command("p:vmdtrace/b b").unwrap();
        assert_eq!(
            fs::read_to_string(tracefs.join("kprobe_events")).unwrap(),
            "p:other/a a\np:vmdtrace/b b\n"
        );
    }

    #[test]
    fn a_refusal_is_told_from_a_missing_function() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("kallsyms"), "0 t vmd_irq\t[vmd]\n").unwrap();
        let events = KprobeEvents {
            tracefs: root.path().to_owned(),
            kallsyms: root.path().join("kallsyms"),
        };
        let missing = |state, function, code| {
            let module = Module { name: "vmd", state };
            events.is_missing(&module, function, &io::Error::from_raw_os_error(code))
        };
        use ModuleState::{Absent, BuiltIn, Loaded};
        use nix::libc::{EINVAL, ENOENT, EPERM};
        assert!(missing(Loaded, "vmd_startup", ENOENT));
        assert!(missing(BuiltIn, "vmd_startup", ENOENT));
        assert!(missing(Loaded, "vmd_startup", EINVAL));
        assert!(!missing(Loaded, "vmd_irq", EINVAL));
        assert!(!missing(BuiltIn, "vmd_startup", EINVAL));
        assert!(!missing(Loaded, "vmd_startup", EPERM));
        assert!(!missing(Absent, "vmd_startup", ENOENT));
    }

    #[test]
    fn modules_are_absent_loaded_or_built_in() {
        let sysfs = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: sysfs.path().to_owned(),
            ..Roots::default()
        };
        let state = || Module::look(&roots, "vmd").state;
        assert_eq!(state(), ModuleState::Absent);
        let folder = sysfs.path().join("module/vmd");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(state(), ModuleState::BuiltIn);
        for (text, expected) in [
            ("coming\n", ModuleState::Loaded),
            ("live\n", ModuleState::Loaded),
            ("going\n", ModuleState::Absent),
        ] {
            fs::write(folder.join("initstate"), text).unwrap();
            assert_eq!(state(), expected);
        }
    }

    #[test]
    fn functions_are_found_by_whole_name_and_module() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            "0000000000000000 t xnvme_timeout\t[nvme]\n0000000000000000 t nvme_timeout\t[nvme]\n\
             0000000000000000 t nvme_timeout.cold\t[nvme]\nffff T vmd_irq\n",
        )
        .unwrap();
        let has =
            |module, function| has_function(file.path(), module, &["none", function]).unwrap();
        assert!(has("nvme", "nvme_timeout"));
        assert!(!has("nvme_tcp", "nvme_timeout"));
        assert!(!has("nvme", "timeout"));
        assert!(!has("vmd", "vmd_irq"));
    }
}
