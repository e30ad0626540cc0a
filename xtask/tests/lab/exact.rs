//! The counts are exact on every kernel and in every kind of server.
//!
//! One boot has all kinds of disks in it: behind a VMD that remaps (201d), behind
//! one that can be bypassed (28c0), and behind none; one kind of server has a VMD
//! of each id. After all tests a table says what was tried, and how it went.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId, FirstBus, Mode, Service};
use xtask_lab::{
    Artifacts, GuestCommand, GuestConfig, GuestDisk, GuestFile, Iommu, LabError, Sample, Verified,
    Verify, disk_of_action, experiment, is_vmd_action, native_serial,
};
use xtask_setup::{KERNELS, Setup};

use crate::cpu_shares::Sums;
use crate::server::{
    PATIENCE, Readings, Server, by_irq, compare_lines, completions, completions_of_each_disk, probe,
};
use crate::{doctor, kernel_test};

const DISKS: u8 = 2;
const READS: u64 = 300;
/// Written, and read back, on each disk where that is tried.
const VERIFIED_BYTES: u64 = 512 << 10;

/// A VMD.
#[derive(Clone, Copy)]
struct Vmd {
    /// Of its disks.
    tag: &'static str,
    id: DeviceId,
    shadow: bool,
    first_bus: FirstBus,
    /// Whether the driver of 5.10 knows it, too (its table `vmd_ids`).
    old: bool,
}

impl Vmd {
    const fn new(tag: &'static str, id: DeviceId) -> Self {
        Self {
            tag,
            id,
            shadow: false,
            first_bus: FirstBus::Bus0,
            old: true,
        }
    }

    /// As in the table.
    fn name(&self) -> String {
        let shadow = if self.shadow { " shadow" } else { "" };
        format!("{}{shadow}", self.id.name())
    }
}

/// One of each mode.
const PAIR: [Vmd; 2] = [
    Vmd::new("R", DeviceId::Remap201d),
    Vmd::new("B", DeviceId::Bypass28c0),
];

/// One of each path through the driver; one of each restriction of the buses, too.
const EVERY_ID: [Vmd; 6] = [
    PAIR[0],
    PAIR[1],
    Vmd {
        shadow: true,
        first_bus: FirstBus::Bus128,
        ..Vmd::new("S", DeviceId::Bypass28c0)
    },
    Vmd {
        first_bus: FirstBus::Bus224,
        ..Vmd::new("C", DeviceId::Client9a0b)
    },
    Vmd {
        first_bus: FirstBus::Bus128,
        old: false,
        ..Vmd::new("D", DeviceId::ClientA77f)
    },
    Vmd {
        old: false,
        ..Vmd::new("E", DeviceId::Client7d0b)
    },
];

/// A kind of server.
struct Kind {
    name: &'static str,
    vmds: &'static [Vmd],
    /// Disks complete commands some time after they were told of them, and only a
    /// few at a time. They say that they have a write cache, so that fio's fsync
    /// is a command, too; and written data are read back.
    asynchronous: bool,
    cpus: u32,
    /// Of these, the first so many are online.
    online: u32,
    absent_cpus: u32,
    numa_nodes: u32,
    iommu: Iommu,
    kernel_arguments: &'static [&'static str],
    /// The kernel forbids to look: the daemon does not start.
    refused: bool,
    /// The kernel hides what tells repeated runs.
    hidden: bool,
    /// irqbalance runs beside the load.
    balanced: bool,
}

/// What the others differ from.
const PLAIN: Kind = Kind {
    name: "",
    vmds: &PAIR,
    asynchronous: false,
    cpus: 2,
    online: 2,
    absent_cpus: 0,
    numa_nodes: 1,
    iommu: Iommu::Absent,
    kernel_arguments: &[],
    refused: false,
    hidden: false,
    balanced: false,
};

