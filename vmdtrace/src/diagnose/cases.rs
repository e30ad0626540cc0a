//! What people reported, as recordings with the right answer. The files are in
//! tests/recordings/cases; `VMDTRACE_WRITE_CASES=1` writes them anew.

use std::path::PathBuf;

use super::matrix::{diagnosis, first_report, full_cpus, supported, verdict};
use super::picture::Picture;
use super::recorded::Recorded;
use super::scene::{Bios, Scene, Work};
use super::thresholds::Thresholds;
use super::{Diagnosis, Verdict};
use crate::host::topology::Mode;
use crate::snapshot::Detail;
use crate::snapshot::recording::{Header, Reader, Writer};

fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join(format!("tests/recordings/cases/{name}.vmdtrace"))
}

fn written(scene: &Scene) -> Vec<u8> {
    let header = Header {
        created_by: "made up".to_owned(),
        boot_unix_ns: 1_700_000_000_000_000_000,
        every_ns: 10_000_000_000,
        detail: Detail::Lines,
        note: None,
    };
    let (first, last) = scene.snapshots();
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    writer.write(&first).unwrap();
    writer.write(&last).unwrap();
    writer.finish(None).unwrap()
}

/// The recording of this name, which is that of `scene`.
fn recorded(name: &str, scene: &Scene) -> Picture {
    let path = path(name);
    if std::env::var_os("VMDTRACE_WRITE_CASES").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, written(scene)).unwrap();
    }
    let recorded = Recorded::read(Reader::open(&path).unwrap()).unwrap();
    assert_eq!(recorded.ending, None);
    assert_eq!(recorded.window, scene.window(), "{}", path.display());
    Picture::of(&recorded.window, &Thresholds::default())
}

fn alone(name: &str, scene: &Scene) -> Diagnosis {
    Diagnosis::of(recorded(name, scene), &Thresholds::default())
}

fn two(slow: (&str, &Scene), fast: (&str, &Scene)) -> Diagnosis {
    let (slow, fast) = (recorded(slow.0, slow.1), recorded(fast.0, fast.1));
    Diagnosis::of_two(fast, slow, &Thresholds::default())
}

/// Four Gen4 disks of one domain: 562k in bypass, 1144k in remap, the serving
/// CPUs idle.
#[test]
fn first_report_with_idle_cpus() {
    let (bypass, remap) = (first_report(Mode::Bypass), first_report(Mode::Remap));
    let diagnosis = two(("first-bypass", &bypass), ("first-remap", &remap));
    assert_eq!(supported(&diagnosis), ["h4-device"]);
    assert_eq!(verdict(&diagnosis, "h1-cpu-time"), Verdict::Contradicted);
    assert_eq!(verdict(&diagnosis, "h2-batching"), Verdict::Contradicted);
    let iops = |picture: &Picture| picture.groups[0].iops.unwrap();
    assert!((iops(&diagnosis.picture) - 562_000.0).abs() < 1000.0);
    assert!((iops(diagnosis.faster.as_ref().unwrap()) - 1_144_000.0).abs() < 1000.0);
    let finding = diagnosis.supported().next().unwrap();
    assert!(
        finding.why.contains("upstream did not determine it"),
        "{}",
        finding.why
    );
    // What can be compared without a patch.
    let remedies: Vec<&str> = finding.remedies.iter().map(|it| it.what).collect();
    assert!(remedies[0].contains("fewer busy disks per VMD domain"));
    assert!(remedies[1].contains("VMD off"));
    // From the slower one alone it is no more than possible.
    let alone = alone("first-bypass", &bypass);
    assert_eq!(supported(&alone), [""; 0]);
    assert_eq!(verdict(&alone, "h4-device"), Verdict::Possible);
}

/// The same rates, and the CPUs full.
#[test]
fn first_report_with_busy_cpus() {
    let busy = Scene {
        disks: 4,
        busy_disks: 4,
        iops_per_disk: 140_500,
        latency_us: 911.0,
        interrupt_ns: 10_000,
        ..full_cpus()
    };
    let diagnosis = alone("first-busy", &busy);
    assert_eq!(supported(&diagnosis), ["h1-cpu-time"]);
    assert_eq!(verdict(&diagnosis, "h4-device"), Verdict::NotMeasured);
}

