//! What the driver of a VMD does to interrupts: counted by operation from the
//! driver's first call on, and compared with what is there.

use std::collections::BTreeMap;

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId};
use xtask_lab::{
    Artifacts, GuestCommand, GuestConfig, KernelCounts, Scrape, interrupt, is_vmd_action,
};

use crate::kernel_test;
use crate::server::{PATIENCE, Readings, Server, completions, sum};

const KERNELS: [&str; 5] = ["5.10", "6.1", "6.12", "6.18", "7.3"];

/// A controller that remaps, and one that is switched to bypass where the driver
/// knows how.
fn config() -> GuestConfig {
    let vmd = |id, tag: &str| Config {
        id,
        disks: 2,
        vectors: 3,
        tag: tag.to_owned(),
        ..Config::default()
    };
    GuestConfig {
        cpus: 2,
        controllers: vec![
            vmd(DeviceId::Remap201d, "R"),
            vmd(DeviceId::Bypass28c0, "B"),
        ],
        modules: Vec::new(),
        ..GuestConfig::default()
    }
}

/// Operations by controller and name.
type Operations = BTreeMap<(String, String), u64>;

fn operations(scrape: &Scrape) -> Operations {
    scrape
        .series("vmdtrace_controller_msi_operations_total")
        .map(|it| {
            let key = (
                it.label("controller").to_owned(),
                it.label("operation").to_owned(),
            );
            (key, it.value as u64)
        })
        .collect()
}

fn of(operations: &Operations, controller: &str, operation: &str) -> u64 {
    let key = (controller.to_owned(), operation.to_owned());
    operations.get(&key).copied().unwrap_or_default()
}

/// Controllers by id: address and mode.
fn controllers(scrape: &Scrape) -> BTreeMap<String, (String, String)> {
    scrape
        .series("vmdtrace_controller_info")
        .map(|it| {
            let of = |label| it.label(label).to_owned();
            (of("device_id"), (of("controller"), of("mode")))
        })
        .collect()
}

