//! Made-up servers, each with one known fault or just short of one, against all
//! explanations.

use std::fmt::Write as _;

use vmdtrace_common::msi::Operation;

use super::matrix::{documented, supported, work};
use super::picture::Picture;
use super::scene::Scene;
use super::thresholds::Thresholds;
use super::{Diagnosis, Kind, Verdict};
use crate::host::topology::{Mode, NumaNode, PciAddress};
use crate::snapshot::bio::{
    BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime,
};
use crate::snapshot::window::{Change, Window};
use crate::snapshot::{
    Detail, DiskLosses, LineKind, LossCounts, OperationCount, Probe, ProbeState, probes,
};

/// A made-up server, and what has to be supported, and nothing else.
struct Injected {
    name: &'static str,
    causes: &'static [&'static str],
    window: Window,
}

fn injected(
    name: &'static str,
    causes: &'static [&'static str],
    scene: &Scene,
    change: impl FnOnce(&mut Window),
) -> Injected {
    let mut window = scene.window();
    change(&mut window);
    Injected {
        name,
        causes,
        window,
    }
}

pub(super) fn of(window: &Window) -> Diagnosis {
    let thresholds = Thresholds::default();
    Diagnosis::of(Picture::of(window, &thresholds), &thresholds)
}

pub(super) fn remap() -> Scene {
    Scene {
        mode: Mode::Remap,
        ..Scene::default()
    }
}

fn controller(window: &Window) -> PciAddress {
    window.topology.controllers[0].address.clone()
}

/// Time-outs of a disk, and those of them whose interrupt did not come.
pub(super) fn loses(window: &mut Window, disk: u32, timeouts: u64, lost_interrupts: u64) {
    window.counted.timeouts = true;
    window.counted.lost_interrupts = true;
    let losses = DiskLosses {
        controller: Some(controller(window)),
        disk: format!("nvme{disk}"),
        counts: LossCounts {
            timeouts,
            lost_interrupts,
        },
    };
    window.counters.losses.disks.push(losses);
}

/// Operations on the controller's children, by the probes that count them.
pub(super) fn operates(window: &mut Window, operations: &[(Operation, u64)]) {
    for operation in [Operation::Allocate, Operation::Enable, Operation::Startup] {
        window.probes.push(Probe {
            name: probes::of_operation(operation).to_owned(),
            state: ProbeState::Attached,
            mechanism: "kprobe".to_owned(),
            reason: None,
            missed_runs: None,
            runs: None,
        });
    }
    let controller = controller(window);
    let count = |&(operation, count)| OperationCount {
        controller: controller.clone(),
        operation,
        count,
    };
    window.counters.msi.operations = operations.iter().map(count).collect();
}

/// Fills in which CPU submits to which queue, and with `parents` which vector a
/// line is on.
pub(super) fn with_children(window: &mut Window, parents: bool) {
    let vectors = window.topology.controllers[0].vectors.len() as u32 - 1;
    for disk in &mut window.topology.disks {
        for (queue, line) in disk.queues.iter_mut().zip(&mut disk.lines) {
            queue.submit_cpus = (queue.id > 0).then(|| (queue.id - 1).to_string());
            // The first vector is for ports.
            line.parent_irq = parents.then_some(25 + queue.id % vectors);
        }
    }
}

/// A queue whose handler was never called: its line, and how often its vector
/// was interrupted.
pub(super) fn silent(window: &mut Window, action: &str, interrupts: u64) {
    let lines = &mut window.counters.lines;
    let line = lines.iter_mut().find(|it| it.action == action).unwrap();
    line.counts.nested_runs = 0;
    line.counts.completions = 0;
    let irq = line.irq;
    let disks = &window.topology.disks;
    let mut known = disks.iter().flat_map(|disk| &disk.lines);
    let parent = known.find(|it| it.irq == irq).unwrap().parent_irq;
    for line in &mut window.counters.lines {
        if line.kind == LineKind::VmdVector && parent.is_none_or(|it| line.irq == it) {
            line.counts.depth0_runs = interrupts;
        }
    }
}