/// Two things at once where they do not meet, since each kind is a boot.
const KINDS: [Kind; 6] = [
    Kind {
        name: "every-id-asynchronous",
        vmds: &EVERY_ID,
        asynchronous: true,
        ..PLAIN
    },
    Kind {
        name: "numa-absent-cpus-integrity",
        cpus: 3,
        absent_cpus: 3,
        numa_nodes: 2,
        kernel_arguments: &["lockdown=integrity", "maxcpus=2"],
        ..PLAIN
    },
    Kind {
        name: "threadirqs-intremap",
        iommu: Iommu::InterruptsOnly,
        kernel_arguments: &["threadirqs"],
        ..PLAIN
    },
    Kind {
        name: "confidentiality",
        kernel_arguments: &["lockdown=confidentiality"],
        refused: true,
        ..PLAIN
    },
    Kind {
        name: "iommu-identity-kptr",
        iommu: Iommu::Identity,
        kernel_arguments: &["sysctl.kernel.kptr_restrict=2"],
        hidden: true,
        ..PLAIN
    },
    Kind {
        name: "iommu-translating-irqbalance",
        iommu: Iommu::Translating,
        balanced: true,
        ..PLAIN
    },
];

impl Kind {
    /// The VMDs that the kernel's driver knows, and the others.
    fn vmds(&self, kernel: &str) -> (Vec<Vmd>, Vec<Vmd>) {
        let is_old = kernel.starts_with("5.10.");
        self.vmds.iter().partition(|vmd| vmd.old || !is_old)
    }

    fn config(&self, vmds: &[Vmd]) -> GuestConfig {
        let service = if self.asynchronous {
            Service {
                latency: "uniform:60us:120us".parse().unwrap(),
                parallelism: 5,
                ..Service::default()
            }
        } else {
            Service::default()
        };
        let controller = |vmd: &Vmd| Config {
            id: vmd.id,
            shadow: vmd.shadow,
            first_bus: vmd.first_bus,
            disks: DISKS,
            vectors: 3,
            tag: vmd.tag.to_owned(),
            write_cache: self.asynchronous,
            service,
            ..Config::default()
        };
        GuestConfig {
            cpus: self.cpus,
            absent_cpus: self.absent_cpus,
            numa_nodes: self.numa_nodes,
            iommu: self.iommu,
            native_disks: 1,
            controllers: vmds.iter().map(controller).collect(),
            kernel_arguments: self
                .kernel_arguments
                .iter()
                .map(|it| (*it).to_owned())
                .collect(),
            files: if self.balanced {
                let irqbalance = Setup::new().unwrap().guest_irqbalance();
                GuestFile::of_program(&irqbalance.unwrap_or_else(|error| panic!("{error}")))
            } else {
                Vec::new()
            },
            ..GuestConfig::default()
        }
    }
}

/// What was tried with one controller, or with the disk that has none.
struct Row {
    kernel: String,
    kind: &'static str,
    what: String,
    interrupts: u64,
    runs: u64,
    completions: u64,
    result: String,
}

/// All rows, in the order they came.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<Mutex<Vec<Row>>>);

impl Table {
    fn add(&self, rows: impl IntoIterator<Item = Row>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.extend(rows);
    }

    /// What came out of a whole server of another kind, in words.
    pub(crate) fn tell(&self, artifacts: &Artifacts, kind: &'static str, result: String) {
        self.add([Row {
            kernel: artifacts.kernel.package_version.clone(),
            kind,
            what: "all".to_owned(),
            interrupts: 0,
            runs: 0,
            completions: 0,
            result,
        }]);
    }

    pub(crate) fn print(&self) {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.is_empty() {
            return;
        }
        println!("\nexactness by kernel, kind of server and controller:");
        let title = ["interrupts", "runs", "completions"];
        println!(
            "{:<18} {:<28} {:<18} {:>10} {:>7} {:>11}  result",
            "kernel", "server", "controller", title[0], title[1], title[2]
        );
        for row in rows.iter() {
            println!("{row}");
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:<18} {:<28} {:<18} {:>10} {:>7} {:>11}  {}",
            self.kernel,
            self.kind,
            self.what,
            self.interrupts,
            self.runs,
            self.completions,
            self.result
        )
    }
}

/// Which interrupt lines belong to what, from the guest's sysfs.
struct Layout {
    disks: Vec<GuestDisk>,
    /// By the tag of the controller's disks: numbers of its own vectors.
    vectors: BTreeMap<&'static str, BTreeSet<u32>>,
}

