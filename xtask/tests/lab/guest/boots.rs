//! Guests that do not come up or go down, and what is left of them: nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use xtask_lab::{Guest, GuestCommand, GuestConfig, GuestFile, LabError};

use super::boot;
use crate::artifacts;
use crate::server::PATIENCE;

/// Folders of this process's guests, and processes that it has started and that
/// still exist, as zombies too. Servers of other tests may be among them.
fn existing() -> BTreeSet<String> {
    let ours = format!("vmdtrace-lab-{}-", std::process::id());
    let names = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut existing: BTreeSet<_> = names.filter(|name| name.starts_with(&ours)).collect();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("children");
        // The thread may have ended since.
        let children = std::fs::read_to_string(path).unwrap_or_default();
        existing.extend(children.split_whitespace().map(str::to_owned));
    }
    existing
}

pub(super) fn a_failed_boot_shows_the_console() {
    let before = existing();
    let config = GuestConfig {
        controllers: vec![vmd_device::Config::default()],
        kernel_arguments: vec![
            "rdinit=/nonexistent".to_owned(),
            "root=/dev/none".to_owned(),
        ],
        ..GuestConfig::default()
    };
    let error = Guest::boot(artifacts(), &config).unwrap_err().to_string();
    assert!(error.starts_with("booting the guest: "), "{error}");
    assert!(
        error.contains("the log of the guest's console") && error.contains("panic"),
        "{error}"
    );
    assert_eq!(existing(), before);
}

pub(super) fn a_slow_boot_is_given_up() {
    let before = existing();
    let limit = Duration::from_millis(300);
    let config = GuestConfig {
        boot_limit: limit,
        ..GuestConfig::default()
    };
    let error = Guest::boot(artifacts(), &config).unwrap_err();
    assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    assert_eq!(existing(), before);
}

pub(super) fn a_boot_that_hangs_shows_the_console() {
    assert!(GuestConfig::default().boot_limit <= Duration::from_secs(90));
    let before = existing();
    let hang = tempfile::NamedTempFile::new().unwrap();
    let script = "#!/bin/busybox sh\nwhile :; do /bin/busybox sleep 60; done\n";
    std::fs::write(hang.path(), script).unwrap();
    let config = GuestConfig {
        files: vec![GuestFile {
            on_host: hang.path().to_owned(),
            in_guest: "/hang".to_owned(),
            mode: 0o755,
        }],
        kernel_arguments: vec!["rdinit=/hang".to_owned(), "loglevel=7".to_owned()],
        boot_limit: Duration::from_secs(10),
        ..GuestConfig::default()
    };
    let error = Guest::boot(artifacts(), &config).unwrap_err();
    assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("s for a CPU"), "{text}");
    // What a kernel says within seconds, on the slowest machine.
    assert!(
        text.contains("the log of the guest's console") && text.contains("] "),
        "{text}"
    );
    assert_eq!(existing(), before);
}

pub(super) fn a_guest_that_dies_is_an_error() {
    let before = existing();
    let guest = boot(&GuestConfig::default());
    assert!(existing().len() > before.len());
    let start = Instant::now();
    let crash = GuestCommand::shell("echo c > /proc/sysrq-trigger");
    let error = guest.run(&crash, PATIENCE).unwrap_err().to_string();
    assert!(
        error.contains("sysrq") && error.contains("panic"),
        "{error}"
    );
    // It is noticed, not waited for.
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert!(guest.check(&GuestCommand::new("true"), PATIENCE).is_err());
    drop(guest);
    assert_eq!(existing(), before);
}