/// Chips of the disks' lines, where the IOMMU remaps interrupts or not.
pub(super) fn chips(window: &mut Window, chip: &str, remapping: bool) {
    window.topology.machine.interrupt_remapping = Some(remapping);
    for line in window
        .topology
        .disks
        .iter_mut()
        .flat_map(|disk| &mut disk.lines)
    {
        line.chip = Some(chip.to_owned());
    }
}

/// Failed searches for a vector while the last disk came with so many queues.
pub(super) fn searches(window: &mut Window, failures: u64, queues: u32) {
    window.counted.allocation_failures = true;
    window.counters.msi.allocation_failures = failures;
    window.changes.push(Change::DiskCame("nvme11".to_owned()));
    let disk = window.topology.disks.last_mut().unwrap();
    disk.queues.truncate(queues as usize + 1);
}

fn own_time(window: &mut Window, device: u16, ns_per_child: u64) {
    window.topology.controllers[0].device_id = Some(device);
    for line in &mut window.counters.lines {
        line.counts.self_ns = line.counts.child_runs * ns_per_child;
    }
}

fn other_node(window: &mut Window, last: u32) {
    let node = |id, cpus| NumaNode { id, cpus };
    window.topology.machine.numa_nodes = vec![
        node(0, format!("{}-63", last + 1)),
        node(1, format!("0-{last}")),
    ];
}

fn in_flight(window: &mut Window, busy_ms: u64) {
    let disk = &mut window.activity.as_mut().unwrap().disks[11];
    disk.in_flight = 3;
    disk.busy_ms = busy_ms;
}

fn bios(window: &mut Window, hits: u64, others: u64, softirq: u64) {
    window.counted.bio.allocations = true;
    window.counted.bio.frees = true;
    window.counted.bio.contexts = true;
    let bio = &mut window.counters.bio;
    bio.regime = BioRegime::OptIn;
    bio.allocations = vec![BioAllocations {
        set: "blkdev_dio_pool".to_owned(),
        purpose: BioPurpose::Block,
        hits_own: hits,
        misses_empty: 1000 - hits,
        without_flag: others,
        ..BioAllocations::default()
    }];
    let free = |destination, context, count| BioFrees {
        destination,
        context,
        count,
    };
    bio.frees = vec![
        free(BioDestination::SlabSoftirq, BioContext::Softirq, softirq),
        free(BioDestination::IrqList, BioContext::Hardirq, 1000 - softirq),
    ];
}

