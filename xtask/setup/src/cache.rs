//! The cache: named entries, each complete and stamped or not there at all.
//!
//! An entry is a folder. It is filled under another name, stamped, and then
//! renamed, so an interrupted run leaves nothing that looks complete.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, IoContext, Result};
use crate::progress::Progress;

const STAMP: &str = ".stamp.json";
const LOCK: &str = "lock";
/// Raised when the layout of entries or stamps changes.
const FORMAT: u32 = 1;

/// A folder that holds everything the set-up fetched or built.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
}

/// How thoroughly an entry is checked against its stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Every file is there and has its size: milliseconds.
    Sizes,
    /// Every file has its SHA-256 too: reads everything.
    Contents,
}

/// What an entry holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The version of the thing itself.
    pub version: String,
    /// What else is worth recording, such as a kernel's release.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
    /// The packages it was unpacked from.
    #[serde(default)]
    pub packages: Vec<PackageRecord>,
}

/// One package that an entry was unpacked from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// Its name.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// The SHA-256 of the package file, in hexadecimal.
    pub sha256: String,
}

/// The record inside a complete entry.
#[derive(Debug, Serialize, Deserialize)]
struct Stamp {
    format: u32,
    contents: Contents,
    files: BTreeMap<String, FileRecord>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum FileRecord {
    File { size: u64, sha256: String },
    Link { target: PathBuf },
}

/// The state of an entry.
#[derive(Debug)]
pub enum Entry {
    /// Nothing there.
    Absent,
    /// There, and not what its stamp says: the reason.
    Damaged(String),
    /// There and checked.
    Complete(Contents),
}

/// Held while the cache is being changed; released when dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    /// The cache of this user: `$XDG_CACHE_HOME/vmdtrace`, by default `~/.cache/vmdtrace`.
    pub fn open() -> Result<Self> {
        Self::at(default_root(
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        )?)
    }

    /// A cache in a folder of the caller's choice; it is made if missing.
    pub fn at(root: PathBuf) -> Result<Self> {
        fs::create_dir_all(&root).context("create the cache folder", &root)?;
        Ok(Self { root })
    }

    /// The folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where an entry is, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The names of entries that begin with `prefix`.
    pub(crate) fn names_with(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for item in fs::read_dir(&self.root).context("read", &self.root)? {
            let name = item.context("read", &self.root)?.file_name();
            names.extend(
                name.to_str()
                    .filter(|name| name.starts_with(prefix))
                    .map(str::to_owned),
            );
        }
        Ok(names)
    }

