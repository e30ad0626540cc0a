//! What apt's programs print about packages.

use std::cmp::Ordering;

use debversion::Version;

/// One version of one package in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) architecture: String,
    /// Names of what it depends on, without versions and alternatives after the first.
    pub(crate) depends: Vec<String>,
    /// Size of the package file in bytes.
    pub(crate) size: u64,
    /// Size of what it unpacks to, in bytes.
    pub(crate) installed_size: u64,
    /// The SHA-256 of the package file in hexadecimal, from the signed index.
    pub(crate) sha256: String,
}

impl Package {
    /// The name under which `apt-get download` stores it.
    pub(crate) fn file_name(&self) -> String {
        format!(
            "{}_{}_{}.deb",
            self.name,
            self.version.replace(':', "%3a"),
            self.architecture
        )
    }

    /// `name=version`, as apt takes it.
    pub(crate) fn spec(&self) -> String {
        format!("{}={}", self.name, self.version)
    }
}

/// Reads the records of `apt-cache show`. Records that lack a needed field
/// (packages that are installed, and in no archive) are left out.
pub(crate) fn parse_records(text: &str) -> Vec<Package> {
    text.split("\n\n").filter_map(parse_record).collect()
}

fn parse_record(text: &str) -> Option<Package> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let depends = [field("Pre-Depends"), field("Depends")]
        .into_iter()
        .flatten()
        .flat_map(|list| list.split(','))
        .filter_map(|item| item.split('|').next()?.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name).to_owned())
        .collect();
    Some(Package {
        name: field("Package")?.to_owned(),
        version: field("Version")?.to_owned(),
        architecture: field("Architecture")?.to_owned(),
        depends,
        size: field("Size")?.parse().ok()?,
        // Given in KiB (Debian policy 5.6.20).
        installed_size: field("Installed-Size")
            .and_then(|kib| kib.parse::<u64>().ok())
            .unwrap_or(0)
            * 1024,
        sha256: field("SHA256")?.to_ascii_lowercase(),
    })
}

/// Reads what `apt-get --simulate install` would install: names and versions.
pub(crate) fn parse_simulation(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            // Inst libc6 (2.41-12 Debian:13.6/stable [amd64])
            let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
            let version = rest.split_once('(')?.1.split_whitespace().next()?;
            Some((name.to_owned(), version.to_owned()))
        })
        .collect()
}

/// Debian's order of versions (deb-version(7)). A version that does not
/// follow the syntax is older than any that does.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    let parse = |text: &str| text.parse::<Version>().ok();
    parse(a).cmp(&parse(b))
}

/// The upstream part of a Debian version without repacking marks: 1.95.0 of
/// `1.95.0+dfsg1-2~bpo13+1`.
pub(crate) fn upstream_version(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let end = version.find(['+', '-', '~']).unwrap_or(version.len());
    &version[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str = "\
Package: linux-image-7.3.4+deb13-amd64
Architecture: amd64
Version: 7.3.4-1~bpo13+1
Installed-Size: 15
Depends: dracut | initramfs-tools (>= 0.120), linux-base-7.3.4+deb13-amd64 (= 7.3.4-1~bpo13+1), perl:any
Size: 1900
SHA256: 7A6ff1
Description: Linux 7.3.4
 Depends: not a field but a continuation

Package: only-installed
Architecture: amd64
Version: 1

Package: qemu-system-x86
Architecture: amd64
Pre-Depends: dpkg (>= 1.15)
Version: 1:11.1.3+ds-1~bpo13+1
Size: 10377056
SHA256: ab
";

    #[test]
    fn records_are_read_and_incomplete_ones_left_out() {
        let packages = parse_records(RECORDS);
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].name, "linux-image-7.3.4+deb13-amd64");
        assert_eq!(packages[0].installed_size, 15 * 1024);
        assert_eq!(packages[0].size, 1900);
        assert_eq!(packages[0].sha256, "7a6ff1");
        assert_eq!(
            packages[0].depends,
            ["dracut", "linux-base-7.3.4+deb13-amd64", "perl"]
        );
        assert_eq!(packages[1].depends, ["dpkg"]);
        assert_eq!(
            packages[1].file_name(),
            "qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb"
        );
        assert_eq!(packages[1].spec(), "qemu-system-x86=1:11.1.3+ds-1~bpo13+1");
        assert!(parse_records("").is_empty());
    }

    #[test]
    fn a_simulation_names_packages_and_versions() {
        let text = "NOTE: This is only a simulation!\n\
            Inst gcc-14-base (14.2.0-19 Debian:13.6/stable [amd64])\n\
            Inst qemu-system-x86 [1:7.2] (1:11.1.3+ds-1~bpo13+1 Debian Backports:stable-backports [amd64])\n\
            Conf gcc-14-base (14.2.0-19 Debian:13.6/stable [amd64])\n\
            Inst broken\n";
        let expected = [
            ("gcc-14-base", "14.2.0-19"),
            ("qemu-system-x86", "1:11.1.3+ds-1~bpo13+1"),
        ]
        .map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(parse_simulation(text), expected);
    }

    #[test]
    fn versions_sort_as_debian_does() {
        let sorted = [
            "nonsense version!",
            "6.12.9-1",
            "6.12.95-1~bpo12+1",
            "6.12.95-1",
            "6.12.117-1",
            "6.12.118-1",
            "7.3.4-1~bpo13+1",
            "1:0.9-1",
            "1:10.0.13+ds-0+deb13u1",
            "1:11.1.3+ds-1~bpo13+1",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(
                compare_versions(pair[0], pair[1]),
                Ordering::Less,
                "{pair:?}"
            );
            assert_eq!(
                compare_versions(pair[1], pair[0]),
                Ordering::Greater,
                "{pair:?}"
            );
        }
        assert_eq!(compare_versions("1.0-1", "1.0-1"), Ordering::Equal);
    }

    #[test]
    fn the_upstream_version_has_no_debian_parts() {
        assert_eq!(upstream_version("1.95.0+dfsg1-2~bpo13+1"), "1.95.0");
        assert_eq!(upstream_version("1:11.1.3+ds-1~bpo13+1"), "11.1.3");
        assert_eq!(upstream_version("2.53.3"), "2.53.3");
        assert_eq!(upstream_version(""), "");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parsers_fail(text in ".{0,400}") {
            parse_records(&text);
            parse_simulation(&text);
            upstream_version(&text);
            compare_versions(&text, "1");
        }
    }
}
