//! The figures of one load in one mode.

use serde::Serialize;

use vmd_device::Latency;

use super::Mode;
use super::readings::{Between, Readings};
use crate::disks::GuestDisk;
use crate::error::{LabError, Result};
use crate::fio::{CpuList, Done};
use crate::interrupts::{disk_of_action, is_vmd_action};
use crate::prometheus::RawSeries;
use crate::scrape::Sample;

/// The figures of one load. All counts are differences over one window, read at
/// rest before and after; all of one window come from the same moments.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub mode: Mode,
    /// Debian's version of the kernel package.
    pub kernel: String,
    /// `uname -r` in the guest.
    pub kernel_release: String,
    pub qemu: String,
    /// Disks that the load reads.
    pub disks_busy: usize,
    /// Disks behind the VMD.
    pub disks: u8,
    pub cpus: u32,
    /// MSI-X vectors of the VMD.
    pub vectors: u16,
    /// Time that the emulated disks take for each read.
    pub latency: Latency,
    /// Child interrupts for each vector that serves them, by the daemon; absent
    /// in bypass, where children do not share.
    pub sharing_factor: Option<f64>,
    /// CPUs that fio's threads were spread over, one CPU for each thread.
    pub fio_cpus: CpuList,
    pub fio_depth: u32,
    pub fio_ios: u64,
    pub fio_seconds: f64,
    pub iops: f64,
    /// By the daemon: depth-0 runs, in remap of the VMD's lines, in bypass of
    /// the disks'.
    pub hardware_interrupts: u64,
    /// By the kernel, on the VMD's own lines.
    pub kernel_vmd_interrupts: u64,
    /// By the kernel, on the disks' lines.
    pub kernel_nvme_interrupts: u64,
    /// Runs of the disks' handlers, in any mode.
    pub child_runs: u64,
    /// Of these, for nothing.
    pub unhandled_runs: u64,
    /// Of these, re-sent by software.
    pub resent_runs: u64,
    /// Depth-0 runs that the kernel repeated without a new interrupt; absent
    /// where the kernel hides what is needed to tell.
    pub repeated_runs: Option<u64>,
    pub completions: u64,
    pub completions_outside: u64,
    pub device_cqes: u64,
    pub device_io_cqes: u64,
    pub device_admin_cqes: u64,
    pub device_cqes_skipped: u64,
    /// An upper bound of the interrupts taken.
    pub device_msis: u64,
    pub unassigned_runs: u64,
    /// Runs of probes of interrupts and completions that the kernel skipped; absent
    /// where it does not count.
    pub probe_missed: Option<u64>,
    /// Last minus first raw sample in Prometheus, of completions in and outside
    /// handlers.
    pub prometheus_completions: u64,
    /// Scrapes stored between the first and the last sample.
    pub prometheus_scrapes_between: usize,
    /// Of all scrapes from the first to the last, those that failed.
    pub prometheus_scrapes_failed: usize,
    /// Time in handlers, each moment counted once, in seconds.
    pub interrupt_seconds: f64,
    /// The same by CPU.
    pub interrupt_seconds_by_cpu: Vec<f64>,
    pub by_disk: Vec<DiskRun>,
}

/// The part of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskRun {
    pub disk: String,
    pub serial: String,
    pub busy: bool,
    pub fio_ios: u64,
    pub hardware_interrupts: u64,
    pub kernel_interrupts: u64,
    pub child_runs: u64,
    pub unhandled_runs: u64,
    pub repeated_runs: Option<u64>,
    pub completions: u64,
    pub device_io_cqes: u64,
    pub device_admin_cqes: u64,
    pub device_msis: u64,
}

/// What was known of a run before it began.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) mode: Mode,
    pub(crate) kernel: String,
    pub(crate) kernel_release: String,
    pub(crate) qemu: String,
    pub(crate) disks: u8,
    pub(crate) cpus: u32,
    pub(crate) vectors: u16,
    pub(crate) latency: Latency,
    pub(crate) fio_cpus: CpuList,
    pub(crate) fio_depth: u32,
    /// Every disk, and where it stands in the load.
    pub(crate) guest_disks: Vec<(GuestDisk, Option<usize>)>,
}

/// What Prometheus stored from the first to the last sample of a window.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) up: Vec<RawSeries>,
    pub(crate) completions: Vec<RawSeries>,
}

