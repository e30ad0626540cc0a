//! The self-test on made-up sources: it passes where all agree, and fails, says
//! nothing, or says why not where it should.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::host::topology::{Disk, DiskPath, PciAddress, Topology};
use crate::snapshot::{Counters, Detail, Host, LineCounts, Probe, RunCounts, probes};

/// A host with one disk, whose line the kernel counts in a file.
struct MadeUp {
    folder: tempfile::TempDir,
    path: DiskPath,
    readings: AtomicU64,
    /// Interrupts from one reading to the next, as the kernel counts them.
    by_kernel: u64,
    /// And as we do.
    by_us: u64,
    repeats_known: bool,
}

impl MadeUp {
    fn new(by_kernel: u64, by_us: u64) -> Self {
        let made_up = Self {
            folder: tempfile::tempdir().unwrap(),
            path: DiskPath::Direct,
            readings: AtomicU64::new(0),
            by_kernel,
            by_us,
            repeats_known: true,
        };
        made_up.write("devices/system/cpu/possible", "0-1\n");
        made_up.write("kernel/irq/40/per_cpu_count", "4294967290,5\n");
        made_up
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }

    fn roots(&self) -> Roots {
        Roots {
            sysfs: self.folder.path().to_owned(),
            procfs: self.folder.path().to_owned(),
        }
    }

    fn run(&self) -> Vec<TestResult> {
        let roots = self.roots();
        run(self, &roots, &Facts::read(&roots), 0).unwrap().checks
    }

    fn of(&self, id: &str) -> TestResult {
        let found = self.run().into_iter().find(|it| it.id == id);
        found.unwrap()
    }
}

impl SnapshotSource for MadeUp {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        // The first one is for the topology, the second the first reading.
        let reading = self.readings.fetch_add(1, Ordering::Relaxed);
        let elapsed = reading.saturating_sub(1);
        if reading > 1 && self.by_kernel > 0 {
            let first = 4_294_967_290_u32.wrapping_add((self.by_kernel * elapsed) as u32);
            self.write("kernel/irq/40/per_cpu_count", &format!("{first},5\n"));
        }
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            state: ProbeState::Attached,
            mechanism: "raw_tracepoint".to_owned(),
            reason: None,
            missed_runs: None,
            runs: None,
        };
        Ok(Snapshot {
            taken_ns: 0,
            counting_since_ns: None,
            detail: Detail::default(),
            activity: None,
            host: Host::default(),
            topology: Topology {
                disks: vec![Disk {
                    name: "nvme0".to_owned(),
                    address: PciAddress("0000:01:00.0".to_owned()),
                    path: self.path,
                    controller: None,
                    model: None,
                    numa_node: None,
                    iommu: None,
                    link: None,
                    port: None,
                    namespaces: Vec::new(),
                    queues: Vec::new(),
                    lines: vec![host::topology::Line {
                        irq: 40,
                        actions: vec!["nvme0q1".to_owned()],
                        chip: None,
                        parent_irq: None,
                        effective_affinity: None,
                    }],
                }],
                ..Topology::default()
            },
            counters: Counters {
                lines: vec![LineCounts {
                    irq: 40,
                    action: "nvme0q1".to_owned(),
                    kind: LineKind::Nvme,
                    controller: None,
                    disk: Some("nvme0".to_owned()),
                    path: Some(self.path),
                    parent_irq: None,
                    counts: RunCounts {
                        // Of these, 3 were repeated, all before the window.
                        depth0_runs: 1003 + self.by_us * elapsed,
                        repeated_runs: self.repeats_known.then_some(3),
                        ..RunCounts::default()
                    },
                }],
                ..Counters::default()
            },
            probes: [
                probes::IRQ_HANDLER_ENTRY,
                probes::IRQ_HANDLER_EXIT,
                probes::REPEATED_RUNS,
            ]
            .map(probe)
            .into(),
        })
    }

    fn attach_pending(&self) {}

    fn topology_changed(&self) {}

    fn cpus_changed(&self) {}
}

