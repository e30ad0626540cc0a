//! The kernel's list of its symbols.
//!
//! Whether it shows addresses is decided by who opened it, not by who reads it
//! (kernel/kallsyms.c, kallsyms_open). So whoever starts vmdtrace may open it in its
//! stead, and leave out CAP_SYSLOG: a service manager as standard input
//! (`StandardInput=file:/proc/kallsyms`), and vmdtrace for what it starts itself.

use std::fs::{self, File};
use std::io::{self, Seek as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{dup, dup2_stdin};

/// The list, from its start: as somebody left it open for this process, else as
/// this process may see it.
///
/// # Errors
/// When it cannot be opened.
pub fn open(procfs: &Path) -> io::Result<File> {
    match left_open(procfs) {
        Some(file) => Ok(file),
        None => File::open(procfs.join("kallsyms")),
    }
}

/// While this lives, processes that are started find the list that this one was
/// given as standard input; then nobody does.
#[derive(Debug)]
pub struct PassedOn {
    descriptor: Option<OwnedFd>,
}

impl PassedOn {
    /// Does nothing if standard input is something else.
    #[must_use]
    pub fn new() -> Self {
        let stdin = io::stdin();
        let is_list = fs::read_link("/proc/self/fd/0").is_ok_and(|path| is_named_so(&path))
            && is_of_procfs(stdin.as_fd());
        // Unlike the standard library's, this copy is inherited.
        let descriptor = is_list.then(|| dup(stdin.as_fd())).and_then(Result::ok);
        Self { descriptor }
    }
}

impl Default for PassedOn {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        if self.descriptor.is_none() {
            return;
        }
        let replaced = File::open("/dev/null").and_then(|null| Ok(dup2_stdin(null)?));
        if let Err(error) = replaced {
            tracing::debug!("standard input stays /proc/kallsyms: {error}");
        }
    }
}

fn left_open(procfs: &Path) -> Option<File> {
    let descriptors = fs::read_dir(procfs.join("self/fd")).ok()?;
    descriptors.flatten().find_map(|entry| {
        if !is_named_so(&fs::read_link(entry.path()).ok()?) {
            return None;
        }
        let copy = copy(entry.file_name().to_str()?.parse().ok()?)?;
        if !is_of_procfs(copy.as_fd()) {
            return None;
        }
        let mut file = File::from(copy);
        file.rewind().ok()?;
        Some(file)
    })
}

fn is_named_so(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "kallsyms")
}

fn is_of_procfs(descriptor: BorrowedFd<'_>) -> bool {
    fstatfs(descriptor).is_ok_and(|it| it.filesystem_type() == PROC_SUPER_MAGIC)
}

fn copy(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: it was listed as open a moment ago, and is used for this one call,
    // which fails if it was closed since.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    descriptor.try_clone_to_owned().ok()
}
