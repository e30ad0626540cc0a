//! What building the eBPF program needs beyond a stable Rust toolchain:
//! the standard library's sources and a linker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cache::{Contents, Entry};
use crate::debian::control::upstream_version;
use crate::debian::{PrivateApt, Release, apt};
use crate::error::{Error, IoContext, Result};
use crate::{Check, Setup, host, process};

/// The newest aya crates that this series builds are pinned in Cargo.toml.
pub(crate) const SUPPORTED_RUSTC: &str = "1.95";
/// The last version that uses the LLVM library that rustc brings along.
const BPF_LINKER: &str = "0.10.3";
/// rustup without network or permission fails at once or not at all.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);
const BPF_LINKER_SPACE: u64 = 1_000_000_000;

/// What compiles and links the eBPF program.
#[derive(Debug, Clone)]
pub struct EbpfToolchain {
    /// The folder `library` of the sources of this very compiler.
    pub rust_src: PathBuf,
    /// The folder with the compiler's LLVM library, which bpf-linker opens.
    pub llvm: PathBuf,
    /// The program `bpf-linker`.
    pub bpf_linker: PathBuf,
    /// The compiler's version, such as `1.95.0`.
    pub rustc_version: String,
}

/// What `rustc -vV` says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rustc {
    pub(crate) release: String,
    pub(crate) host: String,
}

pub(crate) fn rust_src_entry(release: &str) -> String {
    format!("rust-src-{release}")
}

pub(crate) fn bpf_linker_entry() -> String {
    format!("bpf-linker-{BPF_LINKER}")
}

pub(crate) fn ensure(setup: &Setup) -> Result<EbpfToolchain> {
    let rustc = rustc(setup)?;
    check_supported(&rustc.release)?;
    host::require_cc()?;
    let sysroot = sysroot(setup)?;
    Ok(EbpfToolchain {
        llvm: llvm(&sysroot, &rustc)?,
        rust_src: rust_src(setup, &rustc, &sysroot)?,
        bpf_linker: bpf_linker(setup)?,
        rustc_version: rustc.release,
    })
}

fn rustc_command(setup: &Setup) -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(setup.workspace());
    command
}

pub(crate) fn rustc(setup: &Setup) -> Result<Rustc> {
    let mut command = rustc_command(setup);
    parse_rustc(&process::capture(command.arg("-vV"))?).ok_or_else(|| Error::Output {
        command: process::describe(&command),
        problem: "no lines `release:` and `host:`".to_owned(),
    })
}

/// The folder of the toolchain.
pub(crate) fn sysroot(setup: &Setup) -> Result<PathBuf> {
    let text = process::capture(rustc_command(setup).args(["--print", "sysroot"]))?;
    Ok(PathBuf::from(text.trim()))
}

fn parse_rustc(text: &str) -> Option<Rustc> {
    let field = |name: &str| {
        Some(
            text.lines()
                .find_map(|l| l.strip_prefix(name))?
                .trim()
                .to_owned(),
        )
    };
    Some(Rustc {
        release: field("release:")?,
        host: field("host:")?,
    })
}

fn check_supported(release: &str) -> Result<()> {
    let series = release.strip_prefix(SUPPORTED_RUSTC);
    if series.is_some_and(|rest| rest.starts_with('.')) {
        Ok(())
    } else {
        Err(Error::UnsupportedRustc {
            found: release.to_owned(),
            supported: SUPPORTED_RUSTC.to_owned(),
        })
    }
}

/// The folder of the LLVM that this compiler was built with.
fn llvm(sysroot: &Path, rustc: &Rustc) -> Result<PathBuf> {
    let folder = sysroot.join("lib");
    let there = std::fs::read_dir(&folder)
        .context("read", &folder)?
        .flatten()
        .any(|item| item.file_name().to_string_lossy().starts_with("libLLVM"));
    if there {
        Ok(folder)
    } else {
        Err(Error::NoLlvm {
            rustc: rustc.release.clone(),
            folder,
        })
    }
}

