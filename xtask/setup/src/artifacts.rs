//! Builds what the project itself makes: the eBPF object, the static daemon
//! that holds it, and static programs for the guest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, IoContext, Result};
use crate::revision::revision;
use crate::toolchain::EbpfToolchain;
use crate::{Setup, host, process};

/// Tells vmdtrace's build script which eBPF object to embed.
pub const EBPF_OBJECT_VARIABLE: &str = "VMDTRACE_EBPF_OBJECT";
/// Tells vmdtrace which commit it is built from, for its metric of the build.
const REVISION_VARIABLE: &str = "VMDTRACE_REVISION";
/// Tells vmdtrace's kernel tests where the object of their fixture is.
pub const EBPF_FIXTURE_VARIABLE: &str = "VMDTRACE_EBPF_FIXTURE";

const EBPF_PACKAGE: &str = "vmdtrace-ebpf";
const EBPF_FIXTURE: &str = "vmdtrace-ebpf-fixture";

const EBPF_TARGET: &str = "bpfel-unknown-none";
const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";
/// Debug information is what the linker makes BTF of.
const EBPF_RUSTFLAGS: &str = "-Cdebuginfo=2 -Clink-arg=--btf";
const EBPF_SPACE: u64 = 500_000_000;
const STATIC_SPACE: u64 = 1_500_000_000;

/// How user space is compiled. The eBPF object is always optimised: the
/// kernel's verifier does not accept the other kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Cargo's profile `dev`.
    Debug,
    /// Cargo's profile `release`.
    Release,
}

/// The finished program and its eBPF half.
#[derive(Debug, Clone)]
pub struct Built {
    /// The static daemon with the eBPF object inside.
    pub vmdtrace: PathBuf,
    /// The eBPF object as it was embedded.
    pub ebpf_object: PathBuf,
}

pub(crate) fn build(setup: &Setup, profile: Profile) -> Result<Built> {
    let ebpf_object = ebpf_object(setup)?;
    let vmdtrace = static_with(setup, "vmdtrace", "vmdtrace", profile, |command| {
        command.env(EBPF_OBJECT_VARIABLE, &ebpf_object);
        // Sources without Git may still be given a revision by their packager.
        if let Some(revision) = revision(setup.workspace()) {
            command.env(REVISION_VARIABLE, revision);
        }
    })?;
    Ok(Built {
        vmdtrace,
        ebpf_object,
    })
}

pub(crate) fn ebpf_object(setup: &Setup) -> Result<PathBuf> {
    ebpf_program(setup, EBPF_PACKAGE)
}

pub(crate) fn test_environment(setup: &Setup) -> Result<Vec<(&'static str, PathBuf)>> {
    Ok(vec![
        (EBPF_OBJECT_VARIABLE, ebpf_object(setup)?),
        (EBPF_FIXTURE_VARIABLE, ebpf_program(setup, EBPF_FIXTURE)?),
    ])
}

fn ebpf_program(setup: &Setup, bin: &str) -> Result<PathBuf> {
    let toolchain = setup.ebpf_toolchain()?;
    let target = setup.target_directory()?.join("ebpf");
    host::require_space(&target, EBPF_SPACE, "building the eBPF object")?;
    setup.progress().step(&format!(
        "building the eBPF object {bin} (about a minute when nothing is built yet)"
    ));
    let mut command = setup.cargo();
    ebpf_environment(&mut command, &toolchain, |name| std::env::var_os(name))?;
    command
        .args([
            "build",
            "-Z",
            "build-std=core",
            "--target",
            EBPF_TARGET,
            "--release",
        ])
        .args(["--package", EBPF_PACKAGE, "--bin", bin, "--target-dir"])
        .arg(&target);
    executable(&mut command, bin)
}

