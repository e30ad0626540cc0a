//! Guests that do not come up or go down, and what is left of them: nothing.

use std::time::{Duration, Instant};

use xtask_lab::{Guest, GuestCommand, GuestConfig, LabError};

use crate::{PATIENCE, artifacts, boot};

/// Folders of this process's guests that exist now.
fn folders() -> Vec<String> {
    let ours = format!("vmdtrace-lab-{}-", std::process::id());
    let names = std::fs::read_dir(std::env::temp_dir()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(&ours)).collect();
    names.sort();
    names
}

/// Processes that this one has started and that still exist, as zombies too.
fn children() -> Vec<String> {
    let mut children = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path().join("children");
        // The thread may have ended since.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        children.extend(text.split_whitespace().map(str::to_owned));
    }
    children
}

pub(crate) fn a_failed_boot_shows_the_console() {
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
    assert_eq!((folders(), children()), (vec![], vec![]), "left behind");
}

pub(crate) fn a_slow_boot_is_given_up() {
    let limit = Duration::from_millis(300);
    let config = GuestConfig {
        boot_limit: limit,
        ..GuestConfig::default()
    };
    let error = Guest::boot(artifacts(), &config).unwrap_err();
    assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    assert_eq!((folders(), children()), (vec![], vec![]), "left behind");
}

pub(crate) fn a_guest_that_dies_is_an_error() {
    let guest = boot(&GuestConfig::default());
    assert_eq!(folders().len(), 1);
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
    assert_eq!((folders(), children()), (vec![], vec![]), "left behind");
}
