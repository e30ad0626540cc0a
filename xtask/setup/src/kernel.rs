//! Debian's unmodified kernels, by series.

use std::path::{Path, PathBuf};

use crate::cache::Contents;
use crate::debian::control::compare_versions;
use crate::debian::{Package, PrivateApt, Release, apt};
use crate::error::{Error, IoContext, Result};
use crate::{Setup, host};

const PROVIDE: &str = "There is no other source of these kernels.";

/// A kernel for the virtual server.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Such as `6.12`.
    pub series: String,
    /// The exact version of Debian's package, such as `6.12.118-1`.
    pub package_version: String,
    /// What `uname -r` says in the guest.
    pub release: String,
    /// The bootable image.
    pub vmlinuz: PathBuf,
    /// The folder `lib/modules/<release>`, without the files that depmod makes.
    pub modules: PathBuf,
}

pub(crate) fn entry(series: &str) -> String {
    format!("kernel-{series}")
}

pub(crate) fn ensure(setup: &Setup, series: &str) -> Result<Kernel> {
    host::require_x86_64()?;
    check_series(series)?;
    let entry = entry(series);
    let contents = setup.cache().ensure(&entry, setup.progress(), |folder| {
        fill(setup, series, folder)
    })?;
    let folder = setup.cache().path(&entry);
    let release = contents.facts.get("release").cloned().unwrap_or_default();
    let layout = |missing: &str| Error::Layout {
        what: entry.clone(),
        missing: missing.to_owned(),
        place: folder.clone(),
    };
    Ok(Kernel {
        series: series.to_owned(),
        package_version: contents.version,
        vmlinuz: find_vmlinuz(&folder, &release).ok_or_else(|| layout("a kernel image"))?,
        modules: find_modules(&folder, &release).ok_or_else(|| layout("kernel modules"))?,
        release,
    })
}

fn check_series(series: &str) -> Result<()> {
    let numbers = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match series.split_once('.') {
        Some((major, minor)) if numbers(major) && numbers(minor) => Ok(()),
        _ => Err(missing(series, "a series is two numbers, such as 6.12")),
    }
}

fn missing(series: &str, remedy: &str) -> Error {
    let releases = Release::NEWEST_FIRST.map(Release::codename).join(", ");
    Error::PackageMissing {
        wanted: format!("a kernel of the series `{series}`"),
        suites: format!("{releases} and their updates and backports"),
        remedy: remedy.to_owned(),
    }
}

fn fill(setup: &Setup, series: &str, folder: &Path) -> Result<Contents> {
    let what = format!("kernel {series}");
    for release in Release::NEWEST_FIRST {
        let apt = PrivateApt::open(setup.cache(), release, setup.progress(), &what, PROVIDE)?;
        if let Some(image) = newest_image(&apt, series)? {
            return unpack(&apt, series, &what, image, folder);
        }
    }
    Err(missing(
        series,
        "choose a series that Debian carries, such as 6.1 or 6.12",
    ))
}

/// The newest image package of a series in this release.
fn newest_image(apt: &PrivateApt<'_>, series: &str) -> Result<Option<Package>> {
    let mut best: Option<Package> = None;
    for name in apt.names(&format!("linux-image-{series}."))? {
        if release_of(&name, series).is_none() {
            continue;
        }
        for package in apt.versions(&name)? {
            if best
                .as_ref()
                .is_none_or(|b| compare_versions(&package.version, &b.version).is_gt())
            {
                best = Some(package);
            }
        }
    }
    Ok(best)
}

/// The release of an image package of the ordinary flavour; `None` for cloud,
/// real-time, unsigned and debug packages and other series.
fn release_of<'a>(package: &'a str, series: &str) -> Option<&'a str> {
    let release = package.strip_prefix("linux-image-")?;
    let version = release.strip_suffix("-amd64")?;
    let flavoured = version.ends_with("-cloud") || version.ends_with("-rt");
    let patch = version.strip_prefix(series)?.strip_prefix('.')?;
    (!flavoured && patch.starts_with(|c: char| c.is_ascii_digit())).then_some(release)
}

