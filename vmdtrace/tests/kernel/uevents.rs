//! Uevents that the kernel sends when something is written to a `uevent` file.

use std::{
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use libtest_mimic::{Completion, Failed};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use vmdtrace::uevent::{Changes, Listener};

/// A file of this machine that makes the kernel send an event; why not, if none does.
fn uevent_file(directory: &str) -> Result<PathBuf, String> {
    let found = fs::read_dir(Path::new(directory))
        .map_err(|error| format!("{directory}: {error}"))?
        .flatten()
        .map(|entry| entry.path().join("uevent"))
        .find(|path| path.exists())
        .ok_or_else(|| format!("{directory} has no uevent file"))?;
    fs::write(&found, "change").map_err(|error| format!("{}: {error}", found.display()))?;
    Ok(found)
}

pub(crate) fn a_burst_is_one_change() -> Result<Completion, Failed> {
    let files = uevent_file("/sys/bus/pci/devices")
        .and_then(|pci| Ok((pci, uevent_file("/sys/class/net")?)));
    let (pci, unrelated) = match files {
        Ok(files) => files,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let listener = Listener::open()?;
    fs::write(&unrelated, "change")?;
    assert!(!listener.pending()?.any());

    fs::write(&unrelated, "change")?;
    for _ in 0..3 {
        fs::write(&pci, "change")?;
    }
    let expected = Changes {
        topology: true,
        ..Changes::default()
    };
    assert_eq!(listener.changed()?, expected);
    assert!(!listener.pending()?.any());
    Ok(Completion::Completed)
}

pub(crate) fn an_overflow_means_everything_changed() -> Result<Completion, Failed> {
    let unrelated = match uevent_file("/sys/class/net") {
        Ok(file) => file,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let listener = Listener::open()?;
    setsockopt(&listener.as_fd(), RcvBuf, &1)?;
    for _ in 0..64 {
        fs::write(&unrelated, "change")?;
    }
    assert_eq!(listener.changed()?, Changes::ALL);
    Ok(Completion::Completed)
}