impl Layout {
    fn read(server: &Server, vmds: &[Vmd]) -> Self {
        const SCRIPT: &str = "for vmd in /sys/bus/pci/drivers/vmd/0*; do
            address=${vmd##*/}
            for irq in $vmd/msi_irqs/*; do
                [ -e $irq ] && echo vector $address ${irq##*/}
            done
            for disk in /sys/class/nvme/nvme*; do
                case $(readlink -f $disk) in */$address/*) echo disk $address ${disk##*/};; esac
            done
        done";
        let output = server.guest.check(&GuestCommand::shell(SCRIPT), PATIENCE);
        let text = output
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout_text();
        let disks = server.disks();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let vectors = vmds.iter().map(|Vmd { tag, .. }| {
            let behind = of_tag(&disks, tag);
            let (_, address) = lines
                .iter()
                .filter(|line| line[0] == "disk")
                .map(|line| (line[2], line[1]))
                .find(|(name, _)| behind.contains(*name))
                .unwrap_or_else(|| panic!("no controller has the disks {tag}: {text}"));
            let own = lines
                .iter()
                .filter(|line| line[0] == "vector" && line[1] == address);
            (*tag, own.map(|line| line[2].parse().unwrap()).collect())
        });
        Self {
            vectors: vectors.collect(),
            disks,
        }
    }
}

/// Names of the disks of one controller.
fn of_tag(disks: &[GuestDisk], tag: &str) -> BTreeSet<String> {
    disks
        .iter()
        .filter(|disk| disk.serial.starts_with(&format!("VMDLAB{tag}")))
        .map(|disk| disk.name.clone())
        .collect()
}

/// Counts of one kind of line, and what is wrong with them.
struct Found {
    interrupts: u64,
    runs: u64,
    completions: u64,
    wrong: Vec<String>,
}

/// Compares lines with the kernel. The kernel does not count those that a
/// remapping controller re-sends.
fn compare(
    window: (&Readings, &Readings),
    counted: impl Fn(u32, &str) -> bool,
    uncounted: impl Fn(u32, &str) -> bool,
) -> Found {
    let (before, after) = window;
    let lines = |wanted: &dyn Fn(u32, &str) -> bool| {
        let mut lines = compare_lines(before, after, |_| true);
        lines.retain(|irq, _| wanted(*irq, &after.kernel.lines[irq].actions));
        lines
    };
    let mut wrong = Vec::new();
    let (counted, uncounted) = (lines(&counted), lines(&uncounted));
    for (irq, (kernel, ours, _)) in &counted {
        if kernel != ours {
            wrong.push(format!("line {irq}: kernel {kernel}, vmdtrace {ours}"));
        }
    }
    for (irq, (kernel, ours, _)) in &uncounted {
        if (*kernel, *ours) != (0, 0) {
            wrong.push(format!(
                "line {irq} behind a remapping controller: kernel {kernel}, vmdtrace {ours}"
            ));
        }
    }
    let interrupts = counted.values().map(|(kernel, ..)| kernel).sum();
    // How many reads one interrupt ends depends on the emulation's speed.
    if interrupts < 10 {
        wrong.push(format!("only {interrupts} interrupts"));
    }
    let children = counted.iter().chain(&uncounted);
    let runs = children
        .filter(|(irq, _)| disk_of_action(&after.kernel.lines[irq].actions).is_some())
        .map(|(_, (.., runs))| runs)
        .sum();
    let completed = |readings: &Readings| {
        let by_line = by_irq(&readings.daemon, "vmdtrace_line_completions_total");
        let ours = counted.keys().chain(uncounted.keys());
        ours.filter_map(|irq| by_line.get(irq)).sum::<u64>()
    };
    Found {
        interrupts,
        runs,
        completions: completed(after) - completed(before),
        wrong,
    }
}

/// Writes to all disks and reads it back; what fio did in all.
fn verify_all_disks(server: &Server, layout: &Layout) -> Verified {
    let load = Verify {
        disks: layout
            .disks
            .iter()
            .map(|disk| disk.namespaces[0].clone())
            .collect(),
        bytes: VERIFIED_BYTES,
        writes_per_sync: 16,
    };
    let output = server.guest.check(&load.command(), PATIENCE);
    let text = output
        .unwrap_or_else(|error| panic!("{error}"))
        .stdout_text();
    let done = Verified::parse(&text, &load).unwrap_or_else(|error| panic!("{error}"));
    let disks = load.disks.len() as u64;
    assert_eq!(
        (done.writes, done.reads),
        (disks * load.writes(), disks * load.writes())
    );
    done
}

