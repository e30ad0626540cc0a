//! What this process costs, by the names every Prometheus client uses.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, WithCurrentSystemInfo as _};
use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, GaugeFamily, Unit};

/// Adds the families that can be read; `/proc` may be hidden from us.
pub(super) fn add(families: &mut Vec<MetricFamily>) {
    if let Err(error) = try_add(families) {
        tracing::debug!("cannot read what this process costs: {error}");
    }
}

fn try_add(families: &mut Vec<MetricFamily>) -> ProcResult<()> {
    let process = Process::myself()?;
    let stat = process.stat()?;
    let nanoseconds_per_tick = 1_000_000_000 / procfs::ticks_per_second().max(1);

    let mut cpu = CounterFamily::new(
        "process_cpu_seconds_total",
        "User and system CPU time of this process.",
        Unit::Nanoseconds,
        [],
    );
    cpu.add(
        [],
        stat.utime
            .saturating_add(stat.stime)
            .saturating_mul(nanoseconds_per_tick),
    );
    cpu.push_to(families);

    let mut gauge = |name, help, value| {
        let mut family = GaugeFamily::new(name, help, []);
        family.set([], value);
        family.push_to(families);
    };
    gauge(
        "process_resident_memory_bytes",
        "Memory of this process that is in RAM.",
        stat.rss_bytes().get() as f64,
    );
    gauge(
        "process_virtual_memory_bytes",
        "Address space of this process.",
        stat.vsize as f64,
    );
    gauge(
        "process_open_fds",
        "File descriptors this process has open.",
        process.fd_count()? as f64,
    );
    if let LimitValue::Value(limit) = process.limits()?.max_open_files.soft_limit {
        gauge(
            "process_max_fds",
            "File descriptors this process may have open.",
            limit as f64,
        );
    }
    gauge(
        "process_start_time_seconds",
        "Start of this process, in seconds since 1970.",
        *START_TIME.get_or_init(|| start_time(stat.starttime)),
    );
    // A process that serves a recording has none. All are made and sized at the
    // start, so that the answer stays: asking takes 300 system calls.
    let bytes = MAP_MEMORY.get().copied().or_else(|| {
        let bytes = map_memory(Path::new("/proc/self"))?;
        Some(*MAP_MEMORY.get_or_init(|| bytes))
    });
    if let Some(bytes) = bytes {
        gauge(
            "vmdtrace_map_memory_bytes",
            "Kernel memory of the maps that the eBPF programs and vmdtrace share.",
            bytes as f64,
        );
    }
    Ok(())
}

/// What the kernel says that our maps take (`memlock`, bpf_map_show_fdinfo in
/// kernel/bpf/syscall.c), each map once however many descriptors it has.
fn map_memory(process: &Path) -> Option<u64> {
    let mut by_map = BTreeMap::new();
    for descriptor in fs::read_dir(process.join("fd")).ok()?.flatten() {
        let is_map = fs::read_link(descriptor.path())
            .is_ok_and(|target| target == Path::new("anon_inode:bpf-map"));
        if !is_map {
            continue;
        }
        let path = process.join("fdinfo").join(descriptor.file_name());
        let text = fs::read_to_string(path).ok()?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value?.trim().parse::<u64>().ok()
        };
        by_map.insert(field("map_id:")?, field("memlock:")?);
    }
    (!by_map.is_empty()).then(|| by_map.values().sum())
}

static MAP_MEMORY: OnceLock<u64> = OnceLock::new();

/// Told once: computed again, it would move with every correction of the clock.
static START_TIME: OnceLock<f64> = OnceLock::new();

/// Seconds since 1970 of a start given in ticks since boot. The boot time that
/// /proc/stat holds would cost the kernel a sum over all interrupts and CPUs.
fn start_time(ticks_since_boot: u64) -> f64 {
    let since_boot = ticks_since_boot as f64 / procfs::ticks_per_second() as f64;
    let age = clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map_or(0.0, |now| Duration::from(now).as_secs_f64() - since_boot);
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
    ((now - age) * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_map_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path();
        for name in ["fd", "fdinfo"] {
            fs::create_dir(process.join(name)).unwrap();
        }
        let add = |descriptor: &str, target: &str, info: &str| {
            std::os::unix::fs::symlink(target, process.join("fd").join(descriptor)).unwrap();
            fs::write(process.join("fdinfo").join(descriptor), info).unwrap();
        };
        add("0", "/dev/null", "pos:\t0\n");
        add("5", "anon_inode:bpf-prog", "memlock:\t4096\nprog_id:\t1\n");
        assert_eq!(map_memory(process), None);
        let map = |id: u32, bytes: u32| format!("map_type:\t2\nmemlock:\t{bytes}\nmap_id:\t{id}\n");
        add("6", "anon_inode:bpf-map", &map(1, 8192));
        add("7", "anon_inode:bpf-map", &map(2, 4096));
        add("8", "anon_inode:bpf-map", &map(1, 8192));
        assert_eq!(map_memory(process), Some(12288));
        // A sum that leaves one out would be too small.
        add("9", "anon_inode:bpf-map", "map_type:\t2\n");
        assert_eq!(map_memory(process), None);
        assert_eq!(map_memory(&process.join("gone")), None);
    }

    #[test]
    fn this_process_costs_something() {
        let mut families = Vec::new();
        try_add(&mut families).unwrap();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name);
            family.unwrap().get_metric()[0].get_gauge().get_value()
        };
        assert!(value("process_resident_memory_bytes") > 4096.0);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        let now = UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        // A tick is 10 ms.
        assert!(value("process_start_time_seconds") <= now + 0.02);
        assert!(value("process_start_time_seconds") > now - 600.0);
    }
}
