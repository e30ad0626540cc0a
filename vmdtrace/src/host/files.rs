//! Reading small files of `/sys` and `/proc`: bounded, never blocking, and
//! with every failure but absence noted.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::libc;

use super::printable::printable;

/// A sysfs attribute is at most one page; `/proc` files read here are a few
/// kilobytes. Anything longer is not what it should be.
const MAX_BYTES: u64 = 64 * 1024;
/// More entries than any directory read here has on the largest host.
const MAX_ENTRIES: usize = 1 << 17;
/// More lines than any file read here has: `/proc/diskstats` of thousands of
/// disks with partitions, `/proc/stat` of thousands of CPUs.
const MAX_LINES: usize = 1 << 16;
/// Of a file's content, what a problem quotes.
const MAX_QUOTED: usize = 40;
/// Problems kept; the rest is counted.
const MAX_PROBLEMS: usize = 200;

/// The content of a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Missing,
    /// Already noted as a problem.
    Unreadable,
    Names(Vec<String>),
}

impl Listing {
    /// The names; none where there is no directory or it could not be read.
    pub(super) fn into_names(self) -> Vec<String> {
        match self {
            Self::Names(names) => names,
            Self::Missing | Self::Unreadable => Vec::new(),
        }
    }
}

/// Reads files and collects what was wrong with them.
#[derive(Debug, Default)]
pub(super) struct Files {
    problems: BTreeSet<String>,
    not_kept: u64,
}

impl Files {
    /// The file's text, trimmed. Bytes that are not UTF-8 are replaced.
    pub(super) fn text(&mut self, path: &Path) -> Option<String> {
        match read_text(path) {
            Ok(text) => Some(text),
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
        }
    }

    /// As [`Files::text`], for a file that answers "invalid argument" where the
    /// host lacks what it tells of.
    pub(super) fn text_unless_invalid(&mut self, path: &Path) -> Option<String> {
        match read_text(path) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => None,
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
            Ok(text) => Some(text),
        }
    }

    /// The lines that a long file begins with, as long as `wanted` says so.
    pub(super) fn first_lines(
        &mut self,
        path: &Path,
        wanted: impl FnMut(&str) -> bool,
    ) -> Option<Vec<String>> {
        match read_first_lines(path, wanted) {
            Ok(lines) => Some(lines),
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
        }
    }

    /// The file's text as `parse` understands it; `wanted` names what it should be.
    pub(super) fn parsed<T>(
        &mut self,
        path: &Path,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(path)?;
        let value = parse(&text);
        if value.is_none() {
            self.problem(path, format_args!("{} is not {wanted}", quoted(&text)));
        }
        value
    }

    /// The names in a directory, in no particular order.
    pub(super) fn names(&mut self, path: &Path) -> Listing {
        match read_names(path) {
            Ok(names) => Listing::Names(names),
            Err(error) if is_missing(&error) => Listing::Missing,
            Err(error) => {
                self.unreadable(path, &error);
                Listing::Unreadable
            }
        }
    }

    /// Where a symbolic link points, as written in it.
    pub(super) fn link(&mut self, path: &Path) -> Option<PathBuf> {
        match fs::read_link(path) {
            Ok(target) => Some(target),
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                self.problem(path, format_args!("is not a symbolic link"));
                None
            }
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
        }
    }

    /// The last component of a symbolic link's target.
    pub(super) fn link_name(&mut self, path: &Path) -> Option<String> {
        let target = self.link(path)?;
        target
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
    }

    /// Notes that `path` is not as it should be.
    pub(super) fn problem(&mut self, path: &Path, what: impl Display) {
        let text = format!("{}: {what}", path.display());
        let text = printable(&text).into_owned();
        if self.problems.len() < MAX_PROBLEMS || self.problems.contains(&text) {
            self.problems.insert(text);
        } else {
            self.not_kept += 1;
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        if !is_missing(error) {
            self.problem(path, format_args!("cannot be read: {error}"));
        }
    }

    /// All problems, each once, in a stable order.
    pub(super) fn into_problems(self) -> Vec<String> {
        let mut problems: Vec<String> = self.problems.into_iter().collect();
        if self.not_kept > 0 {
            problems.push(format!(
                "and {} more problems that are not listed",
                self.not_kept
            ));
        }
        problems
    }
}