/// Loads all disks and compares everything that can be compared.
fn measure(server: &Server, kernel: &str, kind: &Kind, vmds: &[Vmd]) -> Vec<Row> {
    let layout = Layout::read(server, vmds);
    let all_disks = u64::from(DISKS) * vmds.len() as u64 + 1;
    let before = server.at_rest();
    let reads = server.read_all_disks_from(kind.online, READS);
    let verified = if kind.asynchronous {
        // From now on it is known whose the lines are.
        let scraped = server.guest.scrape();
        scraped.unwrap_or_else(|error| panic!("{error}"));
        verify_all_disks(server, &layout)
    } else {
        Verified::default()
    };
    // Every disk does the same.
    let of_each_disk = READS + verified.total() / all_disks;
    let after = server.at_rest();
    let window = (&before, &after);
    let row = |what: String, found: Found| Row {
        kernel: kernel.to_owned(),
        kind: kind.name,
        what,
        interrupts: found.interrupts,
        runs: found.runs,
        completions: found.completions,
        result: if found.wrong.is_empty() {
            "exact".to_owned()
        } else {
            found.wrong.join("; ")
        },
    };

    let mut rows = Vec::new();
    for (index, vmd) in vmds.iter().enumerate() {
        let tag = vmd.tag;
        let disks = of_tag(&layout.disks, tag);
        let vectors = &layout.vectors[tag];
        let vector = |irq: u32, action: &str| vectors.contains(&irq) && is_vmd_action(action);
        let child =
            |_: u32, action: &str| disk_of_action(action).is_some_and(|it| disks.contains(it));
        let mode = after.devices[index].mode;
        // The driver of 5.10 remaps in any case.
        let can_bypass = vmd.id.can_bypass() && !vmd.shadow;
        let expected = if can_bypass && !kernel.starts_with("5.10.") {
            Mode::Bypass
        } else {
            Mode::Remap
        };
        let mut found = match mode {
            Mode::Remap => compare(window, vector, child),
            Mode::Bypass => compare(window, child, vector),
        };
        if mode != expected {
            found.wrong.push(format!("expected {expected:?}"));
        }
        let device = |readings: &Readings| readings.devices[index].io_cqes();
        let served = device(&after) - device(&before);
        if served != of_each_disk * u64::from(DISKS) {
            found
                .wrong
                .push(format!("the device served {served} commands"));
        }
        let flushes = |readings: &Readings| {
            let disks = readings.devices[index].disks.iter();
            disks
                .flat_map(|it| &it.queues)
                .map(|it| it.flushes)
                .sum::<u64>()
        };
        let flushed = flushes(&after) - flushes(&before);
        if flushed * all_disks != verified.syncs * u64::from(DISKS) {
            found
                .wrong
                .push(format!("the device flushed {flushed} times"));
        }
        let each_disk = completions_of_each_disk(&before, &after, &layout.disks);
        for (disk, (device, ours)) in each_disk {
            if disks.contains(&disk) && device != ours {
                found
                    .wrong
                    .push(format!("{disk}: {ours} completions of {device}"));
            }
        }
        let mode = match mode {
            Mode::Remap => "remap",
            Mode::Bypass => "bypass",
        };
        rows.push(row(format!("{} {mode}", vmd.name()), found));
    }
    let native = layout
        .disks
        .iter()
        .find(|disk| disk.serial == native_serial(0))
        .unwrap_or_else(|| panic!("no native disk: {:?}", layout.disks));
    let of_native = |_: u32, action: &str| disk_of_action(action) == Some(native.name.as_str());
    let mut found = compare(window, of_native, |_, _| false);

    // What all disks have in common. The native disk tells no count of its own;
    // each of its completions is one of fio's requests.
    let posted = |readings: &Readings| {
        let counted = |it: &vmd_device::Counters| it.cqes() - it.cqes_skipped();
        readings.devices.iter().map(counted).sum::<u64>()
    };
    let expected = posted(&after) - posted(&before) + of_each_disk;
    let ours = completions(&after.daemon) - completions(&before.daemon);
    if ours != expected {
        found
            .wrong
            .push(format!("{ours} completions of {expected} on all disks"));
    }
    if reads != READS * all_disks {
        found.wrong.push(format!("fio read {reads} times"));
    }
    for metric in [
        "vmdtrace_unassigned_runs_total",
        "vmdtrace_probe_missed_total",
        "vmdtrace_handler_resent_total",
        "vmdtrace_lost_frames_total",
    ] {
        // Not every kernel counts what its probes missed.
        let of = |readings: &Readings| {
            let wanted = |sample: &Sample| {
                sample.label("probe").is_empty() || experiment::counts_interrupts(sample)
            };
            readings.daemon.sum(metric, wanted)
        };
        if of(&after) != of(&before) {
            found.wrong.push(format!("{metric} rose"));
        }
    }
    let shares = Sums::between(&before.daemon, &after.daemon);
    found.wrong.extend(shares.wrong);
    // Elsewhere nothing was scraped in between.
    if kind.asynchronous && shares.unassigned >= shares.hardware_interrupts {
        let unassigned = shares.unassigned;
        let told = format!("all {unassigned} hardware interrupts are unassigned");
        found.wrong.push(told);
    }
    rows.push(row("none".to_owned(), found));
    rows
}

