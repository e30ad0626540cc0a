//! A real Prometheus, unpacked and never installed as a service.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Contents;
use crate::debian::control::upstream_version;
use crate::debian::{PrivateApt, Release, apt};
use crate::error::{Error, Result};
use crate::{Setup, host, process};

pub(crate) const ENTRY: &str = "prometheus";
const PROVIDE: &str = "Install Prometheus 2.40 or newer and put prometheus and promtool on PATH.";
/// Older ones lack parts of promtool and of the API that the tests use.
const OLDEST: &str = "2.40";

/// The server and its checker.
#[derive(Debug, Clone)]
pub struct Prometheus {
    /// The server.
    pub prometheus: PathBuf,
    /// The checker of metrics, rules and rule tests.
    pub promtool: PathBuf,
    /// Their version, such as `2.53.3`.
    pub version: String,
}

pub(crate) fn ensure(setup: &Setup) -> Result<Prometheus> {
    host::require_x86_64()?;
    if let Some(system) = system() {
        return Ok(system);
    }
    let contents = setup
        .cache()
        .ensure(ENTRY, setup.progress(), |folder| fill(setup, folder))?;
    let folder = setup.cache().path(ENTRY);
    Ok(Prometheus {
        prometheus: folder.join("usr/bin/prometheus"),
        promtool: folder.join("usr/bin/promtool"),
        version: upstream_version(&contents.version).to_owned(),
    })
}

/// The machine's own, if both programs are there and agree on a usable version.
fn system() -> Option<Prometheus> {
    let prometheus = process::find_program("prometheus")?;
    let promtool = process::find_program("promtool")?;
    let version = version_of(&prometheus).ok()?;
    let usable = crate::debian::control::compare_versions(&version, OLDEST).is_ge();
    (usable && version_of(&promtool).ok()? == version).then_some(Prometheus {
        prometheus,
        promtool,
        version,
    })
}

fn fill(setup: &Setup, folder: &Path) -> Result<Contents> {
    let apt = PrivateApt::open(
        setup.cache(),
        Release::Trixie,
        setup.progress(),
        "Prometheus",
        PROVIDE,
    )?;
    let prometheus = apt.newest("prometheus", PROVIDE, |_| true)?;
    // From the same source package, so of the same version.
    let promtool = apt.newest("promtool", PROVIDE, |p| p.version == prometheus.version)?;
    let packages = [prometheus, promtool];
    let archives = apt.fetch("Prometheus", &packages)?;
    apt.unpack(&archives, folder)?;
    for program in ["usr/bin/prometheus", "usr/bin/promtool"] {
        version_of(&folder.join(program))?;
    }
    apt.forget(&archives)?;
    Ok(Contents {
        version: packages[0].version.clone(),
        packages: apt::records(&packages),
        ..Contents::default()
    })
}

/// Runs the program, so a C library too old for it is found out here.
fn version_of(program: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.arg("--version");
    let text = process::capture(&mut command)?;
    parse_version(&text)
        .map(str::to_owned)
        .ok_or_else(|| Error::Output {
            command: process::describe(&command),
            problem: "no version".to_owned(),
        })
}

fn parse_version(text: &str) -> Option<&str> {
    let rest = text.lines().next()?.split_once(", version ")?.1;
    rest.split([' ', '+']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read() {
        let text = "prometheus, version 2.53.3+ds1 (branch: debian/sid, revision: 2.53.3+ds1-2)\n  build user: x\n";
        assert_eq!(parse_version(text), Some("2.53.3"));
        assert_eq!(
            parse_version("promtool, version 3.1.0 (branch"),
            Some("3.1.0")
        );
        assert_eq!(parse_version("not it"), None);
        assert_eq!(parse_version(""), None);
    }
}
