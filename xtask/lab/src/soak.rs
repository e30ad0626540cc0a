//! Boots for the sake of booting: whether they come up each time and leave
//! nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use vmd_device::Config;

use crate::artifacts::Artifacts;
use crate::error::{LabError, Result};
use crate::experiment::Mode;
use crate::fio::{Bound, CpuList, Done, Load};
use crate::guest::{Guest, GuestConfig};
use crate::interrupt;

const CPUS: u32 = 2;
const DISKS: u8 = 4;
const VECTORS: u16 = 4;
const READS: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(90);
/// What an allocator may hold back between two equal loads.
const DEVICE_SLACK_KIB: u64 = 1024;

/// Boots guest `number`, has its disks read twice, and switches it off. Even
/// numbers remap and odd ones bypass; every second guest has the next kernel.
/// Returns a line that says what was done. Logs of a guest that fails are kept.
///
/// # Errors
/// When a step fails or takes too long, the device counted other reads than fio,
/// or it needs more memory after the second load than after the first.
pub fn boot_once(artifacts: &[Artifacts], number: u32) -> Result<String> {
    let start = Instant::now();
    let mode = if number.is_multiple_of(2) {
        Mode::Remap
    } else {
        Mode::Bypass
    };
    let index = (number / 2) as usize % artifacts.len().max(1);
    let artifacts = artifacts
        .get(index)
        .ok_or_else(|| LabError::Invalid("no kernel to boot".to_owned()))?;
    let id = mode.device_id();
    let what = format!("{} {}", artifacts.kernel.package_version, id.name());
    let memory = soak(artifacts, id).map_err(|error| error.about(&what))?;
    Ok(format!(
        "{what}: {:.1} s, the device's memory {memory} KiB",
        start.elapsed().as_secs_f32()
    ))
}

fn soak(artifacts: &Artifacts, id: vmd_device::DeviceId) -> Result<u64> {
    let config = GuestConfig {
        cpus: CPUS,
        controllers: vec![Config {
            id,
            disks: DISKS,
            vectors: VECTORS,
            ..Config::default()
        }],
        keep_logs: true,
        ..GuestConfig::default()
    };
    let guest = Guest::boot(artifacts, &config)?;
    let disks = guest.await_disks(PATIENCE)?;
    let load = Load {
        disks: disks
            .iter()
            .filter_map(|disk| disk.namespaces.first().cloned())
            .collect(),
        cpus: CpuList::first(CPUS),
        depth: 8,
        bound: Bound::Reads(READS),
    };
    let controller = guest
        .controllers()
        .first()
        .ok_or_else(|| LabError::failed("the guest has no controller"))?;
    let mut memory = Vec::new();
    for _ in 0..2 {
        let before = controller.counters()?.io_cqes();
        let output = guest.check(&load.command(), PATIENCE)?;
        let fio = Done::parse(&output.stdout_text(), &load)?.total();
        let device = controller.counters()?.io_cqes() - before;
        if device != fio {
            return Err(LabError::failed(format!(
                "fio read {fio} times and the device served {device}"
            )));
        }
        memory.push(controller.anonymous_kib()?);
    }
    let (first, second) = (memory[0], memory[1]);
    if second > first + DEVICE_SLACK_KIB {
        return Err(LabError::failed(format!(
            "the device's memory grew from {first} to {second} KiB by an equal load"
        )));
    }
    guest.power_off()?;
    Ok(second)
}

/// What this process has: its children, its folders for guests, descriptors and
/// threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    children: BTreeSet<String>,
    folders: BTreeSet<String>,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    fn now() -> Result<Self> {
        let prefix = format!("vmdtrace-lab-{}-", std::process::id());
        let mut folders = entries(&std::env::temp_dir())?;
        folders.retain(|name| name.starts_with(&prefix));
        let tasks = entries("/proc/self/task".as_ref())?;
        let children = tasks.iter().flat_map(|task| {
            // The thread may have ended since.
            let children = fs::read_to_string(format!("/proc/self/task/{task}/children"));
            let children = children.unwrap_or_default();
            let list: Vec<_> = children.split_whitespace().map(str::to_owned).collect();
            list
        });
        Ok(Self {
            children: children.collect(),
            folders,
            descriptors: entries("/proc/self/fd".as_ref())?.len(),
            threads: tasks.len(),
        })
    }

    /// The footprint once it no longer changes.
    ///
    /// # Errors
    /// When it does not come to rest, or cannot be read.
    pub fn settled() -> Result<Self> {
        let mut last = None;
        interrupt::until("this process to be at rest", PATIENCE, || {
            let now = Some(Self::now()?);
            let settled = now == last;
            last = now;
            Ok(last.clone().filter(|_| settled))
        })
    }

    /// So many folders may be there in addition: those kept with the logs of failed
    /// guests.
    ///
    /// # Errors
    /// When this process has more now than this, for longer than what is ending
    /// needs to end.
    pub fn require_no_more(&self, kept: usize) -> Result<()> {
        const LIMIT: Duration = Duration::from_secs(5);
        let end = Instant::now() + LIMIT;
        loop {
            let now = Self::settled()?;
            if now.children.is_subset(&self.children)
                && now.folders.len() <= self.folders.len() + kept
                && now.descriptors <= self.descriptors
                && now.threads <= self.threads
            {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(LabError::failed(format!(
                    "something was left behind: before {self:?}, now {now:?}"
                )));
            }
        }
    }
}

fn entries(folder: &std::path::Path) -> Result<BTreeSet<String>> {
    let names = fs::read_dir(folder).map_err(LabError::path(folder))?;
    Ok(names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_behind_is_found() {
        let before = Footprint::settled().unwrap();
        before.require_no_more(0).unwrap();
        let mut less = before.clone();
        less.descriptors = 0;
        let error = less.require_no_more(0).unwrap_err().to_string();
        assert!(error.contains("left behind"), "{error}");
    }
}