fn all() -> Vec<Injected> {
    let bypass = Scene::default();
    let eleven = Scene {
        busy_disks: 11,
        ..Scene::default()
    };
    let shared = |nothing_per_completion| Scene {
        vectors: 31,
        nothing_per_completion,
        ..remap()
    };
    let isolated = |queues| Scene {
        isolated: Some("8-63"),
        queues,
        serving: (0..8).collect(),
        iops_per_disk: 50_000,
        elsewhere: work(0.5, 0.2, 0.0),
        ..Scene::default()
    };
    let guest = |virtual_machine| Scene {
        virtual_machine,
        ..remap()
    };
    let xen = |window: &mut Window| {
        window.topology.machine.hypervisor = Some("xen".to_owned());
    };
    let option = |option: &'static str| {
        move |window: &mut Window| window.topology.machine.options = vec![option.to_owned()]
    };
    vec![
        injected("one interrupt lost", &["lost-interrupts"], &bypass, |it| {
            loses(it, 3, 1, 1);
        }),
        injected("no interrupt lost", &[], &bypass, |it| loses(it, 3, 0, 0)),
        injected(
            "a command not done in time",
            &["stalled-disk"],
            &bypass,
            |it| {
                loses(it, 3, 1, 0);
            },
        ),
        injected(
            "a disk that ends none of its requests",
            &["stalled-disk"],
            &eleven,
            |it| {
                in_flight(it, 5000);
            },
        ),
        injected(
            "requests in flight for less than half of the window",
            &[],
            &eleven,
            |it| {
                in_flight(it, 4900);
            },
        ),
        injected(
            "a queue's interrupt not enabled, to 6.16",
            &["child-never-enabled"],
            &remap(),
            |it| {
                with_children(it, true);
                silent(it, "nvme3q5", 100);
                loses(it, 3, 2, 2);
            },
        ),
        injected(
            "the same, its vector interrupted 99 times",
            &[],
            &remap(),
            |it| {
                with_children(it, true);
                silent(it, "nvme3q5", 99);
            },
        ),
        injected("the same, of a CPU that is offline", &[], &remap(), |it| {
            with_children(it, true);
            silent(it, "nvme3q5", 5000);
            it.topology.machine.online_cpus = Some("0-3,5-63".to_owned());
        }),
        injected(
            "a queue's interrupt not enabled, from 6.17",
            &["child-never-enabled"],
            &remap(),
            |it| {
                with_children(it, false);
                silent(it, "nvme3q5", 100);
                loses(it, 3, 2, 2);
            },
        ),
        injected(
            "the same, each vector interrupted 99 times: as lost as they can be told",
            &["lost-interrupts"],
            &remap(),
            |it| {
                with_children(it, false);
                silent(it, "nvme3q5", 99);
                loses(it, 3, 2, 2);
            },
        ),
        injected(
            "26 interrupts allocated and none enabled",
            &["child-never-enabled"],
            &remap(),
            |it| {
                it.detail = Detail::Sums;
                operates(it, &[(Operation::Allocate, 26), (Operation::Compose, 52)]);
            },
        ),
        injected("26 interrupts allocated and enabled", &[], &remap(), |it| {
            it.detail = Detail::Sums;
            operates(it, &[(Operation::Allocate, 26), (Operation::Startup, 26)]);
        }),
        injected("bypass under Xen", &["bypass-under-xen"], &bypass, xen),
        injected("remap under Xen", &["forced-remap"], &remap(), xen),
        injected(
            "bypass with interrupts the IOMMU does not know",
            &["bypass-without-remapping"],
            &bypass,
            |it| chips(it, "PCI-MSI", true),
        ),
        injected(
            "bypass with interrupts the IOMMU remaps",
            &[],
            &bypass,
            |it| {
                chips(it, "IR-PCI-MSI", true);
            },
        ),
        injected("bypass where the IOMMU remaps none", &[], &bypass, |it| {
            chips(it, "PCI-MSI", false);
        }),
        injected(
            "a disk came with 5 queues, searches failed",
            &["vector-exhaustion"],
            &bypass,
            |it| {
                searches(it, 3, 5);
            },
        ),
        injected(
            "a disk came with 64 queues, searches failed",
            &[],
            &bypass,
            |it| {
                searches(it, 3, 64);
            },
        ),
        injected(
            "a disk came with 5 queues, no search failed",
            &[],
            &bypass,
            |it| {
                searches(it, 0, 5);
            },
        ),
        injected(
            "4 runs for nothing per completion",
            &["h5-queues", "runs-for-nothing"],
            &shared(4.01),
            |_| (),
        ),
        injected(
            "3.9 runs for nothing per completion",
            &[],
            &shared(3.9),
            |_| (),
        ),
        injected(
            "7d0b, 800 ns of its own per child",
            &["config-read-per-interrupt"],
            &remap(),
            |it| own_time(it, 0x7d0b, 800),
        ),
        injected("7d0b, 799 ns of its own per child", &[], &remap(), |it| {
            own_time(it, 0x7d0b, 799);
        }),
        injected("28c0, 800 ns of its own per child", &[], &remap(), |it| {
            own_time(it, 0x28c0, 800);
        }),
        injected(
            "81 % of the interrupt time on another node",
            &["numa-remote-interrupts"],
            &bypass,
            |it| {
                other_node(it, 51);
            },
        ),
        injected(
            "80 % of the interrupt time on another node",
            &[],
            &bypass,
            |it| {
                other_node(it, 50);
            },
        ),
        injected(
            "28c0 in a guest, remapping",
            &["forced-remap"],
            &guest(true),
            |_| (),
        ),
        injected("28c0, remapping, no guest", &[], &guest(false), |_| ()),
        injected(
            "threadirqs",
            &["threaded-interrupts"],
            &bypass,
            option("threadirqs"),
        ),
        injected(
            "threads switched off",
            &[],
            &bypass,
            option("nvme.use_threaded_interrupts=0"),
        ),
        injected(
            "49 % of bios hit, half freed in softirqs",
            &["bio-cache-starved"],
            &bypass,
            |it| {
                bios(it, 490, 0, 500);
            },
        ),
        injected(
            "49 % of bios hit, less than half freed in softirqs",
            &[],
            &bypass,
            |it| {
                bios(it, 490, 0, 499);
            },
        ),
        injected("a third of bios eligible", &[], &bypass, |it| {
            bios(it, 1000, 2000, 0);
        }),
        injected(
            "8 queues, 56 of 64 CPUs isolated",
            &[],
            &isolated(8),
            |_| (),
        ),
        injected(
            "7 queues, 56 of 64 CPUs isolated",
            &[],
            &isolated(7),
            |_| (),
        ),
    ]
}

