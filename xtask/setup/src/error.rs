//! What can stop a set-up, each with its remedy.

use std::io;
use std::path::PathBuf;

use crate::progress::human_size;

/// Why a set-up step failed. Every message names what, where and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another processor architecture than the programs here are made for.
    #[error(
        "this machine's architecture is {found}, but vmdtrace's build and virtual server need x86_64 \
         (Intel VMD exists there only): run this on an x86_64 Linux machine"
    )]
    Architecture {
        /// What this machine is.
        found: String,
    },
    /// A step needs root, and the caller is not.
    #[error(
        "{purpose} needs root, and this is user id {uid}: run the same command as root (sudo -E keeps the cache's place)"
    )]
    NotRoot {
        /// What needs root.
        purpose: String,
        /// The effective user id found.
        uid: u32,
    },
    /// A program that has to be on the machine is not.
    #[error("`{program}` is not on PATH, and {purpose} needs it: {remedy}")]
    MissingProgram {
        /// The program's name.
        program: String,
        /// What it is needed for.
        purpose: String,
        /// How to get it.
        remedy: String,
    },
    /// Packages are needed and the machine has no apt.
    #[error(
        "{needed} is missing, and this machine has no `{program}` to fetch Debian's package with. {provide} \
         Or install apt, dpkg and debian-archive-keyring and name a sources list of a Debian mirror in {}",
        crate::debian::SOURCES_VARIABLE
    )]
    NoApt {
        /// The thing that would be fetched.
        needed: String,
        /// The program that is missing.
        program: String,
        /// What to install by other means instead.
        provide: String,
    },
    /// The machine's package sources name no Debian archive.
    #[error(
        "no Debian archive in the package sources ({looked_at}), so {needed} cannot be fetched. {provide} \
         Or name a sources list of a Debian mirror in {}",
        crate::debian::SOURCES_VARIABLE
    )]
    NoMirror {
        /// The files that were read.
        looked_at: String,
        /// The thing that would be fetched.
        needed: String,
        /// What to install by other means instead.
        provide: String,
    },
    /// A package source file does not follow apt's format.
    #[error("{}:{line}: {problem}: correct the file (see sources.list(5)), or disable the entry", file.display())]
    Sources {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The key that signs Debian's archive is not on this machine.
    #[error(
        "no key of Debian's archive found ({looked_at}), so downloads cannot be verified: install the package debian-archive-keyring"
    )]
    NoKeyring {
        /// The files that were looked for.
        looked_at: String,
    },
    /// The keys on this machine are older than the release that is wanted.
    #[error(
        "the keys of Debian's archive on this machine do not verify it: {detail}\nBring them up to date: \
         apt-get update && apt-get install debian-archive-keyring"
    )]
    OldKeyring {
        /// The end of apt's own messages.
        detail: String,
    },
    /// A package or a version of it is not in the archive.
    #[error("{wanted} is not in the archive's {suites}: {remedy}")]
    PackageMissing {
        /// Package and version.
        wanted: String,
        /// The suites that were searched.
        suites: String,
        /// What to do.
        remedy: String,
    },
    /// A download did not come through.
    #[error(
        "{what} failed: {detail}\nCheck the network, the proxy and the mirror, then run the same command again: \
         what is complete is kept"
    )]
    Download {
        /// What was being fetched.
        what: String,
        /// The end of the program's own messages.
        detail: String,
    },
    /// A file is not what it should be, after another try.
    #[error(
        "{what} is corrupt: its SHA-256 is {found}, and should be {expected}. It was deleted: run the same command \
         again; if it happens again, the mirror or a proxy on the way alters files"
    )]
    Corrupt {
        /// The file.
        what: String,
        /// The hash in the signed index.
        expected: String,
        /// The hash of the file.
        found: String,
    },
    /// Not enough space.
    #[error(
        "{} has {} free, and {what} needs {}: free some space there, or set XDG_CACHE_HOME (cache) or CARGO_TARGET_DIR (builds) \
         to a place that has it",
        path.display(), human_size(*free), human_size(*needed)
    )]
    DiskFull {
        /// The folder.
        path: PathBuf,
        /// What was to be written.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The compiler is not the one that the eBPF crates are pinned for.
    #[error(
        "rustc {found} cannot build the eBPF program: its crates are pinned for rustc {supported}.x. Run `rustup toolchain \
         install {supported}` and then `cargo +{supported} xtask ...`"
    )]
    UnsupportedRustc {
        /// The version found.
        found: String,
        /// The series that works, such as `1.95`.
        supported: String,
    },
    /// The compiler brings no LLVM library that the eBPF linker could use.
    #[error(
        "rustc {rustc} has no LLVM library in {}, and the eBPF linker needs the compiler's own: use the toolchain that \
         rustup installs instead of a distribution's", folder.display()
    )]
    NoLlvm {
        /// The compiler's version.
        rustc: String,
        /// Where the library should be.
        folder: PathBuf,
    },
    /// The compiler came without the runtime of the address sanitizer.
    #[error(
        "rustc {rustc} has no address sanitizer in {}, and fuzzing needs it: use the toolchain that rustup installs \
         instead of a distribution's", folder.display()
    )]
    NoSanitizer {
        /// The compiler's version.
        rustc: String,
        /// Where its runtime should be.
        folder: PathBuf,
    },
    /// The standard library's sources of this very compiler cannot be had.
    #[error(
        "the library sources of rustc {rustc} are needed to build the eBPF program, and there is no way to get them. rustup: {rustup}. \
         Debian: {debian}\nRun `rustup component add rust-src`, or use a compiler whose sources are at hand"
    )]
    NoRustSource {
        /// The compiler's version.
        rustc: String,
        /// Why rustup could not add the component.
        rustup: String,
        /// Why Debian's package could not be used.
        debian: String,
    },
    /// A program ran and failed.
    #[error("`{command}` failed ({status}){}", if output.is_empty() { String::new() } else { format!(":\n{output}") })]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The end of its error output, if that was captured.
        output: String,
    },
    /// A program did not say what was expected from it.
    #[error("`{command}` printed something unexpected: {problem}: is it the program it should be?")]
    Output {
        /// The command line.
        command: String,
        /// What was missing or wrong.
        problem: String,
    },
    /// Something that was unpacked does not hold what it should.
    #[error("{what} does not hold {missing}: its layout is not known here; delete {} and run again, or report its version", place.display())]
    Layout {
        /// The package or entry.
        what: String,
        /// The file that was looked for.
        missing: String,
        /// Where.
        place: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Neither XDG_CACHE_HOME nor HOME says where caches go.
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set to an absolute path: set one of them, so that there is a place for the cache"
    )]
    NoCacheHome,
}

/// The result of a set-up step.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the operation and the path to an I/O error.
pub(crate) trait IoContext<T> {
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &std::path::Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        })
    }
}
