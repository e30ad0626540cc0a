//! What a step needs from this machine, checked before it starts.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, IoContext, Result};
use crate::process;

/// Fails unless this machine runs x86_64 code.
pub(crate) fn require_x86_64() -> Result<()> {
    check_architecture(std::env::consts::ARCH)
}

fn check_architecture(found: &str) -> Result<()> {
    if found == "x86_64" {
        Ok(())
    } else {
        Err(Error::Architecture {
            found: found.to_owned(),
        })
    }
}

/// Fails unless the caller is root; `purpose` says what for.
pub fn require_root(purpose: &str) -> Result<()> {
    let uid = nix::unistd::geteuid();
    if uid.is_root() {
        Ok(())
    } else {
        Err(Error::NotRoot {
            purpose: purpose.to_owned(),
            uid: uid.as_raw(),
        })
    }
}

/// Fails unless `needed` bytes are free where `path` is or will be.
pub(crate) fn require_space(path: &Path, needed: u64, what: &str) -> Result<()> {
    // The folder itself need not exist yet.
    let existing = path
        .ancestors()
        .find(|p| p.exists())
        .unwrap_or(Path::new("/"));
    let stat = nix::sys::statvfs::statvfs(existing)
        .map_err(std::io::Error::from)
        .context("ask for the free space of", existing)?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    if free >= needed {
        Ok(())
    } else {
        Err(Error::DiskFull {
            path: existing.to_owned(),
            what: what.to_owned(),
            needed,
            free,
        })
    }
}

/// The path of a program that has to be there.
pub(crate) fn require_program(program: &str, purpose: &str, remedy: &str) -> Result<PathBuf> {
    process::find_program(program).ok_or_else(|| Error::MissingProgram {
        program: program.to_owned(),
        purpose: purpose.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// Fails unless there is a C compiler to link with.
pub(crate) fn require_cc() -> Result<PathBuf> {
    require_program(
        "cc",
        "linking Rust programs",
        "install a C compiler (Debian: apt-get install build-essential)",
    )
}

/// Fails unless the C library can be linked statically.
pub(crate) fn require_static_libc() -> Result<()> {
    let cc = require_cc()?;
    // gcc and clang answer with the bare name when they do not have the file.
    let answer = process::capture(Command::new(&cc).arg("-print-file-name=libc.a"))?;
    if Path::new(answer.trim()).is_absolute() {
        Ok(())
    } else {
        Err(Error::MissingProgram {
            program: "libc.a".to_owned(),
            purpose: "a static vmdtrace, which runs on any distribution,".to_owned(),
            remedy: "install the C library's development files (Debian: libc6-dev; Fedora: glibc-static)".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_architecture_is_named() {
        assert!(check_architecture("x86_64").is_ok());
        let text = check_architecture("aarch64").unwrap_err().to_string();
        assert!(
            text.contains("aarch64") && text.contains("x86_64"),
            "{text}"
        );
    }

    #[test]
    fn a_full_disk_is_told_before_work_starts() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("not/yet/there");
        assert!(require_space(&below, 1, "nothing much").is_ok());
        let text = require_space(&below, u64::MAX, "everything")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("everything") && text.contains("free"),
            "{text}"
        );
        assert!(
            text.contains(&folder.path().display().to_string()),
            "{text}"
        );
    }

    #[test]
    fn a_missing_program_says_what_for_and_how_to_get_it() {
        let text = require_program("no-such-compiler", "linking", "install it")
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            "`no-such-compiler` is not on PATH, and linking needs it: install it"
        );
    }
}
