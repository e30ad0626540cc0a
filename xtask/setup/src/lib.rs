//! Sets up what building and testing vmdtrace need, into a cache, without
//! installing anything into the system.
//!
//! Every step returns at once if the cache holds its result; else it says in
//! one line what it does and how big it is. A step that is interrupted leaves
//! nothing that looks complete, and goes on from its downloads when run again.

mod artifacts;
mod cache;
mod debian;
mod debian_root;
mod error;
mod fuzzers;
mod guest;
mod host;
mod kernel;
mod process;
mod progress;
mod prometheus;
mod qemu;
mod revision;
mod toolchain;
mod unpacked;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use artifacts::{Built, EBPF_FIXTURE_VARIABLE, EBPF_OBJECT_VARIABLE, Profile};
pub use cache::{Cache, Check, Contents, Entry, PackageRecord};
pub use debian::SOURCES_VARIABLE;
pub use debian_root::DebianRoot;
pub use error::{Error, Result};
pub use fuzzers::{FUZZERS, Fuzzer};
pub use guest::{GuestPrograms, Program};
pub use host::require_root;
pub use kernel::Kernel;
pub use progress::human_size;
pub use prometheus::Prometheus;
pub use qemu::Qemu;
use serde::Deserialize;
pub use toolchain::EbpfToolchain;

/// The series of the kernel that the virtual server boots by default.
pub const DEFAULT_KERNEL: &str = "6.12";
/// The series that the tests know: the kernel of each supported Debian release,
/// of the one before, and newer ones in which vmd.ko is another: from 6.17 on its
/// interrupt domains are made differently.
pub const KERNELS: [&str; 5] = ["5.10", "6.1", DEFAULT_KERNEL, "6.18", "7.3"];

/// Gets and builds things, and tells the person at stderr about it.
#[derive(Debug)]
pub struct Setup {
    cache: Cache,
    progress: progress::Progress,
}

impl Setup {
    /// Uses the cache of this user.
    pub fn new() -> Result<Self> {
        Cache::open().map(Self::with_cache)
    }

    /// Uses another cache.
    pub fn with_cache(cache: Cache) -> Self {
        Self {
            cache,
            progress: progress::Progress::new(),
        }
    }

    /// Where results are kept.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The library sources and the linker that the eBPF build needs.
    ///
    /// Fails if the compiler is not of the supported series, or its sources
    /// cannot be had.
    pub fn ebpf_toolchain(&self) -> Result<EbpfToolchain> {
        toolchain::ensure(self)
    }

    /// A QEMU with `vfio-user-pci`: the machine's own, else Debian's.
    pub fn qemu(&self) -> Result<Qemu> {
        qemu::ensure(self)
    }

    /// Debian's newest kernel of a series such as `6.12`; the one that the
    /// cache holds stays until it is deleted there.
    pub fn kernel(&self, series: &str) -> Result<Kernel> {
        kernel::ensure(self, series)
    }

    /// A static busybox, and fio with its libraries.
    pub fn guest_programs(&self) -> Result<GuestPrograms> {
        guest::ensure(self)
    }

    /// bpftrace with its libraries, for a person in the guest, and for tests that
    /// count by it.
    pub fn guest_bpftrace(&self) -> Result<Program> {
        guest::ensure_bpftrace(self)
    }

    /// hardirqs of libbpf-tools with its libraries, which the bench compares with.
    pub fn hardirqs(&self) -> Result<Program> {
        guest::ensure_hardirqs(self)
    }

    /// node_exporter with its libraries, which the bench compares with.
    pub fn node_exporter(&self) -> Result<Program> {
        guest::ensure_node_exporter(self)
    }

    /// irqbalance with its libraries.
    pub fn guest_irqbalance(&self) -> Result<Program> {
        guest::ensure_irqbalance(self)
    }

    /// mke2fs, which makes ext4, with its libraries.
    pub fn guest_mke2fs(&self) -> Result<Program> {
        guest::ensure_mke2fs(self)
    }

    /// A small Debian with systemd, unpacked, for the guest.
    pub fn debian_root(&self) -> Result<DebianRoot> {
        debian_root::ensure(self)
    }