/// The file's text, trimmed; an error for what is too long.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("longer than {MAX_BYTES} bytes"),
        ));
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn read_first_lines(path: &Path, mut wanted: impl FnMut(&str) -> bool) -> io::Result<Vec<String>> {
    let mut reader = BufReader::new(open(path)?);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    for _ in 0..MAX_LINES {
        line.clear();
        let length = (&mut reader).take(MAX_BYTES).read_until(b'\n', &mut line)?;
        let text = String::from_utf8_lossy(&line);
        if length == 0 || !wanted(&text) {
            return Ok(lines);
        }
        if length as u64 == MAX_BYTES {
            return Err(io::Error::new(
                ErrorKind::FileTooLarge,
                format!("a line is longer than {MAX_BYTES} bytes"),
            ));
        }
        lines.push(text.trim().to_owned());
    }
    Err(io::Error::new(
        ErrorKind::FileTooLarge,
        format!("more than {MAX_LINES} lines"),
    ))
}

/// The names in a directory.
pub(super) fn read_names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        if names.len() == MAX_ENTRIES {
            return Err(io::Error::new(
                ErrorKind::FileTooLarge,
                format!("more than {MAX_ENTRIES} entries"),
            ));
        }
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// Content of a file as a problem quotes it: shortened and escaped.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Opens without waiting: a pipe in a made-up tree must not hang the reader.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

/// Absent, or its device went away while it was being read (`ENODEV`).
fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn missing_is_no_problem_and_unreadable_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files::default();
        assert_eq!(files.text(&dir.path().join("none")), None);
        assert_eq!(files.names(&dir.path().join("none")), Listing::Missing);
        assert_eq!(files.link(&dir.path().join("none")), None);
        symlink("loop", dir.path().join("loop")).unwrap();
        assert_eq!(files.text(&dir.path().join("loop")), None);
        assert_eq!(files.names(&dir.path().join("loop")), Listing::Unreadable);
        let problems = files.into_problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("/loop: cannot be read: "),
            "{problems:?}"
        );
    }

    #[test]
    fn a_directory_in_place_of_a_file_and_the_reverse() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "x").unwrap();
        let mut files = Files::default();
        assert_eq!(files.text(dir.path()), None);
        assert_eq!(files.names(&dir.path().join("file")), Listing::Unreadable);
        assert_eq!(files.link(&dir.path().join("file")), None);
        let problems = files.into_problems().join("\n");
        assert!(problems.contains("Is a directory"), "{problems}");
        assert!(problems.contains("Not a directory"), "{problems}");
        assert!(problems.contains("is not a symbolic link"), "{problems}");
    }

    #[test]
    fn endless_files_and_pipes_end() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let mut files = Files::default();
        assert_eq!(files.text(&pipe), Some(String::new()));
        assert_eq!(files.text(Path::new("/dev/zero")), None);
        assert_eq!(
            files.into_problems(),
            ["/dev/zero: cannot be read: longer than 65536 bytes"]
        );
    }

    #[test]
    fn problems_are_bounded_escaped_and_named_once() {
        let mut files = Files::default();
        for _ in 0..2 {
            files.problem(Path::new("/a\u{1b}b"), "c");
        }
        for n in 0..300 {
            files.problem(Path::new("/x"), n);
        }
        let problems = files.into_problems();
        assert_eq!(problems.len(), 201);
        assert!(problems.contains(&"/a\\u{1b}b: c".to_owned()));
        assert_eq!(problems[200], "and 101 more problems that are not listed");
    }

    #[test]
    fn quotes_are_short() {
        assert_eq!(quoted("a\n"), "\"a\\n\"");
        assert_eq!(
            quoted(&"é".repeat(41)),
            format!("\"{}\"...", "é".repeat(40))
        );
    }
}