const HARDWARE: &str = "vmdtrace_hardware_interrupts_total";
const RUNS: &str = "vmdtrace_handler_runs_total";
const UNHANDLED: &str = "vmdtrace_handler_unhandled_total";
const RESENT: &str = "vmdtrace_handler_resent_total";
const REPEATED: &str = "vmdtrace_handler_repeated_total";
const SECONDS: &str = "vmdtrace_handler_seconds_total";
pub(crate) const COMPLETIONS: &str = "vmdtrace_completions_total";
pub(crate) const OUTSIDE: &str = "vmdtrace_completions_outside_handler_total";
const CPU_SECONDS: &str = "vmdtrace_cpu_interrupt_seconds_total";
const UNASSIGNED: &str = "vmdtrace_unassigned_runs_total";
const MISSED: &str = "vmdtrace_probe_missed_total";
const SHARING: &str = "vmdtrace_controller_sharing_ratio";

/// Whether a series is of a program that interrupts and completions are counted
/// by. Others may be interrupted by themselves, and have terms for that.
#[must_use]
pub fn counts_interrupts(sample: &Sample) -> bool {
    [
        "irq_handler_entry",
        "irq_handler_exit",
        "nvme_sq",
        "block_rq_complete",
    ]
    .contains(&sample.label("probe"))
}

/// Series of the disks; those of the VMD's own vectors have an empty label.
fn of_disks(sample: &Sample) -> bool {
    !sample.label("disk").is_empty()
}

fn any(_: &Sample) -> bool {
    true
}

impl Run {
    /// Puts the figures together.
    pub(crate) fn new(
        facts: &Facts,
        before: &Readings,
        after: &Readings,
        fio: &Done,
        stored: &Stored,
    ) -> Result<Self> {
        let daemon = Between {
            before: &before.daemon,
            after: &after.daemon,
        };
        let hardware_interrupts = match facts.mode {
            Mode::Remap => daemon.required(HARDWARE, |sample| !of_disks(sample))?,
            Mode::Bypass => daemon.required(HARDWARE, of_disks)?,
        };
        let device = |count: fn(&vmd_device::Counters) -> u64| {
            grown(
                "the device's counter",
                count(&before.device),
                count(&after.device),
            )
        };
        let (scrapes, failed) = stored.scrapes()?;
        let by_disk = facts
            .guest_disks
            .iter()
            .map(|(disk, place)| {
                let reads = place.and_then(|place| fio.reads.get(place)).copied();
                DiskRun::new(disk, reads, before, after)
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            mode: facts.mode,
            kernel: facts.kernel.clone(),
            kernel_release: facts.kernel_release.clone(),
            qemu: facts.qemu.clone(),
            disks_busy: fio.reads.len(),
            disks: facts.disks,
            cpus: facts.cpus,
            vectors: facts.vectors,
            latency: facts.latency,
            sharing_factor: before.daemon.sum(SHARING, any),
            fio_cpus: facts.fio_cpus.clone(),
            fio_depth: facts.fio_depth,
            fio_ios: fio.total(),
            fio_seconds: fio.time.as_secs_f64(),
            iops: fio.iops(),
            hardware_interrupts,
            kernel_vmd_interrupts: after.kernel.since(&before.kernel, is_vmd_action),
            kernel_nvme_interrupts: after
                .kernel
                .since(&before.kernel, |action| disk_of_action(action).is_some()),
            child_runs: daemon.required(RUNS, of_disks)?,
            unhandled_runs: daemon.required(UNHANDLED, of_disks)?,
            resent_runs: daemon.required(RESENT, any)?,
            repeated_runs: daemon.events(REPEATED, any)?,
            completions: daemon.required(COMPLETIONS, any)?,
            completions_outside: daemon.required(OUTSIDE, any)?,
            device_cqes: device(vmd_device::Counters::cqes)?,
            device_io_cqes: device(vmd_device::Counters::io_cqes)?,
            device_admin_cqes: device(vmd_device::Counters::admin_cqes)?,
            device_cqes_skipped: device(vmd_device::Counters::cqes_skipped)?,
            device_msis: device(vmd_device::Counters::msis)?,
            unassigned_runs: daemon.required(UNASSIGNED, any)?,
            probe_missed: daemon.events(MISSED, counts_interrupts)?,
            prometheus_completions: stored.completions()?,
            prometheus_scrapes_between: scrapes.saturating_sub(2),
            prometheus_scrapes_failed: failed,
            interrupt_seconds: daemon.seconds(SECONDS, any)?.unwrap_or_default(),
            interrupt_seconds_by_cpu: (0..facts.cpus)
                .map(|cpu| {
                    let cpu = cpu.to_string();
                    let of_this = |sample: &Sample| sample.label("cpu") == cpu;
                    Ok(daemon.seconds(CPU_SECONDS, of_this)?.unwrap_or_default())
                })
                .collect::<Result<_>>()?,
            by_disk,
        })
    }

