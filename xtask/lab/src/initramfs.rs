//! The guest's only file system: an initramfs in the kernel's `newc` format,
//! not compressed, since an emulated CPU would have to unpack it.
//!
//! It is made of two archives, one after the other, which the kernel unpacks as
//! one. The large one (programs, libraries, modules) is kept in the cache under
//! the hash of its contents; the small one (what is being developed) is written
//! for each boot.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cpio::newc::{Builder, ModeFileType, trailer};
use sha2::{Digest as _, Sha256};

use crate::error::{LabError, Result};

/// Contents of an archive by their path in the guest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Folder,
    File {
        mode: u32,
        content: Content,
    },
    Link {
        target: String,
    },
    /// The console, which the kernel opens before anything is mounted.
    Console,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Bytes(Vec<u8>),
    OnHost(PathBuf),
}

impl Content {
    fn read(&self) -> Result<std::borrow::Cow<'_, [u8]>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.into()),
            Self::OnHost(path) => Ok(fs::read(path).map_err(LabError::path(path))?.into()),
        }
    }
}

impl Archive {
    pub(crate) fn bytes(&mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) {
        self.insert(
            path,
            Entry::File {
                mode,
                content: Content::Bytes(bytes.into()),
            },
        );
    }

    /// A file of the host, read when the archive is written; symbolic links are
    /// followed.
    pub(crate) fn file(&mut self, path: &str, mode: u32, on_host: &Path) {
        let content = Content::OnHost(on_host.to_owned());
        self.insert(path, Entry::File { mode, content });
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        let target = target.to_owned();
        self.insert(path, Entry::Link { target });
    }

    /// Everything in a folder of the host, with its modes and links, as the root.
    pub(crate) fn tree(&mut self, root: &Path) -> Result<()> {
        self.subtree(root, Path::new(""))
    }

    fn subtree(&mut self, root: &Path, below: &Path) -> Result<()> {
        let folder = root.join(below);
        let failed = || LabError::path(&folder);
        for item in fs::read_dir(&folder).map_err(failed())? {
            let item = item.map_err(failed())?;
            let (on_host, relative) = (item.path(), below.join(item.file_name()));
            let path = relative.to_str().ok_or_else(|| {
                LabError::Invalid(format!("{}: a name that is no text", on_host.display()))
            })?;
            let metadata = item.metadata().map_err(failed())?;
            if metadata.is_dir() {
                self.insert(path, Entry::Folder);
                self.subtree(root, &relative)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(&on_host).map_err(LabError::path(&on_host))?;
                self.link(path, &target.to_string_lossy());
            } else {
                self.file(path, metadata.permissions().mode() & 0o7777, &on_host);
            }
        }
        Ok(())
    }

