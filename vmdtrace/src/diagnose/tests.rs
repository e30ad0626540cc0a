//! Nothing is claimed, and nothing breaks, where the numbers make no sense.

use proptest::prelude::*;

use super::matrix::{diagnosis, supported};
use super::picture::Picture;
use super::scene::{Scene, Work};
use super::thresholds::Thresholds;
use super::{Diagnosis, Verdict};
use crate::host::topology::{Mode, Topology};
use crate::snapshot::window::Window;
use crate::snapshot::{Detail, ProbeState};

fn of(window: &Window) -> Diagnosis {
    let thresholds = Thresholds::default();
    Diagnosis::of(Picture::of(window, &thresholds), &thresholds)
}

#[test]
fn nothing_known_nothing_claimed() {
    let mut window = Scene::default().window();
    window.activity = None;
    window.topology = Topology::default();
    window.counters = Default::default();
    let diagnosis = of(&window);
    assert!(diagnosis.findings.is_empty());
    assert!(diagnosis.picture.groups.is_empty());
}

#[test]
fn no_interrupts_are_none_and_not_less() {
    let mut window = Scene::default().window();
    window.counters.lines.clear();
    let interrupts = of(&window).picture.groups[0].interrupts.unwrap();
    assert!(interrupts == 0.0 && interrupts.is_sign_positive());
}

#[test]
fn without_probes_or_the_kernels_counts_little_is_told() {
    let full = super::matrix::full_cpus();
    assert_eq!(supported(&diagnosis(&full, None)), ["h1-cpu-time"]);
    let (first, last) = full.snapshots();
    // No probe.
    let mut ends = [first.clone(), last.clone()];
    for end in &mut ends {
        for probe in &mut end.probes {
            probe.state = ProbeState::Blocked;
        }
    }
    let blind = of(&Window::between(&ends[0], &ends[1]).unwrap());
    for finding in &blind.findings {
        let expected = match finding.id {
            "h0-load"
            | "h5-queues"
            | "h7-iommu"
            | "h9-link"
            | "stalled-disk"
            | "bypass-under-xen"
            | "child-never-enabled"
            | "runs-for-nothing"
            | "queues-shrunk-by-isolation"
            | "forced-remap"
            | "threaded-interrupts"
            | "numa-remote-interrupts"
            | "config-read-per-interrupt" => Verdict::Contradicted,
            _ => Verdict::NotMeasured,
        };
        assert_eq!(finding.verdict, expected, "{finding:#?}");
    }
    let group = &blind.picture.groups[0];
    assert_eq!(group.completions_per_interrupt, None);
    assert_eq!(group.interrupts, None);
    assert!(group.iops.is_some());
    // No counts of the kernel: the rate is that of completions.
    let mut window = Window::between(&first, &last).unwrap();
    window.activity = None;
    let blind = of(&window);
    let group = &blind.picture.groups[0];
    assert!((group.iops.unwrap() - 1_200_000.0).abs() < 1000.0);
    assert_eq!(group.in_flight, None);
    assert!(blind.supported().next().is_none());
    // Sums of a default recording.
    let sums = of(&Window::between(&first.sums(), &last.sums()).unwrap());
    assert!(sums.supported().next().is_none());
    assert_eq!(sums.picture.groups[0].hottest_line, None);
}

#[test]
fn numbers_are_those_of_the_scene() {
    let scene = Scene {
        mode: Mode::Remap,
        vectors: 63,
        nothing_per_completion: 1.5,
        ..Scene::default()
    };
    let picture = super::matrix::picture(&scene);
    let group = &picture.groups[0];
    let close = |value: Option<f64>, expected: f64| {
        let value = value.unwrap();
        assert!(
            (value / expected - 1.0).abs() < 0.01,
            "{value} is not {expected}"
        );
    };
    close(group.iops, 3_000_000.0);
    close(group.latency_us, 85.0);
    // Little.
    close(group.in_flight, 3e6 * 85e-6);
    close(group.in_flight_per_disk(), 21.25);
    close(group.completions_per_interrupt, 2.0);
    close(group.interrupts, 1_500_000.0);
    close(group.nothing_per_completion, 1.5);
    close(group.runs_per_interrupt, 4.0);
    close(group.nothing_share, 0.75);
    close(group.interrupt_ns_per_io, 750.0);
    close(group.completion_us, 84.0);
    close(group.handling_us, 1.0);
    close(group.remote_share, 0.02);
    close(group.far_share, 0.02);
    close(group.sharing_factor, 12.0 * 65.0 / 63.0);
    assert_eq!(group.vectors, Some(63));
    assert_eq!(group.busy_disks, 12);
    let serving = group.serving.as_ref().unwrap();
    // 1.5 million interrupts of 1.5 us on 63 of 64 CPUs, beside the other 27 %.
    close(serving.busy, 0.27 + 2.25 / 63.0);
    close(
        serving.interrupt_part,
        (0.02 + 2.25 / 63.0) / (0.27 + 2.25 / 63.0),
    );
    close(Some(serving.effective_cpus), 63.0);
    close(serving.effective_lines, 63.0);
    assert_eq!(serving.cpus.len(), 63);
    close(serving.others_busy, 0.27);
    // All CPUs, all I/O.
    close(picture.cpu_ns_per_io, (0.27 * 64.0 + 2.25) * 1e9 / 3e6);
    assert_eq!(group.disks[0].read_share, Some(1.0));
    close(group.disks[0].bytes_per_second, 250_000.0 * 4096.0);
}

