//! An apt of our own: sources, lists and downloads in the cache, nothing
//! installed, so that any Debian release's packages can be fetched on any machine.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::cache::{Cache, PackageRecord, remove, sha256_of};
use crate::debian::SOURCES_VARIABLE;
use crate::debian::control::{self, Package};
use crate::debian::sources::{self, Mirror};
use crate::error::{Error, IoContext, Result};
use crate::progress::{Progress, human_size};
use crate::{host, process};

/// Indexes younger than this are not asked for again.
const INDEX_AGE: Duration = Duration::from_secs(3600);
/// Downloads are tried this often; apt itself retries each file as well.
const TRIES: u32 = 3;
/// Space for the package indexes of one release and apt's own caches.
const INDEX_SPACE: u64 = 300_000_000;
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
];

/// A release of Debian that something is fetched from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Trixie,
    Bookworm,
    Bullseye,
}

impl Release {
    pub(crate) const NEWEST_FIRST: [Self; 3] = [Self::Trixie, Self::Bookworm, Self::Bullseye];

    pub(crate) fn codename(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Bookworm => "bookworm",
            Self::Bullseye => "bullseye",
        }
    }

    pub(crate) fn backports(self) -> String {
        format!("{}-backports", self.codename())
    }
}

/// The private apt of one release.
#[derive(Debug)]
pub(crate) struct PrivateApt<'a> {
    root: PathBuf,
    release: Release,
    progress: &'a Progress,
}

impl<'a> PrivateApt<'a> {
    /// Sets it up and brings its indexes up to date. `needed` and `provide` are
    /// for the error on a machine where that is not possible.
    pub(crate) fn open(
        cache: &Cache,
        release: Release,
        progress: &'a Progress,
        needed: &str,
        provide: &str,
    ) -> Result<Self> {
        for program in ["apt-get", "apt-cache", "dpkg-deb"] {
            if process::find_program(program).is_none() {
                return Err(Error::NoApt {
                    needed: needed.to_owned(),
                    program: program.to_owned(),
                    provide: provide.to_owned(),
                });
            }
        }
        let mirror = machine_mirror(needed, provide)?;
        let apt = Self {
            root: cache.path("apt").join(release.codename()),
            release,
            progress,
        };
        apt.configure()?;
        apt.update(&mirror)?;
        Ok(apt)
    }

    /// Every version of a package, newest first; none if the archive has no such package.
    pub(crate) fn versions(&self, package: &str) -> Result<Vec<Package>> {
        // apt-cache fails for a name it does not know; that is an answer, not an error.
        let output = process::output(self.program("apt-cache").args(["show", package]))?;
        let mut packages = control::parse_records(&String::from_utf8_lossy(&output.stdout));
        packages.retain(|p| p.name == package);
        packages.sort_by(|a, b| control::compare_versions(&b.version, &a.version));
        packages.dedup_by(|a, b| a.version == b.version);
        Ok(packages)
    }

