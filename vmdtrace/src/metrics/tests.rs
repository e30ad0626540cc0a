use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::{TextEncoder, proto::Bucket};
use vmdtrace_common::msi::Operation;

use super::*;
use crate::host::fixture::{CAPTURED_REMAP, Tree};
use crate::host::topology::{
    Controller, Disk, DiskPath, Machine, Mode, PciAddress, Topology, Vector, VectorUse,
};
use crate::snapshot::bio::{
    BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime,
};
use crate::snapshot::recording::Reader;
use crate::snapshot::source::{SnapshotError, SnapshotSource};
use crate::snapshot::{
    BioCounts, CpuCounts, CpuShare, DiskLosses, DiskSamples, LineCounts, LineKind, LossCounts,
    Losses, MsiCounts, OperationCount, OutsideCompletions, Probe, ProbeState, Remote, RunCounts,
    SampleCounts, ShareCounts, ShareOwner, Times, probes,
};

const REMAP: &str = "0000:97:00.5";
const BYPASS: &str = "0000:e2:00.5";

const LINES: Detail = Detail {
    lines: true,
    vectors: false,
    disks: false,
    cpus: false,
};

const EVERYTHING: Detail = Detail {
    lines: true,
    vectors: false,
    disks: true,
    cpus: true,
};

fn controller(address: &str, mode: Mode) -> Controller {
    let remaps = mode == Mode::Remap;
    let vector = |index| Vector {
        index,
        irq: 40 + index,
        used_for: if index == 0 {
            VectorUse::Other
        } else {
            VectorUse::Nvme
        },
        effective_affinity: None,
    };
    Controller {
        address: PciAddress(address.to_owned()),
        driver: Some("vmd".to_owned()),
        device_id: Some(if remaps { 0x201d } else { 0x28c0 }),
        action: remaps.then(|| "vmd0".to_owned()),
        domain: Some(if remaps { "10000" } else { "10001" }.to_owned()),
        numa_node: remaps.then_some(0),
        iommu: None,
        mode,
        mode_evidence: Vec::new(),
        vectors: if remaps {
            (0..3).map(vector).collect()
        } else {
            Vec::new()
        },
        other_lines: Vec::new(),
        child_interrupts: 7,
        sharing_factor: remaps.then_some(3.5),
    }
}

fn disk(name: &str, path: DiskPath, controller: Option<&str>, model: &str) -> Disk {
    let address = match controller {
        Some(_) => "10000:01:00.0",
        None => "0000:03:00.0",
    };
    Disk {
        controller: controller.map(|address| PciAddress(address.to_owned())),
        model: Some(model.to_owned()),
        ..Disk::bare(name, address, path)
    }
}

fn topology() -> Topology {
    Topology {
        controllers: vec![
            controller(REMAP, Mode::Remap),
            controller(BYPASS, Mode::Bypass),
        ],
        disks: vec![
            disk(
                "nvme0",
                DiskPath::VmdRemap,
                Some(REMAP),
                "Fast \"P5800X\" \\ 400G",
            ),
            disk(
                "nvme1",
                DiskPath::VmdBypass,
                Some(BYPASS),
                "line one\nline two\u{1b}[31m",
            ),
            disk("nvme2", DiskPath::Direct, None, &"x".repeat(200)),
        ],
        machine: Machine::default(),
        problems: vec!["/sys/class/nvme/nvme9: permission denied".to_owned()],
    }
}

fn probe(name: &str, missed_runs: Option<u64>) -> Probe {
    Probe {
        name: name.to_owned(),
        state: ProbeState::Attached,
        mechanism: "raw_tracepoint".to_owned(),
        reason: None,
        missed_runs,
        runs: None,
    }
}

fn kprobe(name: &str) -> Probe {
    Probe {
        mechanism: "kprobe".to_owned(),
        ..probe(name, None)
    }
}

fn function_probe(name: &str) -> Probe {
    Probe {
        mechanism: "fentry".to_owned(),
        ..probe(name, Some(0))
    }
}

fn all_probes() -> Vec<Probe> {
    vec![
        probe(probes::IRQ_HANDLER_ENTRY, Some(0)),
        probe(probes::IRQ_HANDLER_EXIT, Some(0)),
        Probe {
            runs: Some(12),
            ..probe(probes::NVME_SQ, Some(1))
        },
        kprobe(probes::NVME_DEV_DISABLE),
        kprobe(probes::NVME_TIMEOUT),
        kprobe(probes::MSI_ENABLE),
        kprobe(probes::MSI_FREE),
        probe(probes::VECTOR_ALLOC, None),
        probe(probes::VECTOR_ALLOC_MANAGED, None),
        Probe {
            mechanism: "kallsyms".to_owned(),
            ..probe(probes::REPEATED_RUNS, None)
        },
        probe(probes::BLOCK_RQ_COMPLETE, Some(0)),
        probe(probes::PLACEMENT, None),
        probe(probes::COMPLETION_TIMES, None),
        function_probe(probes::BIO_ALLOC_BIOSET_ENTRY),
        function_probe(probes::BIO_ALLOC_IRQ_CACHE_SPLICE),
        function_probe(probes::BIO_ALLOC_BIOSET_EXIT),
        function_probe(probes::BIO_PUT),
        function_probe(probes::BIO_KMALLOC),
        function_probe(probes::BLK_RQ_UNMAP_USER),
        Probe {
            mechanism: "preempt_count".to_owned(),
            ..probe(probes::BIO_CONTEXT, None)
        },
    ]
}

/// Nothing was counted, and repeated runs can be told.
fn no_counts() -> RunCounts {
    RunCounts {
        repeated_runs: Some(0),
        ..RunCounts::default()
    }
}

/// A line that counted nothing yet.
fn line(irq: u32, action: &str, kind: LineKind) -> LineCounts {
    LineCounts {
        irq,
        action: action.to_owned(),
        kind,
        controller: None,
        disk: None,
        path: None,
        parent_irq: None,
        counts: no_counts(),
    }
}

fn nvme(irq: u32, action: &str, path: DiskPath, controller: Option<&str>) -> LineCounts {
    LineCounts {
        controller: controller.map(|address| PciAddress(address.to_owned())),
        disk: action.split_once('q').map(|(disk, _)| disk.to_owned()),
        path: Some(path),
        ..line(irq, action, LineKind::Nvme)
    }
}

