//! Programs for the guest's initramfs: a shell and a load generator.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Contents, remove};
use crate::debian::{PrivateApt, Release, apt};
use crate::error::{Error, IoContext, Result};
use crate::unpacked::{LIBRARIES, LOADER, Tree};
use crate::{Setup, host};

pub(crate) const ENTRY: &str = "guest-programs";
const FIO: &str = "/usr/bin/fio";
const BUSYBOX: &str = "/usr/bin/busybox";
const PROVIDE: &str = "There is no other source of the guest's programs.";

/// What the guest runs besides vmdtrace.
#[derive(Debug, Clone)]
pub struct GuestPrograms {
    /// A static busybox.
    pub busybox: PathBuf,
    /// The load generator.
    pub fio: Program,
    /// fio's exact package version.
    pub fio_version: String,
}

/// A dynamic program and everything it loads.
#[derive(Debug, Clone)]
pub struct Program {
    /// Where it is on this machine; it can be at any place in the guest.
    pub path: PathBuf,
    /// Files it loads: where they are on this machine, and the absolute path
    /// that each must have in the guest.
    pub loader_and_libraries: Vec<(PathBuf, String)>,
}

pub(crate) fn ensure(setup: &Setup) -> Result<GuestPrograms> {
    host::require_x86_64()?;
    let contents = setup
        .cache()
        .ensure(ENTRY, setup.progress(), |folder| fill(setup, folder))?;
    let root = setup.cache().path(ENTRY);
    let at = |guest: &str| root.join(guest.trim_start_matches('/'));
    let mut loader_and_libraries = vec![(at(LOADER), LOADER.to_owned())];
    let libraries = at(LIBRARIES);
    for item in fs::read_dir(&libraries).context("read", &libraries)? {
        let path = item.context("read", &libraries)?.path();
        if let Some(name) = path.file_name() {
            let guest = format!("{LIBRARIES}/{}", name.to_string_lossy());
            loader_and_libraries.push((path, guest));
        }
    }
    loader_and_libraries.sort();
    Ok(GuestPrograms {
        busybox: at(BUSYBOX),
        fio: Program {
            path: at(FIO),
            loader_and_libraries,
        },
        fio_version: contents.version,
    })
}

/// The entry is laid out as the guest is: programs, loader, libraries, and
/// nothing else of what their packages hold.
fn fill(setup: &Setup, folder: &Path) -> Result<Contents> {
    let apt = PrivateApt::open(
        setup.cache(),
        Release::Trixie,
        setup.progress(),
        "fio and busybox",
        PROVIDE,
    )?;
    let fio = apt.newest("fio", PROVIDE, |_| true)?;
    let busybox = apt.newest("busybox-static", PROVIDE, |_| true)?;
    let packages = apt.closure(&[&fio, &busybox], false)?;
    let archives = apt.fetch("fio and busybox for the guest", &packages)?;
    let work = folder.join("work");
    fs::create_dir(&work).context("create", &work)?;
    apt.unpack(&archives, &work)?;

    let tree = Tree::new(work.clone());
    let libraries = tree.libraries_of(FIO)?;
    copy(&tree.loader()?, folder, LOADER)?;
    for (name, path) in libraries {
        copy(&path, folder, &format!("{LIBRARIES}/{name}"))?;
    }
    copy(&tree.path(FIO), folder, FIO)?;
    let static_busybox = [BUSYBOX, "/bin/busybox"]
        .map(|path| tree.path(path))
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Layout {
            what: busybox.spec(),
            missing: BUSYBOX.to_owned(),
            place: work.clone(),
        })?;
    copy(&static_busybox, folder, BUSYBOX)?;
    remove(&work)?;
    apt.forget(&archives)?;
    Ok(Contents {
        version: fio.version.clone(),
        facts: [("busybox".to_owned(), busybox.version.clone())].into(),
        packages: apt::records(&packages),
    })
}

/// Copies a file to its place in the guest; links are followed, as the name
/// that programs ask for is the link's.
fn copy(from: &Path, root: &Path, guest: &str) -> Result<()> {
    let to = root.join(guest.trim_start_matches('/'));
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).context("create", parent)?;
    }
    fs::copy(from, &to).context("copy", from)?;
    Ok(())
}
