//! One booted server in each mode with the daemon in it, shared by its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId, QueueCounters, Service};
use xtask_lab::{
    Artifacts, Background, Bound, Controller, CpuList, Done, Guest, GuestCommand, GuestConfig,
    GuestDisk, KernelCounts, Load, Sample, Scrape, VMDTRACE, Verified, Verify, disk_of_action,
    interrupt, is_vmd_action,
};

use crate::shared::Shared;
use crate::{artifacts, check_with_promtool, lab_test};

/// For what takes seconds on an idle host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
const DISKS: u8 = 4;
const CPUS: u32 = 3;
const VECTORS: u16 = 4;

/// A guest, and its daemon.
pub(crate) struct Server {
    pub(crate) guest: Guest,
    pub(crate) daemon: Background,
}

/// What all sources say at one moment of rest.
pub(crate) struct Readings {
    pub(crate) daemon: Scrape,
    pub(crate) kernel: KernelCounts,
    /// By controller.
    pub(crate) devices: Vec<vmd_device::Counters>,
}

impl Readings {
    /// Of the first controller.
    pub(crate) fn device(&self) -> &vmd_device::Counters {
        &self.devices[0]
    }
}

impl Server {
    /// Boots and starts the daemon, before any I/O of ours.
    pub(crate) fn boot(id: DeviceId, modules: &[&str]) -> Self {
        let config = GuestConfig {
            cpus: CPUS,
            controllers: vec![Config {
                id,
                disks: DISKS,
                vectors: VECTORS,
                write_cache: true,
                ..Config::default()
            }],
            modules: modules.iter().map(|module| (*module).to_owned()).collect(),
            ..GuestConfig::default()
        };
        let (server, ready) = Self::start(artifacts(), &config);
        ready.unwrap_or_else(|error| panic!("{error}"));
        server
    }