/// Every kind of line, with counts that agree with each other.
fn lines() -> Vec<LineCounts> {
    let vmd = Some(PciAddress(REMAP.to_owned()));
    vec![
        LineCounts {
            controller: vmd.clone(),
            counts: RunCounts {
                depth0_runs: 100,
                repeated_runs: Some(2),
                inclusive_ns: 90_000_000,
                self_ns: 30_000_000,
                child_runs: 305,
                child_unhandled_runs: 204,
                child_completions: 150,
                ..no_counts()
            },
            ..line(41, "vmd0", LineKind::VmdVector)
        },
        LineCounts {
            controller: vmd.clone(),
            counts: RunCounts {
                depth0_runs: 10,
                inclusive_ns: 1_000_000,
                self_ns: 1_000_000,
                ..no_counts()
            },
            ..line(42, "vmd0", LineKind::VmdVector)
        },
        LineCounts {
            controller: vmd,
            parent_irq: Some(41),
            counts: RunCounts {
                nested_runs: 5,
                unhandled_runs: 4,
                inclusive_ns: 500_000,
                self_ns: 500_000,
                ..no_counts()
            },
            ..line(60, "pcie_port", LineKind::OtherChild)
        },
        LineCounts {
            parent_irq: Some(41),
            counts: RunCounts {
                nested_runs: 200,
                unhandled_runs: 150,
                inclusive_ns: 29_500_000,
                self_ns: 29_500_000,
                completions: 100,
                remote: Remote {
                    same_cache: 10,
                    other_cache: 20,
                    other_node: 30,
                    unknown: 0,
                },
                ..no_counts()
            },
            ..nvme(61, "nvme0q1", DiskPath::VmdRemap, Some(REMAP))
        },
        // Re-sent twice, in 2 ms: neither a hardware interrupt nor a repeated one.
        LineCounts {
            parent_irq: Some(41),
            counts: RunCounts {
                depth0_runs: 2,
                nested_runs: 100,
                unhandled_runs: 50,
                repeated_runs: Some(2),
                inclusive_ns: 32_000_000,
                self_ns: 32_000_000,
                completions: 52,
                ..no_counts()
            },
            ..nvme(62, "nvme0q2", DiskPath::VmdRemap, Some(REMAP))
        },
        LineCounts {
            counts: RunCounts {
                depth0_runs: 1000,
                unhandled_runs: 1,
                repeated_runs: Some(3),
                inclusive_ns: 7_000_000,
                self_ns: 7_000_000,
                completions: 1500,
                remote: Remote {
                    unknown: 7,
                    ..Remote::default()
                },
                ..no_counts()
            },
            ..nvme(70, "nvme1q1", DiskPath::VmdBypass, Some(BYPASS))
        },
        LineCounts {
            counts: RunCounts {
                depth0_runs: 20,
                inclusive_ns: 1,
                self_ns: 1,
                completions: 20,
                ..no_counts()
            },
            ..nvme(80, "nvme2q1", DiskPath::Direct, None)
        },
        // Its disk is gone from the topology.
        LineCounts {
            counts: RunCounts {
                depth0_runs: 7,
                inclusive_ns: 70,
                self_ns: 70,
                completions: 9,
                ..no_counts()
            },
            ..nvme(81, "nvme7q1", DiskPath::VmdBypass, Some(BYPASS))
        },
        LineCounts {
            counts: RunCounts {
                depth0_runs: 30,
                unhandled_runs: 5,
                repeated_runs: Some(1),
                inclusive_ns: 600,
                self_ns: 600,
                ..no_counts()
            },
            ..line(24, "eth0-rx-0", LineKind::Watched)
        },
        LineCounts {
            counts: RunCounts {
                depth0_runs: 12,
                inclusive_ns: 400,
                self_ns: 400,
                ..no_counts()
            },
            ..line(25, "eth0-rx-0", LineKind::Watched)
        },
    ]
}

fn cpus() -> Vec<CpuCounts> {
    vec![
        CpuCounts {
            cpu: 0,
            interrupt_ns: 91_001_071,
            depth0_runs: 400,
            completions_outside: 3,
            ..CpuCounts::default()
        },
        CpuCounts {
            cpu: 1,
            interrupt_ns: 9_000_000,
            depth0_runs: 781,
            completions_outside: 4,
            remote_outside: Remote {
                other_node: 3,
                ..Remote::default()
            },
            unassigned_runs: 5,
            unassigned_completions: 6,
            lost_frames: 7,
            unmatched_exits: 8,
            overflowed_runs: 9,
            unreadable_actions: 10,
            out_of_range_runs: 11,
        },
    ]
}

/// The lines' counts by CPU. Three of the bypass controller's runs came before it was
/// known whose they are.
fn shares() -> Vec<CpuShare> {
    let of = |cpu, owner, counts: [u64; 4]| {
        let [depth0_runs, resent_runs, interrupt_ns, completions] = counts;
        CpuShare {
            cpu,
            owner,
            counts: ShareCounts {
                depth0_runs,
                resent_runs,
                interrupt_ns,
                completions,
            },
        }
    };
    let controller = |address: &str| ShareOwner::Controller(PciAddress(address.to_owned()));
    vec![
        of(0, ShareOwner::Watched, [42, 0, 1_000, 0]),
        of(0, ShareOwner::Direct, [20, 0, 1, 20]),
        of(0, controller(REMAP), [110, 0, 91_000_000, 152]),
        of(0, controller(BYPASS), [228, 0, 70, 500]),
        of(1, ShareOwner::Unassigned, [3, 0, 1_000_000, 15]),
        of(1, controller(REMAP), [2, 2, 2_000_000, 0]),
        of(1, controller(BYPASS), [776, 0, 6_000_000, 1_000]),
    ]
}

/// The rest of the CPUs' 7 is of nobody known.
fn outside() -> Vec<OutsideCompletions> {
    let of = |controller: Option<&str>, disk: &str, count| OutsideCompletions {
        controller: controller.map(|it| PciAddress(it.into())),
        disk: disk.into(),
        count,
    };
    vec![of(Some(REMAP), "nvme0", 4), of(None, "nvme9", 2)]
}

/// Two late commands of a disk behind the VMD, one of them done; one of a disk
/// that is gone; one of nobody knows what.
fn losses() -> Losses {
    let of = |controller: Option<&str>, disk: &str, timeouts, lost_interrupts| DiskLosses {
        controller: controller.map(|address| PciAddress(address.to_owned())),
        disk: disk.to_owned(),
        counts: LossCounts {
            timeouts,
            lost_interrupts,
        },
    };
    Losses {
        disks: vec![of(Some(REMAP), "nvme0", 2, 1), of(None, "nvme9", 1, 0)],
        unassigned: LossCounts {
            timeouts: 1,
            lost_interrupts: 0,
        },
    }
}

fn msi() -> MsiCounts {
    MsiCounts {
        operations: vec![OperationCount {
            controller: PciAddress(REMAP.to_owned()),
            operation: Operation::Enable,
            count: 9,
        }],
        unassigned: 1,
        allocation_failures: 2,
        lost_messages: 3,
    }
}

/// So many times of so many significant bits.
fn times(times: &[(u32, u64)]) -> Times {
    let mut sum = Times::default();
    for (bits, count) in times {
        sum.buckets[(bits - 10) as usize] += count;
        sum.sum_ns += count << (bits - 1);
    }
    sum
}

