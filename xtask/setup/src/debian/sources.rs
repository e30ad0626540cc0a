//! Finds the machine's Debian archive in its own apt sources (sources.list(5)).

use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};

/// One entry of a sources file that names binary packages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) uris: Vec<String>,
    pub(crate) suites: Vec<String>,
    pub(crate) components: Vec<String>,
    /// A path; a key inside the file itself is left out.
    pub(crate) signed_by: Option<PathBuf>,
}

/// Where Debian's archive is reached from this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirror {
    pub(crate) archive: String,
    /// The security archive, which is a host or folder of its own.
    pub(crate) security: Option<String>,
    pub(crate) signed_by: Option<PathBuf>,
}

/// Reads every sources file that apt would read.
pub(crate) fn read_machine(etc_apt: &Path) -> Result<(Vec<Source>, Vec<PathBuf>)> {
    let mut files = vec![etc_apt.join("sources.list")];
    let parts = etc_apt.join("sources.list.d");
    if parts.is_dir() {
        let mut found = Vec::new();
        for item in std::fs::read_dir(&parts).context("read", &parts)? {
            found.push(item.context("read", &parts)?.path());
        }
        found.sort();
        files.extend(found);
    }
    let mut sources = Vec::new();
    let mut read = Vec::new();
    for file in files {
        if let Some(mut more) = read_file(&file)? {
            sources.append(&mut more);
            read.push(file);
        }
    }
    Ok((sources, read))
}

/// Reads one file by its extension; `None` if it is none that apt reads.
pub(crate) fn read_file(file: &Path) -> Result<Option<Vec<Source>>> {
    let deb822 = match file.extension().and_then(|e| e.to_str()) {
        Some("sources") => true,
        Some("list") => false,
        _ => return Ok(None),
    };
    if !file.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(file).context("read", file)?;
    if deb822 {
        parse_deb822(&text, file).map(Some)
    } else {
        parse_one_line(&text, file).map(Some)
    }
}

/// The first entry for a release of Debian, and that of its security archive.
pub(crate) fn find_mirror(sources: &[Source]) -> Option<Mirror> {
    let with_main = || {
        sources
            .iter()
            .filter(|s| s.components.iter().any(|c| c == "main"))
    };
    let archive = with_main().find(|s| s.suites.iter().any(|suite| is_debian_release(suite)))?;
    let security = with_main().find(|s| {
        s.suites.iter().any(|suite| {
            suite
                .strip_suffix("-security")
                .is_some_and(is_debian_release)
        })
    });
    Some(Mirror {
        archive: archive.uris.first()?.clone(),
        security: security.and_then(|s| s.uris.first().cloned()),
        signed_by: archive.signed_by.clone(),
    })
}

fn is_debian_release(suite: &str) -> bool {
    const NAMES: [&str; 11] = [
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "duke",
        "sid",
        "oldoldstable",
        "oldstable",
        "stable",
        "testing",
        "unstable",
    ];
    NAMES.contains(&suite)
}

/// The form of `*.sources` files.
fn parse_deb822(text: &str, file: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut stanza = Stanza::default();
    for (index, line) in text.lines().enumerate() {
        let problem = |problem: &str| Error::Sources {
            file: file.to_owned(),
            line: index + 1,
            problem: problem.to_owned(),
        };
        if line.trim().is_empty() {
            sources.extend(std::mem::take(&mut stanza).finish());
        } else if line.starts_with('#') {
        } else if line.starts_with([' ', '\t']) {
            let (_, value) = stanza
                .fields
                .last_mut()
                .ok_or_else(|| problem("a continuation line that continues nothing"))?;
            value.push('\n');
            value.push_str(line.trim());
        } else {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| problem("neither `Field: value` nor a comment"))?;
            stanza
                .fields
                .push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    sources.extend(stanza.finish());
    Ok(sources)
}

#[derive(Default)]
struct Stanza {
    fields: Vec<(String, String)>,
}

impl Stanza {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    fn words(&self, name: &str) -> Vec<String> {
        self.field(name)
            .map(|value| value.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    /// The source, unless it is disabled or names source packages only.
    fn finish(self) -> Option<Source> {
        let disabled = self.field("enabled").is_some_and(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "no" | "false" | "off" | "0" | "without" | "disable"
            )
        });
        if disabled || !self.words("types").iter().any(|t| t == "deb") {
            return None;
        }
        Some(Source {
            uris: self.words("uris"),
            suites: self.words("suites"),
            components: self.words("components"),
            signed_by: self.field("signed-by").and_then(key_path),
        })
    }
}

/// The form of `*.list` files: `deb [option=value ...] uri suite component...`
fn parse_one_line(text: &str, file: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let problem = |problem: &str| Error::Sources {
            file: file.to_owned(),
            line: index + 1,
            problem: problem.to_owned(),
        };
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((kind, rest)) = line.split_once(char::is_whitespace) else {
            if line.is_empty() {
                continue;
            }
            return Err(problem(
                "neither `deb` nor `deb-src` with an address after it",
            ));
        };
        match kind {
            "deb" => {}
            "deb-src" => continue,
            _ => return Err(problem("neither `deb` nor `deb-src`")),
        }
        let mut rest = rest.trim_start();
        let mut signed_by = None;
        if let Some(options) = rest.strip_prefix('[') {
            let (options, after) = options
                .split_once(']')
                .ok_or_else(|| problem("an option list without a closing bracket"))?;
            signed_by = options
                .split_whitespace()
                .find_map(|option| option.strip_prefix("signed-by="))
                .and_then(key_path);
            rest = after;
        }
        let mut words = rest.split_whitespace().map(str::to_owned);
        let uri = words.next().ok_or_else(|| problem("no address"))?;
        let suite = words.next().ok_or_else(|| problem("no suite"))?;
        sources.push(Source {
            uris: vec![uri],
            suites: vec![suite],
            components: words.collect(),
            signed_by,
        });
    }
    Ok(sources)
}