    /// Completions reaped for each hardware interrupt; `None` without one.
    #[must_use]
    pub fn completions_per_interrupt(&self) -> Option<f64> {
        ratio(self.completions, self.hardware_interrupts)
    }

    /// Runs of disks' handlers for each hardware interrupt.
    #[must_use]
    pub fn child_runs_per_interrupt(&self) -> Option<f64> {
        ratio(self.child_runs, self.hardware_interrupts)
    }

    /// Share of the runs that found nothing to do.
    #[must_use]
    pub fn share_for_nothing(&self) -> Option<f64> {
        ratio(self.unhandled_runs, self.child_runs)
    }

    /// Interrupt time for each I/O, in seconds.
    #[must_use]
    pub fn interrupt_seconds_per_io(&self) -> Option<f64> {
        (self.fio_ios > 0).then(|| self.interrupt_seconds / self.fio_ios as f64)
    }

    /// Share of the load's time that each CPU spent in interrupts.
    #[must_use]
    pub fn interrupt_share_by_cpu(&self) -> Vec<f64> {
        let share = |seconds: &f64| {
            if self.fio_seconds > 0.0 {
                seconds / self.fio_seconds
            } else {
                0.0
            }
        };
        self.interrupt_seconds_by_cpu.iter().map(share).collect()
    }
}

impl DiskRun {
    fn new(
        disk: &GuestDisk,
        reads: Option<u64>,
        before: &Readings,
        after: &Readings,
    ) -> Result<Self> {
        let daemon = Between {
            before: &before.daemon,
            after: &after.daemon,
        };
        let count = |metric| daemon.required(metric, |sample| sample.label("disk") == disk.name);
        let device = |count: fn(&vmd_device::DiskCounters) -> u64| {
            let of = |readings: &Readings| {
                let disks = &readings.device.disks;
                disks
                    .iter()
                    .find(|it| it.serial == disk.serial)
                    .map(count)
                    .ok_or_else(|| {
                        LabError::Invalid(format!("the device has no disk {}", disk.serial))
                    })
            };
            grown("the disk's counter", of(before)?, of(after)?)
        };
        Ok(Self {
            disk: disk.name.clone(),
            serial: disk.serial.clone(),
            busy: reads.is_some(),
            fio_ios: reads.unwrap_or_default(),
            hardware_interrupts: count(HARDWARE)?,
            kernel_interrupts: after.kernel.since(&before.kernel, |action| {
                disk_of_action(action) == Some(&disk.name)
            }),
            child_runs: count(RUNS)?,
            unhandled_runs: count(UNHANDLED)?,
            repeated_runs: daemon.events(REPEATED, |sample| sample.label("disk") == disk.name)?,
            completions: count(COMPLETIONS)?,
            device_io_cqes: device(vmd_device::DiskCounters::io_cqes)?,
            device_admin_cqes: device(vmd_device::DiskCounters::admin_cqes)?,
            device_msis: device(vmd_device::DiskCounters::msis)?,
        })
    }
}

impl Stored {
    /// Scrapes in the window, and how many of them failed.
    fn scrapes(&self) -> Result<(usize, usize)> {
        let [up] = self.up.as_slice() else {
            let found = self.up.len();
            return Err(LabError::Invalid(format!(
                "Prometheus has {found} series `up`, not one"
            )));
        };
        let failed = up.samples.iter().filter(|(_, value)| *value != 1.0).count();
        Ok((up.samples.len(), failed))
    }

    /// Last minus first sample, summed over the series.
    fn completions(&self) -> Result<u64> {
        let first_scrape = self
            .up
            .first()
            .and_then(|up| up.samples.first())
            .map(|(at, _)| *at);
        let mut sum = 0.0;
        for series in &self.completions {
            let (Some(first), Some(last)) = (series.samples.first(), series.samples.last()) else {
                continue;
            };
            if Some(first.0) != first_scrape {
                return Err(LabError::Invalid(format!(
                    "Prometheus has no sample of {:?} from before the load",
                    series.labels
                )));
            }
            sum += last.1 - first.1;
        }
        Ok(sum as u64)
    }
}