fn samples() -> Vec<DiskSamples> {
    vec![
        DiskSamples {
            disk: "nvme0".to_owned(),
            controller: Some(PciAddress(REMAP.to_owned())),
            counts: SampleCounts {
                latency: times(&[(10, 1), (17, 2), (18, 3), (30, 1)]),
                handling: times(&[(10, 4), (13, 2)]),
                without_start: 1,
            },
        },
        DiskSamples {
            disk: "nvme2".to_owned(),
            controller: None,
            counts: SampleCounts {
                latency: times(&[(16, 1)]),
                ..SampleCounts::default()
            },
        },
    ]
}

fn other_samples() -> SampleCounts {
    SampleCounts {
        latency: times(&[(20, 1)]),
        handling: times(&[(12, 1)]),
        without_start: 2,
    }
}

fn allocations(set: &str, purpose: BioPurpose) -> BioAllocations {
    BioAllocations {
        set: set.to_owned(),
        purpose,
        ..BioAllocations::default()
    }
}

fn frees(destination: BioDestination, context: BioContext, count: u64) -> BioFrees {
    BioFrees {
        destination,
        context,
        count,
    }
}

/// Every class of bios.
fn bio() -> BioCounts {
    BioCounts {
        regime: BioRegime::OptIn,
        allocations: vec![
            BioAllocations {
                hits_own: 1000,
                hits_splice: 200,
                misses_empty: 30,
                misses_below_threshold: 4,
                misses_reserve: 5,
                with_many_vectors: 60,
                without_flag: 700,
                ambiguous: 1,
                unpaired: 2,
                ..allocations("blkdev_dio_pool", BioPurpose::Block)
            },
            BioAllocations {
                without_cache: 80,
                failed: 3,
                ..allocations("bio-248", BioPurpose::Block)
            },
            BioAllocations {
                hits_own: 90,
                ..allocations("fs_bio_set", BioPurpose::Passthrough)
            },
            BioAllocations {
                hits_own: 50,
                ..allocations("fs_bio_set", BioPurpose::PassthroughPolled)
            },
            BioAllocations {
                without_cache: 6,
                ..allocations("other", BioPurpose::Unknown)
            },
        ],
        kmallocs: 12,
        frees: vec![
            frees(BioDestination::OwnList, BioContext::Task, 100),
            frees(BioDestination::IrqList, BioContext::Hardirq, 1000),
            frees(BioDestination::SlabSoftirq, BioContext::Softirq, 40),
            frees(BioDestination::NotCached, BioContext::Hardirq, 800),
            frees(BioDestination::Kfree, BioContext::Task, 12),
        ],
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        taken_ns: 1,
        counting_since_ns: None,
        detail: Default::default(),
        activity: None,
        host: Host {
            kernel: "6.12.0".to_owned(),
            possible_cpus: 2,
        },
        topology: topology(),
        counters: Counters {
            lines: lines(),
            cpus: cpus(),
            losses: losses(),
            outside: outside(),
            shares: shares(),
            msi: msi(),
            samples: samples(),
            other_samples: other_samples(),
            bio: bio(),
        },
        probes: all_probes(),
    }
}

/// The same host before anything ran.
fn idle_snapshot() -> Snapshot {
    let cpus = (0..2)
        .map(|cpu| CpuCounts {
            cpu,
            ..CpuCounts::default()
        })
        .collect();
    Snapshot {
        counters: Counters {
            cpus,
            ..Counters::default()
        },
        ..snapshot()
    }
}

struct Fixed(Snapshot);

impl SnapshotSource for Fixed {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        Ok(self.0.clone())
    }

    fn attach_pending(&self) {}

    fn topology_changed(&self) {}

    fn cpus_changed(&self) {}
}

fn text(snapshot: &Snapshot) -> String {
    TextEncoder::new()
        .encode_to_string(&families(snapshot, Detail::default()))
        .unwrap()
}

/// The names of all families, every detail exported.
fn names(snapshot: &Snapshot) -> Vec<String> {
    families(snapshot, EVERYTHING)
        .iter()
        .map(|family| family.name().to_owned())
        .collect()
}

fn has(snapshot: &Snapshot, name: &str) -> bool {
    names(snapshot).iter().any(|each| each == name)
}

/// The sum of a counter over all its series; every detail is exported.
fn sum(snapshot: &Snapshot, name: &str) -> f64 {
    let families = families(snapshot, EVERYTHING);
    let family = families.iter().find(|family| family.name() == name);
    let family = family.unwrap_or_else(|| panic!("{name} is missing"));
    family
        .get_metric()
        .iter()
        .map(|metric| metric.get_counter().get_value())
        .sum()
}

/// To accept a change: UPDATE_GOLDEN=1 cargo test -p vmdtrace golden, then
/// promtool check metrics < vmdtrace/src/metrics/golden.txt, and the other.
fn assert_golden(text: &str, file: &str, golden: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics/");
        std::fs::write(format!("{folder}{file}"), text).unwrap();
    }
    assert_eq!(text, golden, "{file} is out of date");
}

#[test]
fn the_text_is_the_golden_text() {
    let text = text(&snapshot());
    assert_golden(&text, "golden.txt", include_str!("golden.txt"));
}

/// The last Snapshot of a server of 12 disks, recorded in the virtual server while
/// each disk was read 2,048 times.
fn captured_server() -> Snapshot {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/recordings/twelve-disks-6.12.vmdtrace"
    );
    let mut reader = Reader::open(file.as_ref()).unwrap();
    let snapshots = std::iter::from_fn(|| reader.next_snapshot().unwrap());
    snapshots.last().unwrap()
}

#[test]
fn the_text_of_a_captured_server_is_the_golden_text() {
    let snapshot = captured_server();
    assert_golden(
        &text(&snapshot),
        "golden_server.txt",
        include_str!("golden_server.txt"),
    );
    // What does not come from the golden text itself: fio did so many reads.
    let taken = sum(&snapshot, "vmdtrace_completions_total")
        + sum(&snapshot, "vmdtrace_completions_outside_handler_total");
    assert_eq!(taken, f64::from(12 * 2048));
    assert_eq!(sum(&snapshot, "vmdtrace_unassigned_runs_total"), 0.0);
}

/// A controller's vectors by themselves: the lines without a disk, exactly as
/// among all lines.
#[test]
fn vectors_alone_are_those_among_all_lines() {
    let vectors = Detail {
        vectors: true,
        ..Detail::default()
    };
    let lines = |detail| -> Vec<String> {
        let text = TextEncoder::new()
            .encode_to_string(&families(&captured_server(), detail))
            .unwrap();
        let lines = text.lines().filter(|it| it.starts_with("vmdtrace_line_"));
        lines.map(str::to_owned).collect()
    };
    let (of_vectors, mut of_all) = (lines(vectors), lines(LINES));
    assert!(of_all.len() > 5 * of_vectors.len());
    of_all.retain(|line| line.contains("action=\"vmd"));
    assert_eq!(of_vectors, of_all);
    // Of the 8 vectors one is for ports, which had nothing to say.
    assert_eq!(of_vectors.len(), 7 * 5);
}

