//! A small Debian with systemd, for the guest.
//!
//! Its packages are unpacked and not configured: nothing of them runs on this
//! machine, and neither root nor a second stage is needed. What their scripts would
//! do and a boot needs (users, a default target) is written by the lab.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Contents, remove};
use crate::debian::{PrivateApt, Release, apt};
use crate::error::{IoContext, Result};
use crate::{Setup, host};

pub(crate) const ENTRY: &str = "guest-debian-dpkg";
const PROVIDE: &str = "There is no other source of the guest's Debian.";
const WANTED: [&str; 24] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "dbus",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "hostname",
    "iproute2",
    "kmod",
    "libc-bin",
    "login",
    "mount",
    "passwd",
    "perl-base",
    "procps",
    "sed",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
];
/// What a person reads, and the hardware's names.
const LEFT_OUT: [&str; 6] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/i18n",
    "usr/share/info",
    "usr/lib/udev/hwdb.d",
];

/// A root file system that nothing has been configured in.
#[derive(Debug, Clone)]
pub struct DebianRoot {
    /// The folder that becomes `/`.
    pub folder: PathBuf,
    /// Version of its systemd package.
    pub systemd: String,
}

pub(crate) fn ensure(setup: &Setup) -> Result<DebianRoot> {
    host::require_x86_64()?;
    let contents = setup
        .cache()
        .ensure(ENTRY, setup.progress(), |folder| fill(setup, folder))?;
    Ok(DebianRoot {
        folder: setup.cache().path(ENTRY).join("root"),
        systemd: contents.version,
    })
}

fn fill(setup: &Setup, folder: &Path) -> Result<Contents> {
    let (cache, progress) = (setup.cache(), setup.progress());
    let what = "Debian with systemd for the guest";
    let apt = PrivateApt::open(cache, Release::Trixie, progress, what, PROVIDE)?;
    let mut wanted = Vec::new();
    for name in WANTED {
        wanted.push(apt.newest(name, PROVIDE, |package| !package.version.contains("~bpo"))?);
    }
    let packages = apt.closure(&wanted.iter().collect::<Vec<_>>(), false)?;
    let archives = apt.fetch(what, &packages)?;
    let root = folder.join("root");
    fs::create_dir(&root).context("create", &root)?;
    // base-files first: it makes /bin and its like links into /usr.
    let (first, others): (Vec<_>, Vec<_>) = archives.iter().cloned().partition(|path| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("base-files_"))
    });
    apt.unpack(&first, &root)?;
    apt.unpack(&others, &root)?;
    for part in LEFT_OUT {
        let part = root.join(part);
        if part.exists() {
            remove(&part)?;
        }
    }
    apt.forget(&archives)?;
    let systemd = packages.iter().find(|package| package.name == "systemd");
    Ok(Contents {
        version: systemd.map(|it| it.version.clone()).unwrap_or_default(),
        packages: apt::records(&packages),
        ..Contents::default()
    })
}