/// Set for the eBPF build only: elsewhere RUSTC_BOOTSTRAP makes other crates'
/// build scripts take the compiler for a nightly.
fn ebpf_environment(
    command: &mut Command,
    toolchain: &EbpfToolchain,
    callers: impl Fn(&str) -> Option<OsString>,
) -> Result<()> {
    let linker = toolchain.bpf_linker.parent().unwrap_or(Path::new("/"));
    command
        .env("PATH", prepend(linker, "PATH", &callers)?)
        // bpf-linker 0.10 looks for LLVM there before anywhere else.
        .env(
            "LD_LIBRARY_PATH",
            prepend(&toolchain.llvm, "LD_LIBRARY_PATH", &callers)?,
        )
        .env("RUSTC_BOOTSTRAP", "1")
        // Cargo's own variable for where the library sources are (cargo, src/cargo/core/compiler/standard_lib.rs).
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", &toolchain.rust_src)
        .env("RUSTFLAGS", EBPF_RUSTFLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_RUSTFLAGS");
    Ok(())
}

/// A search path with a folder before what the caller's has.
fn prepend(
    folder: &Path,
    variable: &str,
    callers: impl Fn(&str) -> Option<OsString>,
) -> Result<OsString> {
    let old = callers(variable).unwrap_or_default();
    let rest = std::env::split_paths(&old).filter(|path| !path.as_os_str().is_empty());
    std::env::join_paths(std::iter::once(folder.to_owned()).chain(rest)).map_err(|error| {
        Error::Output {
            command: variable.to_owned(),
            problem: format!("{} cannot be put on it: {error}", folder.display()),
        }
    })
}

pub(crate) fn static_binary(
    setup: &Setup,
    package: &str,
    bin: &str,
    profile: Profile,
) -> Result<PathBuf> {
    static_with(setup, package, bin, profile, |_| {})
}

fn static_with(
    setup: &Setup,
    package: &str,
    bin: &str,
    profile: Profile,
    adjust: impl FnOnce(&mut Command),
) -> Result<PathBuf> {
    host::require_x86_64()?;
    host::require_static_libc()?;
    let target = setup.target_directory()?;
    host::require_space(&target, STATIC_SPACE, &format!("building {bin}"))?;
    setup.progress().step(&format!(
        "building {bin} (some minutes on 2 cores when nothing is built yet)"
    ));
    let mut command = setup.cargo();
    command
        .args([
            "build",
            "--target",
            STATIC_TARGET,
            "--package",
            package,
            "--bin",
            bin,
        ])
        .env(
            "RUSTFLAGS",
            static_rustflags(std::env::var("RUSTFLAGS").ok().as_deref()),
        )
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if profile == Profile::Release {
        command.arg("--release");
    }
    adjust(&mut command);
    executable(&mut command, bin)
}

/// The caller's flags with static linking added.
fn static_rustflags(callers: Option<&str>) -> String {
    const STATIC: &str = "-Ctarget-feature=+crt-static";
    match callers.map(str::trim) {
        None | Some("") => STATIC.to_owned(),
        Some(flags) => format!("{flags} {STATIC}"),
    }
}

/// Runs a cargo build and returns the path of the program it made.
pub(crate) fn executable(command: &mut Command, bin: &str) -> Result<PathBuf> {
    command.arg("--message-format=json-render-diagnostics");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("run", Path::new("cargo"))?;
    if !output.status.success() {
        return Err(process::failed(command, &output));
    }
    find_executable(&String::from_utf8_lossy(&output.stdout), bin).ok_or_else(|| Error::Output {
        command: process::describe(command),
        problem: format!("no program {bin} among what was built"),
    })
}

/// Reads cargo's messages, one JSON object a line.
fn find_executable(messages: &str, bin: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| {
            message.reason == "compiler-artifact"
                && message.target.as_ref().is_some_and(|t| t.name == bin)
        })
        .find_map(|message| message.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"build-script-build"},"executable":"/t/build"}
{"reason":"compiler-artifact","target":{"name":"agent"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"agent"},"executable":"/t/agent"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            find_executable(messages, "agent"),
            Some(PathBuf::from("/t/agent"))
        );
        assert_eq!(find_executable(messages, "other"), None);
    }

    #[test]
    fn the_callers_flags_are_kept_for_user_space() {
        assert_eq!(static_rustflags(None), "-Ctarget-feature=+crt-static");
        assert_eq!(
            static_rustflags(Some("-Dwarnings ")),
            "-Dwarnings -Ctarget-feature=+crt-static"
        );
    }

    #[test]
    fn the_ebpf_build_gets_its_own_environment() {
        let toolchain = EbpfToolchain {
            rust_src: PathBuf::from("/src/library"),
            llvm: PathBuf::from("/sysroot/lib"),
            bpf_linker: PathBuf::from("/cache/bin/bpf-linker"),
            rustc_version: "1.95.0".to_owned(),
        };
        let mut command = Command::new("cargo");
        let callers = |name: &str| (name == "PATH").then(|| OsString::from("/usr/bin:/bin"));
        ebpf_environment(&mut command, &toolchain, callers).unwrap();
        let get = |name: &str| {
            command
                .get_envs()
                .find(|(key, _)| *key == name)
                .and_then(|(_, value)| value)
                .map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(get("PATH").as_deref(), Some("/cache/bin:/usr/bin:/bin"));
        assert_eq!(
            get("__CARGO_TESTS_ONLY_SRC_ROOT").as_deref(),
            Some("/src/library")
        );
        assert_eq!(get("LD_LIBRARY_PATH").as_deref(), Some("/sysroot/lib"));
        assert_eq!(get("RUSTC_BOOTSTRAP").as_deref(), Some("1"));
        assert_eq!(get("RUSTFLAGS").as_deref(), Some(EBPF_RUSTFLAGS));
        assert_eq!(get("CARGO_ENCODED_RUSTFLAGS"), None);
    }
}
