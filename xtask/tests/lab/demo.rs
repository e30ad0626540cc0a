//! The demo as its user runs it, once; the tests read the figures it wrote.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;
use serde::Deserialize;

use crate::shared::Shared;
use crate::{XTASK, lab_test, leftovers};

/// A run as the JSON has it: all of these fields have to be there.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    mode: String,
    kernel: String,
    disks_busy: u64,
    disks: u64,
    cpus: u64,
    vectors: u64,
    fio_ios: u64,
    iops: f64,
    hardware_interrupts: u64,
    kernel_vmd_interrupts: u64,
    kernel_nvme_interrupts: u64,
    child_runs: u64,
    unhandled_runs: u64,
    resent_runs: u64,
    /// Debian's kernels list the symbols it takes: never null here.
    repeated_runs: u64,
    completions: u64,
    completions_outside: u64,
    device_cqes: u64,
    device_io_cqes: u64,
    device_admin_cqes: u64,
    device_cqes_skipped: u64,
    device_msis: u64,
    unassigned_runs: u64,
    probe_missed: u64,
    prometheus_completions: u64,
    prometheus_scrapes_between: u64,
    prometheus_scrapes_failed: u64,
}

#[derive(Debug, Deserialize)]
struct Report {
    runs: Vec<Run>,
}

pub(crate) struct Demo {
    runs: Vec<Run>,
    table: String,
    left: Vec<String>,
}

fn run_demo() -> Demo {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("demo.json");
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let output = Command::new(XTASK)
        .args(["demo", "--once", "--json"])
        .arg(&json)
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Report = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    Demo {
        runs: report.runs,
        table: String::from_utf8(output.stdout).unwrap(),
        left: leftovers::of(&temporary),
    }
}

/// A relation that has to hold in every run of a mode ("" for both).
fn relation(demo: &Shared<Demo>, name: &str, mode: &'static str, holds: fn(&Run)) -> Trial {
    let demo = demo.clone();
    lab_test(format!("demo::{name}"), move || {
        demo.with(|demo| {
            let runs: Vec<_> = demo
                .runs
                .iter()
                .filter(|run| mode.is_empty() || run.mode == mode)
                .collect();
            assert_eq!(runs.len(), if mode.is_empty() { 4 } else { 2 });
            for run in runs {
                holds(run);
            }
        });
        Ok(())
    })
}