fn unpack(
    apt: &PrivateApt<'_>,
    series: &str,
    what: &str,
    image: Package,
    folder: &Path,
) -> Result<Contents> {
    let release = release_of(&image.name, series)
        .unwrap_or_default()
        .to_owned();
    // From 6.19 on, the image package is empty and depends on linux-binary-* and
    // linux-modules-* of the same release. linux-base-* of it, from 6.18 on, is not
    // needed to boot, and the archive does not keep it for older series.
    let mut packages = vec![image];
    let parts: Vec<String> = packages[0]
        .depends
        .iter()
        .filter(|name| name.ends_with(&release) && !name.starts_with("linux-base-"))
        .cloned()
        .collect();
    for part in parts {
        let version = packages[0].version.clone();
        packages.push(apt.newest(
            &part,
            "run again later: the archive is being updated",
            |p| p.version == version,
        )?);
    }
    let archives = apt.fetch(&format!("{what} ({})", packages[0].version), &packages)?;
    apt.unpack(&archives, folder)?;
    for (found, missing) in [
        (find_vmlinuz(folder, &release), "a kernel image"),
        (find_modules(folder, &release), "kernel modules"),
    ] {
        if found.is_none() {
            return Err(Error::Layout {
                what: packages[0].spec(),
                missing: missing.to_owned(),
                place: folder.to_owned(),
            });
        }
    }
    let docs = folder.join("usr/share");
    if docs.exists() {
        std::fs::remove_dir_all(&docs).context("remove", &docs)?;
    }
    apt.forget(&archives)?;
    Ok(Contents {
        version: packages[0].version.clone(),
        facts: [("release".to_owned(), release)].into(),
        packages: apt::records(&packages),
    })
}

fn find_vmlinuz(folder: &Path, release: &str) -> Option<PathBuf> {
    [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
        format!("lib/modules/{release}/vmlinuz"),
    ]
    .iter()
    .map(|path| folder.join(path))
    .find(|path| path.is_file())
}

fn find_modules(folder: &Path, release: &str) -> Option<PathBuf> {
    ["usr/lib/modules", "lib/modules"]
        .iter()
        .map(|path| folder.join(path).join(release))
        .find(|path| path.join("kernel/drivers").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_images_of_the_series_count() {
        let release = |name| release_of(name, "6.12");
        assert_eq!(
            release("linux-image-6.12.118+deb13-amd64"),
            Some("6.12.118+deb13-amd64")
        );
        for other in [
            "linux-image-6.12.118+deb13-cloud-amd64",
            "linux-image-6.12.118+deb13-rt-amd64",
            "linux-image-6.12.118+deb13-amd64-unsigned",
            "linux-image-6.12.118+deb13-amd64-dbg",
            "linux-image-6.12-amd64",
            "linux-image-6.120.1-amd64",
            "linux-image-6.1.0-57-amd64",
        ] {
            assert_eq!(release(other), None, "{other}");
        }
        assert_eq!(
            release_of("linux-image-6.1.0-57-amd64", "6.1"),
            Some("6.1.0-57-amd64")
        );
        assert_eq!(release_of("linux-image-6.12.1-amd64", "6.1"), None);
    }

    #[test]
    fn a_series_is_two_numbers() {
        assert!(check_series("6.12").is_ok());
        for bad in ["", "6", "6.", ".12", "6.12.1", "six.twelve", "../x.1"] {
            let text = check_series(bad).unwrap_err().to_string();
            assert!(text.contains("two numbers"), "{text}");
        }
    }

    #[test]
    fn both_layouts_of_kernel_packages_are_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find_vmlinuz(folder.path(), "r"), None);
        assert_eq!(find_modules(folder.path(), "r"), None);
        let modules = folder.path().join("usr/lib/modules/r");
        std::fs::create_dir_all(modules.join("kernel/drivers")).unwrap();
        std::fs::write(modules.join("vmlinuz"), "").unwrap();
        assert_eq!(
            find_vmlinuz(folder.path(), "r"),
            Some(modules.join("vmlinuz"))
        );
        assert_eq!(find_modules(folder.path(), "r"), Some(modules));
        let boot = folder.path().join("boot");
        std::fs::create_dir(&boot).unwrap();
        std::fs::write(boot.join("vmlinuz-r"), "").unwrap();
        assert_eq!(
            find_vmlinuz(folder.path(), "r"),
            Some(boot.join("vmlinuz-r"))
        );
    }
}
