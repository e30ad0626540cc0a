//! The known faults, each on a made-up server: there, not there, not told.

use super::matrix::{diagnosis, supported, verdict};
use super::picture::Picture;
use super::scene::Scene;
use super::thresholds::Thresholds;
use super::{Diagnosis, Verdict};
use crate::host::topology::{Mode, NumaNode};
use crate::snapshot::bio::{
    BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime,
};
use crate::snapshot::window::Window;

use Verdict::{Contradicted, NotMeasured, Possible, Supported};

fn of(window: &Window) -> Diagnosis {
    let thresholds = Thresholds::default();
    Diagnosis::of(Picture::of(window, &thresholds), &thresholds)
}

fn remap() -> Scene {
    Scene {
        mode: Mode::Remap,
        kernel: "5.10.0-36-amd64",
        ..Scene::default()
    }
}

#[test]
fn a_disk_that_ends_nothing() {
    let scene = Scene {
        busy_disks: 11,
        ..Scene::default()
    };
    let mut window = scene.window();
    assert_eq!(verdict(&of(&window), "stalled-disk"), Contradicted);
    let set = |window: &mut Window, busy_ms| {
        let disk = &mut window.activity.as_mut().unwrap().disks[11];
        disk.in_flight = 3;
        disk.busy_ms = busy_ms;
    };
    set(&mut window, 10_000);
    let diagnosis = of(&window);
    assert_eq!(supported(&diagnosis), ["stalled-disk"]);
    let finding = diagnosis.supported().next().unwrap();
    assert!(
        finding.why.starts_with("nvme11 has 3 in flight"),
        "{}",
        finding.why
    );
    set(&mut window, 5000);
    assert_eq!(verdict(&of(&window), "stalled-disk"), Supported);
    // Sent just before the end.
    set(&mut window, 4900);
    assert_eq!(verdict(&of(&window), "stalled-disk"), Possible);
    // It ends some.
    window.activity.as_mut().unwrap().disks[11].writes = 1;
    assert_eq!(verdict(&of(&window), "stalled-disk"), Contradicted);
    window.activity = None;
    assert_eq!(verdict(&of(&window), "stalled-disk"), NotMeasured);
}

#[test]
fn interrupts_in_threads() {
    for (option, expected) in [
        ("threadirqs", Supported),
        ("nvme.use_threaded_interrupts=1", Supported),
        ("nvme.use_threaded_interrupts=Y", Supported),
        ("nvme.use_threaded_interrupts=0", Contradicted),
        ("nvme.use_threaded_interrupts=N", Contradicted),
        ("isolcpus=3", Contradicted),
    ] {
        let mut window = Scene::default().window();
        window.topology.machine.options = vec![option.to_owned()];
        assert_eq!(
            verdict(&of(&window), "threaded-interrupts"),
            expected,
            "{option}"
        );
        window.topology.machine.options.clear();
        assert_eq!(verdict(&of(&window), "threaded-interrupts"), NotMeasured);
    }
}

#[test]
fn under_xen() {
    let with = |mode, hypervisor: Option<&str>| {
        let mut window = Scene {
            mode,
            ..Scene::default()
        }
        .window();
        window.topology.machine.hypervisor = hypervisor.map(str::to_owned);
        let diagnosis = of(&window);
        (
            verdict(&diagnosis, "bypass-under-xen"),
            verdict(&diagnosis, "forced-remap"),
        )
    };
    assert_eq!(with(Mode::Bypass, Some("xen")), (Supported, Contradicted));
    assert_eq!(with(Mode::Bypass, Some("Xen")), (Supported, Contradicted));
    assert_eq!(
        with(Mode::Bypass, Some("QEMU")),
        (Contradicted, Contradicted)
    );
    assert_eq!(with(Mode::Remap, Some("xen")), (Contradicted, Supported));
    assert_eq!(with(Mode::Bypass, None), (Contradicted, Contradicted));
}