#[test]
fn equal_counts_pass_also_over_a_wrap() {
    let found = MadeUp::new(500, 500).of(LINES);
    assert_eq!(found.outcome, Outcome::Passed, "{found:?}");
    assert_eq!(found.lines, 1);
    let totals = found.totals.unwrap();
    assert_eq!(totals.ours, 500);
    // The kernel's second reading rose while ours was read.
    assert_eq!((totals.at_least, totals.at_most), (0, Some(501)));
}

#[test]
fn wrong_counts_fail_with_the_numbers() {
    let found = MadeUp::new(500, 600).of(LINES);
    assert_eq!(found.outcome, Outcome::Failed, "{found:?}");
    let [wrong] = found.wrong.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!((wrong.irq, wrong.action.as_str()), (40, "nvme0q1"));
    assert_eq!((wrong.ours, wrong.at_most), (Some(600), Some(501)));
    assert!(found.remedy.is_some());
}

#[test]
fn too_many_are_no_fault_where_repeated_runs_cannot_be_told() {
    let found = MadeUp {
        repeats_known: false,
        ..MadeUp::new(500, 600)
    }
    .of(LINES);
    assert_eq!(found.outcome, Outcome::Passed, "{found:?}");
    assert_eq!(found.totals.unwrap().at_most, None);
    assert!(found.found.contains("cannot be told"), "{found:?}");
}

#[test]
fn nothing_that_ran_proves_nothing() {
    let found = MadeUp::new(0, 0).of(LINES);
    assert_eq!(found.outcome, Outcome::NotMeasured, "{found:?}");
    assert!(found.remedy.unwrap().contains("I/O"));
}

#[test]
fn a_count_that_was_cut_is_not_measured() {
    let host = MadeUp::new(0, 5);
    host.write("devices/system/cpu/possible", "0-3\n");
    let found = host.of(LINES);
    assert_eq!(found.outcome, Outcome::NotMeasured, "{found:?}");
    assert!(found.found.contains("2 of 4 CPUs"), "{found:?}");
    assert!(found.found.contains("irq/40/per_cpu_count"), "{found:?}");
}

#[test]
fn remapped_children_have_to_read_0() {
    let remapped = |count: &str| {
        let host = MadeUp {
            path: DiskPath::VmdRemap,
            ..MadeUp::new(0, 0)
        };
        host.write("kernel/irq/40/per_cpu_count", count);
        host
    };
    let found = remapped("0,0\n").of(CHILDREN);
    assert_eq!(found.outcome, Outcome::Passed, "{found:?}");
    assert_eq!(found.lines, 1);
    let found = remapped("0,7\n").of(CHILDREN);
    assert_eq!(found.outcome, Outcome::Failed, "{found:?}");
    assert_eq!(found.wrong[0].at_least, 7);
    let found = MadeUp::new(5, 5).of(CHILDREN);
    assert_eq!(found.outcome, Outcome::NotApplicable, "{found:?}");
}

#[test]
fn without_a_remapping_controller_the_kprobe_is_not_applicable() {
    let found = MadeUp::new(5, 5).of(KPROBE);
    assert_eq!(found.outcome, Outcome::NotApplicable, "{found:?}");
}

#[test]
fn a_comparison_tells_what_disagrees_and_how_many() {
    let mut comparison = Comparison::default();
    let line = Line {
        irq: 24,
        action: "vmd0".to_owned(),
    };
    for _ in 0..30 {
        comparison.add(&line, None, 5, Some(6));
    }
    comparison.add(&line, Some(6), 5, Some(6));
    comparison.unmeasured(&"gone");
    let found = comparison.result(LINES, "agree", "so what");
    assert_eq!(found.outcome, Outcome::Failed);
    assert_eq!((found.lines, found.wrong.len()), (31, MOST_SHOWN));
    assert!(found.found.contains("30 of 31 lines"), "{found:?}");
    assert!(found.found.contains("1 lines were not measured: gone"));
    assert_eq!(found.totals.unwrap().at_most, Some(186));
}