/// The sources: the component if it is there, else what the cache has, else
/// the component if rustup can add it, else Debian's package.
fn rust_src(setup: &Setup, rustc: &Rustc, sysroot: &Path) -> Result<PathBuf> {
    let component = sysroot.join("lib/rustlib/src/rust/library");
    if is_library(&component) {
        return Ok(component);
    }
    let entry = rust_src_entry(&rustc.release);
    let part = format!("usr/src/rustc-{}/library", rustc.release);
    let unpacked = setup.cache().path(&entry).join(&part);
    if matches!(
        setup.cache().look_up(&entry, Check::Sizes)?,
        Entry::Complete(_)
    ) {
        return Ok(unpacked);
    }
    let rustup = match add_component(setup) {
        Ok(()) if is_library(&component) => return Ok(component),
        Ok(()) => format!(
            "`rustup component add rust-src` left no {}",
            component.display()
        ),
        Err(error) => error.to_string(),
    };
    setup.progress().step(&format!(
        "rustup cannot add rust-src ({}); taking Debian's package",
        last_line(&rustup)
    ));
    setup
        .cache()
        .ensure(&entry, setup.progress(), |folder| {
            unpack_debian(setup, rustc, &part, folder)
        })
        .map_err(|error| match error {
            Error::PackageMissing { .. } | Error::NoApt { .. } | Error::NoMirror { .. } => {
                Error::NoRustSource {
                    rustc: rustc.release.clone(),
                    rustup,
                    debian: error.to_string(),
                }
            }
            other => other,
        })?;
    Ok(unpacked)
}

fn add_component(setup: &Setup) -> Result<()> {
    let rustup = host::require_program("rustup", "adding rust-src", "install rustup")?;
    setup
        .progress()
        .step("adding the component rust-src with rustup (about 5 MB)");
    let log = setup.cache().path("rustup.log");
    let result = process::run_watched(
        Command::new(rustup)
            .args(["component", "add", "rust-src"])
            .current_dir(setup.workspace()),
        &log,
        Some(RUSTUP_LIMIT),
        || {},
    );
    std::fs::remove_file(&log).context("remove", &log)?;
    result
}

fn unpack_debian(setup: &Setup, rustc: &Rustc, part: &str, folder: &Path) -> Result<Contents> {
    let apt = PrivateApt::open(
        setup.cache(),
        Release::Trixie,
        setup.progress(),
        "the source of Rust's standard library",
        "Run `rustup component add rust-src`.",
    )?;
    let package = apt.newest(
        "rust-src",
        "run `rustup component add rust-src`, or use a compiler whose version is there",
        |p| upstream_version(&p.version) == rustc.release,
    )?;
    let archives = apt.fetch(
        "the source of Rust's standard library",
        std::slice::from_ref(&package),
    )?;
    for archive in &archives {
        apt.unpack_part(archive, &format!("./{part}"), folder)?;
    }
    if !is_library(&folder.join(part)) {
        return Err(Error::Layout {
            what: package.spec(),
            missing: format!("{part}/core/src/lib.rs"),
            place: folder.to_owned(),
        });
    }
    apt.forget(&archives)?;
    Ok(Contents {
        version: package.version.clone(),
        packages: apt::records(&[package]),
        ..Contents::default()
    })
}

fn is_library(folder: &Path) -> bool {
    folder.join("core/src/lib.rs").is_file() && folder.join("Cargo.lock").is_file()
}