/// One disk, 1183k against 1171k.
#[test]
fn one_disk_in_both_modes() {
    let one = |mode, iops_per_disk| Scene {
        mode,
        disks: 1,
        busy_disks: 1,
        iops_per_disk,
        latency_us: 54.0,
        nothing_per_completion: 0.02,
        remote: if mode == Mode::Remap { 0.98 } else { 0.0 },
        ..Scene::default()
    };
    let diagnosis = two(
        ("one-remap", &one(Mode::Remap, 1_171_000)),
        ("one-bypass", &one(Mode::Bypass, 1_183_000)),
    );
    assert_eq!(supported(&diagnosis), [""; 0]);
}

/// A virtual machine with every queue's interrupt on CPU 0.
#[test]
fn all_on_cpu_0() {
    let vm = Scene {
        virtual_machine: true,
        disks: 2,
        busy_disks: 2,
        cpus: 8,
        queues: 8,
        serving: vec![0],
        iops_per_disk: 100_000,
        latency_us: 320.0,
        interrupt_ns: 6000,
        remote: 0.87,
        handling_us: 15.0,
        on_serving: Work {
            user: 0.05,
            system: 0.25,
            softirq: 0.06,
        },
        ..Scene::default()
    };
    let diagnosis = alone("vm-cpu0", &vm);
    assert_eq!(supported(&diagnosis), ["h3-placement"]);
    let finding = diagnosis.supported().next().unwrap();
    assert!(finding.why.contains("on CPU 0"), "{}", finding.why);
}

/// 600k IOPS with an interrupt for each completion: coalescing, and its price.
#[test]
fn one_completion_per_interrupt() {
    let scene = Scene {
        disks: 1,
        busy_disks: 1,
        iops_per_disk: 600_000,
        latency_us: 107.0,
        completions_per_interrupt: 1.0,
        interrupt_ns: 5200,
        ..full_cpus()
    };
    let diagnosis = alone("one-per-interrupt", &scene);
    assert_eq!(supported(&diagnosis), ["h1-cpu-time", "h2-batching"]);
    let mut findings = diagnosis.supported();
    let batching = findings.find(|it| it.id == "h2-batching").unwrap();
    let coalescing = batching.remedies[0];
    assert!(coalescing.what.contains("coalescing"));
    assert!(coalescing.price.contains("synchronous request waits"));
}

/// "Cannot be moved" is as it should be in bypass; in remap the controller's
/// vectors can be.
#[test]
fn managed_interrupts() {
    assert_eq!(supported(&alone("managed", &Scene::default())), [""; 0]);
    let pinned = |mode| Scene {
        mode,
        cpus: 8,
        queues: 8,
        vectors: 63,
        serving: vec![3],
        iops_per_disk: 20_000,
        interrupt_ns: 6000,
        nothing_per_completion: 0.1,
        remote: 0.87,
        ..Scene::default()
    };
    for (mode, expected) in [
        (Mode::Bypass, "managed by the kernel and cannot be moved"),
        (Mode::Remap, "vectors of the controller can be moved"),
    ] {
        let diagnosis = diagnosis(&pinned(mode), None);
        assert_eq!(supported(&diagnosis), ["h3-placement"]);
        let finding = diagnosis.supported().next().unwrap();
        assert!(finding.why.contains(expected), "{}", finding.why);
    }
}

/// Fewer queues than CPUs, one CPU full.
#[test]
fn few_queues() {
    let scene = Scene {
        disks: 1,
        busy_disks: 1,
        cpus: 8,
        queues: 1,
        serving: vec![0],
        iops_per_disk: 150_000,
        latency_us: 400.0,
        interrupt_ns: 4000,
        remote: 0.87,
        handling_us: 15.0,
        on_serving: Work {
            user: 0.15,
            system: 0.45,
            softirq: 0.05,
        },
        ..Scene::default()
    };
    assert_eq!(supported(&alone("few-queues", &scene)), ["h5-queues"]);
}

/// A row of zeros for each disk in /proc/interrupts, read as dead.
#[test]
fn zeros_in_remap() {
    let scene = Scene {
        mode: Mode::Remap,
        disks: 4,
        busy_disks: 4,
        ..Scene::default()
    };
    let diagnosis = alone("remap-zeros", &scene);
    assert_eq!(supported(&diagnosis), [""; 0]);
    let notes = diagnosis.picture.notes.join("\n");
    assert!(notes.contains("stay 0 in remap, as they should"), "{notes}");
}