/// A model that is not UTF-8, as read from sysfs.
#[test]
fn bytes_that_are_no_text_become_text() {
    let tree = Tree::unpack(CAPTURED_REMAP);
    let disk = std::fs::read_dir(tree.path("sys/class/nvme")).unwrap();
    let model = disk.flatten().next().unwrap().path().join("model");
    std::fs::write(&model, b"bad \xff\xfe\" disk\n\\").unwrap();
    let snapshot = Snapshot {
        topology: tree.read(),
        ..captured_server()
    };
    let text = text(&snapshot);
    let expected = "model=\"bad \u{fffd}\u{fffd}\\\" disk\\\\n\\\\\"} 1\n";
    assert!(text.contains(expected), "{expected}\n{text}");
}

#[test]
fn the_text_of_every_line_is_the_golden_text() {
    let (of_lines, others): (Vec<_>, Vec<_>) = families(&snapshot(), LINES)
        .into_iter()
        .partition(|family| family.name().starts_with("vmdtrace_line_"));
    let encode = |families: &[MetricFamily]| TextEncoder::new().encode_to_string(families).unwrap();
    let of_lines = encode(&of_lines);
    assert_golden(
        &of_lines,
        "golden_lines.txt",
        include_str!("golden_lines.txt"),
    );
    assert_eq!(
        encode(&others),
        text(&snapshot()),
        "detail changes the sums"
    );
    // Watched lines have families of their own.
    assert!(!of_lines.contains("eth0"), "{of_lines}");
}

#[test]
fn the_text_of_every_disk_is_the_golden_text() {
    let detail = Detail {
        disks: true,
        ..Detail::default()
    };
    let (of_disks, others): (Vec<_>, Vec<_>) =
        families(&snapshot(), detail)
            .into_iter()
            .partition(|family| {
                let by_disk = family.name().starts_with("vmdtrace_disk_");
                (by_disk && family.name() != "vmdtrace_disk_info")
                    || family.name() == "vmdtrace_controller_msi_operations_total"
            });
    let encode = |families: &[MetricFamily]| TextEncoder::new().encode_to_string(families).unwrap();
    let of_disks = encode(&of_disks);
    assert_golden(
        &of_disks,
        "golden_disks.txt",
        include_str!("golden_disks.txt"),
    );
    assert_eq!(
        encode(&others),
        text(&snapshot()),
        "detail changes the sums"
    );
}

#[test]
fn the_text_of_every_cpu_is_the_golden_text() {
    let detail = Detail {
        cpus: true,
        ..Detail::default()
    };
    let (of_cpus, others): (Vec<_>, Vec<_>) = families(&snapshot(), detail)
        .into_iter()
        .partition(|family| family.name().starts_with("vmdtrace_cpu_controller_"));
    let encode = |families: &[MetricFamily]| TextEncoder::new().encode_to_string(families).unwrap();
    assert_golden(
        &encode(&of_cpus),
        "golden_cpus.txt",
        include_str!("golden_cpus.txt"),
    );
    assert_eq!(
        encode(&others),
        text(&snapshot()),
        "detail changes the sums"
    );
}

/// What each CPU does for each controller adds up to what it does, and to what is
/// done for all.
#[test]
fn shares_of_cpus_add_up() {
    let snapshot = snapshot();
    let sum = |name: &str| sum(&snapshot, &format!("vmdtrace_{name}_total"));
    assert_eq!(
        sum("cpu_controller_hardware_interrupts"),
        sum("hardware_interrupts") + sum("watched_hardware_interrupts")
    );
    assert_eq!(
        sum("cpu_controller_completions"),
        sum("completions") + sum("unassigned_completions")
    );
    let families = families(&snapshot, EVERYTHING);
    let by_cpu = |name: &str| {
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap();
        let mut sums = BTreeMap::new();
        for metric in family.get_metric() {
            let cpu = metric.get_label().iter().find(|pair| pair.name() == "cpu");
            let nanoseconds = (metric.get_counter().get_value() * 1e9).round();
            *sums.entry(cpu.unwrap().value().to_owned()).or_insert(0.0) += nanoseconds;
        }
        sums
    };
    assert_eq!(
        by_cpu("vmdtrace_cpu_controller_interrupt_seconds_total"),
        by_cpu("vmdtrace_cpu_interrupt_seconds_total")
    );
}