pub(crate) fn trials() -> (Shared<Demo>, Vec<Trial>) {
    let demo = Shared::new(run_demo);
    let (shape, diagnosed, clean) = (demo.clone(), demo.clone(), demo.clone());
    let trials = vec![
        lab_test(
            "demo::runs_one_disk_and_all_disks_in_both_modes",
            move || {
                shape.with(|demo| {
                    let shapes: Vec<_> = demo
                        .runs
                        .iter()
                        .map(|run| {
                            (
                                run.mode.as_str(),
                                run.disks_busy,
                                run.disks,
                                run.cpus,
                                run.vectors,
                            )
                        })
                        .collect();
                    assert_eq!(
                        shapes,
                        [
                            ("remap", 1, 12, 6, 8),
                            ("remap", 12, 12, 6, 8),
                            ("bypass", 1, 12, 6, 8),
                            ("bypass", 12, 12, 6, 8)
                        ]
                    );
                    for figure in [
                        "1171k",
                        "1144k",
                        "1183k",
                        "562k",
                        "emulated device: counts and ratios hold, speeds do not",
                    ] {
                        assert!(
                            demo.table.contains(figure),
                            "{figure} is not in the table:\n{}",
                            demo.table
                        );
                    }
                });
                Ok(())
            },
        ),
        relation(
            &demo,
            "remap_hardware_interrupts_equal_the_kernels_count",
            "remap",
            |run| {
                assert_eq!(
                    run.hardware_interrupts - run.repeated_runs,
                    run.kernel_vmd_interrupts
                );
                assert!(run.hardware_interrupts > 100);
            },
        ),
        relation(&demo, "remap_the_kernel_counts_no_child", "remap", |run| {
            assert_eq!(run.kernel_nvme_interrupts, 0);
            assert!(run.child_runs > 100);
        }),
        relation(
            &demo,
            "bypass_hardware_interrupts_equal_the_kernels_count",
            "bypass",
            |run| {
                assert_eq!(
                    run.hardware_interrupts - run.repeated_runs,
                    run.kernel_nvme_interrupts
                );
                assert_eq!(run.child_runs, run.hardware_interrupts);
                assert_eq!(run.kernel_vmd_interrupts, 0);
                assert!(run.hardware_interrupts > 100);
            },
        ),
        relation(
            &demo,
            "nothing_is_repeated_resent_missed_or_unassigned_at_rest",
            "",
            |run| {
                let terms = [
                    run.repeated_runs,
                    run.resent_runs,
                    run.probe_missed,
                    run.unassigned_runs,
                ];
                assert_eq!(terms, [0; 4]);
            },
        ),
        relation(
            &demo,
            "completions_equal_what_the_device_posted",
            "",
            |run| {
                assert_eq!(
                    run.completions + run.completions_outside,
                    run.device_cqes - run.device_cqes_skipped
                );
                assert_eq!(run.device_io_cqes + run.device_admin_cqes, run.device_cqes);
                assert_eq!(run.device_io_cqes, run.fio_ios);
                assert!(run.fio_ios > 100 && run.iops > 0.0);
            },
        ),
        relation(&demo, "prometheus_counted_every_completion", "", |run| {
            assert_eq!(
                run.prometheus_completions,
                run.fio_ios + run.device_admin_cqes - run.device_cqes_skipped
            );
            assert!(
                run.prometheus_scrapes_between >= 5,
                "{} scrapes",
                run.prometheus_scrapes_between
            );
            assert_eq!(run.prometheus_scrapes_failed, 0);
        }),
        relation(&demo, "what_cannot_be_otherwise", "", |run| {
            // MSIs are merged before a CPU takes them, never the other way round.
            assert!(run.device_msis >= run.hardware_interrupts);
            assert!(run.unhandled_runs <= run.child_runs);
            assert!(run.completions > 0 && run.completions >= run.child_runs - run.unhandled_runs);
            assert!(run.kernel.starts_with("6.12."), "{}", run.kernel);
        }),
        lab_test(
            "demo::its_recordings_are_diagnosed_and_compared",
            move || {
                diagnosed.with(|demo| {
                    let (_, said) = demo.table.split_once("== Diagnosis of ").unwrap();
                    let chapters: Vec<_> = said.split("\n== ").collect();
                    let titles: Vec<_> = chapters
                        .iter()
                        .filter_map(|chapter| Some(chapter.split_once(" ==\n")?.0))
                        .collect();
                    assert_eq!(
                        titles,
                        [
                            "remap, 1 disk",
                            "Diagnosis of remap, 12 disks",
                            "Diagnosis of bypass, 1 disk",
                            "Diagnosis of bypass, 12 disks",
                            "Comparison of remap, 1 disk and remap, 12 disks",
                            "Comparison of remap, 1 disk and bypass, 1 disk",
                            "Comparison of remap, 12 disks and bypass, 12 disks",
                            "Comparison of bypass, 1 disk and bypass, 12 disks",
                        ]
                    );
                    for chapter in &chapters[..4] {
                        assert!(chapter.contains("the window: "), "{chapter}");
                        assert!(chapter.contains("h1-cpu-time"), "{chapter}");
                    }
                    for chapter in &chapters[4..] {
                        assert!(chapter.contains("the faster window: "), "{chapter}");
                    }
                });
                Ok(())
            },
        ),
        lab_test("demo::leaves_nothing_behind", move || {
            clean.with(|demo| assert_eq!(demo.left, Vec::<String>::new()));
            Ok(())
        }),
    ];
    (demo, trials)
}
