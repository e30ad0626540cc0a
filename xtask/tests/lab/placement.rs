//! Where completions land, on every kernel: what the daemon says is compared
//! with where fio was held, where the kernel counted its interrupts, and what
//! the guest's sysfs says of its CPUs.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId, Mode};
use xtask_lab::{
    Artifacts, Bound, CpuList, Done, GuestCommand, GuestConfig, GuestDisk, KernelCounts, Load,
    Sample, Scrape, is_vmd_action, native_serial,
};
use xtask_setup::KERNELS;

use crate::kernel_test;
use crate::server::{PATIENCE, Readings, Server, sum};

const CPUS: u32 = 4;
const DISKS: u8 = 2;
const READS: u64 = 400;

const REMOTE: &str = "vmdtrace_disk_remote_completions_total";
const DISTANCES: [&str; 4] = ["same-cache", "other-cache", "other-node", "unknown"];

fn config() -> GuestConfig {
    let controller = |id, tag: &str| Config {
        id,
        disks: DISKS,
        vectors: 3,
        tag: tag.to_owned(),
        ..Config::default()
    };
    GuestConfig {
        cpus: CPUS,
        numa_nodes: 2,
        native_disks: 1,
        controllers: vec![
            controller(DeviceId::Remap201d, "R"),
            controller(DeviceId::Bypass28c0, "B"),
        ],
        ..GuestConfig::default()
    }
}

