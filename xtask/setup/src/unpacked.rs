//! Running programs of an unpacked Debian release by that release's own
//! loader and libraries, whatever the machine's are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, IoContext, Result};
use crate::process;

/// Where x86_64 programs expect their loader (System V ABI, AMD64 supplement).
pub(crate) const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// Debian's folder of libraries, which its loader searches by default.
pub(crate) const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A folder with Debian packages unpacked into it.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// The loader; packages hold it with or without the merged /usr.
    pub(crate) fn loader(&self) -> Result<PathBuf> {
        let library = LOADER.rsplit('/').next().unwrap_or_default();
        [LIBRARIES, "/lib/x86_64-linux-gnu", "/usr/lib64", "/lib64"]
            .iter()
            .map(|folder| self.path(folder).join(library))
            .find(|path| path.is_file())
            .ok_or_else(|| Error::Layout {
                what: "the C library's package".to_owned(),
                missing: library.to_owned(),
                place: self.root.clone(),
            })
    }

    fn library_path(&self) -> String {
        [LIBRARIES, "/lib/x86_64-linux-gnu"]
            .map(|folder| self.path(folder).display().to_string())
            .join(":")
    }

    fn private_folders(&self) -> Result<Vec<PathBuf>> {
        let libraries = self.path(LIBRARIES);
        let mut folders = Vec::new();
        for item in fs::read_dir(&libraries).context("read", &libraries)? {
            let path = item.context("read", &libraries)?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
        folders.sort();
        Ok(folders)
    }

    /// The command that starts a program of the tree by its loader.
    pub(crate) fn command_by(&self, loader: &Path, program: &str) -> Command {
        let mut command = Command::new(loader);
        command
            .arg("--library-path")
            .arg(self.library_path())
            .arg(self.path(program));
        command
    }

    /// Every library a program loads at its start: name and file.
    pub(crate) fn libraries_of(&self, program: &str) -> Result<Vec<(String, PathBuf)>> {
        // Some packages keep their own libraries in a folder below, which they
        // find by an absolute run path (such as librados its libceph-common).
        let mut folders = self.library_path();
        for folder in self.private_folders()? {
            folders.push(':');
            folders.push_str(&folder.display().to_string());
        }
        let mut list = Command::new(self.loader()?);
        list.arg("--library-path")
            .arg(folders)
            .arg("--list")
            .arg(self.path(program));
        let text = process::capture(&mut list)?;
        let libraries = parse_list(&text).map_err(|problem| Error::Output {
            command: process::describe(&list),
            problem,
        })?;
        // A library of the machine itself would not be there in the guest.
        match libraries
            .iter()
            .find(|(_, path)| !path.starts_with(&self.root))
        {
            None => Ok(libraries),
            Some((name, path)) => Err(Error::Layout {
                what: program.to_owned(),
                missing: format!("{name} (the loader found {})", path.display()),
                place: self.root.clone(),
            }),
        }
    }
}

/// Reads `name => path (address)` lines of the loader's `--list`.
fn parse_list(text: &str) -> Result<Vec<(String, PathBuf)>, String> {
    let mut libraries = Vec::new();
    for line in text.lines() {
        // Lines without an arrow are the kernel's vdso, the loader itself, or
        // "statically linked".
        let Some((name, rest)) = line.split_once("=>") else {
            continue;
        };
        let path = rest.split(" (0x").next().unwrap_or_default().trim();
        if !path.starts_with('/') {
            return Err(format!("no file for {}: {path}", name.trim()));
        }
        // The loader lists itself by the program's absolute name for it.
        let name = name.trim();
        if !name.starts_with('/') && !path.ends_with("/ld-linux-x86-64.so.2") {
            libraries.push((name.to_owned(), PathBuf::from(path)));
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_list_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\
            \tlibaio.so.1t64 => /r/usr/lib/x86_64-linux-gnu/libaio.so.1t64 (0x00007f1)\n\
            \tlibc.so.6 => /r/with space (x)/libc.so.6 (0x00007f2)\n\
            \t/lib64/ld-linux-x86-64.so.2 => /r/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 (0x00007f3)\n";
        let expected = [
            (
                "libaio.so.1t64",
                "/r/usr/lib/x86_64-linux-gnu/libaio.so.1t64",
            ),
            ("libc.so.6", "/r/with space (x)/libc.so.6"),
        ]
        .map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
        assert_eq!(parse_list(text).unwrap(), expected);
    }

    #[test]
    fn a_library_without_a_file_is_named() {
        let error = parse_list("\tlibmissing.so.1 => not found\n").unwrap_err();
        assert_eq!(error, "no file for libmissing.so.1: not found");
    }

    #[test]
    fn a_tree_without_a_loader_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let text = Tree::new(folder.path().to_owned())
            .loader()
            .unwrap_err()
            .to_string();
        assert!(text.contains("ld-linux-x86-64.so.2"), "{text}");
    }
}