    /// The newest version of a package that `wanted` accepts.
    pub(crate) fn newest(
        &self,
        package: &str,
        remedy: &str,
        wanted: impl Fn(&Package) -> bool,
    ) -> Result<Package> {
        let versions = self.versions(package)?;
        let have = versions
            .iter()
            .map(|p| p.version.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        versions
            .into_iter()
            .find(wanted)
            .ok_or_else(|| Error::PackageMissing {
                wanted: format!(
                    "a usable version of {package} (there: {})",
                    if have.is_empty() { "none" } else { &have }
                ),
                suites: self.suites(),
                remedy: remedy.to_owned(),
            })
    }

    /// The names of all packages that begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let text = process::capture(self.program("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The packages with everything they depend on, down to the C library.
    pub(crate) fn closure(
        &self,
        packages: &[&Package],
        prefer_backports: bool,
    ) -> Result<Vec<Package>> {
        let mut simulate = self.program("apt-get");
        simulate.args(["--simulate", "--no-install-recommends"]);
        if prefer_backports {
            simulate.args(["--target-release", &self.release.backports()]);
        }
        simulate
            .arg("install")
            .args(packages.iter().map(|p| p.spec()));
        let specs: Vec<String> = control::parse_simulation(&process::capture(&mut simulate)?)
            .iter()
            .map(|(name, version)| format!("{name}={version}"))
            .collect();
        let text = process::capture(self.program("apt-cache").arg("show").args(&specs))?;
        let known: Vec<Package> = control::parse_records(&text);
        specs
            .iter()
            .map(|spec| {
                known
                    .iter()
                    .find(|p| p.spec() == *spec)
                    .cloned()
                    .ok_or_else(|| Error::Output {
                        command: "apt-cache show".to_owned(),
                        problem: format!("no record of {spec}"),
                    })
            })
            .collect()
    }

    /// Downloads packages (those already there are kept) and verifies them.
    pub(crate) fn fetch(&self, what: &str, packages: &[Package]) -> Result<Vec<PathBuf>> {
        let folder = self.downloads();
        fs::create_dir_all(&folder).context("create", &folder)?;
        let download: u64 = packages.iter().map(|p| p.size).sum();
        let unpacked: u64 = packages.iter().map(|p| p.installed_size).sum();
        host::require_space(&folder, download + unpacked, what)?;
        self.progress.step(&format!(
            "fetching {what}: {} package{}, {} to download, {} unpacked",
            packages.len(),
            if packages.len() == 1 { "" } else { "s" },
            human_size(download),
            human_size(unpacked)
        ));
        let paths: Vec<PathBuf> = packages
            .iter()
            .map(|p| folder.join(p.file_name()))
            .collect();
        let mut verified = HashSet::new();
        let mut result: Result<()> = Ok(());
        for attempt in 0..TRIES {
            let missing = self.missing(packages, &paths, &mut verified)?;
            if missing.is_empty() {
                return Ok(paths);
            }
            if let Err(error) = &result {
                self.progress.step(&format!(
                    "download interrupted, trying again ({attempt} of {}): {}",
                    TRIES - 1,
                    reasons(&error.to_string())
                ));
                std::thread::sleep(Duration::from_secs(1 << attempt));
            }
            result = process::run_watched(
                self.program("apt-get")
                    .current_dir(&folder)
                    .arg("download")
                    .args(missing.iter().map(|m| m.package.spec())),
                &self.root.join("log"),
                None,
                || {
                    let done = paths
                        .iter()
                        .map(|p| fs::metadata(p).map_or(0, |m| m.len()))
                        .sum();
                    self.progress.bytes(what, done, download);
                },
            );
            self.progress.finish();
        }
        let missing = self.missing(packages, &paths, &mut verified)?;
        if missing.is_empty() {
            return Ok(paths);
        }
        // The archive may have dropped a version since: ask for the index again next time.
        remove(&self.updated_mark())?;
        Err(fetch_error(what, result, missing))
    }

    /// Which packages are not there with the right hash. What is wrong is
    /// deleted: apt takes a file of the right size as it is.
    fn missing<'p>(
        &self,
        packages: &'p [Package],
        paths: &[PathBuf],
        verified: &mut HashSet<PathBuf>,
    ) -> Result<Vec<Missing<'p>>> {
        let mut missing = Vec::new();
        for (package, path) in packages.iter().zip(paths) {
            if verified.contains(path) {
                continue;
            }
            let mut wrong_hash = None;
            if let Ok(metadata) = fs::metadata(path) {
                if metadata.len() == package.size {
                    let found = sha256_of(path)?;
                    if found == package.sha256 {
                        verified.insert(path.clone());
                        continue;
                    }
                    self.progress
                        .step(&format!("{} is corrupt; deleting it", path.display()));
                    wrong_hash = Some(found);
                }
                remove(path)?;
            }
            missing.push(Missing {
                package,
                wrong_hash,
            });
        }
        Ok(missing)
    }

    /// Unpacks packages into a folder. Nothing of them is run.
    pub(crate) fn unpack(&self, archives: &[PathBuf], into: &Path) -> Result<()> {
        for archive in archives {
            process::capture(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(archive)
                    .arg(into),
            )?;
        }
        Ok(())
    }

    /// Unpacks one folder of a package, given as in the package (`./usr/...`).
    pub(crate) fn unpack_part(&self, archive: &Path, part: &str, into: &Path) -> Result<()> {
        let mut reader = Command::new("dpkg-deb");
        let mut reader = reader
            .arg("--fsys-tarfile")
            .arg(archive)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("run", Path::new("dpkg-deb"))?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--file=-", "--no-same-owner", "--directory"])
            .arg(into)
            .arg(part);
        if let Some(pipe) = reader.stdout.take() {
            tar.stdin(pipe);
        }
        let result = tar.output();
        // Closes the pipe's reading end, so that the reader ends too.
        drop(tar);
        let read = reader.wait().context("wait for", Path::new("dpkg-deb"))?;
        let output = result.context("run", Path::new("tar"))?;
        if output.status.success() && read.success() {
            Ok(())
        } else {
            Err(Error::Command {
                command: format!(
                    "dpkg-deb --fsys-tarfile {} | tar --extract {part}",
                    archive.display()
                ),
                status: format!("{read}, {}", output.status),
                output: String::from_utf8_lossy(&output.stderr).into_owned(),
            })
        }
    }

    /// Deletes the downloaded packages of an entry that is complete.
    pub(crate) fn forget(&self, archives: &[PathBuf]) -> Result<()> {
        archives.iter().try_for_each(|archive| remove(archive))
    }

    fn suites(&self) -> String {
        let name = self.release.codename();
        format!(
            "{name}, {name}-updates, {name}-security and {}",
            self.release.backports()
        )
    }

    fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    fn updated_mark(&self) -> PathBuf {
        self.root.join("updated")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command
            .env("APT_CONFIG", self.root.join("apt.conf"))
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn configure(&self) -> Result<()> {
        for folder in [
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/sources.list.d",
            "state/lists/partial",
            "cache/archives/partial",
        ] {
            let folder = self.root.join(folder);
            fs::create_dir_all(&folder).context("create", &folder)?;
        }
        write(&self.root.join("status"), "")?;
        let machine = process::capture(
            Command::new("apt-config").args(["dump", "--format", "%F %v%n", "Acquire"]),
        )?;
        write(
            &self.root.join("apt.conf"),
            &configuration(&self.root, &machine),
        )
    }

    fn write_sources(&self, mirror: &Mirror, optional: bool) -> Result<()> {
        let path = self.root.join("etc/sources.list.d/debian.sources");
        let keyring = keyring(mirror)?;
        write(
            &path,
            &private_sources(mirror, self.release, optional, &keyring),
        )
    }

    fn update(&self, mirror: &Mirror) -> Result<()> {
        let mark = self.updated_mark();
        let fresh = fs::metadata(&mark)
            .and_then(|m| m.modified())
            .is_ok_and(|time| {
                SystemTime::now()
                    .duration_since(time)
                    .is_ok_and(|age| age < INDEX_AGE)
            });
        if fresh {
            return Ok(());
        }
        host::require_space(&self.root, INDEX_SPACE, "Debian's package index")?;
        self.progress.step(&format!(
            "updating the package index of Debian {} (about 10 MB)",
            self.release.codename()
        ));
        let log = self.root.join("log");
        let update = || {
            process::run_watched(
                // Without this, apt calls a failed index a warning and uses the old one.
                self.program("apt-get")
                    .args(["update", "--option", "APT::Update::Error-Mode=any"]),
                &log,
                None,
                || {},
            )
        };
        self.write_sources(mirror, true)?;
        if let Err(first) = update() {
            // A mirror need not carry every suite: -security and -updates hold
            // newer versions only, and an old release's backports are archived elsewhere.
            self.progress.step(&format!(
                "not every suite of {} can be fetched ({}); trying the release and its backports alone",
                self.release.codename(),
                reasons(&first.to_string())
            ));
            self.write_sources(mirror, false)?;
            update().map_err(|error| index_error(self.release, &error.to_string()))?;
        }
        write(&mark, "")
    }
}

