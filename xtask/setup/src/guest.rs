//! Programs for the guest's initramfs: a shell and a load generator.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{Contents, remove};
use crate::debian::{Package, PrivateApt, Release, apt};
use crate::error::{Error, IoContext, Result};
use crate::unpacked::{LIBRARIES, LOADER, Tree};
use crate::{Setup, host};

pub(crate) const ENTRY: &str = "guest-programs";
pub(crate) const BPFTRACE_ENTRY: &str = "guest-bpftrace";
pub(crate) const MKE2FS_ENTRY: &str = "guest-mke2fs";
pub(crate) const HARDIRQS_ENTRY: &str = "hardirqs";
const HARDIRQS: &str = "/usr/sbin/hardirqs-libbpf";
pub(crate) const NODE_EXPORTER_ENTRY: &str = "node-exporter";
const NODE_EXPORTER: &str = "/usr/bin/prometheus-node-exporter";
pub(crate) const IRQBALANCE_ENTRY: &str = "guest-irqbalance";
const BPFTRACE: &str = "/usr/bin/bpftrace";
const MKE2FS: &str = "/usr/sbin/mke2fs";
const IRQBALANCE: &str = "/usr/sbin/irqbalance";
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
    Ok(GuestPrograms {
        busybox: inside(&root, BUSYBOX),
        fio: program(&root, FIO)?,
        fio_version: contents.version,
    })
}

/// Large, so it is not in every guest.
pub(crate) fn ensure_bpftrace(setup: &Setup) -> Result<Program> {
    one_program(setup, BPFTRACE_ENTRY, "bpftrace", BPFTRACE)
}

/// The peer that vmdtrace's cost is compared with.
pub(crate) fn ensure_hardirqs(setup: &Setup) -> Result<Program> {
    one_program(setup, HARDIRQS_ENTRY, "libbpf-tools", HARDIRQS)
}

/// What reads the same interrupts from /proc, to compare its cost.
pub(crate) fn ensure_node_exporter(setup: &Setup) -> Result<Program> {
    one_program(
        setup,
        NODE_EXPORTER_ENTRY,
        "prometheus-node-exporter",
        NODE_EXPORTER,
    )
}

/// Makes file systems for the guest's disks.
pub(crate) fn ensure_mke2fs(setup: &Setup) -> Result<Program> {
    one_program(setup, MKE2FS_ENTRY, "e2fsprogs", MKE2FS)
}

/// Moves interrupts from CPU to CPU.
pub(crate) fn ensure_irqbalance(setup: &Setup) -> Result<Program> {
    one_program(setup, IRQBALANCE_ENTRY, "irqbalance", IRQBALANCE)
}

/// A program of one of Debian's packages with its libraries, as an entry of its own.
fn one_program(setup: &Setup, entry: &str, package: &str, path: &str) -> Result<Program> {
    host::require_x86_64()?;
    setup.cache().ensure(entry, setup.progress(), |folder| {
        let apt = apt(setup, package)?;
        let wanted = apt.newest(package, PROVIDE, |_| true)?;
        let packages = apt.closure(&[&wanted], false)?;
        let work = unpack(&apt, &format!("{package} for the guest"), &packages, folder)?;
        lay_out(&Tree::new(work.clone()), path, folder)?;
        remove(&work)?;
        Ok(Contents {
            version: wanted.version.clone(),
            packages: apt::records(&packages),
            ..Contents::default()
        })
    })?;
    program(&setup.cache().path(entry), path)
}

fn inside(root: &Path, guest: &str) -> PathBuf {
    root.join(guest.trim_start_matches('/'))
}

/// A program in an entry that is laid out as the guest is.
fn program(root: &Path, path: &str) -> Result<Program> {
    let mut loader_and_libraries = vec![(inside(root, LOADER), LOADER.to_owned())];
    let libraries = inside(root, LIBRARIES);
    for item in fs::read_dir(&libraries).context("read", &libraries)? {
        let path = item.context("read", &libraries)?.path();
        if let Some(name) = path.file_name() {
            let guest = format!("{LIBRARIES}/{}", name.to_string_lossy());
            loader_and_libraries.push((path, guest));
        }
    }
    loader_and_libraries.sort();
    Ok(Program {
        path: inside(root, path),
        loader_and_libraries,
    })
}

fn apt<'a>(setup: &'a Setup, what: &str) -> Result<PrivateApt<'a>> {
    let (cache, progress) = (setup.cache(), setup.progress());
    PrivateApt::open(cache, Release::Trixie, progress, what, PROVIDE)
}

/// Unpacks packages into a folder below `folder`, to take from it what is wanted.
fn unpack(
    apt: &PrivateApt<'_>,
    what: &str,
    packages: &[Package],
    folder: &Path,
) -> Result<PathBuf> {
    let archives = apt.fetch(what, packages)?;
    let work = folder.join("work");
    fs::create_dir(&work).context("create", &work)?;
    apt.unpack(&archives, &work)?;
    apt.forget(&archives)?;
    Ok(work)
}

/// Copies a program, its loader and its libraries to their places in the guest.
fn lay_out(tree: &Tree, program: &str, folder: &Path) -> Result<()> {
    copy(&tree.loader()?, folder, LOADER)?;
    for (name, path) in tree.libraries_of(program)? {
        copy(&path, folder, &format!("{LIBRARIES}/{name}"))?;
    }
    copy(&tree.path(program), folder, program)
}

/// The entry is laid out as the guest is: programs, loader, libraries, and
/// nothing else of what their packages hold.
fn fill(setup: &Setup, folder: &Path) -> Result<Contents> {
    let apt = apt(setup, "fio and busybox")?;
    let fio = apt.newest("fio", PROVIDE, |_| true)?;
    let busybox = apt.newest("busybox-static", PROVIDE, |_| true)?;
    let packages = apt.closure(&[&fio, &busybox], false)?;
    let work = unpack(&apt, "fio and busybox for the guest", &packages, folder)?;
    let tree = Tree::new(work.clone());
    lay_out(&tree, FIO, folder)?;
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
