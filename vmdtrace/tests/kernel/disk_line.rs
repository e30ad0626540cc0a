//! This machine's own disk: the programs, attached for real, count its
//! interrupts as the kernel does.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use libtest_mimic::{Completion, Failed};
use nix::libc::O_DIRECT;

use vmdtrace::{
    host::{Roots, max_irq},
    probes::{Loaded as _, Options, Sizes, Tracer},
    snapshot::source::Level,
};

use crate::cpus;

const DIRECT_IOS: u64 = 1_200;
const BLOCK: usize = 4096;

/// Interrupt numbers whose action is a disk's queue.
pub(crate) fn disk_lines() -> Vec<u32> {
    let entries = fs::read_dir("/sys/kernel/irq")
        .into_iter()
        .flatten()
        .flatten();
    let mut lines: Vec<u32> = entries
        .filter_map(|entry| {
            let actions = fs::read_to_string(entry.path().join("actions")).ok()?;
            let action = actions.trim();
            let disk = (action.starts_with("virtio") && action.contains("-req"))
                || (action.starts_with("nvme") && action.contains('q'));
            disk.then(|| entry.file_name().to_str()?.parse().ok())?
        })
        .collect();
    lines.sort_unstable();
    lines
}

/// The kernel's count of a line, over all CPUs.
fn kernel_count(irq: u32) -> u64 {
    let text = fs::read_to_string(format!("/sys/kernel/irq/{irq}/per_cpu_count")).unwrap();
    text.trim()
        .split(',')
        .map(|count| count.parse::<u64>().unwrap())
        .sum()
}

/// Reads a file past the page cache, again and again.
pub(crate) fn direct_io(path: &PathBuf) -> Result<(), String> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECT)
        .open(path)
        .map_err(|error| format!("no direct I/O on {}: {error}", path.display()))?;
    let mut memory = vec![0u8; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let buffer = &mut memory[start..start + BLOCK];
    for index in 0..DIRECT_IOS {
        file.read_exact_at(buffer, index % 64 * BLOCK as u64)
            .map_err(|error| format!("direct read of {}: {error}", path.display()))?;
    }
    Ok(())
}

pub(crate) fn agrees_with_the_kernel() -> Result<Completion, Failed> {
    let lines = disk_lines();
    if lines.is_empty() {
        return Ok(Completion::ignored_with(
            "this machine has no virtio or NVMe disk with an interrupt",
        ));
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("direct-io");
    fs::write(&path, vec![7u8; 64 * BLOCK]).map_err(|error| error.to_string())?;
    fs::File::open(&path)
        .and_then(|file| file.sync_all())
        .map_err(|error| error.to_string())?;
    if let Err(reason) = direct_io(&path) {
        return Ok(Completion::ignored_with(reason));
    }

    let roots = Roots::default();
    let max_irq = max_irq(&roots).map_err(|error| error.to_string())?;
    let options = Options {
        sizes: Sizes::for_host(cpus(), max_irq),
        level: Level::Timing,
        also_lines: vec!["virtio*".to_owned()],
        kprobes: false,
        shares: false,
        roots,
    };
    let tracer = Tracer::load(options).map_err(|error| error.to_string())?;
    tracer.attach();
    assert!(tracer.counts_interrupts(), "{:?}", tracer.probes());
    let kernel = || -> u64 { lines.iter().map(|irq| kernel_count(*irq)).sum() };
    let ours = || -> u64 {
        let counters = tracer.arrays().counters();
        counters
            .lines
            .iter()
            .filter(|line| lines.contains(&line.irq))
            .map(|line| line.counts.depth0_runs - line.counts.repeated_runs.unwrap_or_default())
            .sum()
    };
    // A reading counts only if the kernel's count did not move around ours.
    let reading = || {
        (0..200).find_map(|_| {
            let (before, seen, after) = (kernel(), ours(), kernel());
            (before == after).then_some((before, seen))
        })
    };
    let mut last = String::new();
    for _ in 0..20 {
        let Some((kernel_first, ours_first)) = reading() else {
            continue;
        };
        direct_io(&path)?;
        let Some((kernel_second, ours_second)) = reading() else {
            continue;
        };
        let (counted, seen) = (kernel_second - kernel_first, ours_second - ours_first);
        if counted == seen && seen >= 100 {
            return Ok(Completion::Completed);
        }
        last = format!(
            "the kernel counted {counted} interrupts, the programs {seen}, over {DIRECT_IOS} direct reads"
        );
    }
    Err(if last.is_empty() {
        "the disk was never at rest".to_owned()
    } else {
        last
    }
    .into())
}