/// A second controller: what is counted per CPU is no longer one's own, so it
/// is told by where the lines go.
#[test]
fn two_controllers() {
    let scene = Scene {
        mode: Mode::Remap,
        cpus: 16,
        queues: 16,
        serving: vec![2, 3],
        ..Scene::default()
    };
    let mut window = scene.window();
    let alone = Picture::of(&window, &Thresholds::default());
    let mut other = window.topology.controllers[0].clone();
    other.address.0 = "0000:b7:00.5".to_owned();
    let mut line = window.counters.lines[3].clone();
    line.irq = 9000;
    line.controller = Some(other.address.clone());
    window.counters.lines.push(line);
    window.topology.controllers.push(other);
    let picture = Picture::of(&window, &Thresholds::default());
    let serving = |picture: &Picture| picture.groups[0].serving.clone().unwrap();
    assert_eq!(serving(&picture).cpus, [2, 3]);
    let (ours, before) = (serving(&picture), serving(&alone));
    assert!((ours.effective_cpus - before.effective_cpus).abs() < 0.01);
    // Where a vector moved meanwhile, it is not known.
    for vector in 25..60 {
        window
            .changes
            .push(crate::snapshot::window::Change::VectorMoved {
                irq: vector,
                before: None,
                after: None,
            });
    }
    let picture = Picture::of(&window, &Thresholds::default());
    assert_eq!(picture.groups[0].serving, None);
}

#[test]
fn what_is_of_the_host_is_judged_once() {
    let mut window = Scene::default().window();
    let mut other = window.topology.controllers[0].clone();
    other.address.0 = "0000:b7:00.5".to_owned();
    for disk in &mut window.topology.disks[4..] {
        disk.controller = Some(other.address.clone());
    }
    window.topology.controllers.push(other);
    let findings = of(&window).findings;
    let count = |id| findings.iter().filter(|it| it.id == id).count();
    assert_eq!(count("h9-link"), 2);
    assert_eq!(count("threaded-interrupts"), 1);
    assert!(
        findings
            .iter()
            .all(|it| (it.of == "host") == (count(it.id) == 1))
    );
}

#[test]
fn passthrough_is_told() {
    let mut window = Scene::default().window();
    for disk in &mut window.activity.as_mut().unwrap().disks {
        disk.reads = 0;
        disk.read_ms = 0;
    }
    let picture = Picture::of(&window, &Thresholds::default());
    let group = &picture.groups[0];
    assert!((group.iops.unwrap() - 3_000_000.0).abs() < 10_000.0);
    assert_eq!(group.latency_us, None);
    assert_eq!(group.in_flight, None);
    let notes = picture.notes.join("\n");
    assert!(notes.contains("passthrough"), "{notes}");
}

#[test]
fn faster_is_the_one_with_more_per_disk() {
    let fast = Scene::default();
    let slow = Scene {
        iops_per_disk: 100_000,
        ..Scene::default()
    };
    let one_way = diagnosis(&slow, Some(&fast));
    assert_eq!(one_way, diagnosis(&fast, Some(&slow)));
}

#[test]
fn serialises() {
    let diagnosis = diagnosis(&Scene::default(), Some(&Scene::default()));
    let json = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(json["findings"][0]["verdict"], "contradicted");
    assert_eq!(json["picture"]["groups"][0]["mode"], "bypass");
}