fn index_error(release: Release, output: &str) -> Error {
    let detail = reasons(output);
    if output.contains("NO_PUBKEY") {
        return Error::OldKeyring { detail };
    }
    Error::Download {
        what: format!(
            "updating the package index of Debian {}",
            release.codename()
        ),
        detail,
    }
}

/// A package that is not there.
#[derive(Debug)]
struct Missing<'p> {
    package: &'p Package,
    /// The hash of a file of the right size that was there instead.
    wrong_hash: Option<String>,
}

/// Why packages are missing after the last try.
fn fetch_error(what: &str, result: Result<()>, missing: Vec<Missing<'_>>) -> Error {
    for one in missing {
        if let Some(found) = one.wrong_hash {
            return Error::Corrupt {
                what: one.package.file_name(),
                expected: one.package.sha256.clone(),
                found,
            };
        }
    }
    Error::Download {
        what: format!("fetching {what}"),
        detail: match result {
            Err(error) => reasons(&error.to_string()),
            Ok(()) => "apt-get said it was done, and files are missing".to_owned(),
        },
    }
}

/// What the stamp keeps of the packages.
pub(crate) fn records(packages: &[Package]) -> Vec<PackageRecord> {
    packages
        .iter()
        .map(|p| PackageRecord {
            name: p.name.clone(),
            version: p.version.clone(),
            sha256: p.sha256.clone(),
        })
        .collect()
}