/// Does that while irqbalance looks every second where interrupts are best put; and how
/// often a controller's vector moved meanwhile, which is its own decision.
fn balanced<T>(server: &Server, work: impl FnOnce() -> T) -> (T, u64) {
    let moves = || {
        let scrape = server.guest.scrape()?;
        let moves = scrape.sum("vmdtrace_msi_operations_total", |it| {
            it.label("operation") == "move"
        });
        Ok(moves.unwrap_or_default() as u64)
    };
    let failed = |error: LabError| -> u64 { panic!("{error}") };
    let before = moves().unwrap_or_else(failed);
    let irqbalance = GuestCommand::new("irqbalance").args(["--foreground", "--interval=1"]);
    let irqbalance = server.guest.spawn(&irqbalance).unwrap();
    let done = work();
    irqbalance.check_running().unwrap();
    irqbalance.stop(PATIENCE).unwrap();
    (done, moves().unwrap_or_else(failed) - before)
}

/// What a kernel that hides addresses lacks is absent, with the remedy.
fn repeated_runs_are_not_told(server: &Server) {
    let scrape = server.guest.scrape();
    let scrape = scrape.unwrap_or_else(|error| panic!("{error}"));
    let (state, reason) = probe(&scrape, "repeated_runs");
    assert_eq!(state, "blocked");
    assert!(reason.contains("kptr_restrict"), "{reason}");
    let repeated = scrape.sum("vmdtrace_handler_repeated_total", |_| true);
    assert_eq!(repeated, None);
}

fn counts_are_exact(artifacts: &Artifacts, kind: &Kind, table: &Table) {
    let kernel = &artifacts.kernel.package_version;
    let (vmds, unknown) = kind.vmds(kernel);
    let (server, ready) = Server::start(artifacts, &kind.config(&vmds));
    let rows = match ready {
        Ok(()) => {
            if kind.hidden {
                repeated_runs_are_not_told(&server);
            }
            if kind.balanced {
                let (rows, moves) = balanced(&server, || measure(&server, kernel, kind, &vmds));
                let result = format!("irqbalance moved vectors {moves} times");
                table.tell(artifacts, kind.name, result);
                rows
            } else {
                measure(&server, kernel, kind, &vmds)
            }
        }
        Err(error) if kind.refused => {
            let text = error.to_string();
            assert!(text.contains("ended (exit status 1)"), "{text}");
            assert!(text.contains("lockdown=integrity"), "no remedy: {text}");
            doctor::sees_nothing(&server.guest, None, "lockdown=integrity");
            table.tell(
                artifacts,
                kind.name,
                "the daemon refuses to start".to_owned(),
            );
            server
                .guest
                .power_off()
                .unwrap_or_else(|error| panic!("{error}"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let wrong: Vec<_> = rows
        .iter()
        .filter(|row| row.result != "exact")
        .map(Row::to_string)
        .collect();
    table.add(rows);
    table.add(unknown.iter().map(|vmd| Row {
        kernel: kernel.clone(),
        kind: kind.name,
        what: vmd.name(),
        interrupts: 0,
        runs: 0,
        completions: 0,
        result: "not tried: the driver does not know it".to_owned(),
    }));
    assert!(!kind.refused, "the daemon counts where that is forbidden");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    server.end();
}

pub(crate) fn trials() -> (Table, Vec<Trial>) {
    let table = Table::default();
    let mut trials = Vec::new();
    for series in KERNELS {
        for kind in &KINDS {
            let table = table.clone();
            let name = format!("exact::{series}::{}", kind.name);
            trials.push(kernel_test(series, name, move |artifacts| {
                counts_are_exact(artifacts, kind, &table);
                Ok(())
            }));
        }
    }
    (table, trials)
}