/// Of the hypotheses only what is supported is told.
fn table() -> String {
    let mut text = "| made-up server | supported | possible faults |\n|---|---|---|\n".to_owned();
    for it in all() {
        let diagnosis = of(&it.window);
        let ids = |verdict: Verdict| {
            let findings = diagnosis.findings.iter();
            let found = findings.filter(|it| {
                it.verdict == verdict && (it.kind == Kind::Fault || verdict == Verdict::Supported)
            });
            let ids: Vec<&str> = found.map(|it| it.id).collect();
            ids.join(", ")
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            it.name,
            ids(Verdict::Supported),
            ids(Verdict::Possible)
        );
    }
    text
}

#[test]
fn each_fault_is_named_and_nothing_else() {
    let mut wrong = Vec::new();
    for it in all() {
        let diagnosis = of(&it.window);
        let found = supported(&diagnosis);
        if found != it.causes {
            let findings = diagnosis.supported();
            let why: Vec<&str> = findings.map(|it| it.why.as_str()).collect();
            wrong.push(format!("{}: {found:?}, as {why:?}", it.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every known fault is in it: named where it is, and not where it is just not.
#[test]
fn no_fault_is_left_out() {
    /// Never more than possible.
    const NO_FAULTS: [&str; 2] = ["bio-cache-not-eligible", "queues-shrunk-by-isolation"];
    let all: Vec<Diagnosis> = all().iter().map(|it| of(&it.window)).collect();
    for explanation in super::EXPLANATIONS {
        if explanation.kind != Kind::Fault {
            continue;
        }
        let best = if NO_FAULTS.contains(&explanation.id) {
            Verdict::Possible
        } else {
            Verdict::Supported
        };
        let has = |wanted: Verdict| {
            let mut findings = all.iter().flat_map(|it| &it.findings);
            findings.any(|it| it.id == explanation.id && it.verdict == wanted)
        };
        assert!(has(best), "{} is never {best:?}", explanation.id);
        assert!(has(Verdict::Contradicted), "{}", explanation.id);
        assert!(best == Verdict::Supported || !has(Verdict::Supported));
    }
}

#[test]
fn faults_are_documented() {
    let table = table();
    println!("{table}");
    assert_eq!(
        documented("faults"),
        table,
        "docs/diagnosis.md has another table of faults"
    );
}
