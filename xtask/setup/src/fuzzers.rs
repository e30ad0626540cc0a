//! Builds the fuzz targets: libFuzzer with the address
//! sanitizer, on the stable compiler.

use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};
use crate::{Setup, artifacts, host, toolchain};

/// A fuzz target, and where its inputs are.
#[derive(Debug, Clone)]
pub struct Fuzzer {
    /// The name of the target.
    pub name: &'static str,
    /// The libFuzzer program.
    pub program: PathBuf,
    /// The inputs that are kept with the sources.
    pub corpus: PathBuf,
    /// A folder for what it finds, beside what is built.
    pub work: PathBuf,
}

/// The fuzz targets, by name.
pub const FUZZERS: [&str; 3] = ["messages", "queues", "recording"];

/// The workspace of a fuzz target: the emulated device's, or vmdtrace's.
fn folder(name: &str) -> &'static str {
    match name {
        "recording" => "vmdtrace/fuzz",
        _ => "xtask/vmd-device/fuzz",
    }
}

/// Coverage as libFuzzer reads it, counted inline, with the operands of
/// comparisons; and every access to memory checked.
const RUSTFLAGS: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 -Zsanitizer=address";
const SPACE: u64 = 1_000_000_000;

/// Fails unless this machine's compilers can build fuzz targets.
pub(crate) fn check(setup: &Setup) -> Result<()> {
    host::require_x86_64()?;
    host::require_cc()?;
    host::require_program(
        "c++",
        "building libFuzzer",
        "install a C++ compiler (Debian: apt-get install g++)",
    )?;
    let rustc = toolchain::rustc(setup)?;
    let sysroot = toolchain::sysroot(setup)?;
    let folder = sysroot.join("lib/rustlib").join(&rustc.host).join("lib");
    if has_sanitizer(&folder)? {
        Ok(())
    } else {
        Err(Error::NoSanitizer {
            rustc: rustc.release,
            folder,
        })
    }
}

/// `librustc-stable_rt.asan.a`; the middle part is the compiler's channel.
fn has_sanitizer(folder: &Path) -> Result<bool> {
    Ok(std::fs::read_dir(folder)
        .context("read", folder)?
        .flatten()
        .any(|item| item.file_name().to_string_lossy().ends_with("_rt.asan.a")))
}

pub(crate) fn build(setup: &Setup, name: &'static str) -> Result<Fuzzer> {
    check(setup)?;
    let host = toolchain::rustc(setup)?.host;
    let target = setup.target_directory()?.join("fuzz");
    host::require_space(&target, SPACE, "building the fuzz targets")?;
    setup.progress().step(&format!(
        "building the fuzz target {name} (about two minutes when nothing is built yet)"
    ));
    let folder = setup.workspace().join(folder(name));
    let mut command = setup.cargo();
    command
        .args(["build", "--locked", "--release", "--bin", name])
        // Named, so that build scripts and procedural macros are built without the flags.
        .args(["--target", &host, "--target-dir"])
        .arg(&target)
        .arg("--manifest-path")
        .arg(folder.join("Cargo.toml"))
        // Lets the stable compiler take -Z; in a target folder of its own.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", RUSTFLAGS)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_RUSTFLAGS");
    Ok(Fuzzer {
        name,
        program: artifacts::executable(&mut command, name)?,
        corpus: folder.join("corpus").join(name),
        work: target.join("found").join(name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_without_the_sanitizer_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_sanitizer(folder.path()).unwrap());
        std::fs::write(folder.path().join("librustc-stable_rt.tsan.a"), "").unwrap();
        assert!(!has_sanitizer(folder.path()).unwrap());
        std::fs::write(folder.path().join("librustc-stable_rt.asan.a"), "").unwrap();
        assert!(has_sanitizer(folder.path()).unwrap());
    }

    #[test]
    fn every_target_has_a_kept_corpus() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        for name in FUZZERS {
            let corpus = root.join(folder(name)).join("corpus").join(name);
            assert!(std::fs::read_dir(&corpus).unwrap().count() > 0, "{name}");
        }
    }
}
