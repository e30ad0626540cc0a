//! Made-up servers, each with one cause, against all explanations; and both
//! sides of every threshold.

use std::fmt::Write as _;

use super::Diagnosis;
use super::Verdict::{self, Contradicted, NotMeasured, Possible, Supported};
use super::picture::{Group, Picture};
use super::scene::{Scene, Work};
use super::thresholds::{ALL, Thresholds};
use crate::host::topology::Mode;

const IDS: [&str; 10] = [
    "h0-load",
    "h1-cpu-time",
    "h2-batching",
    "h3-placement",
    "h4-device",
    "h5-queues",
    "h6-idle",
    "h7-iommu",
    "h8-kernel",
    "h9-link",
];

/// What is made up: a window, or one and a faster one.
struct Injected {
    name: &'static str,
    /// What has to be supported, and nothing else.
    causes: &'static [&'static str],
    scene: Scene,
    faster: Option<Scene>,
}

pub(super) fn work(user: f64, system: f64, softirq: f64) -> Work {
    Work {
        user,
        system,
        softirq,
    }
}

pub(super) fn picture(scene: &Scene) -> Picture {
    Picture::of(&scene.window(), &Thresholds::default())
}

pub(super) fn diagnosis(scene: &Scene, faster: Option<&Scene>) -> Diagnosis {
    let thresholds = Thresholds::default();
    match faster {
        None => Diagnosis::of(picture(scene), &thresholds),
        Some(faster) => Diagnosis::of_two(picture(scene), picture(faster), &thresholds),
    }
}

pub(super) fn verdict(diagnosis: &Diagnosis, id: &str) -> Verdict {
    let mut findings = diagnosis.findings.iter();
    findings.find(|finding| finding.id == id).unwrap().verdict
}

pub(super) fn supported(diagnosis: &Diagnosis) -> Vec<&'static str> {
    let mut ids: Vec<&str> = diagnosis.supported().map(|finding| finding.id).collect();
    ids.sort_unstable();
    ids
}

/// One disk with a load of fixed depth, as fast as it can.
fn one_disk(mode: Mode) -> Scene {
    Scene {
        mode,
        disks: 1,
        busy_disks: 1,
        iops_per_disk: 1_183_000,
        latency_us: 54.0,
        nothing_per_completion: 0.02,
        remote: if mode == Mode::Remap { 0.98 } else { 0.0 },
        ..Scene::default()
    }
}

/// 12 disks and 6 CPUs, full.
pub(super) fn full_cpus() -> Scene {
    Scene {
        cpus: 6,
        queues: 6,
        serving: (0..6).collect(),
        iops_per_disk: 100_000,
        latency_us: 640.0,
        interrupt_ns: 5000,
        on_serving: work(0.12, 0.24, 0.10),
        ..Scene::default()
    }
}

/// All vectors on one CPU of 16.
fn one_serving_cpu() -> Scene {
    Scene {
        mode: Mode::Remap,
        disks: 4,
        busy_disks: 4,
        cpus: 16,
        queues: 16,
        serving: vec![0],
        iops_per_disk: 150_000,
        latency_us: 420.0,
        completions_per_interrupt: 4.0,
        interrupt_ns: 5000,
        nothing_per_completion: 0.3,
        on_serving: work(0.02, 0.15, 0.05),
        elsewhere: work(0.10, 0.20, 0.01),
        remote: 0.94,
        handling_us: 10.0,
        ..Scene::default()
    }
}

/// Four Gen4 disks of one domain, by the first report: its IOPS, a depth of 128
/// per disk, CPUs that have time.
pub(super) fn first_report(mode: Mode) -> Scene {
    let (iops, latency_us, batch) = match mode {
        Mode::Remap => (286_000, 447.5, 3.0),
        _ => (140_500, 911.0, 1.1),
    };
    let part = iops as f64 / 286_000.0;
    Scene {
        mode,
        disks: 4,
        busy_disks: 4,
        cpus: 192,
        queues: 63,
        serving: (0..63).collect(),
        iops_per_disk: iops,
        latency_us,
        completions_per_interrupt: batch,
        on_serving: work(0.04 * part, 0.08 * part, 0.01 * part),
        elsewhere: work(0.02 * part, 0.02 * part, 0.0),
        nothing_per_completion: 0.9,
        remote: if mode == Mode::Remap { 0.98 } else { 0.67 },
        handling_us: 5.0,
        ..Scene::default()
    }
}

