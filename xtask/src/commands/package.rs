//! `cargo xtask package`: makes a Debian package of what `cargo xtask build` builds.
//!
//! The files that are written by hand are in xtask/package; manual pages and
//! completions are written by the program itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sys::stat::{Mode, umask};
use xtask_setup::{Profile, Setup};

/// Make a Debian package: the program, its service, manual pages, completions,
/// dashboards and rules
///
/// Its path is printed. The same sources, compiler and version make the same bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Version of the package
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"), value_parser = version)]
    version: String,
    /// Folder for the package [default: package, beside what cargo builds]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// When the package's files were made, in seconds since 1970, says this variable, as
/// for other tools that build reproducibly; else the commit does.
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";

const UNIT: &str = "usr/lib/systemd/system/vmdtrace.service";
const CONFIG: &str = "etc/vmdtrace/vmdtrace.yaml";

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    let epoch = epoch(&setup)?;
    let built = setup.build(Profile::Release)?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => setup.target_directory()?.join("package"),
    };
    fs::create_dir_all(&output).with_context(|| format!("cannot make {}", output.display()))?;
    let stage = Stage::new(output.join("stage"))?;
    fill(&stage, &setup, &built.vmdtrace, &args.version, epoch)?;

    let package = output.join(format!("vmdtrace_{}_amd64.deb", args.version));
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([&stage.root, &package])
        .env(EPOCH_VARIABLE, epoch.to_string());
    capture(&mut build)?;
    println!("{}", package.display());
    Ok(())
}

/// What dpkg takes for a version; the rest of its rules is for dpkg-deb to check.
fn version(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".+~".contains(&byte);
    if text.starts_with(|first: char| first.is_ascii_digit()) && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err("it begins with a digit and holds letters, digits, `.`, `+` and `~`".to_owned())
    }
}

fn epoch(setup: &Setup) -> anyhow::Result<u64> {
    let (text, from) = match std::env::var(EPOCH_VARIABLE) {
        Ok(text) => (text, EPOCH_VARIABLE),
        Err(_) => {
            let mut commit = Command::new("git");
            commit
                .args(["log", "-1", "--format=%ct"])
                .current_dir(setup.workspace());
            let text = capture(&mut commit).with_context(|| {
                format!("sources without Git have no date: set {EPOCH_VARIABLE} to one")
            })?;
            (text, "the commit's date")
        }
    };
    text.trim()
        .parse()
        .with_context(|| format!("{from}, {:?}, is no number of seconds", text.trim()))
}

/// The tree that becomes the package.
struct Stage {
    root: PathBuf,
}

impl Stage {
    fn new(root: PathBuf) -> anyhow::Result<Self> {
        if root.exists() {
            fs::remove_dir_all(&root)
                .with_context(|| format!("cannot remove {}", root.display()))?;
        }
        // The caller's is not the package's business.
        umask(Mode::from_bits_truncate(0o022));
        Ok(Self { root })
    }

    fn write(&self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let to = self.root.join(path);
        let write = || {
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&to, content)?;
            fs::set_permissions(&to, Permissions::from_mode(mode))
        };
        write().with_context(|| format!("cannot write {}", to.display()))
    }

    /// A text that nobody edits, compressed the way Debian's policy asks for.
    fn compress(&self, path: &str, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        self.write(path, 0o644, content)?;
        let mut gzip = Command::new("gzip");
        gzip.args(["--no-name", "--best"]).arg(self.root.join(path));
        capture(&mut gzip).map(drop)
    }

    /// All files, by their paths below the root, sorted.
    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        walk(&self.root, &mut files)?;
        files.sort();
        let below = |path: PathBuf| Ok(path.strip_prefix(&self.root)?.to_owned());
        files.into_iter().map(below).collect()
    }
}