    /// Looks an entry up and compares it with its stamp.
    pub fn look_up(&self, name: &str, check: Check) -> Result<Entry> {
        let folder = self.path(name);
        match fs::symlink_metadata(&folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Entry::Absent),
            other => other.context("look at", &folder)?,
        };
        let text = match fs::read_to_string(folder.join(STAMP)) {
            Ok(text) => text,
            Err(e) => return Ok(Entry::Damaged(format!("it has no readable stamp ({e})"))),
        };
        let stamp: Stamp = match serde_json::from_str(&text) {
            Ok(stamp) => stamp,
            Err(e) => return Ok(Entry::Damaged(format!("its stamp cannot be read ({e})"))),
        };
        if stamp.format != FORMAT {
            return Ok(Entry::Damaged(format!(
                "its stamp has format {}, and this program writes {FORMAT}",
                stamp.format
            )));
        }
        for (name, record) in &stamp.files {
            if let Some(problem) = record.differs(&folder.join(name), check)? {
                return Ok(Entry::Damaged(format!("{name} {problem}")));
            }
        }
        Ok(Entry::Complete(stamp.contents))
    }

    /// Returns the entry if it is complete; else makes it with `fill`, which
    /// gets an empty folder, and publishes it in one step.
    pub(crate) fn ensure(
        &self,
        name: &str,
        progress: &Progress,
        fill: impl FnOnce(&Path) -> Result<Contents>,
    ) -> Result<Contents> {
        if let Entry::Complete(contents) = self.look_up(name, Check::Sizes)? {
            return Ok(contents);
        }
        let _lock = self.lock(progress)?;
        // Another run may have made it while this one waited.
        match self.look_up(name, Check::Sizes)? {
            Entry::Complete(contents) => return Ok(contents),
            Entry::Damaged(why) => progress.step(&format!(
                "{name} in the cache is damaged: {why}; making it again"
            )),
            Entry::Absent => {}
        }
        let partial = self.root.join(format!(".partial-{name}"));
        remove(&partial)?;
        fs::create_dir(&partial).context("create", &partial)?;
        let contents = fill(&partial)?;
        self.publish(name, &partial, contents.clone())?;
        Ok(contents)
    }

    /// Takes a folder that something else made, such as an earlier version of
    /// this program, as the entry.
    pub(crate) fn adopt(&self, name: &str, progress: &Progress, contents: Contents) -> Result<()> {
        let _lock = self.lock(progress)?;
        write_stamp(&self.path(name), contents)
    }

    /// Deletes the entry if a check of every file's contents fails, and says why it did.
    pub(crate) fn remove_damaged(&self, name: &str, progress: &Progress) -> Result<Option<String>> {
        let _lock = self.lock(progress)?;
        match self.look_up(name, Check::Contents)? {
            Entry::Damaged(why) => {
                remove(&self.path(name))?;
                Ok(Some(why))
            }
            Entry::Absent | Entry::Complete(_) => Ok(None),
        }
    }

    /// Stamps a filled folder and makes it the entry.
    fn publish(&self, name: &str, partial: &Path, contents: Contents) -> Result<()> {
        write_stamp(partial, contents)?;
        let target = self.path(name);
        let old = self.root.join(format!(".old-{name}"));
        remove(&old)?;
        match fs::rename(&target, &old) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other.context("set aside", &target)?,
        }
        fs::rename(partial, &target).context("publish", &target)?;
        remove(&old)
    }

    /// Keeps other runs from changing the cache; waits for one that does.
    pub(crate) fn lock(&self, progress: &Progress) -> Result<Lock> {
        let path = self.root.join(LOCK);
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .context("open", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.step(&format!(
                    "waiting for another run that is filling {}",
                    self.root.display()
                ));
                file.lock().context("lock", &path)?;
            }
            Err(TryLockError::Error(e)) => return Err(e).context("lock", &path),
        }
        Ok(Lock { _file: file })
    }
}

impl FileRecord {
    /// What is wrong with the file, if anything.
    fn differs(&self, path: &Path, check: Check) -> Result<Option<String>> {
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(e) => return Ok(Some(format!("cannot be looked at ({e})"))),
        };
        Ok(match self {
            Self::Link { target } => match fs::read_link(path) {
                Ok(found) if found == *target => None,
                Ok(found) => Some(format!(
                    "points to {}, and should to {}",
                    found.display(),
                    target.display()
                )),
                Err(_) => Some("is no symbolic link any more".to_owned()),
            },
            Self::File { .. } if !metadata.is_file() => Some("is no file any more".to_owned()),
            Self::File { size, .. } if metadata.len() != *size => Some(format!(
                "has {} bytes, and should have {size}",
                metadata.len()
            )),
            Self::File { sha256, .. } if check == Check::Contents => {
                let found = sha256_of(path)?;
                (found != *sha256)
                    .then(|| format!("has the SHA-256 {found}, and should have {sha256}"))
            }
            Self::File { .. } => None,
        })
    }
}

pub(crate) fn is_stamped(folder: &Path) -> bool {
    folder.join(STAMP).is_file()
}

fn write_stamp(folder: &Path, contents: Contents) -> Result<()> {
    let path = folder.join(STAMP);
    remove(&path)?;
    let mut files = BTreeMap::new();
    record_tree(folder, folder, &mut files)?;
    let stamp = Stamp {
        format: FORMAT,
        contents,
        files,
    };
    let text = serde_json::to_string_pretty(&stamp)
        .map_err(io::Error::from)
        .context("write", &path)?;
    fs::write(&path, text).context("write", &path)?;
    // Contents before the name: a crash must not leave a complete name with empty files.
    let handle = File::open(folder).context("open", folder)?;
    nix::unistd::syncfs(&handle)
        .map_err(io::Error::from)
        .context("write back", folder)
}