fn injected() -> Vec<Injected> {
    let healthy = Scene::default();
    let half = work(0.05, 0.075, 0.01);
    let shallow = |iops_per_disk, latency_us, deep_idle_per_interrupt, work| Scene {
        iops_per_disk,
        latency_us,
        deep_idle_per_interrupt,
        on_serving: work,
        elsewhere: work,
        ..Scene::default()
    };
    let cause = |name, causes, scene, faster| Injected {
        name,
        causes,
        scene,
        faster,
    };
    vec![
        cause("healthy: 12 disks, bypass", &[], healthy.clone(), None),
        cause(
            "healthy: 12 disks, remap, 127 vectors",
            &[],
            Scene {
                mode: Mode::Remap,
                vectors: 127,
                nothing_per_completion: 2.6,
                remote: 0.98,
                handling_us: 4.0,
                ..healthy.clone()
            },
            None,
        ),
        cause(
            "healthy: one disk alone, bypass",
            &[],
            one_disk(Mode::Bypass),
            None,
        ),
        cause(
            "healthy: one disk alone, remap",
            &[],
            one_disk(Mode::Remap),
            None,
        ),
        cause(
            "healthy: two runs of the same",
            &[],
            Scene {
                iops_per_disk: 248_000,
                ..healthy.clone()
            },
            Some(healthy.clone()),
        ),
        cause(
            "load halved (two windows)",
            &["h0-load"],
            Scene {
                iops_per_disk: 125_000,
                on_serving: half,
                elsewhere: half,
                ..healthy.clone()
            },
            Some(healthy.clone()),
        ),
        cause(
            "interrupts fill all CPUs",
            &["h1-cpu-time"],
            full_cpus(),
            None,
        ),
        cause(
            "an interrupt for each completion, CPUs full",
            &["h1-cpu-time", "h2-batching"],
            Scene {
                completions_per_interrupt: 1.02,
                interrupt_ns: 2600,
                ..full_cpus()
            },
            None,
        ),
        cause(
            "all vectors on one CPU",
            &["h3-placement"],
            one_serving_cpu(),
            None,
        ),
        cause(
            "four disks of one domain slower, CPUs free (two windows)",
            &["h4-device"],
            first_report(Mode::Bypass),
            Some(first_report(Mode::Remap)),
        ),
        cause(
            "12 disks against one of them alone, CPUs free (two windows)",
            &["h4-device"],
            Scene {
                iops_per_disk: 300_000,
                latency_us: 213.0,
                ..healthy.clone()
            },
            Some(Scene {
                disks: 12,
                ..one_disk(Mode::Bypass)
            }),
        ),
        cause(
            "four disks of one domain slower, the slower one's links at 8 of 16 GT/s",
            &["h9-link"],
            Scene {
                link: (8000, 4),
                ..first_report(Mode::Bypass)
            },
            Some(first_report(Mode::Remap)),
        ),
        cause(
            "four disks of one domain slower, the slower one's IOMMU translating",
            &["h7-iommu"],
            Scene {
                iommu: Some("DMA-FQ"),
                ..first_report(Mode::Bypass)
            },
            Some(first_report(Mode::Remap)),
        ),
        cause(
            "four disks of one domain slower, slower window alone",
            &[],
            first_report(Mode::Bypass),
            None,
        ),
        cause(
            "25 queues on each vector",
            &["h5-queues", "runs-for-nothing"],
            Scene {
                mode: Mode::Remap,
                vectors: 31,
                nothing_per_completion: 8.0,
                ..healthy.clone()
            },
            None,
        ),
        cause(
            "8 queues for 64 CPUs, theirs full",
            &["h5-queues"],
            Scene {
                queues: 8,
                serving: (0..8).collect(),
                on_serving: work(0.20, 0.45, 0.05),
                remote: 0.87,
                ..healthy.clone()
            },
            None,
        ),
        cause(
            "CPUs woken from C6 (two windows)",
            &["h6-idle"],
            shallow(38_000, 210.0, 0.9, work(0.02, 0.03, 0.005)),
            Some(shallow(94_000, 85.0, 0.02, work(0.05, 0.075, 0.012))),
        ),
        cause(
            "strict IOMMU domain",
            &["h7-iommu"],
            Scene {
                iommu: Some("DMA"),
                ..healthy.clone()
            },
            None,
        ),
        cause(
            "mitigation switched on (two windows)",
            &["h8-kernel"],
            Scene {
                mitigation: "Mitigation: IBRS",
                iops_per_disk: 200_000,
                latency_us: 106.0,
                on_serving: work(0.10, 0.22, 0.03),
                elsewhere: work(0.10, 0.22, 0.03),
                ..healthy.clone()
            },
            Some(healthy.clone()),
        ),
        cause(
            "links at 8 of 16 GT/s",
            &["h9-link"],
            Scene {
                link: (8000, 4),
                ..healthy
            },
            None,
        ),
    ]
}