prop_compose! {
    fn any_work()(user in 0.0..2.0, system in 0.0..2.0, softirq in 0.0..2.0) -> Work {
        Work { user, system, softirq }
    }
}

prop_compose! {
    fn any_scene()(
        mode in prop_oneof![Just(Mode::Remap), Just(Mode::Bypass), Just(Mode::Unknown)],
        (cpus, disks, queues, vectors) in (1_u32..5, 0_u32..4, 1_u32..4, 1_u32..4),
        busy in 0_u32..5,
        iops_per_disk in prop_oneof![Just(0_u64), 1..1000_u64, Just(1 << 40)],
        latency_us in prop_oneof![Just(0.0), 0.1..1e6],
        completions_per_interrupt in 0.001..1e4,
        interrupt_ns in prop_oneof![Just(0_u64), 1..100_000_u64],
        nothing_per_completion in 0.0..1e3,
        on_serving in any_work(),
        elsewhere in any_work(),
        deep_idle_per_interrupt in 0.0..1e3,
        (speed, width) in (0_u32..40_000, 0_u32..20),
    ) -> Scene {
        Scene {
            mode, cpus, disks, queues, vectors, iops_per_disk, latency_us,
            completions_per_interrupt, interrupt_ns, nothing_per_completion, on_serving,
            elsewhere, deep_idle_per_interrupt,
            busy_disks: busy.min(disks),
            serving: (0..cpus).step_by(2).collect(),
            link: (speed, width),
            ..Scene::default()
        }
    }
}

fn finite(diagnosis: &Diagnosis) {
    for finding in &diagnosis.findings {
        assert!(
            !finding.why.is_empty() && !finding.why.contains("NaN"),
            "{finding:?}"
        );
        for number in &finding.numbers {
            assert!(number.value.is_finite(), "{finding:?}");
        }
        // Whoever is told less is told what would tell more.
        if matches!(finding.verdict, Verdict::Possible | Verdict::NotMeasured) {
            assert!(finding.to_settle.is_some(), "{finding:?}");
        }
        assert!(finding.remedies.is_empty() || finding.verdict <= Verdict::Possible);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn absurd_windows_are_survived(
        one in any_scene(),
        other in any_scene(),
        elapsed in prop_oneof![Just(0_u64), Just(1), Just(u64::MAX), 1..1_000_000_000_000_u64],
        drop in 0_u32..512,
        garbage in any::<u64>(),
    ) {
        let thresholds = Thresholds::default();
        let mut window = one.window();
        window.elapsed_ns = elapsed;
        let flag = |bit: u32| drop >> bit & 1 == 1;
        if flag(0) { window.activity = None; }
        if flag(1) { window.counted.interrupts = false; }
        if flag(2) { window.counted.completions = false; }
        if flag(3) { window.counted.handler_time = false; }
        if flag(4) { window.topology.machine = Default::default(); }
        if flag(5) { window.detail = Detail::Sums; }
        if flag(6) {
            for line in &mut window.counters.lines {
                line.counts = line.counts.combine(&line.counts, |_, _| garbage);
            }
        }
        if flag(7) && let Some(activity) = &mut window.activity {
            activity.ticks_per_second = garbage;
            for disk in &mut activity.disks {
                (disk.reads, disk.writes, disk.read_ms) = (garbage, u64::MAX, u64::MAX);
                (disk.in_flight, disk.written_sectors) = (u64::MAX, garbage);
            }
            for cpu in &mut activity.cpus {
                (cpu.times.idle, cpu.times.softirq) = (u64::MAX, garbage);
            }
        }
        if flag(8) {
            for cpu in &mut window.counters.cpus {
                (cpu.interrupt_ns, cpu.depth0_runs) = (garbage, u64::MAX);
            }
        }
        let picture = Picture::of(&window, &thresholds);
        finite(&Diagnosis::of(picture.clone(), &thresholds));
        let other = Picture::of(&other.window(), &thresholds);
        finite(&Diagnosis::of_two(picture, other, &thresholds));
    }

    /// Without any event nothing is supported but what sysfs says.
    #[test]
    fn idle_windows_claim_nothing(mut scene in any_scene()) {
        scene.busy_disks = 0;
        let diagnosis = diagnosis(&scene, None);
        prop_assert!(diagnosis.supported().all(|finding| ["h9-link", "forced-remap"].contains(&finding.id)));
    }
}
