//! A QEMU that can attach a device in another process (`vfio-user-pci`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Contents;
use crate::debian::control::{compare_versions, upstream_version};
use crate::debian::{PrivateApt, Release, apt};
use crate::error::{Error, Result};
use crate::unpacked::{LIBRARIES, Tree};
use crate::{Setup, host, process};

pub(crate) const ENTRY: &str = "qemu";
const PROGRAM: &str = "qemu-system-x86_64";
/// The first version with the device `vfio-user-pci`.
const OLDEST: &str = "10.1";
const DEVICE: &str = "vfio-user-pci";
const PROVIDE: &str =
    "Install QEMU 10.1 or newer, built with vfio-user-pci, and put qemu-system-x86_64 on PATH.";

/// A QEMU that runs on this machine.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// Its version, such as `11.1.3`.
    pub version: String,
    place: Place,
}

#[derive(Debug, Clone)]
enum Place {
    System(PathBuf),
    Unpacked { tree: Tree, loader: PathBuf },
}

impl Qemu {
    /// The command that takes the arguments of qemu-system-x86_64.
    pub fn command(&self) -> Command {
        match &self.place {
            Place::System(path) => Command::new(path),
            Place::Unpacked { tree, loader } => {
                let mut command = tree.command_by(loader, &format!("/usr/bin/{PROGRAM}"));
                command.env("QEMU_MODULE_DIR", tree.path(LIBRARIES).join("qemu"));
                for firmware in ["/usr/share/qemu", "/usr/share/seabios"] {
                    command.arg("-L").arg(tree.path(firmware));
                }
                command
            }
        }
    }
}

pub(crate) fn ensure(setup: &Setup) -> Result<Qemu> {
    host::require_x86_64()?;
    if let Some(system) = system() {
        return Ok(system);
    }
    let contents = setup
        .cache()
        .ensure(ENTRY, setup.progress(), |folder| fill(setup, folder))?;
    unpacked(&setup.cache().path(ENTRY), &contents.version)
}

/// The machine's own QEMU, if it is new enough and knows the device.
fn system() -> Option<Qemu> {
    let path = process::find_program(PROGRAM)?;
    let text = process::capture(Command::new(&path).arg("--version")).ok()?;
    let version = parse_version(&text)?;
    let new_enough = compare_versions(version, OLDEST).is_ge();
    (new_enough && knows_device(Command::new(&path)).ok()?).then(|| Qemu {
        version: version.to_owned(),
        place: Place::System(path),
    })
}

fn unpacked(root: &Path, version: &str) -> Result<Qemu> {
    let tree = Tree::new(root.to_owned());
    let loader = tree.loader()?;
    Ok(Qemu {
        version: upstream_version(version).to_owned(),
        place: Place::Unpacked { tree, loader },
    })
}

fn fill(setup: &Setup, folder: &Path) -> Result<Contents> {
    let apt = PrivateApt::open(
        setup.cache(),
        Release::Trixie,
        setup.progress(),
        "QEMU",
        PROVIDE,
    )?;
    let qemu = apt.newest("qemu-system-x86", PROVIDE, |p| {
        compare_versions(upstream_version(&p.version), OLDEST).is_ge()
    })?;
    let packages = apt.closure(&[&qemu], true)?;
    let archives = apt.fetch(
        &format!("QEMU {}", upstream_version(&qemu.version)),
        &packages,
    )?;
    apt.unpack(&archives, folder)?;
    // It has to run here and know the device before it counts as there.
    let unpacked = unpacked(folder, &qemu.version)?;
    if !knows_device(unpacked.command())? {
        return Err(Error::Layout {
            what: qemu.spec(),
            missing: format!("the device {DEVICE}"),
            place: folder.to_owned(),
        });
    }
    apt.forget(&archives)?;
    Ok(Contents {
        version: qemu.version.clone(),
        packages: apt::records(&packages),
        ..Contents::default()
    })
}

fn knows_device(mut qemu: Command) -> Result<bool> {
    let text = process::capture(qemu.args(["-device", "help"]))?;
    Ok(text.contains(&format!("\"{DEVICE}\"")))
}

fn parse_version(text: &str) -> Option<&str> {
    text.lines()
        .find_map(|line| line.strip_prefix("QEMU emulator version "))?
        .split_whitespace()
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let text = "QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1~bpo13+1)\nCopyright\n";
        assert_eq!(parse_version(text), Some("11.1.3"));
        assert_eq!(parse_version("qemu: not found"), None);
    }

    #[test]
    fn ten_is_newer_than_nine_and_ten_point_one_the_oldest() {
        for (version, usable) in [
            ("7.2.19", false),
            ("9.2.0", false),
            ("10.0.13", false),
            ("10.1.0", true),
            ("11.1.3", true),
        ] {
            assert_eq!(
                compare_versions(version, OLDEST).is_ge(),
                usable,
                "{version}"
            );
        }
    }
}