fn default_root(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> Result<PathBuf> {
    // The XDG base directory specification: a relative path there is invalid and ignored.
    xdg_cache_home
        .filter(|path| path.is_absolute())
        .or_else(|| {
            home.filter(|path| path.is_absolute())
                .map(|path| path.join(".cache"))
        })
        .map(|caches| caches.join("vmdtrace"))
        .ok_or(Error::NoCacheHome)
}

/// Removes a file or a folder with everything in it, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.context("remove", path),
    }
}

/// The SHA-256 of a file in hexadecimal.
pub(crate) fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).context("open", path)?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).context("read", path)?;
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Records every file and link below `folder`, and takes set-user-id bits away:
/// nothing in a cache may give anybody a privilege.
fn record_tree(root: &Path, folder: &Path, files: &mut BTreeMap<String, FileRecord>) -> Result<()> {
    for item in fs::read_dir(folder).context("read", folder)? {
        let path = item.context("read", folder)?.path();
        let metadata = fs::symlink_metadata(&path).context("look at", &path)?;
        if metadata.is_dir() {
            record_tree(root, &path, files)?;
            continue;
        }
        let name = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        if metadata.is_symlink() {
            let target = fs::read_link(&path).context("read", &path)?;
            files.insert(name, FileRecord::Link { target });
        } else if metadata.is_file() {
            let mode = metadata.permissions().mode();
            if mode & 0o6000 != 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o777))
                    .context("change", &path)?;
            }
            let sha256 = sha256_of(&path)?;
            files.insert(
                name,
                FileRecord::File {
                    size: metadata.len(),
                    sha256,
                },
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(version: &str) -> Contents {
        Contents {
            version: version.to_owned(),
            ..Contents::default()
        }
    }

    fn fill(folder: &Path) -> Result<Contents> {
        fs::create_dir(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/tool"), "tool 1").unwrap();
        std::os::unix::fs::symlink("tool", folder.join("bin/alias")).unwrap();
        Ok(contents("1"))
    }

    fn made() -> (tempfile::TempDir, Cache, Progress) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("vmdtrace")).unwrap();
        (folder, cache, Progress::new())
    }

    fn damage(cache: &Cache, check: Check) -> String {
        match cache.look_up("thing", check).unwrap() {
            Entry::Damaged(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_entry_is_made_once() {
        let (_folder, cache, progress) = made();
        assert!(matches!(
            cache.look_up("thing", Check::Sizes).unwrap(),
            Entry::Absent
        ));
        assert_eq!(
            cache.ensure("thing", &progress, fill).unwrap(),
            contents("1")
        );
        let again = cache.ensure("thing", &progress, |_| panic!("it is there already"));
        assert_eq!(again.unwrap(), contents("1"));
        assert!(matches!(
            cache.look_up("thing", Check::Contents).unwrap(),
            Entry::Complete(_)
        ));
    }

    #[test]
    fn an_interrupted_run_leaves_nothing_that_looks_complete() {
        let (_folder, cache, progress) = made();
        let result = cache.ensure("thing", &progress, |folder| {
            fs::write(folder.join("half"), "hal").unwrap();
            Err(Error::NoCacheHome)
        });
        assert!(result.is_err());
        assert!(matches!(
            cache.look_up("thing", Check::Sizes).unwrap(),
            Entry::Absent
        ));
        // The next run starts from an empty folder.
        cache.ensure("thing", &progress, fill).unwrap();
        assert!(!cache.path("thing").join("half").exists());
        let left: Vec<_> = fs::read_dir(cache.root())
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with('.'))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_truncated_file_is_noticed_and_made_again() {
        let (_folder, cache, progress) = made();
        cache.ensure("thing", &progress, fill).unwrap();
        fs::write(cache.path("thing").join("bin/tool"), "too").unwrap();
        assert_eq!(
            damage(&cache, Check::Sizes),
            "bin/tool has 3 bytes, and should have 6"
        );
        cache.ensure("thing", &progress, fill).unwrap();
        assert_eq!(
            fs::read(cache.path("thing").join("bin/tool")).unwrap(),
            b"tool 1"
        );
    }

    #[test]
    fn altered_contents_of_the_same_size_are_noticed_by_the_full_check() {
        let (_folder, cache, progress) = made();
        cache.ensure("thing", &progress, fill).unwrap();
        fs::write(cache.path("thing").join("bin/tool"), "tool 2").unwrap();
        assert!(matches!(
            cache.look_up("thing", Check::Sizes).unwrap(),
            Entry::Complete(_)
        ));
        assert!(damage(&cache, Check::Contents).contains("SHA-256"));
    }

    #[test]
    fn a_damaged_entry_is_removed_with_the_reason_and_a_good_one_kept() {
        let (_folder, cache, progress) = made();
        assert_eq!(cache.remove_damaged("thing", &progress).unwrap(), None);
        cache.ensure("thing", &progress, fill).unwrap();
        assert_eq!(cache.remove_damaged("thing", &progress).unwrap(), None);
        fs::write(cache.path("thing").join("bin/tool"), "tool 2").unwrap();
        let why = cache.remove_damaged("thing", &progress).unwrap().unwrap();
        assert!(why.starts_with("bin/tool has the SHA-256"), "{why}");
        assert!(!cache.path("thing").exists());
    }

    #[test]
    fn a_folder_made_by_something_else_can_be_adopted() {
        let (_folder, cache, progress) = made();
        fs::create_dir(cache.path("thing")).unwrap();
        fill(&cache.path("thing")).unwrap();
        cache.adopt("thing", &progress, contents("1")).unwrap();
        assert!(matches!(
            cache.look_up("thing", Check::Contents).unwrap(),
            Entry::Complete(_)
        ));
    }

    #[test]
    fn missing_files_links_and_stamps_are_noticed() {
        let (_folder, cache, progress) = made();
        cache.ensure("thing", &progress, fill).unwrap();
        let alias = cache.path("thing").join("bin/alias");
        fs::remove_file(&alias).unwrap();
        assert!(damage(&cache, Check::Sizes).starts_with("bin/alias cannot be looked at"));
        std::os::unix::fs::symlink("elsewhere", &alias).unwrap();
        assert_eq!(
            damage(&cache, Check::Sizes),
            "bin/alias points to elsewhere, and should to tool"
        );
        fs::write(cache.path("thing").join(STAMP), "{").unwrap();
        assert!(damage(&cache, Check::Sizes).starts_with("its stamp cannot be read"));
        fs::remove_file(cache.path("thing").join(STAMP)).unwrap();
        assert!(damage(&cache, Check::Sizes).starts_with("it has no readable stamp"));
    }

    #[test]
    fn two_runs_do_not_make_the_same_entry() {
        let (_folder, cache, progress) = made();
        let fills = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cache
                        .ensure("thing", &progress, |folder| {
                            fills.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            fill(folder)
                        })
                        .unwrap();
                });
            }
        });
        assert_eq!(fills.into_inner(), 1);
    }

    #[test]
    fn set_user_id_bits_are_taken_away() {
        let (_folder, cache, progress) = made();
        cache
            .ensure("thing", &progress, |folder| {
                let path = folder.join("su");
                fs::write(&path, "").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
                Ok(contents("1"))
            })
            .unwrap();
        let mode = fs::metadata(cache.path("thing").join("su"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn the_cache_is_where_xdg_says() {
        let absolute = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            default_root(absolute("/x"), absolute("/home/u")).unwrap(),
            Path::new("/x/vmdtrace")
        );
        assert_eq!(
            default_root(absolute("relative"), absolute("/home/u")).unwrap(),
            Path::new("/home/u/.cache/vmdtrace")
        );
        assert!(matches!(default_root(None, None), Err(Error::NoCacheHome)));
    }

    #[test]
    fn sha256_agrees_with_a_known_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        fs::write(&path, "abc").unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            sha256_of(&path).unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