#[test]
fn made_to_remap() {
    let with = |kernel, virtual_machine, device| {
        let scene = Scene {
            kernel,
            virtual_machine,
            ..remap()
        };
        let mut window = scene.window();
        window.topology.controllers[0].device_id = Some(device);
        verdict(&of(&window), "forced-remap")
    };
    // A guest with other addresses.
    assert_eq!(with("6.12.1", true, 0x28c0), Supported);
    assert_eq!(with("5.19.0", true, 0x28c1), Supported);
    assert_eq!(with("5.18.0", true, 0x28c0), Possible);
    // No bypass yet.
    assert_eq!(with("5.12.0", true, 0x28c0), Contradicted);
    // Client parts and the first server part always remap.
    assert_eq!(with("6.12.1", true, 0x9a0b), Contradicted);
    assert_eq!(with("6.12.1", true, 0x201d), Contradicted);
    // Only a changed driver does that.
    assert_eq!(with("6.12.1", false, 0x28c0), Possible);
    // What the driver and the IOMMU say goes before the release.
    let told = |kernel, knows_bypass, remapping| {
        let scene = Scene {
            kernel,
            virtual_machine: true,
            ..remap()
        };
        let mut window = scene.window();
        window.topology.machine.driver_knows_bypass = knows_bypass;
        window.topology.machine.interrupt_remapping = remapping;
        verdict(&of(&window), "forced-remap")
    };
    assert_eq!(told("5.10.0", Some(true), Some(false)), Supported);
    assert_eq!(told("6.12.1", Some(false), None), Contradicted);
    assert_eq!(told("5.18.0", Some(true), Some(true)), Possible);
    assert_eq!(told("5.18.0", Some(true), Some(false)), Supported);
    assert_eq!(told("custom", Some(true), Some(false)), Supported);
    assert_eq!(told("custom", None, Some(false)), Contradicted);
}

#[test]
fn other_node() {
    let node = |id, cpus: &str| NumaNode {
        id,
        cpus: cpus.to_owned(),
    };
    // The controller is on node 0; CPU 0 to `last` are on node 1.
    let with = |last: u32| {
        let mut window = Scene::default().window();
        window.topology.machine.numa_nodes = vec![
            node(0, &format!("{}-63", last + 1)),
            node(1, &format!("0-{last}")),
        ];
        window
    };
    assert_eq!(
        verdict(&of(&with(31)), "numa-remote-interrupts"),
        Contradicted
    );
    // 51 of 64 CPUs are 80 %, 52 are 81.25 %.
    assert_eq!(
        verdict(&of(&with(50)), "numa-remote-interrupts"),
        Contradicted
    );
    assert_eq!(verdict(&of(&with(51)), "numa-remote-interrupts"), Supported);
    let mut unknown = with(51);
    unknown.topology.controllers[0].numa_node = None;
    assert_eq!(
        verdict(&of(&unknown), "numa-remote-interrupts"),
        NotMeasured
    );
    // One node.
    let one = diagnosis(&Scene::default(), None);
    assert_eq!(verdict(&one, "numa-remote-interrupts"), Contradicted);
}

#[test]
fn configuration_reads() {
    let with = |device, ns_per_child: u64| {
        let mut window = remap().window();
        window.topology.controllers[0].device_id = Some(device);
        for line in &mut window.counters.lines {
            line.counts.self_ns = line.counts.child_runs * ns_per_child;
        }
        window
    };
    let of_id = |window: &Window| verdict(&of(window), "config-read-per-interrupt");
    assert_eq!(of_id(&with(0x7d0b, 799)), Contradicted);
    assert_eq!(of_id(&with(0x7d0b, 800)), Supported);
    assert_eq!(of_id(&with(0xad0b, 1500)), Supported);
    assert_eq!(of_id(&with(0x28c0, 1500)), Contradicted);
    let mut untimed = with(0x7d0b, 1500);
    untimed.counted.handler_time = false;
    assert_eq!(of_id(&untimed), NotMeasured);
}