fn grown(what: &str, before: u64, after: u64) -> Result<u64> {
    after
        .checked_sub(before)
        .ok_or_else(|| LabError::Invalid(format!("{what} fell from {before} to {after}")))
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
pub(super) mod tests {
    use vmd_device::{Counters, DiskCounters, QueueCounters};

    use super::*;
    use crate::interrupts::KernelCounts;
    use crate::scrape::Scrape;
    use std::time::Duration;

    /// Two disks, of which the first is read 100 times.
    fn readings(mode: Mode, reads: u64) -> Readings {
        let (vmd, disk, other) = match mode {
            Mode::Remap => (reads / 2, 0, 0),
            Mode::Bypass => (0, reads / 4, reads / 4),
        };
        let path = mode.name();
        let mut text = String::new();
        let mut add = |metric: &str, labels: &str, value: u64| {
            text.push_str(&format!(
                "# TYPE {metric} counter\n{metric}{{{labels}}} {value}\n"
            ));
        };
        for (name, count) in [("", vmd), ("nvme1", disk), ("nvme0", other)] {
            let labels = format!(r#"controller="0000:00:03.0",disk="{name}",path="vmd-{path}""#);
            add(HARDWARE, &labels, count);
            add(REPEATED, &labels, 0);
        }
        for (name, share) in [("nvme1", reads), ("nvme0", 0)] {
            let labels = format!(r#"controller="0000:00:03.0",disk="{name}",path="vmd-{path}""#);
            add(RUNS, &labels, share * 2);
            add(UNHANDLED, &labels, share);
            add(RESENT, &labels, 0);
            add(COMPLETIONS, &labels, share);
            add(SECONDS, &labels, share * 2);
        }
        add(OUTSIDE, "", 1);
        add(UNASSIGNED, "", 7);
        add(CPU_SECONDS, r#"cpu="0""#, reads * 2);
        add(CPU_SECONDS, r#"cpu="1""#, 0);
        add(MISSED, r#"probe="nvme_sq""#, 0);
        if mode == Mode::Remap {
            text.push_str(&format!("# TYPE {SHARING} gauge\n{SHARING}{{}} 12\n"));
        }
        let kernel = format!(
            "5/actions:vmd0\n6/actions:nvme1q1\n7/actions:nvme0q1\n8/actions:timer\n\
             5/per_cpu_count:{vmd},9\n6/per_cpu_count:3,{disk}\n7/per_cpu_count:{other},1\n8/per_cpu_count:{reads},1\n"
        );
        let disk = |serial: &str, reads: u64| DiskCounters {
            serial: serial.to_owned(),
            queues: vec![
                QueueCounters {
                    cqes: 20,
                    cqes_skipped: 1,
                    ..QueueCounters::default()
                },
                QueueCounters {
                    reads,
                    cqes: reads,
                    ..QueueCounters::default()
                },
            ],
            child_vector_msis: vec![20, reads],
            ..DiskCounters::default()
        };
        Readings {
            daemon: Scrape::parse(&text).unwrap(),
            kernel: KernelCounts::parse(&kernel).unwrap(),
            device: Counters {
                disks: vec![disk("A0", reads), disk("A1", 0)],
                ..Counters::default()
            },
        }
    }

    fn facts(mode: Mode) -> Facts {
        let disk = |name: &str, serial: &str| GuestDisk {
            name: name.to_owned(),
            serial: serial.to_owned(),
            ..GuestDisk::default()
        };
        Facts {
            mode,
            kernel: "6.12.118-1".to_owned(),
            kernel_release: "6.12.118+deb13-amd64".to_owned(),
            qemu: "11.1.3".to_owned(),
            disks: 2,
            cpus: 2,
            vectors: 8,
            latency: Latency::default(),
            fio_cpus: CpuList::first(1),
            fio_depth: 16,
            guest_disks: vec![(disk("nvme1", "A0"), Some(0)), (disk("nvme0", "A1"), None)],
        }
    }

    fn series(values: &[f64]) -> RawSeries {
        let samples = values
            .iter()
            .enumerate()
            .map(|(at, value)| (at as f64, *value))
            .collect();
        RawSeries {
            samples,
            ..RawSeries::default()
        }
    }

    fn stored() -> Stored {
        Stored {
            up: vec![series(&[1.0; 7])],
            completions: vec![series(&[5.0, 60.0, 105.0]), series(&[1.0, 1.0])],
        }
    }

    fn measured(mode: Mode, stored: &Stored) -> Result<Run> {
        let fio = Done {
            reads: vec![100],
            time: Duration::from_secs(2),
        };
        Run::new(
            &facts(mode),
            &readings(mode, 0),
            &readings(mode, 100),
            &fio,
            stored,
        )
    }

    /// A run in which all sources agree.
    pub(in super::super) fn run(mode: Mode) -> Run {
        measured(mode, &stored()).unwrap()
    }

    #[test]
    fn figures_are_differences_of_the_right_series() {
        let run = run(Mode::Remap);
        assert_eq!(
            (run.disks_busy, run.fio_ios, run.device_io_cqes),
            (1, 100, 100)
        );
        assert!((run.iops - 50.0).abs() < 1e-9);
        assert_eq!(run.hardware_interrupts, 50);
        assert_eq!(
            (run.kernel_vmd_interrupts, run.kernel_nvme_interrupts),
            (50, 0)
        );
        assert_eq!((run.child_runs, run.unhandled_runs), (200, 100));
        assert_eq!((run.completions, run.completions_outside), (100, 0));
        assert_eq!(
            (
                run.device_cqes,
                run.device_admin_cqes,
                run.device_cqes_skipped
            ),
            (100, 0, 0)
        );
        assert_eq!((run.unassigned_runs, run.probe_missed), (0, Some(0)));
        assert_eq!(
            (run.prometheus_completions, run.prometheus_scrapes_between),
            (100, 5)
        );
        assert_eq!(run.sharing_factor, Some(12.0));
        assert_eq!(run.interrupt_share_by_cpu(), [100.0, 0.0]);
        assert_eq!(run.completions_per_interrupt(), Some(2.0));
        assert_eq!(run.child_runs_per_interrupt(), Some(4.0));
        assert_eq!(run.share_for_nothing(), Some(0.5));
        assert_eq!(run.interrupt_seconds_per_io(), Some(2.0));
        assert_eq!(run.by_disk[0].disk, "nvme1");
        assert_eq!(
            (run.by_disk[0].completions, run.by_disk[0].device_io_cqes),
            (100, 100)
        );
        assert!(run.by_disk[0].busy && !run.by_disk[1].busy);
    }

    #[test]
    fn in_bypass_the_disks_own_interrupts_are_the_hardware_interrupts() {
        let run = run(Mode::Bypass);
        assert_eq!(run.hardware_interrupts, 50);
        assert_eq!(
            (run.kernel_vmd_interrupts, run.kernel_nvme_interrupts),
            (0, 50)
        );
        assert_eq!(run.by_disk[1].kernel_interrupts, 25);
        assert_eq!(run.sharing_factor, None);
    }

    #[test]
    fn failed_scrapes_are_counted() {
        let mut stored = stored();
        stored.up = vec![series(&[1.0, 1.0, 0.0, 1.0])];
        let run = measured(Mode::Remap, &stored).unwrap();
        assert_eq!(
            (
                run.prometheus_scrapes_between,
                run.prometheus_scrapes_failed
            ),
            (2, 1)
        );
    }

    #[test]
    fn a_series_that_was_not_there_before_the_load_is_an_error() {
        let mut stored = stored();
        stored.completions[0].samples.remove(0);
        let error = measured(Mode::Remap, &stored).unwrap_err().to_string();
        assert!(error.contains("no sample"), "{error}");
        stored.up.clear();
        assert!(measured(Mode::Remap, &stored).is_err());
    }

    #[test]
    fn a_metric_that_is_missing_or_falls_is_an_error() {
        let fio = Done {
            reads: vec![100],
            time: Duration::from_secs(2),
        };
        let (before, after) = (readings(Mode::Remap, 0), readings(Mode::Remap, 100));
        let facts = facts(Mode::Remap);
        let error = Run::new(&facts, &after, &before, &fio, &stored())
            .unwrap_err()
            .to_string();
        assert!(error.contains("fell from"), "{error}");
        let mut without = after;
        without
            .daemon
            .samples
            .retain(|sample| sample.name != UNHANDLED);
        let error = Run::new(&facts, &before, &without, &fio, &stored())
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("has no {UNHANDLED}")), "{error}");
    }
}
