//! What this process costs, by the names every Prometheus client uses.

use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use procfs::process::{LimitValue, Process};
use procfs::{ProcResult, WithCurrentSystemInfo as _};
use prometheus::proto::MetricFamily;

use super::family::{CounterFamily, GaugeFamily, Unit};
use crate::probes::fdinfo;

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
    // A process that serves a recording has none.
    if let Some(bytes) = fdinfo::our_map_memory() {
        gauge(
            "vmdtrace_map_memory_bytes",
            "Kernel memory of the maps that the eBPF programs and vmdtrace share.",
            bytes as f64,
        );
    }
    Ok(())
}

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