fn bpf_linker(setup: &Setup) -> Result<PathBuf> {
    let entry = bpf_linker_entry();
    let binary = setup.cache().path(&entry).join("bin/bpf-linker");
    if is_bpf_linker(&binary) {
        return Ok(binary);
    }
    if let Some(found) = process::find_program("bpf-linker").filter(|path| is_bpf_linker(path)) {
        return Ok(found);
    }
    setup.cache().ensure(&entry, setup.progress(), |folder| {
        host::require_space(folder, BPF_LINKER_SPACE, "building bpf-linker")?;
        setup.progress().step(&format!(
            "building bpf-linker {BPF_LINKER} (about 4 minutes on 2 cores, 1 GB while it lasts)"
        ));
        // Kept when interrupted, so that the next run goes on from there.
        let target = setup.cache().path("bpf-linker-build");
        let mut install = setup.cargo();
        install
            .args([
                "install",
                "bpf-linker",
                "--version",
                BPF_LINKER,
                "--locked",
                "--no-track",
                "--root",
            ])
            .arg(folder)
            .env("CARGO_TARGET_DIR", &target)
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        process::run_visibly(&mut install).map_err(|error| Error::Download {
            what: "building bpf-linker from its source".to_owned(),
            detail: error.to_string(),
        })?;
        let built = folder.join("bin/bpf-linker");
        if !is_bpf_linker(&built) {
            return Err(Error::Output {
                command: format!("{} --version", built.display()),
                problem: format!("not `bpf-linker {BPF_LINKER}`"),
            });
        }
        crate::cache::remove(&target)?;
        Ok(Contents {
            version: BPF_LINKER.to_owned(),
            ..Contents::default()
        })
    })?;
    Ok(binary)
}

/// A bpf-linker that `cargo install` put there by hand has no stamp yet.
pub(crate) fn adopt_bpf_linker(setup: &Setup) -> Result<()> {
    let entry = bpf_linker_entry();
    let folder = setup.cache().path(&entry);
    let stamped = crate::cache::is_stamped(&folder);
    if stamped || !is_bpf_linker(&folder.join("bin/bpf-linker")) {
        return Ok(());
    }
    let contents = Contents {
        version: BPF_LINKER.to_owned(),
        ..Contents::default()
    };
    setup.cache().adopt(&entry, setup.progress(), contents)
}

/// It runs and is exactly the version that works with this compiler's LLVM.
fn is_bpf_linker(path: &Path) -> bool {
    process::is_executable(path)
        && process::capture(Command::new(path).arg("--version"))
            .is_ok_and(|text| text.trim() == format!("bpf-linker {BPF_LINKER}"))
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compilers_version_is_read() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        let expected = Rustc {
            release: "1.95.0".to_owned(),
            host: "x86_64-unknown-linux-gnu".to_owned(),
        };
        assert_eq!(parse_rustc(text), Some(expected));
        assert_eq!(parse_rustc("release: 1.95.0\n"), None);
    }

    #[test]
    fn only_the_pinned_series_is_supported() {
        for good in ["1.95.0", "1.95.1"] {
            assert!(check_supported(good).is_ok(), "{good}");
        }
        for bad in ["1.94.1", "1.950.0", "1.96.0", "1.97.0-nightly", ""] {
            let text = check_supported(bad).unwrap_err().to_string();
            assert!(text.contains("rustup toolchain install 1.95"), "{text}");
        }
    }

    #[test]
    fn a_compiler_without_a_shared_llvm_is_refused() {
        let sysroot = tempfile::tempdir().unwrap();
        let folder = sysroot.path().join("lib");
        std::fs::create_dir(&folder).unwrap();
        let rustc = Rustc {
            release: "1.95.0".to_owned(),
            host: "x86_64-unknown-linux-gnu".to_owned(),
        };
        let text = llvm(sysroot.path(), &rustc).unwrap_err().to_string();
        assert!(text.contains("1.95.0") && text.contains("rustup"), "{text}");
        std::fs::write(folder.join("libLLVM-22-rust.so"), "").unwrap();
        assert_eq!(llvm(sysroot.path(), &rustc).unwrap(), folder);
    }

    #[test]
    fn a_folder_is_the_library_only_with_core_and_a_lock_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_library(folder.path()));
        std::fs::create_dir_all(folder.path().join("core/src")).unwrap();
        std::fs::write(folder.path().join("core/src/lib.rs"), "").unwrap();
        assert!(!is_library(folder.path()));
        std::fs::write(folder.path().join("Cargo.lock"), "").unwrap();
        assert!(is_library(folder.path()));
    }
}