fn load(server: &Server) {
    for module in ["nvme", "vmd"] {
        server
            .guest
            .load_module(module, "")
            .unwrap_or_else(|error| panic!("{error}"));
    }
    interrupt::until("all disks", PATIENCE, || {
        Ok((server.guest.await_disks(PATIENCE)?.len() == 4).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

fn shell(server: &Server, script: &str) -> String {
    server
        .guest
        .check(&GuestCommand::shell(script), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"))
        .stdout_text()
}

/// Interrupts of devices below a controller, by sysfs.
fn child_interrupts(server: &Server, controller: &str) -> u64 {
    let script = format!("find /sys/devices -path '*/{controller}/*/msi_irqs/*' | wc -l");
    shell(server, &script).trim().parse().unwrap()
}

fn operations_are_counted(artifacts: &Artifacts) {
    let kernel = artifacts.kernel.package_version.clone();
    let (server, ready) = Server::start(artifacts, &config());
    ready.unwrap_or_else(|error| panic!("{error}"));
    load(&server);
    let readings = server.at_rest();
    let found = controllers(&readings.daemon);
    let counts = operations(&readings.daemon);
    let (remap, mode) = &found["201d"];
    assert_eq!(mode, "remap");
    let there = child_interrupts(&server, remap);
    assert!(there > 0);
    // Each child's interrupt that is there was allocated and not freed.
    assert_eq!(
        of(&counts, remap, "allocate") - of(&counts, remap, "free"),
        there,
        "{counts:?}"
    );
    // Each that has a handler is on a vector's list; ports have some without.
    let listed = of(&counts, remap, "enable") - of(&counts, remap, "disable");
    assert!((1..=there).contains(&listed), "{counts:?}");
    assert!(of(&counts, remap, "compose") >= there, "{counts:?}");
    // 201d has no bypass, so it is never switched.
    assert_eq!(of(&counts, remap, "remap-off"), 0);
    let (bypass, mode) = &found["28c0"];
    let switched = of(&counts, bypass, "remap-off");
    if kernel.starts_with("5.10.") {
        assert_eq!((mode.as_str(), switched), ("remap", 0));
    } else {
        assert_eq!((mode.as_str(), switched), ("bypass", 1), "{counts:?}");
        assert_eq!(of(&counts, bypass, "allocate"), 0);
    }
    assert_eq!(
        sum(&readings.daemon, "vmdtrace_unassigned_msi_operations_total"),
        0
    );
    assert_eq!(sum(&readings.daemon, "vmdtrace_msi_messages_lost_total"), 0);
    assert_eq!(
        sum(
            &readings.daemon,
            "vmdtrace_vector_allocation_failures_total"
        ),
        0
    );

    the_server_has_no_capability(&server);
    a_moved_vector_is_counted(&server, remap);
    a_reload_is_counted_on(&server, remap);
    the_log_tells_of_all(&server);
    server.end();
}

/// All that follows is done without.
fn the_server_has_no_capability(server: &Server) {
    let of = |name: &str| {
        let script = format!(
            "for process in /proc/[0-9]*; do [ \"$(cat $process/comm)\" = {name} ] || continue; \
             cat $process/task/*/status | grep -E '^(Cap|NoNewPrivs)' | sort -u; done"
        );
        shell(server, &script)
    };
    let none = ["Amb", "Bnd", "Eff", "Inh", "Prm"].map(|set| format!("Cap{set}:\t{:016x}\n", 0));
    assert_eq!(of("vmdtrace"), none.concat() + "NoNewPrivs:\t1\n");
    let helper = of("vmdtrace-helper");
    assert!(helper.contains("NoNewPrivs:\t1\n"), "{helper:?}");
}

fn a_moved_vector_is_counted(server: &Server, controller: &str) {
    let before = server.guest.kernel_counts().unwrap();
    server.read_all_disks_from(2, 20);
    let kernel = server.guest.kernel_counts().unwrap();
    let vectors = shell(
        server,
        &format!("ls /sys/bus/pci/devices/{controller}/msi_irqs"),
    );
    let vectors: Vec<u32> = vectors
        .split_whitespace()
        .map(|irq| irq.parse().unwrap())
        .collect();
    // One that this load uses: a move may be done at the next interrupt only.
    let rise = |irq: &u32| {
        let count = |counts: &KernelCounts| -> u32 {
            let line = counts.lines.get(irq);
            line.map_or(0, |line| line.per_cpu.iter().sum())
        };
        count(&kernel).wrapping_sub(count(&before))
    };
    let irq = kernel
        .lines
        .iter()
        .filter(|(irq, line)| vectors.contains(irq) && is_vmd_action(&line.actions))
        .max_by_key(|(irq, _)| rise(irq))
        .map(|(irq, _)| *irq)
        .unwrap();
    let before = of(&operations(&server.at_rest().daemon), controller, "move");
    // To each CPU in turn, with interrupts in between: the move is done then.
    for cpu in [0, 1, 0] {
        shell(
            server,
            &format!("echo {cpu} > /proc/irq/{irq}/smp_affinity_list"),
        );
        server.read_all_disks_from(2, 20);
    }
    let after = of(&operations(&server.at_rest().daemon), controller, "move");
    // The first may have been where it was.
    assert!((2..=3).contains(&(after - before)), "{before} {after}");
}

fn none_went_back(before: &Operations, after: &Operations) -> bool {
    before
        .iter()
        .all(|((controller, operation), count)| of(after, controller, operation) >= *count)
}

fn a_reload_is_counted_on(server: &Server, controller: &str) {
    let first = server.at_rest();
    let before = operations(&first.daemon);
    shell(server, "rmmod nvme && rmmod vmd");
    interrupt::until("the last interrupt to be freed", PATIENCE, || {
        let counts = operations(&server.guest.scrape()?);
        let left = of(&counts, controller, "allocate") - of(&counts, controller, "free");
        Ok((left == 0).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let unloaded = server.at_rest();
    let gone = operations(&unloaded.daemon);
    assert!(none_went_back(&before, &gone), "{before:?} {gone:?}");
    assert_eq!(
        of(&gone, controller, "enable"),
        of(&gone, controller, "disable")
    );
    load(server);
    let again = operations(&server.at_rest().daemon);
    assert!(none_went_back(&gone, &again), "{gone:?} {again:?}");
    assert_eq!(
        of(&again, controller, "allocate") - of(&again, controller, "free"),
        child_interrupts(server, controller)
    );
    server.read_all_disks_from(2, 50);
    let last = server.at_rest();
    // From before the drivers went.
    let posted = |readings: &Readings| -> u64 {
        let devices = readings.devices.iter();
        devices.map(|it| it.cqes() - it.cqes_skipped()).sum()
    };
    assert_eq!(
        completions(&last.daemon) - completions(&first.daemon),
        posted(&last) - posted(&first)
    );
    // Vectors are counted from when the driver came. (The kernel forgets what it counted on
    // a disk's own lines when the disk's queues are set up.)
    let kernel = last.kernel.since(&KernelCounts::default(), is_vmd_action);
    let interrupts = |readings: &Readings| {
        let of_vectors = |metric: &str| {
            let sum = readings
                .daemon
                .sum(metric, |sample| is_vmd_action(sample.label("action")));
            sum.unwrap() as u64
        };
        of_vectors("vmdtrace_line_hardware_interrupts_total")
            - of_vectors("vmdtrace_line_handler_repeated_total")
    };
    assert!(kernel > 0);
    assert_eq!(interrupts(&last) - interrupts(&unloaded), kernel);
}

/// At most 5 lines in 10 seconds, and how many were left out: together all.
fn the_log_tells_of_all(server: &Server) {
    let counted: u64 = operations(&server.at_rest().daemon)
        .iter()
        .filter(|((_, operation), _)| operation == "enable")
        .map(|(_, count)| count)
        .sum();
    interrupt::until("all to be told", PATIENCE, || {
        let (out, err) = server.daemon.output()?;
        let log = [out, err].concat();
        let log = String::from_utf8_lossy(&log);
        let told = log.matches(": interrupt enabled: ").count() as u64;
        let more = log.lines().filter_map(|line| {
            let (before, _) = line.split_once(" more: interrupt enabled")?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        });
        let left_out: u64 = more.sum();
        assert!(
            told + left_out <= counted,
            "{told} + {left_out} of {counted}"
        );
        Ok((left_out > 0 && told + left_out == counted).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// More vectors than a CPU has: the driver fails, and it is told why.
fn exhausted_vectors_are_counted(artifacts: &Artifacts) {
    let config = GuestConfig {
        cpus: 1,
        controllers: vec![Config {
            id: DeviceId::Remap201d,
            disks: 1,
            vectors: 256,
            ..Config::default()
        }],
        modules: Vec::new(),
        ..GuestConfig::default()
    };
    let (server, ready) = Server::start(artifacts, &config);
    ready.unwrap_or_else(|error| panic!("{error}"));
    server.guest.load_module("vmd", "").unwrap();
    interrupt::until("a search that finds no vector", PATIENCE, || {
        let scrape = server.guest.scrape()?;
        let failures = scrape.sum("vmdtrace_vector_allocation_failures_total", |_| true);
        Ok((failures.unwrap_or_default() > 0.0).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    server.end();
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![kernel_test(
        "6.12",
        "msi::exhausted_vectors_are_counted",
        |it| {
            exhausted_vectors_are_counted(it);
            Ok(())
        },
    )];
    trials.extend(KERNELS.map(|series| {
        kernel_test(series, format!("msi::{series}"), |artifacts| {
            operations_are_counted(artifacts);
            Ok(())
        })
    }));
    trials
}
