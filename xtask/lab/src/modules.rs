//! Kernel modules: which files a module needs, in the order of loading.
//!
//! Debian's packages come without modules.dep (their installation makes it), so
//! the dependencies are read where depmod finds them too: in each module's
//! `.modinfo` section.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::error::{LabError, Result};

/// A module, ready to be loaded.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// With underscores, as the kernel calls it.
    pub(crate) name: String,
    /// The ELF file, decompressed.
    pub(crate) content: Vec<u8>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({} bytes)", self.name, self.content.len())
    }
}

/// All modules of one kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    folder: PathBuf,
    files: BTreeMap<String, PathBuf>,
    /// Absent where the kernel's packages do not tell (7.3's do in a part that is
    /// not fetched): what has no file is then taken to be built in, and a boot
    /// without it fails.
    built_in: Option<BTreeSet<String>>,
}

impl Modules {
    /// Lists a kernel's folder of modules, `lib/modules/<release>`.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let root = folder.join("kernel");
        list(&root, &mut files).map_err(LabError::path(&root))?;
        let built_in = folder.join("modules.builtin");
        let built_in = match fs::read_to_string(&built_in) {
            Ok(text) => {
                let names = text.lines().filter_map(|line| name_of(Path::new(line)));
                Some(names.collect())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(LabError::path(&built_in)(error)),
        };
        Ok(Self {
            folder: folder.to_owned(),
            files,
            built_in,
        })
    }

    /// The modules of these names and all they depend on, each after those it
    /// needs. What is built into the kernel is left out.
    pub(crate) fn resolve(&self, names: &[String]) -> Result<Vec<Module>> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.add(&name.replace('-', "_"), &mut seen, &mut found)?;
        }
        Ok(found)
    }

    fn add(&self, name: &str, seen: &mut BTreeSet<String>, found: &mut Vec<Module>) -> Result<()> {
        let built_in = match &self.built_in {
            Some(names) => names.contains(name),
            None => !self.files.contains_key(name),
        };
        if built_in || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let path = self.files.get(name).ok_or_else(|| {
            LabError::Invalid(format!("no module {name} in {}", self.folder.display()))
        })?;
        let content = decompressed(path)?;
        for needed in dependencies(&content) {
            self.add(&needed, seen, found)?;
        }
        found.push(Module {
            name: name.to_owned(),
            content,
        });
        Ok(())
    }
}

fn list(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else if let Some(name) = name_of(&entry.path()) {
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// `kernel/drivers/nvme/host/nvme-core.ko.xz` is `nvme_core`.
fn name_of(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file
        .strip_suffix(".xz")
        .unwrap_or(file)
        .strip_suffix(".ko")?;
    Some(stem.replace('-', "_"))
}

fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let content = fs::read(path).map_err(LabError::path(path))?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(content);
    }
    let mut plain = Vec::new();
    lzma_rs::xz_decompress(&mut content.as_slice(), &mut plain)
        .map_err(|error| LabError::Invalid(format!("{}: {error:?}", path.display())))?;
    Ok(plain)
}

/// The value of `depends=` in the module's information, a list of strings that
/// each end with a NUL.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[start + KEY.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(modules: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, depends) in modules {
            let path = root.path().join("kernel").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content = format!("ELF\0license=GPL\0depends={depends}\0retpoline=Y\0");
            if path.extension().unwrap() == "xz" {
                let mut packed = Vec::new();
                lzma_rs::xz_compress(&mut content.as_bytes(), &mut packed).unwrap();
                fs::write(path, packed).unwrap();
            } else {
                fs::write(path, content).unwrap();
            }
        }
        fs::write(
            root.path().join("modules.builtin"),
            "kernel/lib/crc-t10dif.ko\n",
        )
        .unwrap();
        root
    }

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let root = tree(&[
            ("drivers/nvme/host/nvme.ko.xz", "nvme-core,nvme-auth"),
            ("drivers/nvme/host/nvme-core.ko.xz", "nvme-auth,crc-t10dif"),
            ("drivers/nvme/common/nvme-auth.ko", ""),
            ("drivers/pci/vmd.ko", ""),
        ]);
        let modules = Modules::open(root.path()).unwrap();
        let wanted = ["vmd".to_owned(), "nvme".to_owned(), "nvme-core".to_owned()];
        let found = modules.resolve(&wanted).unwrap();
        assert_eq!(names(&found), ["vmd", "nvme_auth", "nvme_core", "nvme"]);
        assert!(
            found
                .iter()
                .all(|module| module.content.starts_with(b"ELF"))
        );
    }

    #[test]
    fn a_circle_ends() {
        let root = tree(&[("a.ko", "b"), ("b.ko", "a")]);
        let modules = Modules::open(root.path()).unwrap();
        assert_eq!(
            names(&modules.resolve(&["a".to_owned()]).unwrap()),
            ["b", "a"]
        );
    }

    #[test]
    fn a_missing_module_is_named() {
        let root = tree(&[("a.ko", "gone")]);
        let modules = Modules::open(root.path()).unwrap();
        let error = modules.resolve(&["a".to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("no module gone in "), "{error}");
    }

    #[test]
    fn without_a_list_what_has_no_file_is_built_in() {
        let root = tree(&[("a.ko", "crc-t10dif,b"), ("b.ko", "")]);
        fs::remove_file(root.path().join("modules.builtin")).unwrap();
        let modules = Modules::open(root.path()).unwrap();
        let wanted = ["virtio_pci".to_owned(), "a".to_owned()];
        assert_eq!(names(&modules.resolve(&wanted).unwrap()), ["b", "a"]);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let root = tree(&[("a.ko", "")]);
        fs::write(root.path().join("kernel/b.ko.xz"), "no archive").unwrap();
        let modules = Modules::open(root.path()).unwrap();
        let error = modules.resolve(&["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("b.ko.xz"), "{error}");
    }
}