/// Passed-through reads with the cache of bios, 7.21 % faster than without: said,
/// and not more than it is.
#[test]
fn passthrough_with_and_without_the_cache() {
    let scene = |passthrough, iops_per_disk| Scene {
        passthrough: Some(passthrough),
        disks: 1,
        busy_disks: 1,
        iops_per_disk,
        ..Scene::default()
    };
    let (with, without) = (
        scene(Bios::Cache, 1_072_100),
        scene(Bios::Kmalloc, 1_000_000),
    );
    let diagnosis = two(
        ("passthrough-kmalloc", &without),
        ("passthrough-cache", &with),
    );
    assert_eq!(supported(&diagnosis), [""; 0]);
    let of = |diagnosis: &Diagnosis| verdict(diagnosis, "bio-cache-not-eligible");
    assert_eq!(of(&diagnosis), Verdict::Possible);
    let bio = |picture: &Picture| picture.bio.clone().unwrap();
    assert_eq!(bio(&diagnosis.picture).eligible_share, Some(0.0));
    assert_eq!(bio(diagnosis.faster.as_ref().unwrap()).hit_share, Some(1.0));
    let mut findings = diagnosis.findings.iter();
    let finding = findings
        .find(|it| it.id == "bio-cache-not-eligible")
        .unwrap();
    assert!(finding.title.contains("single-digit per cent"));
    let alone = alone("passthrough-cache", &with);
    assert_eq!(of(&alone), Verdict::Contradicted);
    assert_eq!(verdict(&alone, "bio-cache-starved"), Verdict::Contradicted);
    // What is in flight is not known of them.
    assert_eq!(verdict(&alone, "h0-load"), Verdict::NotMeasured);
}

/// Queues for the CPUs that are not isolated alone.
#[test]
fn queues_shrunk_by_isolation() {
    let scene = Scene {
        isolated: Some("8-63"),
        queues: 8,
        serving: (0..8).collect(),
        iops_per_disk: 50_000,
        ..Scene::default()
    };
    let diagnosis = alone("isolated", &scene);
    assert_eq!(supported(&diagnosis), [""; 0]);
    assert_eq!(verdict(&diagnosis, "h5-queues"), Verdict::Contradicted);
    // The same queues without isolation, as full as with it they could be.
    let full = Work {
        user: 0.4,
        system: 0.5,
        softirq: 0.05,
    };
    let busy = |isolated| Scene {
        isolated,
        on_serving: full,
        ..scene.clone()
    };
    let of = |isolated| verdict(&diagnosis_of(&busy(isolated)), "h5-queues");
    assert_eq!(of(None), Verdict::Supported);
    assert_eq!(of(Some("8-63")), Verdict::Contradicted);
}

fn diagnosis_of(scene: &Scene) -> Diagnosis {
    diagnosis(scene, None)
}

#[test]
fn what_is_no_window() {
    let message = |bytes: &[u8]| {
        let reader = Reader::new(bytes).unwrap();
        Recorded::read(reader).unwrap_err().to_string()
    };
    let whole = written(&Scene::default());
    let mut single = Writer::new(Vec::new(), &Header::default()).unwrap();
    single.write(&Scene::default().snapshots().0).unwrap();
    let single = single.finish(None).unwrap();
    assert_eq!(
        message(&single),
        "it has a single snapshot: a diagnosis needs two"
    );
    let empty = Writer::new(Vec::new(), &Header::default()).unwrap();
    let empty = empty.finish(None).unwrap();
    assert_eq!(
        message(&empty),
        "the recording ends before its first snapshot"
    );
    // Whole ones at its ends, sums between them; and no second whole one.
    let (first, last) = Scene::default().snapshots();
    let mut middle = first.clone();
    middle.taken_ns += 4_000_000_000;
    let mixed = |snapshots: &[crate::snapshot::Snapshot]| {
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        for snapshot in snapshots {
            writer.write_whole(snapshot).unwrap();
        }
        let bytes = writer.finish(None).unwrap();
        Recorded::read(Reader::new(&bytes[..]).unwrap()).unwrap()
    };
    let recorded = mixed(&[first.clone(), middle.sums(), last.clone()]);
    assert_eq!(recorded.window, Scene::default().window());
    assert_eq!(recorded.rates.len(), 2);
    for snapshots in [
        [first.clone(), middle.sums(), last.sums()],
        [first.sums(), middle.sums(), last],
    ] {
        let recorded = mixed(&snapshots);
        assert_eq!(recorded.window.detail, Detail::Sums);
        assert_eq!(recorded.window.elapsed_ns, 10_000_000_000);
    }
    // Cut off before the end mark: told, and used.
    let cut = Recorded::read(Reader::new(&whole[..whole.len() - 1]).unwrap()).unwrap();
    assert!(cut.ending.is_some());
    assert_eq!(cut.rates.len(), 1);
    let rate = cut.rates[0].per_second;
    assert!((rate - 3_000_000.0).abs() < 10_000.0, "{rate}");
}