/// The first key file of a Signed-By; fingerprints and inline keys are no paths.
fn key_path(value: &str) -> Option<PathBuf> {
    let first = value
        .split([',', ' ', '\n', '\t'])
        .find(|part| !part.is_empty())?;
    first.starts_with('/').then(|| PathBuf::from(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
# comment
Types: deb deb-src
URIs: http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.invalid/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
Enabled: no
URIs: http://other.invalid
Suites: trixie
Components: main

types: deb-src
uris: http://source.invalid
suites: trixie
";

    #[test]
    fn deb822_sources_are_read() {
        let sources = parse_deb822(DEB822, Path::new("debian.sources")).unwrap();
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(
            sources[0].signed_by.as_deref(),
            Some(Path::new("/usr/share/keyrings/debian-archive-keyring.gpg"))
        );
        assert_eq!(sources[1].signed_by, None);
        let mirror = find_mirror(&sources).unwrap();
        assert_eq!(mirror.archive, "http://mirror.invalid/debian");
        assert_eq!(
            mirror.security.as_deref(),
            Some("http://mirror.invalid/debian-security")
        );
    }

    #[test]
    fn one_line_sources_are_read() {
        let text = "\n# deb http://commented.invalid trixie main\n\
            deb-src http://mirror.invalid/debian bookworm main\n\
            deb [arch=amd64 signed-by=/k.gpg] http://mirror.invalid/debian bookworm main contrib # why\n\
            deb http://security.invalid/ bookworm-security main\n";
        let sources = parse_one_line(text, Path::new("sources.list")).unwrap();
        assert_eq!(sources.len(), 2);
        assert_eq!(sources[0].signed_by.as_deref(), Some(Path::new("/k.gpg")));
        assert_eq!(sources[0].components, ["main", "contrib"]);
        let mirror = find_mirror(&sources).unwrap();
        assert_eq!(mirror.security.as_deref(), Some("http://security.invalid/"));
    }

    #[test]
    fn another_distributions_sources_are_no_mirror() {
        let text =
            "deb http://archive.invalid/ubuntu noble main\ndeb http://tool.invalid stable tool\n";
        let sources = parse_one_line(text, Path::new("sources.list")).unwrap();
        assert_eq!(find_mirror(&sources), None);
        assert_eq!(find_mirror(&[]), None);
    }

    #[test]
    fn mistakes_name_the_file_and_the_line() {
        let one_line = |text: &str| {
            parse_one_line(text, Path::new("/a.list"))
                .unwrap_err()
                .to_string()
        };
        assert!(one_line("\ndebb http://x trixie main").starts_with("/a.list:2: neither"));
        assert!(one_line("deb").contains("/a.list:1:"));
        assert!(one_line("deb [signed-by=/k http://x trixie main").contains("closing bracket"));
        assert!(one_line("deb http://x").contains("no suite"));
        let deb822 = |text: &str| {
            parse_deb822(text, Path::new("/a.sources"))
                .unwrap_err()
                .to_string()
        };
        assert!(deb822("Types: deb\nnonsense").starts_with("/a.sources:2: neither"));
        assert!(deb822(" continued").contains("continues nothing"));
    }

    #[test]
    fn the_machines_files_are_read_by_extension() {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("sources.list.d");
        std::fs::create_dir(&parts).unwrap();
        std::fs::write(parts.join("debian.sources"), DEB822).unwrap();
        std::fs::write(parts.join("off.list.disabled"), "garbage").unwrap();
        std::fs::write(parts.join("b.list"), "deb http://b.invalid trixie main\n").unwrap();
        let (sources, files) = read_machine(folder.path()).unwrap();
        assert_eq!(sources.len(), 3);
        assert_eq!(files, [parts.join("b.list"), parts.join("debian.sources")]);
        assert_eq!(find_mirror(&sources).unwrap().archive, "http://b.invalid");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "[a-z:#\\[\\]= \t\n-]{0,200}") {
            let _ = parse_deb822(&text, Path::new("f"));
            let _ = parse_one_line(&text, Path::new("f"));
        }
    }
}
