//! The figures of one load in one mode.

use serde::Serialize;

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
    /// Runs of probes that the kernel skipped; absent where it does not count.
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
            probe_missed: daemon.events(MISSED, any)?,
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