/// A window with so many bios: eligible ones that hit and that miss, ones that
/// are not eligible, and frees in softirqs and elsewhere.
fn bios(regime: BioRegime, hits: u64, misses: u64, others: u64, frees: (u64, u64)) -> Window {
    let mut window = Scene::default().window();
    window.counted.bio.allocations = true;
    window.counted.bio.frees = true;
    window.counted.bio.contexts = true;
    let bio = &mut window.counters.bio;
    bio.regime = regime;
    bio.allocations = vec![BioAllocations {
        set: "blkdev_dio_pool".to_owned(),
        purpose: BioPurpose::Block,
        hits_own: hits / 2,
        hits_splice: hits - hits / 2,
        misses_empty: misses,
        without_flag: others,
        ..BioAllocations::default()
    }];
    let free = |destination, context, count| BioFrees {
        destination,
        context,
        count,
    };
    bio.frees = vec![
        free(BioDestination::SlabSoftirq, BioContext::Softirq, frees.0),
        free(BioDestination::IrqList, BioContext::Hardirq, frees.1),
        free(BioDestination::NotCached, BioContext::Hardirq, others),
    ];
    window
}

#[test]
fn starved_cache() {
    let starved = |hits, softirq| {
        let window = bios(
            BioRegime::OptIn,
            hits,
            1000 - hits,
            0,
            (softirq, 1000 - softirq),
        );
        verdict(&of(&window), "bio-cache-starved")
    };
    assert_eq!(starved(499, 500), Supported);
    assert_eq!(starved(500, 500), Contradicted);
    assert_eq!(starved(499, 499), Possible);
    // Freed in the interrupts of one CPU, whose cache is full of them.
    let overflowing = |hits: u64, overflow: u64| {
        let mut window = bios(BioRegime::OptIn, hits, 1000 - hits, 0, (0, 1000 - overflow));
        window.counters.bio.frees.push(BioFrees {
            destination: BioDestination::SlabOverflow,
            context: BioContext::Hardirq,
            count: overflow,
        });
        verdict(&of(&window), "bio-cache-starved")
    };
    assert_eq!(overflowing(499, 500), Supported);
    assert_eq!(overflowing(500, 500), Contradicted);
    assert_eq!(overflowing(499, 499), Possible);
    // It is never said to be more than it is.
    let diagnosis = of(&bios(BioRegime::DefaultOn, 10, 990, 0, (990, 10)));
    assert_eq!(supported(&diagnosis), ["bio-cache-starved"]);
    let finding = diagnosis.supported().next().unwrap();
    assert!(finding.title.contains("single-digit per cent"));
    assert!(finding.remedies[0].price.contains("never a halving"));
    // It comes after everything else that is supported.
    let mut window = bios(BioRegime::DefaultOn, 10, 990, 0, (990, 10));
    for disk in &mut window.topology.disks {
        disk.link.as_mut().unwrap().current_speed = Some(8000);
    }
    let ids: Vec<&str> = of(&window).supported().map(|it| it.id).collect();
    assert_eq!(ids, ["h9-link", "bio-cache-starved"]);
    let uncounted = of(&Scene::default().window());
    assert_eq!(verdict(&uncounted, "bio-cache-starved"), NotMeasured);
}

#[test]
fn not_eligible() {
    let with = |regime, eligible| {
        let window = bios(regime, eligible, 0, 1000 - eligible, (0, eligible));
        let diagnosis = of(&window);
        assert_eq!(supported(&diagnosis), [""; 0]);
        verdict(&diagnosis, "bio-cache-not-eligible")
    };
    assert_eq!(with(BioRegime::OptIn, 0), Possible);
    assert_eq!(with(BioRegime::OptIn, 499), Possible);
    assert_eq!(with(BioRegime::OptIn, 500), Contradicted);
    assert_eq!(with(BioRegime::DefaultOn, 1000), Contradicted);
    // Nothing eligible is nothing starved.
    let none = of(&bios(BioRegime::None, 0, 0, 1000, (0, 0)));
    assert_eq!(verdict(&none, "bio-cache-starved"), Contradicted);
}