/// What is told of disks adds up to what is told of their controllers.
#[test]
fn disks_add_up_to_their_controllers() {
    let families = families(&snapshot(), EVERYTHING);
    let by_controller = |name: &str| {
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap();
        let mut sums = BTreeMap::<Vec<String>, (f64, Vec<u64>)>::new();
        for metric in family.get_metric() {
            let labels = metric.get_label().iter();
            let labels = labels.filter(|pair| pair.name() != "disk");
            let key = labels.map(|pair| pair.value().to_owned()).collect();
            let histogram = metric.get_histogram();
            let buckets = histogram.get_bucket().iter();
            let mut counts: Vec<_> = buckets.map(Bucket::cumulative_count).collect();
            counts.push(histogram.get_sample_count());
            let (value, sum) = sums.entry(key).or_default();
            *value += metric.get_counter().get_value() + histogram.get_sample_sum();
            sum.resize(counts.len(), 0);
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums.retain(|_, (value, _)| *value != 0.0);
        sums
    };
    for name in [
        "remote_completions_total",
        "completion_latency_seconds",
        "completion_handling_seconds",
    ] {
        let of_controllers = by_controller(&format!("vmdtrace_{name}"));
        assert!(!of_controllers.is_empty());
        assert_eq!(
            by_controller(&format!("vmdtrace_disk_{name}")),
            of_controllers,
            "{name}"
        );
    }
}

#[test]
fn without_their_probe_there_are_no_places_and_no_times() {
    let without = |name: &str| {
        let mut snapshot = snapshot();
        let probe = snapshot.probes.iter_mut().find(|probe| probe.name == name);
        probe.unwrap().state = ProbeState::Unsupported;
        let missing = |what: &str| !names(&snapshot).iter().any(|name| name.contains(what));
        [
            missing("remote_completions"),
            missing("completion_latency"),
            missing("completion_handling"),
            missing("without_start"),
        ]
    };
    assert_eq!(without(probes::PLACEMENT), [true, false, false, false]);
    assert_eq!(without(probes::COMPLETION_TIMES), [false, true, true, true]);
    assert_eq!(
        without(probes::BLOCK_RQ_COMPLETE),
        [false, false, true, false]
    );
    assert_eq!(without(probes::NVME_SQ), [true; 4]);
    assert_eq!(without(probes::IRQ_HANDLER_EXIT), [true; 4]);
}

#[test]
fn sums_over_all_series_are_sums_over_all_lines() {
    let snapshot = snapshot();
    // vmd0 100 + 10, nvme1 1000, nvme2 20, nvme7 7; none of nvme0's.
    assert_eq!(sum(&snapshot, "vmdtrace_hardware_interrupts_total"), 1137.0);
    assert_eq!(sum(&snapshot, "vmdtrace_handler_repeated_total"), 5.0);
    assert_eq!(sum(&snapshot, "vmdtrace_handler_runs_total"), 1329.0);
    assert_eq!(sum(&snapshot, "vmdtrace_handler_unhandled_total"), 201.0);
    assert_eq!(sum(&snapshot, "vmdtrace_handler_resent_total"), 2.0);
    assert_eq!(sum(&snapshot, "vmdtrace_completions_total"), 1681.0);
    assert_eq!(
        sum(&snapshot, "vmdtrace_completions_outside_handler_total"),
        7.0
    );
    assert_eq!(
        sum(&snapshot, "vmdtrace_controller_other_handler_runs_total"),
        5.0
    );
    assert_eq!(
        sum(&snapshot, "vmdtrace_watched_hardware_interrupts_total"),
        42.0
    );
    assert_eq!(
        sum(&snapshot, "vmdtrace_watched_handler_repeated_total"),
        1.0
    );

    // What ran inside the vectors is what the children count of themselves.
    let children: u64 = snapshot
        .counters
        .lines
        .iter()
        .map(|line| line.counts.child_runs)
        .sum();
    assert_eq!(
        sum(&snapshot, "vmdtrace_line_child_runs_total"),
        children as f64
    );
    let resent = sum(&snapshot, "vmdtrace_handler_resent_total");
    let direct = 1027.0;
    assert_eq!(
        sum(&snapshot, "vmdtrace_handler_runs_total")
            + sum(&snapshot, "vmdtrace_controller_other_handler_runs_total"),
        children as f64 + resent + direct
    );
}

/// Equation 8 of docs/metrics.md, for each series of allocations.
#[test]
fn every_allocation_is_in_one_class() {
    let snapshot = snapshot();
    let of = |metric: &prometheus::proto::Metric| {
        let labels = metric.get_label().iter();
        let wanted = labels.filter(|pair| matches!(pair.name(), "bio_set" | "kind" | "polled"));
        let values: Vec<_> = wanted.map(|pair| pair.value().to_owned()).collect();
        assert_eq!(values.len(), 3, "{values:?}");
        values
    };
    let mut left: BTreeMap<Vec<String>, f64> = BTreeMap::new();
    for family in families(&snapshot, LINES) {
        let sign = match family.name() {
            "vmdtrace_bio_allocations_total" => 1.0,
            "vmdtrace_bio_cache_hits_total"
            | "vmdtrace_bio_cache_misses_total"
            | "vmdtrace_bio_cache_ineligible_total"
            | "vmdtrace_bio_allocations_failed_total"
            | "vmdtrace_bio_allocations_ambiguous_total"
            | "vmdtrace_bio_allocations_unpaired_total" => -1.0,
            _ => continue,
        };
        for metric in family.get_metric() {
            *left.entry(of(metric)).or_default() += sign * metric.get_counter().get_value();
        }
    }
    assert_eq!(left.len(), 5);
    assert!(left.values().all(|left| *left == 0.0), "{left:?}");
    assert_eq!(sum(&snapshot, "vmdtrace_bio_allocations_total"), 2231.0);
    assert_eq!(sum(&snapshot, "vmdtrace_bio_cache_hits_total"), 1340.0);
    assert_eq!(sum(&snapshot, "vmdtrace_bio_frees_total"), 1952.0);
}

#[test]
fn bios_that_nothing_counts_are_absent() {
    let without = |names: &[&str]| {
        let mut snapshot = snapshot();
        for probe in &mut snapshot.probes {
            if names.contains(&probe.name.as_str()) {
                probe.state = ProbeState::Blocked;
            }
        }
        snapshot
    };
    for start_or_end in [
        probes::BIO_ALLOC_BIOSET_ENTRY,
        probes::BIO_ALLOC_BIOSET_EXIT,
    ] {
        let snapshot = without(&[start_or_end]);
        for family in names(&snapshot) {
            let of_allocations = family.starts_with("vmdtrace_bio_alloc")
                || family.starts_with("vmdtrace_bio_cache");
            assert!(!of_allocations, "{family} without {start_or_end}");
        }
        assert!(has(&snapshot, "vmdtrace_bio_frees_total"));
    }
    assert!(!has(
        &without(&[probes::BIO_KMALLOC]),
        "vmdtrace_bio_kmalloc_total"
    ));
    let put_only = without(&[probes::BLK_RQ_UNMAP_USER]);
    assert_eq!(sum(&put_only, "vmdtrace_bio_frees_total"), 1940.0);
    assert!(!text(&put_only).contains("kfree"));
    let neither = without(&[probes::BLK_RQ_UNMAP_USER, probes::BIO_PUT]);
    assert!(!has(&neither, "vmdtrace_bio_frees_total"));
    // Without contexts no series claims to know one.
    let mut blind = without(&[probes::BIO_CONTEXT]);
    blind.counters.bio.frees = vec![frees(BioDestination::Unknown, BioContext::Unknown, 9)];
    let text = text(&blind);
    assert!(
        text.contains(r#"vmdtrace_bio_frees_total{destination="unknown",context="unknown"} 9"#)
            || text
                .contains(r#"vmdtrace_bio_frees_total{context="unknown",destination="unknown"} 9"#)
    );
    assert!(!text.contains(r#"context="task""#));
}

#[test]
fn time_is_counted_once() {
    let snapshot = snapshot();
    let by_line = sum(&snapshot, "vmdtrace_handler_seconds_total")
        + sum(&snapshot, "vmdtrace_watched_handler_seconds_total");
    let by_cpu = sum(&snapshot, "vmdtrace_cpu_interrupt_seconds_total");
    assert_eq!((by_line * 1e9).round(), 100_001_071.0);
    assert_eq!((by_cpu * 1e9).round(), 100_001_071.0);
}

#[test]
fn everything_in_the_topology_is_there_at_zero() {
    let text = text(&idle_snapshot());
    let expect = |series: String| {
        assert!(text.contains(&series), "{series} is missing in {text}");
    };
    for (disk, controller, path) in [
        ("nvme0", REMAP, "vmd-remap"),
        ("nvme1", BYPASS, "vmd-bypass"),
        ("nvme2", "", "direct"),
    ] {
        for name in [
            "hardware_interrupts_total",
            "handler_repeated_total",
            "handler_runs_total",
            "handler_unhandled_total",
            "handler_seconds_total",
            "completions_total",
        ] {
            let series = format!(
                "\nvmdtrace_{name}{{controller=\"{controller}\",disk=\"{disk}\",path=\"{path}\"}} "
            );
            // It has none of its own there, and so no series.
            let of_its_own = ["hardware_interrupts_total", "handler_repeated_total"];
            if path == "vmd-remap" && of_its_own.contains(&name) {
                assert!(!text.contains(&series), "{series}");
            } else {
                expect(series + "0\n");
            }
        }
    }
    for controller in [REMAP, BYPASS] {
        for name in [
            "hardware_interrupts_total",
            "handler_repeated_total",
            "handler_seconds_total",
            "completions_total",
        ] {
            expect(format!(
                "\nvmdtrace_{name}{{controller=\"{controller}\",disk=\"\",path=\"vmd-remap\"}} 0\n"
            ));
        }
        for name in [
            "handler_resent_total",
            "controller_other_handler_runs_total",
            "controller_other_handler_unhandled_total",
        ] {
            expect(format!(
                "\nvmdtrace_{name}{{controller=\"{controller}\"}} 0\n"
            ));
        }
    }
}

#[test]
fn counting_makes_no_new_series() {
    let series = |snapshot: &Snapshot| {
        text(snapshot)
            .lines()
            .filter(|line| !line.starts_with('#'))
            // A disk that is gone and lines that are asked for by name are not
            // in the topology.
            .filter(|line| !line.contains("nvme7") && !line.contains("_watched_"))
            // A set of bios appears with its first allocation, the regime's name
            // with the first that tells it.
            .filter(|line| !line.contains("bio_set=") && !line.contains("regime="))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, _)| series.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(series(&idle_snapshot()), series(&snapshot()));
}

#[test]
fn a_line_whose_disk_is_gone_keeps_its_counts() {
    let before = snapshot();
    let after = Snapshot {
        topology: Topology::default(),
        ..snapshot()
    };
    for name in names(&before)
        .iter()
        .filter(|name| name.ends_with("_total"))
    {
        assert_eq!(sum(&before, name), sum(&after, name), "{name}");
    }
    let series = "\nvmdtrace_completions_total{controller=\"0000:e2:00.5\",disk=\"nvme7\",path=\"vmd-bypass\"} 9\n";
    assert!(text(&after).contains(series));
}

#[test]
fn losses_are_told_by_controller_and_on_request_by_disk() {
    let snapshot = snapshot();
    let text = TextEncoder::new()
        .encode_to_string(&families(&snapshot, EVERYTHING))
        .unwrap();
    for expected in [
        r#"vmdtrace_timeouts_total{controller=""} 1"#,
        r#"vmdtrace_timeouts_total{controller="0000:97:00.5"} 2"#,
        r#"vmdtrace_timeouts_total{controller="0000:e2:00.5"} 0"#,
        r#"vmdtrace_lost_interrupts_total{controller="0000:97:00.5"} 1"#,
        r#"vmdtrace_disk_timeouts_total{controller="0000:97:00.5",disk="nvme0"} 2"#,
        r#"vmdtrace_disk_timeouts_total{controller="0000:e2:00.5",disk="nvme1"} 0"#,
        r#"vmdtrace_disk_lost_interrupts_total{controller="0000:97:00.5",disk="nvme0"} 1"#,
        "vmdtrace_unassigned_timeouts_total 1",
        "vmdtrace_unassigned_lost_interrupts_total 0",
    ] {
        assert!(text.contains(&format!("\n{expected}\n")), "{expected}");
    }
    let by_default = self::text(&snapshot);
    assert!(!by_default.contains("vmdtrace_disk_timeouts_total"));
}

#[test]
fn lost_interrupts_need_every_hook_that_tells_them() {
    assert!(has(&snapshot(), "vmdtrace_lost_interrupts_total"));
    for (missing, timeouts) in [
        (probes::NVME_TIMEOUT, false),
        (probes::NVME_DEV_DISABLE, true),
        (probes::NVME_SQ, true),
        (probes::IRQ_HANDLER_ENTRY, true),
    ] {
        let mut snapshot = snapshot();
        for probe in &mut snapshot.probes {
            if probe.name == missing {
                probe.state = ProbeState::Blocked;
            }
        }
        assert_eq!(
            has(&snapshot, "vmdtrace_timeouts_total"),
            timeouts,
            "{missing}"
        );
        assert!(
            !has(&snapshot, "vmdtrace_lost_interrupts_total"),
            "{missing}"
        );
    }
}

#[test]
fn operations_that_no_probe_counts_are_absent() {
    let text = TextEncoder::new()
        .encode_to_string(&families(&snapshot(), EVERYTHING))
        .unwrap();
    for expected in [
        r#"vmdtrace_msi_operations_total{operation="enable"} 9"#,
        r#"vmdtrace_controller_msi_operations_total{controller="0000:97:00.5",operation="enable"} 9"#,
        r#"vmdtrace_controller_msi_operations_total{controller="0000:e2:00.5",operation="free"} 0"#,
        "vmdtrace_unassigned_msi_operations_total 1",
        "vmdtrace_msi_messages_lost_total 3",
        "vmdtrace_vector_allocation_failures_total 2",
    ] {
        assert!(text.contains(&format!("\n{expected}\n")), "{expected}");
    }
    assert!(!text.contains("startup") && !text.contains("remap-on"));
}

#[test]
fn unknown_repeats_are_absent() {
    let families = [
        "vmdtrace_handler_repeated_total",
        "vmdtrace_line_handler_repeated_total",
        "vmdtrace_watched_handler_repeated_total",
    ];
    assert!(families.iter().all(|name| has(&snapshot(), name)));

    let mut snapshot = snapshot();
    snapshot.counters.lines[0].counts.repeated_runs = None;
    assert!(!families.iter().any(|name| has(&snapshot, name)));

    // Nothing ran yet, but it is known that repeats cannot be told.
    snapshot.counters.lines.clear();
    let probe = snapshot
        .probes
        .iter_mut()
        .find(|probe| probe.name == probes::REPEATED_RUNS);
    probe.unwrap().state = ProbeState::Unsupported;
    assert!(!families.iter().any(|name| has(&snapshot, name)));
}

#[test]
fn what_nothing_counts_is_absent() {
    let with_state = |name: &str, state| {
        let mut snapshot = snapshot();
        let probe = snapshot.probes.iter_mut().find(|probe| probe.name == name);
        probe.unwrap().state = state;
        snapshot
    };

    let blocked = with_state(probes::NVME_SQ, ProbeState::Blocked);
    assert!(!has(&blocked, "vmdtrace_completions_total"));
    assert!(!has(&blocked, "vmdtrace_line_completions_total"));
    assert!(!has(&blocked, "vmdtrace_completions_outside_handler_total"));
    assert!(!has(&blocked, "vmdtrace_unassigned_completions_total"));
    assert!(has(&blocked, "vmdtrace_handler_runs_total"));

    // No NVMe driver is loaded: nothing completes, and 0 is the truth.
    let waiting = with_state(probes::NVME_SQ, ProbeState::NotApplicable);
    assert!(has(&waiting, "vmdtrace_completions_total"));

    for probe in [probes::IRQ_HANDLER_ENTRY, probes::IRQ_HANDLER_EXIT] {
        let broken = with_state(probe, ProbeState::Broken);
        assert!(broken.interrupt_accounting().unwrap_err().contains(probe));
        let counters = names(&broken)
            .into_iter()
            .filter(|name| name.ends_with("_total"))
            // These have hooks of their own.
            .filter(|name| {
                !["timeouts", "msi_", "vector_allocation", "vmdtrace_bio_"]
                    .iter()
                    .any(|it| name.contains(it))
            });
        assert_eq!(
            counters.collect::<Vec<_>>(),
            ["vmdtrace_probe_missed_total", "vmdtrace_probe_runs_total"]
        );
    }
}

#[test]
fn without_clocks_there_are_no_seconds() {
    let mut snapshot = snapshot();
    let state = ProbeState::NotApplicable;
    for probe in &mut snapshot.probes {
        if probe.name == probes::COMPLETION_TIMES {
            probe.state = state;
        }
    }
    snapshot.probes.push(Probe {
        state,
        ..probe(probes::HANDLER_TIME, None)
    });
    assert!(!names(&snapshot).iter().any(|name| name.contains("seconds")));
    assert!(has(&snapshot, "vmdtrace_handler_runs_total"));
    assert!(has(
        &snapshot,
        "vmdtrace_cpu_controller_hardware_interrupts_total"
    ));
}

/// The largest server there is must not flood a Prometheus.
#[test]
fn a_large_server_has_under_two_thousand_series() {
    let mut large = idle_snapshot();
    large.topology = Topology::default();
    for vmd in 0..8 {
        let address = format!("0000:{vmd}7:00.5");
        large
            .topology
            .controllers
            .push(controller(&address, Mode::Remap));
        for slot in 0..24 {
            let name = format!("nvme{}", vmd * 24 + slot);
            large
                .topology
                .disks
                .push(disk(&name, DiskPath::VmdRemap, Some(&address), "model"));
        }
    }
    large.counters.cpus = (0..256)
        .map(|cpu| CpuCounts {
            cpu,
            ..CpuCounts::default()
        })
        .collect();
    // Every probe there is, each with a count of missed runs.
    large.probes = crate::probes::programs::PROGRAMS
        .iter()
        .map(|program| probe(program.name, Some(0)))
        .collect();
    large.probes.push(probe(probes::REPEATED_RUNS, None));
    // Raw block devices and file systems; each further set and kind is 12 series.
    large.counters.bio.allocations = vec![
        allocations("blkdev_dio_pool", BioPurpose::Block),
        allocations("fs_bio_set", BioPurpose::Block),
    ];
    // All that is scraped, what the process tells of itself too.
    let source: Arc<dyn SnapshotSource> = Arc::new(Fixed(large));
    let series = scrape(&source, Detail::default())
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    // Only in the eBPF programs' process.
    let maps = 1;
    let series = series + maps;
    assert!((1400..2000).contains(&series), "{series} series");
}

#[test]
fn hostile_labels_are_escaped_and_bounded() {
    let text = text(&snapshot());
    assert!(
        text.contains(r#"model="Fast \"P5800X\" \\ 400G""#),
        "{text}"
    );
    assert!(
        text.contains("model=\"line one\\\\nline two\\\\u{1b}[31m\""),
        "{text}"
    );
    assert!(
        text.contains(&format!("model=\"{}…\"", "x".repeat(128))),
        "{text}"
    );
    for line in text.lines() {
        assert!(
            line.starts_with("vmdtrace_") || line.starts_with("# "),
            "{line:?}"
        );
    }
}

#[test]
fn names_follow_the_conventions() {
    for family in families(&snapshot(), EVERYTHING) {
        let name = family.name();
        assert!(name.starts_with("vmdtrace_"), "{name}");
        assert!(family.help().ends_with('.'), "{name}: {}", family.help());
        let is_counter = family.get_field_type() == prometheus::proto::MetricType::COUNTER;
        assert_eq!(name.ends_with("_total"), is_counter, "{name}");
    }
}

mod any_lines {

    use proptest::prelude::*;

    use super::*;

    fn any_path() -> impl Strategy<Value = Option<DiskPath>> {
        proptest::option::of(prop_oneof![
            Just(DiskPath::VmdRemap),
            Just(DiskPath::VmdBypass),
            Just(DiskPath::VmdUnknown),
            Just(DiskPath::Direct),
        ])
    }

    fn any_kind() -> impl Strategy<Value = LineKind> {
        prop_oneof![
            Just(LineKind::VmdVector),
            Just(LineKind::Nvme),
            Just(LineKind::OtherChild),
            Just(LineKind::Watched),
        ]
    }

    prop_compose! {
        /// A line of any kind, known or not, on few disks so that they meet.
        fn any_line()(
            kind in any_kind(),
            irq in 1..4u32,
            action in ".{0,4}",
            controller in proptest::option::of(prop_oneof![Just(REMAP), Just(BYPASS)]),
            disk in proptest::option::of("nvme[0-3]"),
            path in any_path(),
            counts in proptest::array::uniform7(0..1u64 << 32),
        ) -> LineCounts {
            let [
                depth0_runs,
                nested_runs,
                unhandled_runs,
                repeated_runs,
                self_ns,
                completions,
                child_runs,
            ] = counts;
            LineCounts {
                controller: controller.map(|address| PciAddress(address.to_owned())),
                disk,
                // The controller's own vectors have no path of their own.
                path: path.filter(|_| kind == LineKind::Nvme),
                counts: RunCounts {
                    depth0_runs,
                    nested_runs,
                    unhandled_runs,
                    repeated_runs: Some(repeated_runs),
                    self_ns,
                    completions,
                    child_runs,
                    ..no_counts()
                },
                ..line(irq, &action, kind)
            }
        }
    }

    /// The sums of counters by (controller, disk). What is 0 is left out: a
    /// disk has its series before its lines have theirs.
    fn by_disk(snapshot: &Snapshot, names: &[impl AsRef<str>]) -> BTreeMap<[String; 2], f64> {
        let mut sums = BTreeMap::new();
        for family in families(snapshot, EVERYTHING) {
            if !names.iter().any(|name| name.as_ref() == family.name()) {
                continue;
            }
            for metric in family.get_metric() {
                let label = |name: &str| {
                    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
                    pair.map_or("", |pair| pair.value()).to_owned()
                };
                *sums
                    .entry([label("controller"), label("disk")])
                    .or_default() += metric.get_counter().get_value();
            }
        }
        sums.retain(|_, sum| *sum != 0.0);
        sums
    }

    proptest! {
        /// Whatever the lines are, every series is there once and nothing is
        /// lost or counted twice.
        #[test]
        fn are_counted_once(lines in proptest::collection::vec(any_line(), 0..24)) {
            let counters = Counters { lines, cpus: cpus(), bio: bio(), ..Counters::default() };
            let snapshot = Snapshot { counters, ..snapshot() };
            let text = TextEncoder::new().encode_to_string(&families(&snapshot, EVERYTHING)).unwrap();
            let mut series: Vec<_> = text
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| line.rsplit_once(' ').unwrap().0)
                .collect();
            let count = series.len();
            series.sort_unstable();
            series.dedup();
            prop_assert_eq!(series.len(), count);

            let total = |kinds: &[LineKind], value: fn(&LineCounts) -> u64| -> f64 {
                let lines = snapshot.counters.lines.iter();
                lines.filter(|line| kinds.contains(&line.kind)).map(value).sum::<u64>() as f64
            };
            use LineKind::{Nvme, OtherChild, VmdVector, Watched};
            let all = |family: &str| sum(&snapshot, &format!("vmdtrace_{family}"));
            prop_assert_eq!(
                all("hardware_interrupts_total"),
                total(&[VmdVector, Nvme], LineCounts::hardware_interrupts)
            );
            prop_assert_eq!(all("handler_runs_total"), total(&[Nvme], LineCounts::runs));
            prop_assert_eq!(
                all("controller_other_handler_runs_total"),
                total(&[OtherChild], LineCounts::runs)
            );
            let resent = total(&[Nvme], LineCounts::resent_runs);
            prop_assert_eq!(all("handler_resent_total"), resent);
            if snapshot.counters.lines.iter().any(|line| line.kind == Nvme) {
                prop_assert_eq!(all("line_handler_resent_total"), resent);
            }
            prop_assert_eq!(
                all("handler_unhandled_total")
                    + all("controller_other_handler_unhandled_total"),
                total(&[Nvme, OtherChild], |line| line.counts.unhandled_runs)
            );
            prop_assert_eq!(
                all("completions_total"),
                total(&[VmdVector, Nvme, OtherChild], |line| line.counts.completions)
            );
            let nanoseconds = all("handler_seconds_total") * 1e9;
            let expected = total(&[VmdVector, Nvme, OtherChild], |line| line.counts.self_ns);
            prop_assert!((nanoseconds - expected).abs() < 1.0, "{} {}", nanoseconds, expected);

            // Every line by itself adds up to the sums per disk.
            let per_line = |family| by_disk(&snapshot, &[&format!("vmdtrace_line_{family}")]);
            let per_disk = |families: &[&str]| {
                let names: Vec<_> = families.iter().map(|name| format!("vmdtrace_{name}")).collect();
                by_disk(&snapshot, &names)
            };
            for family in [
                "hardware_interrupts_total",
                "handler_repeated_total",
                "completions_total",
            ] {
                prop_assert_eq!(per_line(family), per_disk(&[family]), "{}", family);
            }
            prop_assert_eq!(
                per_line("handler_runs_total"),
                per_disk(&["handler_runs_total", "controller_other_handler_runs_total"])
            );
            prop_assert_eq!(
                per_line("handler_unhandled_total"),
                per_disk(&["handler_unhandled_total", "controller_other_handler_unhandled_total"])
            );
            let (of_lines, of_disks) =
                (per_line("handler_seconds_total"), per_disk(&["handler_seconds_total"]));
            prop_assert_eq!(
                of_lines.keys().collect::<Vec<_>>(),
                of_disks.keys().collect::<Vec<_>>()
            );
            for (key, seconds) in of_lines {
                let nanoseconds = (seconds - of_disks[&key]) * 1e9;
                prop_assert!(nanoseconds.abs() < 1.0, "{:?} {}", key, nanoseconds);
            }
            if snapshot.counters.lines.iter().any(|line| line.kind == VmdVector) {
                prop_assert_eq!(
                    all("line_child_runs_total"),
                    total(&[VmdVector], |line| line.counts.child_runs)
                );
            }
            if snapshot.counters.lines.iter().any(|line| line.kind == Watched) {
                prop_assert_eq!(
                    all("watched_hardware_interrupts_total"),
                    total(&[Watched], LineCounts::hardware_interrupts)
                );
            }
        }
    }
}

/// docs/metrics.md describes what is served, no more and no less.
mod documentation {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use prometheus::core::Collector as _;
    use prometheus::proto::MetricType;

    use super::*;

    const TEXT: &str = include_str!("../../../docs/metrics.md");

    /// Type and labels by family.
    type Described = BTreeMap<String, (String, Vec<String>)>;

    fn served() -> Described {
        let mut described = Described::new();
        for family in SnapshotCollector::new(Arc::new(Fixed(snapshot())), EVERYTHING).collect() {
            let kind = match family.get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::GAUGE => "gauge",
                MetricType::HISTOGRAM => "histogram",
                other => panic!("{}: no word for {other:?}", family.name()),
            };
            for metric in family.get_metric() {
                let labels = metric.get_label().iter();
                let labels: Vec<_> = labels.map(|pair| pair.name().to_owned()).collect();
                described.insert(family.name().to_owned(), (kind.to_owned(), labels));
            }
        }
        // Only the eBPF programs' process has maps.
        described.insert(
            "vmdtrace_map_memory_bytes".to_owned(),
            ("gauge".to_owned(), Vec::new()),
        );
        described
    }

    /// The rows of the document's tables whose first cell is a family.
    fn documented() -> Described {
        let mut described = Described::new();
        for row in TEXT.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let ["", name, kind, unit, labels, meaning, sum, ""] = cells[..] else {
                panic!("not six cells: {row}");
            };
            for cell in [unit, meaning, sum] {
                assert!(!cell.is_empty(), "an empty cell: {row}");
            }
            let labels = labels.split(", ").filter(|label| *label != "none");
            let labels = labels.map(|label| label.trim_matches('`').to_owned());
            let family = (kind.to_owned(), labels.collect());
            let twice = described.insert(name.trim_matches('`').to_owned(), family);
            assert_eq!(twice, None, "{name} is described twice");
        }
        described
    }

    #[test]
    fn describes_every_family_that_is_served() {
        let served = served();
        for golden in [include_str!("golden.txt"), include_str!("golden_lines.txt")] {
            let types = golden
                .lines()
                .filter_map(|line| line.strip_prefix("# TYPE "));
            let names: Vec<_> = types.filter_map(|line| line.split(' ').next()).collect();
            assert!(names.len() >= 7, "{names:?}");
            for name in names {
                assert!(served.contains_key(name), "{name} is not served");
            }
        }
        assert_eq!(documented(), served);
    }

    #[test]
    fn names_only_families_there_are() {
        let served = served();
        let words = TEXT.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(|word| word.starts_with("vmdtrace_")) {
            assert!(served.contains_key(word), "docs/metrics.md names {word}");
        }
    }
}