/// The errors among what apt printed, each once; all of it if there are none.
fn reasons(output: &str) -> String {
    // What apt says last in any case.
    const SUMMARY: &str = "E: Some index files failed to download";
    let mut reasons: Vec<&str> = Vec::new();
    for line in output
        .lines()
        .filter(|l| l.starts_with("E: ") && !l.starts_with(SUMMARY))
    {
        if !reasons.contains(&line) {
            reasons.push(line);
        }
    }
    if reasons.is_empty() {
        output.to_owned()
    } else {
        reasons.join("\n")
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context("write", path)
}

/// The Debian archive of this machine, or of the file that the variable names.
fn machine_mirror(needed: &str, provide: &str) -> Result<Mirror> {
    let (found, files) = match std::env::var_os(SOURCES_VARIABLE) {
        Some(file) => {
            let file = PathBuf::from(file);
            let found = sources::read_file(&file)?.ok_or_else(|| Error::Sources {
                file: file.clone(),
                line: 1,
                problem: format!(
                    "{SOURCES_VARIABLE} has to name a file that ends in .sources or .list"
                ),
            })?;
            (found, vec![file])
        }
        None => sources::read_machine(Path::new("/etc/apt"))?,
    };
    sources::find_mirror(&found).ok_or_else(|| Error::NoMirror {
        looked_at: if files.is_empty() {
            "/etc/apt has none".to_owned()
        } else {
            files
                .iter()
                .map(|f| f.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        },
        needed: needed.to_owned(),
        provide: provide.to_owned(),
    })
}

fn keyring(mirror: &Mirror) -> Result<PathBuf> {
    // Debian's own keyring first: the machine's entry may name one release's key only.
    let candidates = KEYRINGS
        .iter()
        .map(PathBuf::from)
        .chain(mirror.signed_by.clone());
    candidates
        .clone()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::NoKeyring {
            looked_at: candidates
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
                .join(", "),
        })
}

fn private_sources(mirror: &Mirror, release: Release, optional: bool, keyring: &Path) -> String {
    let stanza = |uri: &str, suites: &str| {
        format!(
            "Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: main\nSigned-By: {}\n\n",
            keyring.display()
        )
    };
    let name = release.codename();
    let mut suites = name.to_owned();
    if release == Release::Trixie || optional && release == Release::Bookworm {
        suites.push_str(&format!(" {}", release.backports()));
    }
    if optional {
        suites.push_str(&format!(" {name}-updates"));
    }
    let mut text = stanza(&mirror.archive, &suites);
    if optional && let Some(security) = &mirror.security {
        text.push_str(&stanza(security, &format!("{name}-security")));
    }
    text
}

/// The private apt.conf. Of the machine's configuration (`apt-config dump` lines
/// of "name value") it keeps how to reach the network and nothing else.
fn configuration(root: &Path, machine: &str) -> String {
    let mut text = format!(
        "Dir::Etc \"{root}/etc\";\n\
         Dir::Etc::sourcelist \"/dev/null\";\n\
         Dir::Etc::netrc \"/etc/apt/auth.conf\";\n\
         Dir::Etc::netrcparts \"/etc/apt/auth.conf.d\";\n\
         Dir::State \"{root}/state\";\n\
         Dir::State::status \"{root}/status\";\n\
         Dir::Cache \"{root}/cache\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Architectures {{ \"amd64\"; }};\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::Retries \"3\";\n\
         Acquire::http::Timeout \"30\";\n\
         Acquire::https::Timeout \"30\";\n",
        root = root.display()
    );
    for line in machine.lines() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        let network = ["Acquire::http::", "Acquire::https::", "Acquire::Check-"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if network
            && !name.ends_with("::Timeout")
            && !name.ends_with("::")
            && !value.contains(['"', '\\'])
            && !value.is_empty()
        {
            text.push_str(&format!("{name} \"{value}\";\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(security: Option<&str>) -> Mirror {
        Mirror {
            archive: "http://mirror.invalid/debian".to_owned(),
            security: security.map(str::to_owned),
            signed_by: None,
        }
    }

    #[test]
    fn private_sources_name_the_machines_mirror() {
        let with = mirror(Some("http://mirror.invalid/security"));
        let text = private_sources(&with, Release::Trixie, true, Path::new("/k.gpg"));
        assert!(text.contains(
            "URIs: http://mirror.invalid/debian\nSuites: trixie trixie-backports trixie-updates\n"
        ));
        assert!(text.contains("URIs: http://mirror.invalid/security\nSuites: trixie-security\n"));
        assert_eq!(text.matches("Signed-By: /k.gpg\n").count(), 2);
        let less = private_sources(&with, Release::Trixie, false, Path::new("/k.gpg"));
        assert!(less.contains("Suites: trixie trixie-backports\n") && !less.contains("security"));
        let old = private_sources(&mirror(None), Release::Bullseye, true, Path::new("/k.gpg"));
        assert!(old.contains("Suites: bullseye bullseye-updates\n") && !old.contains("security"));
    }

    #[test]
    fn a_missing_key_is_not_called_a_network_failure() {
        let old = index_error(Release::Trixie, "E: ... NO_PUBKEY 6ED0E7B82643E131");
        assert!(
            old.to_string().contains("install debian-archive-keyring"),
            "{old}"
        );
        let network = index_error(Release::Trixie, "E: Could not connect");
        assert!(
            network.to_string().contains("Check the network"),
            "{network}"
        );
    }

    #[test]
    fn only_apts_errors_are_shown() {
        let output = "failed:\nIgn:1 http://mirror.invalid trixie InRelease\nE: Failed to fetch a\n\
            E: Failed to fetch a\nE: Failed to fetch b\nE: Some index files failed to download. They\n";
        assert_eq!(
            reasons(output),
            "E: Failed to fetch a\nE: Failed to fetch b"
        );
        assert_eq!(reasons("killed"), "killed");
    }

    #[test]
    fn only_the_network_part_of_the_machines_configuration_is_kept() {
        let machine = "Acquire::http::Proxy http://proxy.invalid:3128\n\
            Acquire::http::Timeout 5\nAcquire::Check-Valid-Until false\nAcquire::Languages:: none\n\
            Acquire::IndexTargets::deb::x y\nAcquire::https::Bad a\"b\nAcquire::http \nAcquire\n";
        let text = configuration(Path::new("/c"), machine);
        assert!(text.contains("Acquire::http::Proxy \"http://proxy.invalid:3128\";\n"));
        assert!(text.contains("Acquire::Check-Valid-Until \"false\";\n"));
        assert!(text.contains("Acquire::http::Timeout \"30\";\n") && !text.contains("\"5\""));
        assert!(!text.contains("IndexTargets") && !text.contains("Bad"));
        assert!(text.contains("Dir::State::status \"/c/status\";\n"));
    }

    #[test]
    fn a_package_that_is_there_is_not_fetched_again_and_a_wrong_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let progress = Progress::new();
        let apt = PrivateApt {
            root: folder.path().to_owned(),
            release: Release::Trixie,
            progress: &progress,
        };
        let good = folder.path().join("good.deb");
        fs::write(&good, "abc").unwrap();
        let package = |name: &str, size, sha256: &str| Package {
            name: name.to_owned(),
            version: "1".to_owned(),
            architecture: "amd64".to_owned(),
            depends: Vec::new(),
            size,
            installed_size: 0,
            sha256: sha256.to_owned(),
        };
        let hash = sha256_of(&good).unwrap();
        let packages = [
            package("good", 3, &hash),
            package("altered", 3, &hash),
            package("partial", 3, &hash),
            package("absent", 3, &hash),
        ];
        let paths = packages
            .each_ref()
            .map(|p| folder.path().join(format!("{}.deb", p.name)));
        fs::write(&paths[1], "abd").unwrap();
        fs::write(&paths[2], "ab").unwrap();
        let mut verified = HashSet::new();
        let missing = apt.missing(&packages, &paths, &mut verified).unwrap();
        let names: Vec<_> = missing.iter().map(|m| m.package.name.as_str()).collect();
        assert_eq!(names, ["altered", "partial", "absent"]);
        assert!(paths[0].exists() && !paths[1].exists() && !paths[2].exists());
        let error = fetch_error("test", Ok(()), missing);
        assert!(
            matches!(&error, Error::Corrupt { what, expected, found }
                if what == "altered_1_amd64.deb" && *expected == hash && *found != hash),
            "{error}"
        );
        // The next look finds it gone, and no corrupt file any more.
        let missing = apt.missing(&packages, &paths, &mut verified).unwrap();
        assert!(missing.iter().all(|m| m.wrong_hash.is_none()));
        let error = fetch_error("test", Ok(()), missing);
        assert!(error.to_string().contains("Check the network"), "{error}");
    }
}