    /// Prometheus and promtool: the machine's own, else Debian's.
    pub fn prometheus(&self) -> Result<Prometheus> {
        prometheus::ensure(self)
    }

    /// Builds the eBPF object and the static daemon that holds it.
    pub fn build(&self, profile: Profile) -> Result<Built> {
        artifacts::build(self, profile)
    }

    /// Builds the eBPF object alone; builds and tests of vmdtrace get its path
    /// in the environment variable [`EBPF_OBJECT_VARIABLE`].
    pub fn ebpf_object(&self) -> Result<PathBuf> {
        artifacts::ebpf_object(self)
    }

    /// Builds what vmdtrace's tests load into the kernel; returns the
    /// environment variables that `cargo test -p vmdtrace` needs, and their values.
    pub fn test_environment(&self) -> Result<Vec<(&'static str, PathBuf)>> {
        artifacts::test_environment(self)
    }

    /// Fails, with the reason, if this machine cannot build fuzz targets.
    pub fn can_fuzz(&self) -> Result<()> {
        fuzzers::check(self)
    }

    /// Builds a fuzz target, one of [`FUZZERS`].
    pub fn fuzzer(&self, name: &'static str) -> Result<Fuzzer> {
        fuzzers::build(self, name)
    }

    /// Builds a static program of a workspace member, for the guest.
    pub fn static_binary(&self, package: &str, bin: &str, profile: Profile) -> Result<PathBuf> {
        artifacts::static_binary(self, package, bin, profile)
    }

    /// The folder of the workspace's Cargo.toml.
    pub fn workspace(&self) -> &'static Path {
        // This crate is xtask/setup, and is only ever run from its workspace.
        const CRATE: &str = env!("CARGO_MANIFEST_DIR");
        Path::new(CRATE)
            .ancestors()
            .nth(2)
            .unwrap_or(Path::new(CRATE))
    }

    /// Where cargo puts what it builds.
    pub fn target_directory(&self) -> Result<PathBuf> {
        #[derive(Deserialize)]
        struct Metadata {
            target_directory: PathBuf,
        }
        let mut command = self.cargo();
        command.args(["metadata", "--no-deps", "--format-version", "1"]);
        let text = process::capture(&mut command)?;
        let metadata: Metadata = serde_json::from_str(&text).map_err(|error| Error::Output {
            command: process::describe(&command),
            problem: error.to_string(),
        })?;
        Ok(metadata.target_directory)
    }

    /// The names of the cache's entries for this compiler and the default
    /// kernel, with those of other things that are there.
    pub fn entries(&self) -> Result<Vec<String>> {
        let rustc = toolchain::rustc(self)?;
        let mut names = vec![
            toolchain::rust_src_entry(&rustc.release),
            toolchain::bpf_linker_entry(),
            qemu::ENTRY.to_owned(),
            guest::ENTRY.to_owned(),
            prometheus::ENTRY.to_owned(),
            kernel::entry(DEFAULT_KERNEL),
        ];
        for optional in [
            kernel::entry(""),
            guest::BPFTRACE_ENTRY.to_owned(),
            guest::MKE2FS_ENTRY.to_owned(),
            guest::HARDIRQS_ENTRY.to_owned(),
            guest::NODE_EXPORTER_ENTRY.to_owned(),
            guest::IRQBALANCE_ENTRY.to_owned(),
            debian_root::ENTRY.to_owned(),
        ] {
            names.extend(self.cache.names_with(&optional)?);
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Checks every entry's files against their SHA-256 and deletes entries
    /// that are damaged; returns their names and what is wrong with them.
    pub fn remove_damaged(&self) -> Result<Vec<(String, String)>> {
        toolchain::adopt_bpf_linker(self)?;
        let mut removed = Vec::new();
        for name in self.entries()? {
            if let Some(why) = self.cache.remove_damaged(&name, &self.progress)? {
                removed.push((name, why));
            }
        }
        Ok(removed)
    }

    fn cargo(&self) -> Command {
        // Set by cargo for what it runs, so that the same cargo is used again.
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(self.workspace());
        command
    }

    fn progress(&self) -> &progress::Progress {
        &self.progress
    }
}