    /// Boots a guest of this kind and starts the daemon; whether that is ready
    /// is told apart, for those who expect that it is not.
    pub(crate) fn start(
        artifacts: &Artifacts,
        config: &GuestConfig,
    ) -> (Self, xtask_lab::Result<()>) {
        let guest = Guest::boot(artifacts, config).unwrap_or_else(|error| panic!("{error}"));
        let has = |name: &str| config.modules.iter().any(|module| module == name);
        if has("vmd") && has("nvme") {
            guest
                .await_disks(PATIENCE)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        Self::serve(guest)
    }

    /// Starts the daemon in a guest that is booted.
    pub(crate) fn serve(guest: Guest) -> (Self, xtask_lab::Result<()>) {
        Self::serve_with(guest, &[])
    }

    /// As above, with more arguments.
    pub(crate) fn serve_with(guest: Guest, more: &[&str]) -> (Self, xtask_lab::Result<()>) {
        let command = GuestCommand::new(VMDTRACE)
            .args([
                "serve",
                "--web.listen-address",
                "0.0.0.0:10973",
                "--metrics.lines",
                "--metrics.disks",
                "--metrics.cpus",
            ])
            .args(more.iter().copied());
        let daemon = guest
            .spawn(&command)
            .unwrap_or_else(|error| panic!("{error}"));
        let ready = interrupt::until("the daemon to be ready", PATIENCE, || {
            daemon.check_running()?;
            Ok(guest
                .http_get("/readyz")
                .is_ok_and(|it| it.status == 200)
                .then_some(()))
        });
        (Self { guest, daemon }, ready)
    }

    fn devices(&self) -> Vec<vmd_device::Counters> {
        let counters = |it: &Controller| it.counters().unwrap_or_else(|error| panic!("{error}"));
        self.guest.controllers().iter().map(counters).collect()
    }
    /// Waits until the device and the kernel's counts of our lines stand still.
    pub(crate) fn at_rest(&self) -> Readings {
        let mut last = None;
        interrupt::until("the guest to be at rest", PATIENCE, || {
            let kernel = self.guest.kernel_counts()?;
            let ours: Vec<_> = kernel
                .lines
                .values()
                .filter(|line| is_ours(&line.actions))
                .map(|line| line.per_cpu.clone())
                .collect();
            let now = (self.devices(), ours);
            let resting = last.as_ref() == Some(&now);
            last = Some(now);
            Ok(resting.then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
        Readings {
            daemon: self
                .guest
                .scrape()
                .unwrap_or_else(|error| panic!("{error}")),
            kernel: self
                .guest
                .kernel_counts()
                .unwrap_or_else(|error| panic!("{error}")),
            devices: self.devices(),
        }
    }

    pub(crate) fn disks(&self) -> Vec<GuestDisk> {
        self.guest
            .await_disks(PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Reads every disk from every CPU; the number of reads fio did.
    pub(crate) fn read_all_disks(&self, reads_per_disk: u64) -> u64 {
        self.read_all_disks_from(CPUS, reads_per_disk)
    }

    /// As above, from the first so many CPUs.
    pub(crate) fn read_all_disks_from(&self, cpus: u32, reads_per_disk: u64) -> u64 {
        let load = Load {
            disks: self
                .disks()
                .iter()
                .map(|disk| disk.namespaces[0].clone())
                .collect(),
            cpus: CpuList::first(cpus),
            depth: 8,
            bound: Bound::Reads(reads_per_disk),
        };
        let output = self
            .guest
            .check(&load.command(), PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"));
        Done::parse(&output.stdout_text(), &load)
            .unwrap_or_else(|error| panic!("{error}"))
            .total()
    }

    /// Stops the daemon as its service manager would, and switches the guest off.
    pub(crate) fn end(self) {
        let output = self
            .daemon
            .stop(PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(
            output.success(),
            "the daemon ended with {}:\n{}",
            output.exit,
            output.stderr_text()
        );
        self.guest
            .power_off()
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

fn is_ours(actions: &str) -> bool {
    is_vmd_action(actions) || disk_of_action(actions).is_some()
}

/// A per-line metric of the daemon by interrupt number.
pub(crate) fn by_irq(scrape: &Scrape, metric: &str) -> BTreeMap<u32, u64> {
    scrape
        .series(metric)
        .map(|sample| (sample.label("irq").parse().unwrap(), sample.value as u64))
        .collect()
}

/// Sum of a metric; it has to be there.
pub(crate) fn sum(scrape: &Scrape, metric: &str) -> u64 {
    scrape
        .sum(metric, |_: &Sample| true)
        .unwrap_or_else(|| panic!("no {metric}")) as u64
}

/// Completions that the daemon counted, wherever they were reaped.
pub(crate) fn completions(scrape: &Scrape) -> u64 {
    sum(scrape, "vmdtrace_completions_total")
        + sum(scrape, "vmdtrace_completions_outside_handler_total")
}

/// Lines of a kind with the kernel's count since `before` and the daemon's.
pub(crate) fn compare_lines(
    before: &Readings,
    after: &Readings,
    wanted: impl Fn(&str) -> bool,
) -> BTreeMap<u32, (u64, u64, u64)> {
    const HARDWARE: &str = "vmdtrace_line_hardware_interrupts_total";
    const REPEATED: &str = "vmdtrace_line_handler_repeated_total";
    const RUNS: &str = "vmdtrace_line_handler_runs_total";
    let difference = |metric: &str, irq: u32| {
        let at = |scrape| {
            by_irq(scrape, metric)
                .get(&irq)
                .copied()
                .unwrap_or_default()
        };
        at(&after.daemon) - at(&before.daemon)
    };
    let lines = after
        .kernel
        .lines
        .iter()
        .filter(|(_, line)| wanted(&line.actions));
    lines
        .map(|(irq, line)| {
            let earlier = before
                .kernel
                .lines
                .get(irq)
                .map(|line| line.per_cpu.clone())
                .unwrap_or_default();
            let kernel = line
                .per_cpu
                .iter()
                .enumerate()
                .map(|(cpu, count)| {
                    u64::from(count.wrapping_sub(earlier.get(cpu).copied().unwrap_or_default()))
                })
                .sum();
            (
                *irq,
                (
                    kernel,
                    difference(HARDWARE, *irq) - difference(REPEATED, *irq),
                    difference(RUNS, *irq),
                ),
            )
        })
        .collect()
}

/// A probe's state, and the reason.
pub(crate) fn probe(scrape: &Scrape, name: &str) -> (String, String) {
    let mut probes = scrape.series("vmdtrace_probe_info");
    let probe = probes.find(|it| it.label("probe") == name);
    let probe = probe.unwrap_or_else(|| panic!("no probe {name}"));
    let label = |label| probe.label(label).to_owned();
    (label("state"), label("reason"))
}

/// What each disk of the emulated controllers posted, the daemon counted for that
/// disk, in its handlers or outside.
pub(crate) fn completions_of_each_disk(
    before: &Readings,
    after: &Readings,
    disks: &[GuestDisk],
) -> BTreeMap<String, (u64, u64)> {
    let counted = |scrape: &Scrape, disk: &str| {
        let of = |metric: &str| {
            let sum = scrape.sum(metric, |it: &Sample| it.label("disk") == disk);
            sum.unwrap_or_default() as u64
        };
        of("vmdtrace_completions_total") + of("vmdtrace_disk_completions_outside_handler_total")
    };
    let posted = |readings: &Readings, serial: &str| -> u64 {
        let disks = readings.devices.iter().flat_map(|it| &it.disks);
        let disk = disks.filter(|it| it.serial == serial);
        disk.map(|it| it.cqes() - it.cqes_skipped()).sum()
    };
    disks
        .iter()
        .filter(|disk| disk.serial.starts_with("VMDLAB"))
        .map(|GuestDisk { name, serial, .. }| {
            let device = posted(after, serial) - posted(before, serial);
            let ours = counted(&after.daemon, name) - counted(&before.daemon, name);
            (name.clone(), (device, ours))
        })
        .collect()
}

fn every_series_is_there_at_zero(server: &Server) {
    let scrape = server.at_rest().daemon;
    let labels = |metric, label| -> BTreeSet<String> {
        let series = scrape.series(metric);
        series
            .map(|sample| sample.label(label).to_owned())
            .collect()
    };
    let disks: BTreeSet<String> = server.disks().into_iter().map(|disk| disk.name).collect();
    let infos = scrape.series("vmdtrace_disk_info");
    let remapped: BTreeSet<String> = infos
        .filter(|sample| sample.label("path") == "vmd-remap")
        .map(|sample| sample.label("disk").to_owned())
        .collect();
    for metric in [
        "vmdtrace_hardware_interrupts_total",
        "vmdtrace_handler_runs_total",
        "vmdtrace_handler_unhandled_total",
        "vmdtrace_handler_repeated_total",
        "vmdtrace_handler_seconds_total",
        "vmdtrace_completions_total",
    ] {
        let found = labels(metric, "disk");
        // Behind a controller that remaps a disk has no interrupts of its own.
        let expected = match metric {
            "vmdtrace_hardware_interrupts_total" | "vmdtrace_handler_repeated_total" => {
                disks.difference(&remapped).cloned().collect()
            }
            _ => disks.clone(),
        };
        assert!(found.is_superset(&expected), "{metric}: {found:?}");
        assert_eq!(sum(&scrape, metric), 0, "{metric}");
    }
    let controllers = labels("vmdtrace_controller_info", "controller");
    assert!(!controllers.is_empty());
    for metric in [
        "vmdtrace_handler_resent_total",
        "vmdtrace_remote_completions_total",
    ] {
        let found = labels(metric, "controller");
        assert!(found.is_superset(&controllers), "{metric}: {found:?}");
        assert_eq!(sum(&scrape, metric), 0, "{metric}");
    }
    assert_eq!(completions(&scrape), 0);
}

fn promtool_accepts_the_metrics(server: &Server) {
    let response = server
        .guest
        .http_get("/metrics")
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        response.content_type,
        "text/plain; version=0.0.4; charset=utf-8"
    );
    check_with_promtool(&response.body);
}

fn every_line_equals_the_kernels_count(server: &Server, id: DeviceId) {
    let before = server.at_rest();
    let reads = server.read_all_disks(400);
    let after = server.at_rest();
    assert_eq!(reads, 400 * u64::from(DISKS));
    assert_eq!(after.device().io_cqes() - before.device().io_cqes(), reads);

    let vectors = compare_lines(&before, &after, is_vmd_action);
    let children = compare_lines(&before, &after, |action| disk_of_action(action).is_some());
    assert!(children.len() >= usize::from(DISKS) * 2, "{children:?}");
    let counted = if id == DeviceId::Remap201d {
        &vectors
    } else {
        &children
    };
    for (irq, (kernel, ours, _)) in counted {
        assert_eq!(kernel, ours, "interrupt {irq}");
    }
    assert!(
        counted.values().map(|(kernel, ..)| kernel).sum::<u64>() >= 100,
        "{counted:?}"
    );
    assert!(
        children.values().map(|(.., runs)| runs).sum::<u64>() >= 100,
        "{children:?}"
    );
    if id == DeviceId::Remap201d {
        assert_eq!(vectors.len(), usize::from(VECTORS));
        for (irq, (kernel, _, runs)) in &children {
            assert_eq!(*kernel, 0, "interrupt {irq} of a child, with {runs} runs");
        }
        let resent = |readings: &Readings| sum(&readings.daemon, "vmdtrace_handler_resent_total");
        assert_eq!(resent(&after), resent(&before));
    } else {
        assert!(vectors.is_empty(), "{vectors:?}");
    }
    assert_eq!(reaped(&before, &after), posted(&before, &after));
}

/// The same with a device that takes its time: completions come when nobody rings,
/// several with one interrupt.
fn lines_equal_with_latency(server: &Server, id: DeviceId) {
    let set = |latency: &str| {
        let service = Service {
            latency: latency.parse().unwrap(),
            ..Service::default()
        };
        let mut client = server.guest.controllers()[0]
            .client()
            .unwrap_or_else(|error| panic!("{error}"));
        client.set_service(None, service).unwrap();
    };
    set("uniform:60us:120us");
    every_line_equals_the_kernels_count(server, id);
    set("0");
}

fn asynchronous_events_are_skipped_and_explained(server: &Server) {
    let before = server.at_rest();
    for disk in 0..usize::from(DISKS) {
        let mut client = server.guest.controllers()[0]
            .client()
            .unwrap_or_else(|error| panic!("{error}"));
        client.raise_event(disk).unwrap();
    }
    let after = server.at_rest();
    let skipped = after.device().cqes_skipped() - before.device().cqes_skipped();
    assert_eq!(skipped, u64::from(DISKS));
    assert_eq!(reaped(&before, &after), posted(&before, &after));
}

fn written_data_verifies(server: &Server) {
    let load = Verify {
        disks: server
            .disks()
            .iter()
            .map(|disk| disk.namespaces[0].clone())
            .collect(),
        bytes: 1 << 20,
        writes_per_sync: 32,
    };
    let before = server.at_rest();
    let output = server
        .guest
        .check(&load.command(), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let done = Verified::parse(&output.stdout_text(), &load).unwrap();
    let after = server.at_rest();
    // Each block is written once and read back once.
    assert_eq!(done.writes, 256 * u64::from(DISKS));
    assert_eq!(done.reads, done.writes);
    assert!(done.syncs >= u64::from(DISKS), "{done:?}");
    assert_eq!(
        after.device().io_cqes() - before.device().io_cqes(),
        done.total()
    );
    let flushes = |readings: &Readings| of_queues(readings, |queue| queue.flushes);
    assert_eq!(flushes(&after) - flushes(&before), done.syncs);
    assert_eq!(reaped(&before, &after), posted(&before, &after));
}

/// A sum over all queues of the first controller.
fn of_queues(readings: &Readings, count: fn(&QueueCounters) -> u64) -> u64 {
    let disks = readings.device().disks.iter();
    disks.flat_map(|disk| &disk.queues).map(count).sum()
}

/// Completions that the daemon counted meanwhile, wherever they were reaped.
fn reaped(before: &Readings, after: &Readings) -> u64 {
    completions(&after.daemon) - completions(&before.daemon)
}

/// Those that the first controller posted for the driver's tracepoint.
fn posted(before: &Readings, after: &Readings) -> u64 {
    let seen = |it: &Readings| it.device().cqes() - it.device().cqes_skipped();
    seen(after) - seen(before)
}

/// A range that is written with zeroes by the device itself reads as zeroes.
fn write_zeroes_are_counted(server: &Server) {
    const BYTES: u64 = 1 << 20;
    let disk = &server.disks()[0].namespaces[0];
    let check = |script: String| {
        let output = server.guest.check(&GuestCommand::shell(script), PATIENCE);
        output
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout_text()
            .trim()
            .to_owned()
    };
    let not_zero = || {
        check(format!(
            "dd if=/dev/{disk} bs=64k count=16 iflag=direct | tr -d '\\0' | wc -c"
        ))
    };
    check(format!(
        "tr '\\0' '\\377' < /dev/zero | dd of=/dev/{disk} bs=64k count=16 iflag=fullblock oflag=direct"
    ));
    assert_eq!(not_zero(), BYTES.to_string());
    let most: u64 = check(format!(
        "cat /sys/block/{disk}/queue/write_zeroes_max_bytes"
    ))
    .parse()
    .unwrap();
    let before = server.at_rest();
    server.guest.write_zeroes(disk, 0, BYTES).unwrap();
    let after = server.at_rest();
    assert_eq!(not_zero(), "0");
    let zeroes = |readings: &Readings| of_queues(readings, |queue| queue.write_zeroes);
    assert_eq!(zeroes(&after) - zeroes(&before), BYTES.div_ceil(most));
    assert_eq!(posted(&before, &after), BYTES.div_ceil(most));
    assert_eq!(reaped(&before, &after), posted(&before, &after));
}

/// Coalescing as the guest sets it, through an admin command.
fn interrupts_are_coalesced(server: &Server, id: DeviceId) {
    const COALESCING: u8 = 0x08;
    let disks = server.disks();
    let set = |value| {
        for disk in &disks {
            server
                .guest
                .set_nvme_feature(&disk.name, COALESCING, value)
                .unwrap_or_else(|error| panic!("{error}"));
        }
    };
    let of_first = |readings: &Readings| {
        let disk = &readings.device().disks[0];
        let msis: u64 = disk.child_vector_msis.iter().skip(1).sum();
        (disk.io_cqes(), disk.held_interrupts, msis)
    };
    // One read at a time: it is never enough for an interrupt, and 100 us later
    // there is one.
    set(0x0107);
    let before = server.at_rest();
    let script = format!(
        "dd if=/dev/{} of=/dev/null bs=4k count=50 iflag=direct",
        disks[0].namespaces[0]
    );
    server
        .guest
        .check(&GuestCommand::shell(script), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let after = server.at_rest();
    let (earlier, later) = (of_first(&before), of_first(&after));
    assert_eq!(later.0 - earlier.0, 50);
    assert_eq!(later.1 - earlier.1, 50, "held back");
    assert_eq!(later.2 - earlier.2, 50, "interrupts");
    assert_eq!(reaped(&before, &after), posted(&before, &after));

    // Eight reads at a time, an interrupt for four of them, or for what there is
    // after 25.5 ms.
    set(0xff03);
    let before = server.at_rest();
    every_line_equals_the_kernels_count(server, id);
    let after = server.at_rest();
    let all = |readings: &Readings| {
        let held: u64 = readings
            .device()
            .disks
            .iter()
            .map(|it| it.held_interrupts)
            .sum();
        (readings.device().io_cqes(), held, readings.device().msis())
    };
    let (earlier, later) = (all(&before), all(&after));
    let (done, held, msis) = (
        later.0 - earlier.0,
        later.1 - earlier.1,
        later.2 - earlier.2,
    );
    assert!(held > 0 && 2 * msis <= done, "{done} {held} {msis}");
    set(0);
}

fn topology_tells_the_mode_and_how(server: &Server, id: DeviceId) {
    // As a user without any privilege.
    let run = |output: &str| {
        let script = format!(
            "mkdir -p /etc && echo 'nobody:x:65534:65534::/:/bin/sh' > /etc/passwd &&
             su -s /bin/sh nobody -c '{VMDTRACE} topology --output {output}'"
        );
        let command = GuestCommand::shell(script);
        server
            .guest
            .check(&command, PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout_text()
    };
    let topology: serde_json::Value = serde_json::from_str(&run("json")).unwrap();
    let controller = &topology["controllers"][0];
    let children = controller["child_interrupts"].as_u64().unwrap();
    let kernel = server.at_rest().kernel;
    let nvme_lines = kernel
        .lines
        .values()
        .filter(|line| disk_of_action(&line.actions).is_some())
        .count();
    assert_eq!(children, nvme_lines as u64);
    assert_eq!(
        topology["disks"].as_array().unwrap().len(),
        usize::from(DISKS)
    );
    assert_eq!(
        topology["problems"].as_array().unwrap().len(),
        0,
        "{}",
        topology["problems"]
    );
    let evidence = controller["mode_evidence"].as_array().unwrap();
    let (mode, vectors, sharing) = match id {
        DeviceId::Remap201d => (
            "remap",
            usize::from(VECTORS),
            Some(children as f64 / f64::from(VECTORS - 1)),
        ),
        _ => ("bypass", 0, None),
    };
    assert_eq!(controller["mode"], mode);
    assert!(
        !evidence.is_empty() && evidence.iter().all(|one| one["mode"] == mode),
        "{evidence:?}"
    );
    assert_eq!(controller["vectors"].as_array().unwrap().len(), vectors);
    assert_eq!(controller["sharing_factor"].as_f64(), sharing);
    let text = run("text");
    for word in [mode, "10000", "nvme0", "nvme3"] {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
}

type Check = fn(&Server, DeviceId);

pub(crate) fn trials() -> (Vec<Shared<Server>>, Vec<Trial>) {
    let checks: [(&str, Check); 9] = [
        ("every_series_is_there_at_zero", |server, _| {
            every_series_is_there_at_zero(server);
        }),
        (
            "every_line_equals_the_kernels_count",
            every_line_equals_the_kernels_count,
        ),
        (
            "every_line_equals_the_kernels_count_with_latency",
            lines_equal_with_latency,
        ),
        ("promtool_accepts_the_metrics", |server, _| {
            promtool_accepts_the_metrics(server);
        }),
        (
            "asynchronous_events_are_skipped_and_explained",
            |server, _| {
                asynchronous_events_are_skipped_and_explained(server);
            },
        ),
        ("written_data_verifies", |server, _| {
            written_data_verifies(server);
        }),
        ("write_zeroes_are_counted", |server, _| {
            write_zeroes_are_counted(server);
        }),
        ("interrupts_are_coalesced", interrupts_are_coalesced),
        (
            "topology_tells_the_mode_and_how",
            topology_tells_the_mode_and_how,
        ),
    ];
    let mut servers = Vec::new();
    let mut trials = Vec::new();
    for (mode, id) in [
        ("remap", DeviceId::Remap201d),
        ("bypass", DeviceId::Bypass28c0),
    ] {
        let server = Shared::new(move || Server::boot(id, &["vmd", "nvme"]));
        for (name, check) in checks {
            let server = server.clone();
            trials.push(lab_test(format!("{mode}::{name}"), move || {
                server.with(|server| check(server, id));
                Ok(())
            }));
        }
        let last = server.clone();
        trials.push(lab_test(
            format!("{mode}::the_daemon_stops_in_order"),
            move || {
                last.take().ok_or("no server was booted")?.end();
                Ok(())
            },
        ));
        servers.push(server);
    }
    (servers, trials)
}