fn text(server: &Server, script: &str) -> String {
    server
        .guest
        .check(&GuestCommand::shell(script), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"))
        .stdout_text()
}

/// Interrupt numbers of the controllers' own vectors.
fn vectors(kernel: &KernelCounts) -> Vec<u32> {
    let lines = kernel.lines.iter();
    let vectors = lines.filter(|(_, line)| is_vmd_action(&line.actions));
    vectors.map(|(irq, _)| *irq).collect()
}

/// Remote completions of the disks since `before`, by distance; those of 0 are
/// left out.
fn remote(before: &Scrape, after: &Scrape, disks: &[&GuestDisk]) -> BTreeMap<String, u64> {
    let count = |scrape: &Scrape, distance: &str| {
        let wanted = |sample: &Sample| {
            let disk = sample.label("disk");
            sample.label("distance") == distance && disks.iter().any(|it| it.name == disk)
        };
        scrape.sum(REMOTE, wanted).unwrap_or_default() as u64
    };
    DISTANCES
        .iter()
        .map(|distance| {
            let since = count(after, distance) - count(before, distance);
            ((*distance).to_owned(), since)
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn one_cpu(cpu: u32) -> CpuList {
    cpu.to_string()
        .parse()
        .unwrap_or_else(|error| panic!("{error}"))
}

/// fio on these CPUs; returns what was read before and after, at rest.
fn read(server: &Server, cpus: CpuList, disks: &[&GuestDisk]) -> (Readings, Readings) {
    let load = Load {
        disks: disks
            .iter()
            .map(|disk| disk.namespaces[0].clone())
            .collect(),
        cpus,
        depth: 8,
        bound: Bound::Reads(READS),
    };
    let before = server.at_rest();
    let output = server
        .guest
        .check(&load.command(), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let done = Done::parse(&output.stdout_text(), &load).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(done.total(), READS * disks.len() as u64);
    (before, server.at_rest())
}

/// How far two CPUs are from each other, by the guest's own files, read by a
/// shell script.
fn distance(server: &Server, one: u32, other: u32) -> &'static str {
    let script = format!(
        "cd /sys/devices/system/cpu; \
         cache() {{ cat cpu$1/cache/index3/shared_cpu_list 2>/dev/null; }}; \
         node() {{ basename cpu$1/node*; }}; \
         if [ \"$(cache {one})\" = '' ]; then echo unknown; \
         elif [ \"$(cache {one})\" = \"$(cache {other})\" ]; then echo same-cache; \
         elif [ $(node {one}) = $(node {other}) ]; then echo other-cache; \
         else echo other-node; fi"
    );
    let said = text(server, &script);
    DISTANCES
        .into_iter()
        .find(|distance| *distance == said.trim())
        .unwrap_or_else(|| panic!("{said}"))
}

/// Each line's samples are one in 64 of its completions; all of them were seen
/// to end.
fn check_samples(scrape: &Scrape) {
    let count = |metric: &str| sum(scrape, metric);
    let mut expected = (0, 0);
    for line in scrape.series("vmdtrace_line_completions_total") {
        let completions = line.value as u64;
        expected.0 += completions / 64;
        expected.1 += completions.div_ceil(64);
    }
    let samples = count("vmdtrace_completion_latency_seconds_count")
        + count("vmdtrace_completion_latency_outside_handler_seconds_count")
        + count("vmdtrace_samples_without_start_total");
    let outside = count("vmdtrace_completions_outside_handler_total");
    let most = expected.1 + outside.div_ceil(64) * u64::from(CPUS);
    assert!(
        (expected.0..=most).contains(&samples),
        "{samples} samples, not {expected:?}"
    );
    let ended = count("vmdtrace_completion_handling_seconds_count")
        + count("vmdtrace_completion_handling_outside_handler_seconds_count");
    assert_eq!(ended, samples, "samples whose end was seen");
    assert!(count("vmdtrace_completion_latency_seconds_count") > 0);
    assert_eq!(
        count("vmdtrace_disk_completion_latency_seconds_count"),
        count("vmdtrace_completion_latency_seconds_count")
    );
}

fn completions_land_where_interrupts_go(artifacts: &Artifacts) {
    let (server, ready) = Server::start(artifacts, &config());
    ready.unwrap_or_else(|error| panic!("{error}"));
    let disks = server.disks();
    let with = |prefix: &str| -> Vec<&GuestDisk> {
        let ours = disks.iter().filter(|disk| disk.serial.starts_with(prefix));
        ours.collect()
    };
    let (remapped, bypassed) = (with("VMDLABR"), with("VMDLABB"));
    let native = with(&native_serial(0));
    assert_eq!(
        (remapped.len(), bypassed.len(), native.len()),
        (DISKS.into(), DISKS.into(), 1)
    );
    let daemon_attached = server.at_rest();
    for probe in [
        "nvme_sq",
        "block_rq_complete",
        "placement",
        "completion_times",
    ] {
        let attached = daemon_attached
            .daemon
            .sum("vmdtrace_probe_attached", |it| it.label("probe") == probe);
        assert_eq!(attached, Some(1.0), "{probe}");
    }

    // A queue for each CPU, whose interrupts go to that CPU: all is local.
    let mut own_queues = native;
    if daemon_attached.devices[1].mode == Mode::Bypass {
        own_queues.extend(bypassed);
    }
    for cpu in 0..CPUS {
        let (before, after) = read(&server, one_cpu(cpu), &own_queues);
        assert_eq!(
            remote(&before.daemon, &after.daemon, &own_queues),
            BTreeMap::new(),
            "own queues, CPU {cpu}"
        );
    }

    // A CPU that went and came again is known as before.
    text(
        &server,
        "cd /sys/devices/system/cpu/cpu3; echo 0 > online && echo 1 > online",
    );
    for irq in vectors(&daemon_attached.kernel) {
        text(
            &server,
            &format!("echo 0 > /proc/irq/{irq}/smp_affinity_list"),
        );
    }
    // A vector's first interrupt after that still comes where it came before;
    // each queue has its vector.
    for cpu in 0..CPUS {
        read(&server, one_cpu(cpu), &remapped);
    }
    let mut seen = BTreeMap::new();
    for cpu in 0..CPUS {
        let (before, after) = read(&server, one_cpu(cpu), &remapped);
        let elsewhere: u64 = vectors(&after.kernel)
            .iter()
            .map(|irq| {
                let at = |readings: &Readings| readings.kernel.lines[irq].per_cpu.clone();
                let pairs = at(&before).into_iter().zip(at(&after)).skip(1);
                pairs
                    .map(|(before, after)| u64::from(after.wrapping_sub(before)))
                    .sum::<u64>()
            })
            .sum();
        assert_eq!(elsewhere, 0, "interrupts on other CPUs than 0");
        let reads = READS * u64::from(DISKS);
        let expected = if cpu == 0 {
            BTreeMap::new()
        } else {
            let distance = distance(&server, cpu, 0);
            *seen.entry(distance).or_insert(0) += reads;
            BTreeMap::from([(distance.to_owned(), reads)])
        };
        assert_eq!(
            remote(&before.daemon, &after.daemon, &remapped),
            expected,
            "remapped, CPU {cpu}"
        );
    }
    println!("{}: {seen:?}", artifacts.kernel.package_version);
    assert!(seen.contains_key("other-node"), "{seen:?}");

    let end = server.at_rest();
    assert_eq!(
        sum(&end.daemon, REMOTE),
        sum(&end.daemon, "vmdtrace_remote_completions_total")
    );
    check_samples(&end.daemon);
    server.end();
}

pub(crate) fn trials() -> Vec<Trial> {
    KERNELS
        .into_iter()
        .map(|series| {
            kernel_test(series, format!("placement::{series}"), |artifacts| {
                completions_land_where_interrupts_go(artifacts);
                Ok(())
            })
        })
        .collect()
}