fn cell(verdict: Verdict) -> &'static str {
    match verdict {
        Supported => "**S**",
        Possible => "p",
        Contradicted => "-",
        NotMeasured => "?",
    }
}

fn table() -> String {
    let short: Vec<&str> = IDS.iter().map(|id| id.split_once('-').unwrap().0).collect();
    let mut text = format!("| made-up server | {} |\n", short.join(" | "));
    text.push_str("|---|");
    text.push_str(&"---|".repeat(IDS.len()));
    text.push('\n');
    for injected in injected() {
        let diagnosis = diagnosis(&injected.scene, injected.faster.as_ref());
        let cells: Vec<&str> = IDS.iter().map(|id| cell(verdict(&diagnosis, id))).collect();
        let _ = writeln!(text, "| {} | {} |", injected.name, cells.join(" | "));
    }
    text
}

#[test]
fn each_cause_is_named_and_nothing_else() {
    let mut wrong = Vec::new();
    for injected in injected() {
        let diagnosis = diagnosis(&injected.scene, injected.faster.as_ref());
        if supported(&diagnosis) != injected.causes {
            let found: Vec<_> = diagnosis.supported().map(|it| (it.id, &it.why)).collect();
            wrong.push(format!("{}: {found:?}", injected.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What stands in the page between two marks.
pub(super) fn documented(name: &str) -> String {
    let page = include_str!("../../../docs/diagnosis.md");
    let begin = format!("<!-- {name} -->\n");
    let (_, rest) = page.split_once(&begin).unwrap();
    let (table, _) = rest.split_once("<!-- end -->").unwrap();
    table.to_owned()
}

#[test]
fn matrix_is_documented() {
    let table = table();
    println!("{table}");
    assert_eq!(
        documented("matrix"),
        table,
        "docs/diagnosis.md has another matrix"
    );
}

#[test]
fn thresholds_are_documented() {
    let mut table = "| threshold | default | unit | why |\n|---|---|---|---|\n".to_owned();
    for it in ALL {
        let _ = writeln!(
            table,
            "| `{}` | {} | {} | {} |",
            it.name, it.default, it.unit, it.reason
        );
    }
    println!("{table}");
    assert_eq!(
        documented("thresholds"),
        table,
        "docs/diagnosis.md has other thresholds"
    );
}

#[test]
fn every_finding_has_a_chapter() {
    let page = include_str!("../../../docs/diagnosis.md");
    for explanation in super::EXPLANATIONS {
        let heading = format!("\n### {}\n", explanation.id);
        assert!(page.contains(&heading), "{}", explanation.id);
    }
    let all = super::EXPLANATIONS.iter();
    let hypotheses = all.filter(|it| it.kind == super::Kind::Hypothesis);
    let mut ids: Vec<&str> = hypotheses.map(|it| it.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, IDS);
}

/// A picture with one number changed has another verdict.
#[track_caller]
fn turns<const N: usize>(
    id: &str,
    scene: &Scene,
    faster: Option<&Scene>,
    change: impl Fn(&mut Group, &mut Option<u32>, f64),
    expected: [(f64, Verdict); N],
) {
    for (value, verdict) in expected {
        let mut slow = picture(scene);
        change(&mut slow.groups[0], &mut slow.usable_cpus, value);
        let thresholds = Thresholds::default();
        let diagnosis = match faster {
            None => Diagnosis::of(slow, &thresholds),
            Some(faster) => Diagnosis::of_two(slow, picture(faster), &thresholds),
        };
        let finding = diagnosis.findings.iter().find(|it| it.id == id).unwrap();
        assert_eq!(finding.verdict, verdict, "{id} at {value}: {finding:#?}");
    }
}

#[test]
fn load_turns() {
    let healthy = Scene::default();
    let depth = |group: &mut Group, _: &mut Option<u32>, value: f64| {
        for disk in &mut group.disks {
            disk.in_flight = Some(value);
            disk.iops = Some(125_000.0);
        }
    };
    turns(
        "h0-load",
        &healthy,
        None,
        depth,
        [(31.9, Possible), (32.0, Contradicted)],
    );
    // 21.25 in the other window.
    turns(
        "h0-load",
        &healthy,
        Some(&healthy),
        depth,
        [(16.9, Supported), (17.1, Contradicted)],
    );
    let latency = |group: &mut Group, cpus: &mut Option<u32>, value: f64| {
        depth(group, cpus, 10.0);
        group.latency_us = Some(value);
    };
    turns(
        "h0-load",
        &healthy,
        Some(&healthy),
        latency,
        [(93.0, Supported), (94.0, Possible)],
    );
    let unknown = |group: &mut Group, _: &mut Option<u32>, _| group.disks[0].in_flight = None;
    turns("h0-load", &healthy, None, unknown, [(0.0, NotMeasured)]);
}

#[test]
fn cpu_time_turns() {
    let full = full_cpus();
    let busy = |group: &mut Group, _: &mut Option<u32>, value| {
        group.serving.as_mut().unwrap().busy = Some(value);
    };
    turns(
        "h1-cpu-time",
        &full,
        None,
        busy,
        [
            (0.699, Contradicted),
            (0.701, Possible),
            (0.899, Possible),
            (0.9, Supported),
        ],
    );
    let part = |group: &mut Group, _: &mut Option<u32>, value| {
        group.serving.as_mut().unwrap().interrupt_part = Some(value);
    };
    turns(
        "h1-cpu-time",
        &full,
        None,
        part,
        [(0.49, Possible), (0.5, Supported)],
    );
    let nothing = |group: &mut Group, _: &mut Option<u32>, _| group.serving = None;
    turns("h1-cpu-time", &full, None, nothing, [(0.0, NotMeasured)]);
}

#[test]
fn batching_turns() {
    let batch = |group: &mut Group, _: &mut Option<u32>, value| {
        group.completions_per_interrupt = Some(value);
    };
    let full = full_cpus();
    turns(
        "h2-batching",
        &full,
        None,
        batch,
        [(1.5, Supported), (1.51, Contradicted)],
    );
    // A fact, not a cause, while CPUs have time.
    turns(
        "h2-batching",
        &Scene::default(),
        None,
        batch,
        [(1.0, Contradicted)],
    );
    // 2.0 in the other window.
    let slower = Scene {
        iops_per_disk: 90_000,
        ..full.clone()
    };
    turns(
        "h2-batching",
        &slower,
        Some(&full),
        batch,
        [(1.32, Supported), (1.34, Contradicted)],
    );
}

#[test]
fn placement_turns() {
    let pinned = one_serving_cpu();
    let serving = |change: fn(&mut super::Serving, f64)| {
        move |group: &mut Group, _: &mut Option<u32>, value: f64| {
            change(group.serving.as_mut().unwrap(), value);
        }
    };
    turns(
        "h3-placement",
        &pinned,
        None,
        serving(|it, value| it.effective_cpus = value),
        [(8.0, Supported), (8.1, Contradicted)],
    );
    let placement_unknown = |change: fn(&mut crate::diagnose::Serving, f64)| {
        move |group: &mut Group, _: &mut Option<u32>, value: f64| {
            group.remote_share = None;
            change(group.serving.as_mut().unwrap(), value);
        }
    };
    turns(
        "h3-placement",
        &pinned,
        None,
        placement_unknown(|it, value| it.busiest = Some(value)),
        [(0.9, Supported), (0.89, Possible)],
    );
    turns(
        "h3-placement",
        &pinned,
        None,
        serving(|it, value| it.busiest = Some(value)),
        [(0.7, Supported), (0.69, Possible)],
    );
    turns(
        "h3-placement",
        &pinned,
        None,
        serving(|it, value| it.others_busy = Some(value)),
        [(0.69, Supported), (0.7, Contradicted)],
    );
    turns(
        "h3-placement",
        &pinned,
        None,
        placement_unknown(|it, value| it.interrupt_part = Some(value)),
        [(0.5, Supported), (0.49, Possible)],
    );
    let remote = |group: &mut Group, _: &mut Option<u32>, value| group.remote_share = Some(value);
    turns(
        "h3-placement",
        &pinned,
        None,
        remote,
        [(0.2, Contradicted), (0.21, Supported), (0.5, Supported)],
    );
    // Well spread: what counts is what it costs to end requests elsewhere.
    let remap = Scene {
        mode: Mode::Remap,
        ..Scene::default()
    };
    let times_unknown = |group: &mut Group, _: &mut Option<u32>, value| {
        group.remote_share = Some(value);
        group.handling_us = None;
    };
    turns(
        "h3-placement",
        &remap,
        None,
        times_unknown,
        [(0.49, Contradicted), (0.5, Possible)],
    );
    let handling = |group: &mut Group, _: &mut Option<u32>, value| {
        group.remote_share = Some(0.9);
        group.completion_us = Some(80.0);
        group.handling_us = Some(value);
    };
    turns(
        "h3-placement",
        &remap,
        None,
        handling,
        [(19.9, Contradicted), (20.0, Supported)],
    );
    // One line has nothing to spread.
    turns(
        "h3-placement",
        &pinned,
        None,
        serving(|it, value| it.effective_lines = Some(value)),
        [(1.8, Contradicted), (2.0, Supported)],
    );
}

#[test]
fn device_turns() {
    let (slow, fast) = (first_report(Mode::Bypass), first_report(Mode::Remap));
    let latency = |group: &mut Group, _: &mut Option<u32>, value: f64| {
        group.completion_us = Some(value * 442.5);
    };
    let whole = |group: &mut Group, _: &mut Option<u32>, value: f64| {
        group.completion_us = None;
        group.latency_us = Some(value * 447.5);
    };
    turns(
        "h4-device",
        &slow,
        Some(&fast),
        whole,
        [
            (1.09, Contradicted),
            (1.11, Possible),
            (1.24, Possible),
            (1.26, Supported),
        ],
    );
    turns(
        "h4-device",
        &slow,
        Some(&fast),
        latency,
        [
            (1.09, Contradicted),
            (1.11, Possible),
            (1.24, Possible),
            (1.26, Supported),
        ],
    );
    let depth = |group: &mut Group, _: &mut Option<u32>, value| {
        for disk in &mut group.disks {
            disk.in_flight = Some(value);
        }
    };
    turns(
        "h4-device",
        &slow,
        Some(&fast),
        depth,
        [(31.9, Contradicted), (102.0, Possible), (103.0, Supported)],
    );
    let disks = |group: &mut Group, _: &mut Option<u32>, value| group.busy_disks = value as u32;
    turns(
        "h4-device",
        &slow,
        Some(&fast),
        disks,
        [(3.0, NotMeasured), (4.0, Supported)],
    );
    let busy = |group: &mut Group, _: &mut Option<u32>, value| {
        group.serving.as_mut().unwrap().busy = Some(value);
    };
    turns(
        "h4-device",
        &slow,
        Some(&fast),
        busy,
        [(0.69, Supported), (0.7, Possible), (0.9, NotMeasured)],
    );
    // From one window it is never more than possible.
    turns("h4-device", &slow, None, latency, [(9.0, Possible)]);
}

#[test]
fn queues_turn() {
    let shared = Scene {
        mode: Mode::Remap,
        ..Scene::default()
    };
    let nothing = |group: &mut Group, _: &mut Option<u32>, value| {
        group.nothing_per_completion = Some(value);
    };
    turns(
        "h5-queues",
        &shared,
        None,
        nothing,
        [
            (1.0, Contradicted),
            (1.1, Possible),
            (3.9, Possible),
            (4.0, Supported),
        ],
    );
    let factor = |group: &mut Group, _: &mut Option<u32>, value| {
        group.nothing_per_completion = Some(9.0);
        group.sharing_factor = Some(value);
    };
    turns(
        "h5-queues",
        &shared,
        None,
        factor,
        [(1.0, Contradicted), (1.1, Supported)],
    );
    let few = Scene {
        queues: 8,
        serving: (0..8).collect(),
        ..Scene::default()
    };
    let busiest = |group: &mut Group, _: &mut Option<u32>, value| {
        group.serving.as_mut().unwrap().busiest = Some(value);
    };
    turns(
        "h5-queues",
        &few,
        None,
        busiest,
        [
            (0.69, Contradicted),
            (0.7, Possible),
            (0.89, Possible),
            (0.9, Supported),
        ],
    );
    let others = |group: &mut Group, _: &mut Option<u32>, value| {
        let serving = group.serving.as_mut().unwrap();
        (serving.busiest, serving.others_busy) = (Some(1.0), Some(value));
    };
    turns(
        "h5-queues",
        &few,
        None,
        others,
        [
            (0.69, Supported),
            (0.7, Possible),
            (0.89, Possible),
            (0.9, Contradicted),
        ],
    );
    let cpus = |group: &mut Group, cpus: &mut Option<u32>, value| {
        group.serving.as_mut().unwrap().busiest = Some(1.0);
        *cpus = Some(value as u32);
    };
    turns(
        "h5-queues",
        &few,
        None,
        cpus,
        [(8.0, Contradicted), (9.0, Supported)],
    );
}

#[test]
fn idle_turns() {
    let scenes = injected();
    let woken = scenes.iter().find(|it| it.causes == ["h6-idle"]).unwrap();
    let (slow, fast) = (&woken.scene, woken.faster.as_ref());
    let serving = |change: fn(&mut super::Serving, f64)| {
        move |group: &mut Group, _: &mut Option<u32>, value: f64| {
            change(group.serving.as_mut().unwrap(), value);
        }
    };
    turns(
        "h6-idle",
        slow,
        fast,
        serving(|it, value| it.deep_idle_per_interrupt = Some(value)),
        [
            (0.1, Contradicted),
            (0.11, Possible),
            (0.49, Possible),
            (0.5, Supported),
        ],
    );
    // Latency differs by 125 us.
    turns(
        "h6-idle",
        slow,
        fast,
        serving(|it, value| it.deep_idle_exit_us = Some(value)),
        [
            (52.0, Contradicted),
            (62.0, Possible),
            (63.0, Supported),
            (251.0, Possible),
        ],
    );
    turns(
        "h6-idle",
        slow,
        fast,
        serving(|it, value| it.busy = Some(value)),
        [(0.89, Supported), (0.9, Contradicted)],
    );
    // From one window it is never more than possible.
    turns(
        "h6-idle",
        slow,
        None,
        serving(|it, value| it.deep_idle_per_interrupt = Some(value)),
        [(1.0, Possible)],
    );
}

#[test]
fn iommu_turns() {
    let with = |kind, kernel| {
        let scene = Scene {
            iommu: kind,
            kernel,
            ..Scene::default()
        };
        verdict(&diagnosis(&scene, None), "h7-iommu")
    };
    assert_eq!(with(None, "6.12.1"), Contradicted);
    assert_eq!(with(Some("identity"), "6.12.1"), Contradicted);
    assert_eq!(with(Some("DMA-FQ"), "6.12.1"), Possible);
    assert_eq!(with(Some("DMA"), "6.12.1"), Supported);
    assert_eq!(with(Some("DMA"), "5.15.0"), Supported);
    // It does not tell strict ones from others.
    assert_eq!(with(Some("DMA"), "5.10.0-30-amd64"), Possible);
    assert_eq!(with(Some("DMA"), "custom"), Possible);
    let fast = Scene::default();
    let slow = Scene {
        iommu: Some("DMA-FQ"),
        iops_per_disk: 190_000,
        ..Scene::default()
    };
    let latency = |group: &mut Group, _: &mut Option<u32>, value| group.latency_us = Some(value);
    turns(
        "h7-iommu",
        &slow,
        Some(&fast),
        latency,
        [(106.0, Possible), (107.0, Supported)],
    );
    let both = diagnosis(
        &slow,
        Some(&Scene {
            iommu: Some("DMA"),
            ..fast
        }),
    );
    assert_eq!(verdict(&both, "h7-iommu"), Contradicted);
}

#[test]
fn kernel_turns() {
    let fast = Scene::default();
    let at = |factor: f64, mitigation, completions_per_interrupt| {
        let slow = Scene {
            iops_per_disk: 249_000,
            mitigation,
            completions_per_interrupt,
            ..Scene::default()
        };
        let thresholds = Thresholds::default();
        let (mut ours, theirs) = (picture(&slow), picture(&fast));
        ours.cpu_ns_per_io = theirs.cpu_ns_per_io.map(|ns| ns * factor);
        verdict(&Diagnosis::of_two(ours, theirs, &thresholds), "h8-kernel")
    };
    let ibrs = "Mitigation: IBRS";
    assert_eq!(at(1.09, ibrs, 2.0), Contradicted);
    assert_eq!(at(1.11, ibrs, 2.0), Possible);
    assert_eq!(at(1.19, ibrs, 2.0), Possible);
    assert_eq!(at(1.21, ibrs, 2.0), Supported);
    assert_eq!(at(1.21, ibrs, 1.3), Possible);
    // Nothing that differs.
    assert_eq!(at(1.21, fast.mitigation, 2.0), Possible);
    assert_eq!(verdict(&diagnosis(&fast, None), "h8-kernel"), NotMeasured);
}

#[test]
fn links_turn() {
    let with = |link, port| {
        let scene = Scene {
            link,
            port,
            ..Scene::default()
        };
        let diagnosis = diagnosis(&scene, None);
        let finding = diagnosis
            .findings
            .iter()
            .find(|it| it.id == "h9-link")
            .unwrap();
        (finding.verdict, finding.why.clone())
    };
    assert_eq!(with((16_000, 4), (16_000, 4)).0, Contradicted);
    // The port could do more than the disk: no fault.
    assert_eq!(with((16_000, 4), (32_000, 16)).0, Contradicted);
    let (verdict, why) = with((8000, 4), (16_000, 4));
    assert_eq!(verdict, Supported);
    // 250,000 x 4096 bytes of 3.94 GB a second.
    assert!(
        why.contains("runs at 8 of 16 GT/s, and 26 % of what"),
        "{why}"
    );
    let (verdict, why) = with((16_000, 2), (16_000, 4));
    assert_eq!(verdict, Supported);
    assert!(why.contains("has 2 of 4 lanes"), "{why}");
    let (_, why) = with((8000, 4), (8000, 4));
    assert!(why.contains("the slot can do no more"), "{why}");
    // Without any load, too.
    let idle = Scene {
        busy_disks: 0,
        link: (8000, 4),
        ..Scene::default()
    };
    assert_eq!(supported(&diagnosis(&idle, None)), ["h9-link"]);
}

#[test]
fn little_load_says_nothing() {
    let with = |iops_per_disk| {
        let scene = Scene {
            disks: 1,
            busy_disks: 1,
            queues: 1,
            iops_per_disk,
            ..Scene::default()
        };
        verdict(&diagnosis(&scene, None), "h1-cpu-time")
    };
    assert_eq!(with(99), NotMeasured);
    assert_eq!(with(100), Contradicted);
}