/// All files in a folder and below.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let read = || format!("cannot read {}", folder.display());
    for item in fs::read_dir(folder).with_context(read)? {
        let path = item.with_context(read)?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn fill(
    stage: &Stage,
    setup: &Setup,
    program: &Path,
    version: &str,
    epoch: u64,
) -> anyhow::Result<()> {
    let source = |path: &str| {
        let path = setup.workspace().join(path);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let ours = |name: &str| source(&format!("xtask/package/{name}"));
    let doc = |name: &str| format!("usr/share/doc/vmdtrace/{name}");

    let content =
        fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    stage.write("usr/bin/vmdtrace", 0o755, content)?;
    stage.write(UNIT, 0o644, ours("vmdtrace.service")?)?;
    stage.write(CONFIG, 0o644, ours("vmdtrace.yaml")?)?;
    generated(stage, program)?;

    for (path, content) in shared(&setup.workspace().join("dashboards"))? {
        stage.write(&format!("usr/share/vmdtrace/{path}"), 0o644, content)?;
    }
    stage.write(
        &doc("examples/prometheus.yaml"),
        0o644,
        ours("prometheus.yaml")?,
    )?;
    for page in [
        "install.md",
        "metrics.md",
        "doctor.md",
        "diagnosis.md",
        "recordings.md",
        "dashboards.md",
        "alerts.md",
    ] {
        stage.write(&doc(page), 0o644, source(&format!("docs/{page}"))?)?;
    }
    let mut copyright = ours("copyright")?;
    copyright.extend(licence(&source("LICENSE-MIT")?).into_bytes());
    stage.write(&doc("copyright"), 0o644, copyright)?;
    stage.compress(&doc("crates"), crates(setup)?)?;
    stage.compress(&doc("changelog"), changelog(version, epoch)?)?;
    stage.write(
        "usr/share/lintian/overrides/vmdtrace",
        0o644,
        ours("lintian-overrides")?,
    )?;

    let files = stage.files()?;
    let bytes = files.iter().try_fold(0, |sum, path| {
        anyhow::Ok(sum + fs::metadata(stage.root.join(path))?.len().div_ceil(1024))
    })?;
    let control = String::from_utf8(ours("control")?)?
        .replace("@VERSION@", version)
        .replace("@SIZE@", &bytes.to_string());
    let mut sums = Command::new("md5sum");
    sums.args(&files).current_dir(&stage.root);
    let sums = capture(&mut sums)?;
    stage.write("DEBIAN/control", 0o644, control)?;
    stage.write("DEBIAN/md5sums", 0o644, sums)?;
    stage.write("DEBIAN/conffiles", 0o644, format!("/{CONFIG}\n"))?;
    for script in ["postinst", "prerm", "postrm"] {
        stage.write(&format!("DEBIAN/{script}"), 0o755, ours(script)?)?;
    }
    Ok(())
}

/// Manual pages and completions, as the program writes them.
fn generated(stage: &Stage, program: &Path) -> anyhow::Result<()> {
    let folder = stage.root.with_file_name("generated");
    let mut generate = Command::new(program);
    generate.arg("generate").arg(&folder);
    capture(&mut generate)?;
    let mut pages = 0;
    for item in fs::read_dir(&folder)? {
        let path = item?.path();
        let content = fs::read(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let place = match name.as_ref() {
            "vmdtrace.bash" => "usr/share/bash-completion/completions/vmdtrace",
            "_vmdtrace" => "usr/share/zsh/vendor-completions/_vmdtrace",
            "vmdtrace.fish" => "usr/share/fish/vendor_completions.d/vmdtrace.fish",
            page if page.ends_with(".1") => {
                pages += 1;
                stage.compress(&format!("usr/share/man/man1/{page}"), content)?;
                continue;
            }
            other => bail!("{} wrote {other}, which has no place", program.display()),
        };
        stage.write(place, 0o644, content)?;
    }
    ensure!(pages > 0, "{} wrote no manual page", program.display());
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Dashboards and rules without their sources and tests, by their paths below
/// /usr/share/vmdtrace.
fn shared(folder: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    walk(folder, &mut files)?;
    files.sort();
    let mut shared = Vec::new();
    for path in files {
        let below = path.strip_prefix(folder)?.to_string_lossy().into_owned();
        if let Some(to) = shared_path(&below) {
            shared.push((to, fs::read(&path)?));
        }
    }
    Ok(shared)
}

/// Where a file of the folder dashboards/ goes; None for sources and tests.
fn shared_path(below: &str) -> Option<String> {
    let path = Path::new(below);
    let stem = path.file_stem()?.to_str()?;
    if stem.ends_with("_test") || stem.ends_with(".test") {
        return None;
    }
    match path.extension()?.to_str()? {
        "json" => Some(format!("dashboards/{}", path.file_name()?.to_str()?)),
        "yml" | "yaml" if below.starts_with("rules/") => Some(below.to_owned()),
        _ => None,
    }
}

/// A licence as a paragraph of Debian's copyright file.
fn licence(text: &[u8]) -> String {
    let mut paragraph = "License: MIT\n".to_owned();
    for line in String::from_utf8_lossy(text).lines() {
        let line = if line.is_empty() { "." } else { line };
        paragraph.push_str(&format!(" {line}\n"));
    }
    paragraph
}

/// The crates inside the program, with their licences.
fn crates(setup: &Setup) -> anyhow::Result<String> {
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree.args(["tree", "--package", "vmdtrace", "--edges", "normal"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--prefix", "none"])
        .args(["--no-dedupe", "--format", "{p}, {l}, {r}"])
        .current_dir(setup.workspace());
    let text = capture(&mut tree)?;
    // Our own crates have a path there, which is this machine's.
    let mut lines: Vec<_> = text.lines().filter(|line| !line.contains(" (/")).collect();
    lines.sort_unstable();
    lines.dedup();
    ensure!(!lines.is_empty(), "cargo tree lists no crate");
    Ok(lines.join("\n") + "\n")
}

/// A changelog with the one entry that dpkg wants; what changed is told elsewhere.
fn changelog(version: &str, epoch: u64) -> anyhow::Result<String> {
    let mut date = Command::new("date");
    date.args(["--utc", "--rfc-email"])
        .arg(format!("--date=@{epoch}"))
        .env("LC_ALL", "C");
    let date = capture(&mut date)?;
    Ok(format!(
        "vmdtrace ({version}) unstable; urgency=medium\n\n  * See the CHANGELOG.md of the \
         sources.\n\n -- The vmdtrace authors <vmdtrace@packages.invalid>  {}\n",
        date.trim()
    ))
}

/// Runs a command to its end; returns what it printed.
fn capture(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} ended with {}: {}",
        output.status,
        said.trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_server_uses_is_shared() {
        for (below, to) in [
            ("overview.json", Some("dashboards/overview.json")),
            ("generated/disks.json", Some("dashboards/disks.json")),
            ("rules/alerts.yml", Some("rules/alerts.yml")),
            ("rules/rules_test.yml", None),
            ("rules/alerts.test.yaml", None),
            ("README.md", None),
            ("source.jsonnet", None),
        ] {
            assert_eq!(shared_path(below).as_deref(), to, "{below}");
        }
    }

    #[test]
    fn versions_are_debians() {
        for good in ["0.1.0", "0.1.0~rc1", "1.0+b1"] {
            assert_eq!(version(good).as_deref(), Ok(good));
        }
        for bad in ["", "v1", "1/2", "1 2", "1-1", "1:2"] {
            assert!(version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_licence_is_one_paragraph() {
        assert_eq!(licence(b"a\n\nb\n"), "License: MIT\n a\n .\n b\n");
    }
}