    pub(crate) fn console(&mut self) {
        self.insert("/dev/console", Entry::Console);
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        for (slash, _) in path.match_indices('/') {
            self.entries
                .entry(path[..slash].to_owned())
                .or_insert(Entry::Folder);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Writes the archive. A folder comes before what is in it, because the
    /// paths are sorted.
    pub(crate) fn write_to(&self, writer: &mut impl Write) -> Result<()> {
        let failed = || LabError::io("cannot write the initramfs");
        for (inode, (path, entry)) in (1_u32..).zip(&self.entries) {
            let builder = Builder::new(path).ino(inode).nlink(1);
            let (builder, content) = match entry {
                Entry::Folder => (
                    builder
                        .mode(0o755)
                        .set_mode_file_type(ModeFileType::Directory),
                    None,
                ),
                Entry::File { mode, content } => (
                    builder
                        .mode(*mode)
                        .set_mode_file_type(ModeFileType::Regular),
                    Some(content.read()?),
                ),
                Entry::Link { target } => (
                    builder
                        .mode(0o777)
                        .set_mode_file_type(ModeFileType::Symlink),
                    Some(target.as_bytes().into()),
                ),
                Entry::Console => (
                    builder
                        .mode(0o600)
                        .set_mode_file_type(ModeFileType::Char)
                        .rdev_major(5)
                        .rdev_minor(1),
                    None,
                ),
            };
            let content = content.unwrap_or_default();
            let size = u32::try_from(content.len())
                .map_err(|_| LabError::Invalid(format!("{path} is too large for an initramfs")))?;
            let mut entry = builder.write(&mut *writer, size);
            entry.write_all(&content).map_err(failed())?;
            entry.finish().map_err(failed())?;
        }
        trailer(writer).map_err(failed())?;
        Ok(())
    }

    /// The hash of all that makes the archive what it is.
    fn hash(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for (path, entry) in &self.entries {
            let (kind, content) = match entry {
                Entry::Folder => ("folder".to_owned(), None),
                Entry::File { mode, content } => (format!("file {mode:o}"), Some(content.read()?)),
                Entry::Link { target } => ("link".to_owned(), Some(target.as_bytes().into())),
                Entry::Console => ("console".to_owned(), None),
            };
            let content = content.unwrap_or_default();
            // Lengths keep neighbouring parts apart.
            hash.update(format!("{}:{path}{kind}\n{}:", path.len(), content.len()));
            hash.update(&content);
        }
        Ok(hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    /// The archive as a file in the cache, written if it is not there yet. Those that
    /// were not asked for lately are then removed: newer ones took their places.
    pub(crate) fn cached(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{CACHED_PREFIX}{}{CACHED_SUFFIX}", self.hash()?));
        let now = SystemTime::now();
        match File::options().append(true).open(&path) {
            // Whoever removes old ones sees that this is in use.
            Ok(file) => {
                file.set_modified(now).map_err(LabError::path(&path))?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(LabError::path(&path)(error)),
        }
        fs::create_dir_all(folder).map_err(LabError::path(folder))?;
        let failed = || LabError::path(folder);
        let temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed())?;
        let mut writer = BufWriter::new(temporary.as_file());
        self.write_to(&mut writer)?;
        writer.flush().map_err(failed())?;
        drop(writer);
        // Two that write at once publish the same content.
        temporary
            .persist(&path)
            .map_err(|error| LabError::path(&path)(error.error))?;
        remove_unused(folder, now).map_err(failed())?;
        Ok(path)
    }
}

const CACHED_PREFIX: &str = "base-";
const CACHED_SUFFIX: &str = ".cpio";
/// No run takes as long, so that what is older is of no run.
const CACHED_UNUSED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Removes archives that were written, and last asked for, long before `now`.
fn remove_unused(folder: &Path, now: SystemTime) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let item = item?;
        let name = item.file_name();
        let is_archive = name
            .to_str()
            .is_some_and(|it| it.starts_with(CACHED_PREFIX) && it.ends_with(CACHED_SUFFIX));
        // It may be gone by now: two runs remove at once.
        let modified = item.metadata().and_then(|it| it.modified()).ok();
        let age = modified.and_then(|it| now.duration_since(it).ok());
        if is_archive && age.is_some_and(|age| age > CACHED_UNUSED) {
            match fs::remove_file(item.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Writes the initramfs of one boot.
pub(crate) fn join(base: &Path, overlay: &Archive, target: &Path) -> Result<()> {
    let failed = || LabError::path(target);
    let mut writer = BufWriter::new(File::create(target).map_err(failed())?);
    let mut reader = File::open(base).map_err(LabError::path(base))?;
    io::copy(&mut reader, &mut writer).map_err(failed())?;
    overlay.write_to(&mut writer)?;
    writer.flush().map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Archive {
        let mut archive = Archive::default();
        archive.bytes("/bin/tool", 0o755, *b"12345");
        archive.bytes("/init", 0o700, *b"678");
        archive.console();
        archive
    }

    /// (path, mode with type, content) of every entry.
    fn read_back(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let mut reader = cpio::newc::Reader::new(&mut bytes).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let (path, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            io::copy(&mut reader, &mut content).unwrap();
            reader.finish().unwrap();
            entries.push((path, mode, content));
        }
    }

    #[test]
    fn folders_are_made_and_come_first() {
        let mut bytes = Vec::new();
        sample().write_to(&mut bytes).unwrap();
        let expected = [
            ("bin", 0o040_755, ""),
            ("bin/tool", 0o100_755, "12345"),
            ("dev", 0o040_755, ""),
            ("dev/console", 0o020_600, ""),
            ("init", 0o100_700, "678"),
        ];
        let found = read_back(&bytes);
        assert_eq!(found.len(), expected.len());
        for ((path, mode, content), expected) in found.iter().zip(expected) {
            let content = std::str::from_utf8(content).unwrap();
            assert_eq!((path.as_str(), *mode, content), expected);
        }
    }

    #[test]
    fn the_cache_is_hit_by_equal_content_only() {
        let folder = tempfile::tempdir().unwrap();
        let first = sample().cached(folder.path()).unwrap();
        assert_eq!(sample().cached(folder.path()).unwrap(), first);
        let mut other = sample();
        other.bytes("/bin/tool", 0o755, *b"12346");
        assert_ne!(other.cached(folder.path()).unwrap(), first);
        let mut other = sample();
        other.bytes("/bin/tool", 0o700, *b"12345");
        assert_ne!(other.cached(folder.path()).unwrap(), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_nobody_asked_for_lately_makes_room_for_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let archive = |content: &str| {
            let mut archive = sample();
            archive.bytes("/bin/tool", 0o755, content);
            archive.cached(folder.path()).unwrap()
        };
        let make_old = |path: &Path| {
            let file = File::options().append(true).open(path).unwrap();
            let long_ago = SystemTime::now() - 2 * CACHED_UNUSED;
            file.set_modified(long_ago).unwrap();
        };
        let (unused, used) = (archive("1"), archive("2"));
        let other = folder.path().join("base-notes.txt");
        fs::write(&other, "").unwrap();
        for path in [&unused, &used, &other] {
            make_old(path);
        }
        assert_eq!(archive("2"), used);
        assert!(unused.exists());
        let new = archive("3");
        assert!(!unused.exists());
        assert!(used.exists() && other.exists() && new.exists());
    }

    #[test]
    fn a_missing_part_is_named_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut archive = sample();
        archive.file("/bin/other", 0o755, Path::new("/nonexistent/other"));
        let error = archive.cached(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/other: "), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tree_keeps_its_links_and_modes() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        let tool = root.path().join("usr/bin/tool");
        fs::write(&tool, "1").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).unwrap();
        let mut archive = Archive::default();
        archive.tree(root.path()).unwrap();
        let mut bytes = Vec::new();
        archive.write_to(&mut bytes).unwrap();
        let found: Vec<_> = read_back(&bytes);
        let found: Vec<_> = found
            .iter()
            .map(|(path, mode, content)| (path.as_str(), *mode, content.as_slice()))
            .collect();
        let expected: [(&str, u32, &[u8]); 4] = [
            ("bin", 0o120_777, b"usr/bin"),
            ("usr", 0o040_755, b""),
            ("usr/bin", 0o040_755, b""),
            ("usr/bin/tool", 0o104_755, b"1"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn two_archives_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let base = sample().cached(folder.path()).unwrap();
        let target = folder.path().join("initramfs");
        join(&base, &sample(), &target).unwrap();
        let (base, both) = (fs::read(base).unwrap(), fs::read(target).unwrap());
        assert_eq!(both.len(), base.len() * 2);
        assert_eq!(read_back(&both[base.len()..]), read_back(&base));
    }
}
