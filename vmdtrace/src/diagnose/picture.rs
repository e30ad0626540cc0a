//! What a [`Window`] says of each controller and of the CPUs that serve it:
//! rates, times and shares, each absent where it was not measured. All rules
//! judge by this.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::children::{self, Children};
use super::isolation::Cpus;
use super::thresholds::Thresholds;
use crate::host::NumberList;
use crate::host::activity::{CpuActivity, DiskActivity};
use crate::host::topology::{BlockSettings, Controller, Disk, DiskPath, Link, Machine, Mode};
use crate::snapshot::bio::{BioDestination, BioRegime};
use crate::snapshot::window::{Change, Window};
use crate::snapshot::{Detail, LineCounts, LineKind, LossCounts, Remote, SampleCounts, Times};

/// What names of interrupt chips begin with where the IOMMU remaps them
/// (drivers/iommu/intel/irq_remapping.c, arch/x86/kernel/apic/msi.c).
pub(super) const IOMMU_REMAPS: &str = "IR-";

/// A host in a window of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    /// Length of the window.
    pub seconds: f64,
    /// `uname -r`.
    pub kernel: String,
    /// Online CPUs without the isolated ones: those that queues are made for and
    /// interrupts go to.
    pub usable_cpus: Option<u32>,
    /// Controllers by address, then the disks that are behind none.
    pub groups: Vec<Group>,
    /// CPUs with anything known of them.
    pub cpus: Vec<CpuUse>,
    /// Time that CPUs were not idle, per I/O of all NVMe disks, in
    /// nanoseconds; what else runs on the host is in it.
    pub cpu_ns_per_io: Option<f64>,
    /// Standard error of the I/O rate as a share of it, from the spread inside
    /// a recording ([`relative_error`](super::compare::relative_error)).
    pub rate_error: Option<f64>,
    /// Completions of all NVMe disks found outside interrupt handlers, per
    /// second: polled, in threads, or by a timeout.
    pub outside_handlers: Option<f64>,
    /// The per-CPU cache of bios; of the whole host.
    pub bio: Option<BioUse>,
    /// Searches for a free interrupt vector, for any device, that found none.
    pub allocation_failures: Option<u64>,
    /// Lost interrupts of disks that could not be told.
    pub unassigned_lost_interrupts: Option<u64>,
    #[serde(skip)]
    pub machine: Machine,
    /// What makes the numbers less than they seem.
    pub notes: Vec<String>,
}

/// What bios were allocated from, and how they were freed. Shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BioUse {
    pub regime: BioRegime,
    /// Bios that the cache could serve, of all.
    pub eligible_share: Option<f64>,
    /// Bios that it did serve, of these.
    pub hit_share: Option<f64>,
    /// Frees in softirqs, of those of bios with a cache.
    pub softirq_share: Option<f64>,
    /// Frees on a CPU whose own cache is full, likewise.
    pub overflow_share: Option<f64>,
}

/// One VMD controller with its disks, or all disks that are behind none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The controller's address, or `direct`.
    pub name: String,
    /// PCI device id of the controller.
    pub device_id: Option<u16>,
    /// Absent for disks behind no controller.
    pub mode: Option<Mode>,
    /// How the mode was told.
    pub mode_told_by: Vec<String>,
    /// Kinds of IOMMU domain, of the controller and its disks.
    pub iommu: Vec<String>,
    /// Vectors of the controller that serve NVMe queues.
    pub vectors: Option<u32>,
    /// Interrupt lines of NVMe queues per such vector.
    pub sharing_factor: Option<f64>,
    pub disks: Vec<DiskUse>,
    /// Disks that take part in the load.
    pub busy_disks: u32,
    /// I/Os per second.
    pub iops: Option<f64>,
    /// Mean number of requests in flight, of all disks together.
    pub in_flight: Option<f64>,
    /// Mean time of a request, by the kernel's count, in microseconds.
    pub latency_us: Option<f64>,
    /// Mean of the sampled times from a request's start to its completion.
    pub completion_us: Option<f64>,
    /// Mean of the sampled times from the completion to the request's end.
    pub handling_us: Option<f64>,
    /// Hardware interrupts per second.
    pub interrupts: Option<f64>,
    pub completions_per_interrupt: Option<f64>,
    /// Handler runs of children per hardware interrupt (remap only).
    pub runs_per_interrupt: Option<f64>,
    /// Share of these runs that found nothing.
    pub nothing_share: Option<f64>,
    pub nothing_per_completion: Option<f64>,
    /// Time in handlers per completion, in nanoseconds.
    pub interrupt_ns_per_io: Option<f64>,
    /// Time in the controller's own handlers without their children, per run of
    /// a child, in nanoseconds (remap only).
    pub vector_ns_per_child: Option<f64>,
    /// The line with most time (or runs) of its kind, and its share.
    pub hottest_line: Option<(String, f64)>,
    /// Share of the completions that another CPU than the submitter's handled.
    pub remote_share: Option<f64>,
    /// Of these, one that does not share the last-level cache.
    pub far_share: Option<f64>,
    /// Commands that timed out in the window.
    pub timeouts: Option<u64>,
    /// Of these, commands that were done: their interrupt did not come.
    pub lost_interrupts: Option<u64>,
    /// Whether its children's interrupts are enabled (remap only).
    pub children: Option<Children>,
    /// Interrupt lines of its disks' queues whose chip is known, and those of
    /// them that the IOMMU does not remap.
    pub known_chips: u32,
    pub plain_chips: u32,
    /// The CPUs its interrupts are delivered to.
    pub serving: Option<Serving>,
}

/// The CPUs that serve a group's interrupts. Means are weighted with each CPU's
/// share of the interrupt time (of the interrupts where time is not measured).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Serving {
    pub cpus: Vec<u32>,
    /// The CPU with most of it.
    pub hottest_cpu: u32,
    /// Its share.
    pub hottest_share: f64,
    /// Effective number of CPUs: 1 / sum of squared shares.
    pub effective_cpus: f64,
    /// Effective number of interrupt lines, likewise.
    pub effective_lines: Option<f64>,
    /// 1 - idle/wall, weighted mean.
    pub busy: Option<f64>,
    /// The same of the busiest of them that has a fair share of interrupts.
    pub busiest: Option<f64>,
    /// Time in handlers and softirqs of the busy time, weighted mean.
    pub interrupt_part: Option<f64>,
    /// Mean of 1 - idle/wall of the other CPUs.
    pub others_busy: Option<f64>,
    /// Share of the interrupt time on other NUMA nodes than the controller's.
    pub other_node: Option<f64>,
    /// Entries into deep idle states per interrupt.
    pub deep_idle_per_interrupt: Option<f64>,
    /// Exit time of the deep idle state they entered most, in microseconds.
    pub deep_idle_exit_us: Option<f64>,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskUse {
    pub name: String,
    pub iops: Option<f64>,
    pub in_flight: Option<f64>,
    pub latency_us: Option<f64>,
    pub bytes_per_second: Option<f64>,
    /// Share of the I/Os that are reads.
    pub read_share: Option<f64>,
    /// Whether it takes part in the load.
    pub busy: bool,
    /// Set where requests are in flight and none ended.
    pub stalled: Option<Stalled>,
    /// Commands that timed out in the window.
    pub timeouts: Option<u64>,
    /// Of these, commands that were done: their interrupt did not come.
    pub lost_interrupts: Option<u64>,
    /// Whether it was not there at the begin of the window.
    pub came: bool,
    /// Queues with an interrupt, without the admin queue.
    pub io_queues: u32,
    pub link: Option<Link>,
    pub port_link: Option<Link>,
    #[serde(skip)]
    pub settings: Vec<BlockSettings>,
}

/// Requests of which none ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stalled {
    /// In flight at the end of the window.
    pub requests: u64,
    /// Time with requests in flight, as a share of the window.
    pub busy: f64,
}

/// One CPU. Shares are of wall time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuUse {
    pub cpu: u32,
    /// 1 - (idle + iowait) / wall: where ticks do not sample inside
    /// interrupts, the fields do not add up to wall time and a share of their
    /// sum would be wrong.
    pub busy: Option<f64>,
    pub softirq: Option<f64>,
    /// Time in watched handlers, measured by ourselves.
    pub interrupt: Option<f64>,
    /// Interrupts of watched lines.
    pub interrupts: Option<u64>,
    #[serde(skip)]
    deep_entries: Option<u64>,
    #[serde(skip)]
    deep_exit_us: Option<f64>,
}

/// `a / b` where that is a number.
fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b).filter(|it| it.is_finite())
}

impl Picture {
    /// What the window says.
    #[must_use]
    pub fn of(window: &Window, thresholds: &Thresholds) -> Self {
        let seconds = window.elapsed_ns as f64 / 1e9;
        let cpus = cpus(window, seconds, thresholds);
        let topology = &window.topology;
        let mut groups: Vec<Group> = topology
            .controllers
            .iter()
            .map(|it| Parts::of_controller(window, it).group(&cpus, thresholds))
            .collect();
        let direct = Parts::of_direct(window);
        if !direct.disks.is_empty() {
            groups.push(direct.group(&cpus, thresholds));
        }
        let notes = notes(window, &groups, seconds);
        Self {
            seconds,
            kernel: window.host.kernel.clone(),
            usable_cpus: Cpus::of(&topology.machine).and_then(|cpus| cpus.usable()),
            cpu_ns_per_io: cpu_ns_per_io(window, &groups, seconds),
            groups,
            cpus,
            rate_error: None,
            outside_handlers: ratio(
                window
                    .counters
                    .cpus
                    .iter()
                    .map(|cpu| cpu.completions_outside as f64)
                    .sum(),
                seconds,
            )
            .filter(|_| window.counted.completions),
            bio: bio(window),
            allocation_failures: window
                .counted
                .allocation_failures
                .then_some(window.counters.msi.allocation_failures),
            unassigned_lost_interrupts: window
                .counted
                .lost_interrupts
                .then_some(window.counters.losses.unassigned.lost_interrupts),
            machine: topology.machine.clone(),
            notes,
        }
    }
}

fn bio(window: &Window) -> Option<BioUse> {
    let counted = window.counted.bio;
    let counts = &window.counters.bio;
    if !counted.allocations || counts.allocations.is_empty() && counts.kmallocs == 0 {
        return None;
    }
    let (mut hits, mut eligible, mut all) = (0.0, 0.0, 0.0);
    for it in &counts.allocations {
        let sum = |counts: &[u64]| counts.iter().map(|&it| it as f64).sum::<f64>();
        let hit = sum(&[it.hits_own, it.hits_splice]);
        hits += hit;
        eligible += hit
            + sum(&[
                it.misses_empty,
                it.misses_below_threshold,
                it.misses_reserve,
            ]);
        all += it.total() as f64;
    }
    if counted.kmallocs {
        all += counts.kmallocs as f64;
    }
    let (mut softirq, mut overflow, mut cached) = (0.0, 0.0, 0.0);
    for frees in &counts.frees {
        let count = frees.count as f64;
        match frees.destination {
            BioDestination::SlabSoftirq => {
                softirq += count;
                cached += count;
            }
            BioDestination::SlabOverflow => {
                overflow += count;
                cached += count;
            }
            BioDestination::OwnList | BioDestination::IrqList => cached += count,
            BioDestination::NotCached | BioDestination::Kfree | BioDestination::Unknown => {}
        }
    }
    Some(BioUse {
        regime: counts.regime,
        eligible_share: ratio(eligible, all),
        hit_share: ratio(hits, eligible),
        softirq_share: ratio(softirq, cached).filter(|_| counted.frees && counted.contexts),
        overflow_share: ratio(overflow, cached).filter(|_| counted.frees && counted.contexts),
    })
}

fn cpu_ns_per_io(window: &Window, groups: &[Group], seconds: f64) -> Option<f64> {
    let activity = window.activity.as_ref()?;
    let ios: f64 = groups.iter().filter_map(|group| group.iops).sum::<f64>() * seconds;
    let ticks = activity.ticks_per_second as f64;
    if activity.cpus.is_empty() || ticks <= 0.0 {
        return None;
    }
    let idle: f64 = activity
        .cpus
        .iter()
        .map(|cpu| cpu.times.idle as f64 + cpu.times.iowait as f64)
        .sum();
    let busy_s = (seconds * activity.cpus.len() as f64 - idle / ticks).max(0.0);
    ratio(busy_s * 1e9, ios)
}

fn cpus(window: &Window, seconds: f64, thresholds: &Thresholds) -> Vec<CpuUse> {
    let mut cpus: BTreeMap<u32, CpuUse> = BTreeMap::new();
    let empty = |cpu| CpuUse {
        cpu,
        busy: None,
        softirq: None,
        interrupt: None,
        interrupts: None,
        deep_entries: None,
        deep_exit_us: None,
    };
    if window.counted.interrupts {
        for counts in &window.counters.cpus {
            let cpu = cpus.entry(counts.cpu).or_insert_with(|| empty(counts.cpu));
            cpu.interrupts = Some(counts.depth0_runs);
            if window.counted.handler_time {
                cpu.interrupt = ratio(counts.interrupt_ns as f64 / 1e9, seconds);
            }
        }
    }
    if let Some(activity) = &window.activity {
        let wall = seconds * activity.ticks_per_second as f64;
        for kernel in &activity.cpus {
            let cpu = cpus.entry(kernel.cpu).or_insert_with(|| empty(kernel.cpu));
            let idle = kernel.times.idle as f64 + kernel.times.iowait as f64;
            cpu.busy = ratio(idle, wall).map(|share| (1.0 - share).clamp(0.0, 1.0));
            cpu.softirq = ratio(kernel.times.softirq as f64, wall).map(|it| it.min(1.0));
            let deep = deep_idle(&window.topology.machine, kernel, thresholds);
            cpu.deep_entries = deep.map(|(entries, _)| entries);
            cpu.deep_exit_us = deep.and_then(|(_, exit)| exit);
        }
    }
    cpus.into_values().collect()
}

/// Entries into deep idle states, and the exit time of the one entered most.
fn deep_idle(
    machine: &Machine,
    cpu: &CpuActivity,
    thresholds: &Thresholds,
) -> Option<(u64, Option<f64>)> {
    let states = machine.idle_states.iter().find(|states| {
        NumberList::parse(&states.cpus).is_ok_and(|list| list.numbers().any(|it| it == cpu.cpu))
    })?;
    if states.states.len() != cpu.idle.len() {
        return None;
    }
    let mut entries = 0_u64;
    let mut most = None;
    for (state, usage) in states.states.iter().zip(&cpu.idle) {
        let exit = f64::from(state.exit_latency_us?);
        if exit >= thresholds.deep_idle_exit_us {
            entries = entries.saturating_add(usage.entries);
            if usage.entries > most.map_or(0, |(entries, _)| entries) {
                most = Some((usage.entries, exit));
            }
        }
    }
    Some((entries, most.map(|(_, exit)| exit)))
}

fn notes(window: &Window, groups: &[Group], seconds: f64) -> Vec<String> {
    /// A moved vector is a change, and there may be thousands.
    const MOST_CHANGES: usize = 20;
    let changes = window.changes.iter().take(MOST_CHANGES);
    let mut notes: Vec<String> = changes.map(ToString::to_string).collect();
    let more = window.changes.len().saturating_sub(MOST_CHANGES);
    if more > 0 {
        notes.push(format!("{more} changes more in the window"));
    }
    if let Some(activity) = &window.activity {
        let wall = seconds * activity.ticks_per_second as f64;
        // Less than this is the grain of ticks and of the moment of reading.
        let (most_missing, grain) = (0.05, 5.0);
        let missing = |cpu: &CpuActivity| {
            let times = &cpu.times;
            let fields = [
                times.user,
                times.nice,
                times.system,
                times.idle,
                times.iowait,
                times.irq,
                times.softirq,
                times.steal,
            ];
            wall - fields.iter().map(|&ticks| ticks as f64).sum::<f64>()
        };
        let worst = activity
            .cpus
            .iter()
            .map(|cpu| (missing(cpu), cpu.cpu))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((missing, cpu)) = worst
            && missing > grain
            && missing > wall * most_missing
        {
            notes.push(format!(
                "the kernel's times of CPU {cpu} leave {:.0} % of the window out: time in \
                 interrupts is in none of them, so busy is 1 - idle/wall",
                missing / wall * 100.0
            ));
        }
        notes.extend(activity.problems.iter().cloned());
    } else {
        notes.push(
            "nothing is known of CPUs and block devices: the window has no counts of the kernel"
                .to_owned(),
        );
    }
    if window.detail == Detail::Sums {
        notes.push(
            "the window holds sums for each disk, not every line and CPU: record with --lines"
                .to_owned(),
        );
    }
    for group in groups {
        if group.mode == Some(Mode::Remap) {
            notes.push(format!(
                "{}: the kernel's own counts of its disks' interrupts stay 0 in remap, as they \
                 should: they run inside the controller's",
                group.name
            ));
        }
        let passthrough = group.disks.iter().any(|disk| {
            disk.busy && disk.latency_us.is_none() && disk.iops.is_some_and(|iops| iops > 0.0)
        });
        if passthrough {
            notes.push(format!(
                "{}: completions that /proc/diskstats does not have (passthrough): their number \
                 in flight and their latency are not known",
                group.name
            ));
        }
    }
    notes
}

/// What belongs to one group.
struct Parts<'a> {
    window: &'a Window,
    controller: Option<&'a Controller>,
    disks: Vec<&'a Disk>,
    /// Its own vectors and the queues of its disks.
    lines: Vec<&'a LineCounts>,
    /// Nothing else has interrupts: what was counted per CPU is all its own.
    is_alone: bool,
}

impl<'a> Parts<'a> {
    fn of_controller(window: &'a Window, controller: &'a Controller) -> Self {
        let address = Some(&controller.address);
        Self::new(
            window,
            Some(controller),
            |disk| disk.controller.as_ref() == address,
            |line| line.controller.as_ref() == address,
        )
    }

    fn of_direct(window: &'a Window) -> Self {
        Self::new(
            window,
            None,
            |disk| disk.controller.is_none() && disk.path == DiskPath::Direct,
            |line| line.controller.is_none() && line.kind == LineKind::Nvme,
        )
    }

    fn new(
        window: &'a Window,
        controller: Option<&'a Controller>,
        has_disk: impl Fn(&Disk) -> bool,
        has_line: impl Fn(&LineCounts) -> bool,
    ) -> Self {
        let ran = |line: &&LineCounts| line.runs() > 0;
        let all = window.counters.lines.iter();
        let (lines, others): (Vec<_>, Vec<_>) = all.partition(|line| has_line(line));
        Self {
            window,
            controller,
            disks: window
                .topology
                .disks
                .iter()
                .filter(|it| has_disk(it))
                .collect(),
            is_alone: others.iter().filter(|line| ran(line)).count() == 0,
            lines,
        }
    }

    fn seconds(&self) -> f64 {
        self.window.elapsed_ns as f64 / 1e9
    }

    fn sum(&self, count: impl Fn(&LineCounts) -> u64) -> f64 {
        // Not `sum`: of nothing that is -0.
        let counts = self.lines.iter().map(|line| count(line) as f64);
        counts.fold(0.0, |sum, count| sum + count)
    }

    fn group(&self, cpus: &[CpuUse], thresholds: &Thresholds) -> Group {
        let counted = self.window.counted;
        let mut disks: Vec<DiskUse> = self.disks.iter().map(|disk| self.disk(disk)).collect();
        let most = disks
            .iter()
            .filter_map(|disk| disk.iops)
            .fold(0.0, f64::max);
        for disk in &mut disks {
            disk.busy = most > 0.0
                && disk
                    .iops
                    .is_some_and(|iops| iops >= most * thresholds.busy_disk_share);
        }
        let total = |value: fn(&DiskUse) -> Option<f64>| {
            let known: Vec<f64> = disks.iter().filter_map(value).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>())
        };
        let iops = total(|disk| disk.iops);
        // Of the disks whose latency is known alone.
        let timed = total(|disk| disk.in_flight.and(disk.iops));
        let in_flight = total(|disk| disk.in_flight);
        let latency_us = in_flight
            .zip(timed)
            .and_then(|(in_flight, iops)| ratio(in_flight * 1e6, iops));
        let interrupts = self.sum(LineCounts::hardware_interrupts);
        let completions = self.sum(|line| line.counts.completions);
        let has_interrupts = counted.interrupts && interrupts > 0.0;
        let child_runs = self.sum(|line| line.counts.child_runs);
        let nothing = self.sum(|line| line.counts.child_unhandled_runs);
        let remaps = self.controller.is_some_and(|it| it.mode == Mode::Remap);
        let child = |value: Option<f64>| value.filter(|_| has_interrupts && remaps);
        let time = self.sum(|line| {
            if line.hardware_interrupts() > 0 {
                line.counts.inclusive_ns
            } else {
                0
            }
        });
        let remote = self.sum(|line| {
            let Remote {
                same_cache,
                other_cache,
                other_node,
                unknown: _,
            } = line.counts.remote;
            same_cache
                .saturating_add(other_cache)
                .saturating_add(other_node)
        });
        let near = self.sum(|line| line.counts.remote.same_cache);
        // Whose submitter is not known is not in it.
        let placed = completions - self.sum(|line| line.counts.remote.unknown);
        let placement = counted.placement && counted.interrupts && counted.completions;
        let vectors = self.controller.filter(|_| remaps).map(|controller| {
            let serving = controller
                .vectors
                .iter()
                .filter(|it| it.used_for.serves_nvme());
            u32::try_from(serving.count()).unwrap_or(u32::MAX)
        });
        let mut iommu: Vec<String> = self
            .controller
            .iter()
            .filter_map(|it| it.iommu.clone())
            .chain(self.disks.iter().filter_map(|disk| disk.iommu.clone()))
            .collect();
        iommu.sort();
        iommu.dedup();
        Group {
            name: self
                .controller
                .map_or_else(|| "direct".to_owned(), |it| it.address.to_string()),
            device_id: self.controller.and_then(|it| it.device_id),
            mode: self.controller.map(|it| it.mode),
            mode_told_by: self
                .controller
                .iter()
                .flat_map(|it| &it.mode_evidence)
                .map(|evidence| format!("{}: {}", evidence.source, evidence.observed))
                .collect(),
            iommu,
            vectors,
            sharing_factor: self.controller.and_then(|controller| {
                let vectors = f64::from(vectors.filter(|&vectors| vectors > 0)?);
                controller
                    .sharing_factor
                    .or_else(|| ratio(f64::from(controller.child_interrupts), vectors))
            }),
            busy_disks: disks
                .iter()
                .filter(|disk| disk.busy)
                .count()
                .try_into()
                .unwrap_or(u32::MAX),
            disks,
            iops,
            in_flight,
            latency_us,
            completion_us: self
                .sampled_us(|it| &it.latency)
                .filter(|_| counted.latency),
            handling_us: self
                .sampled_us(|it| &it.handling)
                .filter(|_| counted.handling),
            interrupts: ratio(interrupts, self.seconds()).filter(|_| counted.interrupts),
            completions_per_interrupt: ratio(completions, interrupts)
                .filter(|_| has_interrupts && counted.completions && completions > 0.0),
            runs_per_interrupt: child(ratio(child_runs, interrupts)),
            nothing_share: child(ratio(nothing, child_runs)),
            nothing_per_completion: child(ratio(nothing, completions))
                .filter(|_| counted.completions),
            interrupt_ns_per_io: ratio(time, completions)
                .filter(|_| counted.handler_time && counted.completions),
            vector_ns_per_child: child(ratio(
                self.sum(|line| {
                    if line.kind == LineKind::VmdVector {
                        line.counts.self_ns
                    } else {
                        0
                    }
                }),
                child_runs,
            ))
            .filter(|_| counted.handler_time),
            hottest_line: self.hottest_line(),
            remote_share: ratio(remote, placed).filter(|_| placement),
            far_share: ratio(remote - near, placed).filter(|_| placement),
            timeouts: counted
                .timeouts
                .then(|| self.losses(|_| true, |it| it.timeouts)),
            lost_interrupts: counted
                .lost_interrupts
                .then(|| self.losses(|_| true, |it| it.lost_interrupts)),
            children: self
                .controller
                .filter(|_| remaps)
                .map(|it| Children::of(self.window, it, &self.disks, thresholds)),
            known_chips: self.chips(|_| true),
            plain_chips: self.chips(|chip| !chip.starts_with(IOMMU_REMAPS)),
            serving: self.serving(cpus),
        }
    }

    /// What was lost of its disks, of those that are gone, too.
    fn losses(&self, of_disk: impl Fn(&str) -> bool, count: fn(&LossCounts) -> u64) -> u64 {
        let controller = self.controller.map(|it| &it.address);
        let losses = self.window.counters.losses.disks.iter();
        losses
            .filter(|it| it.controller.as_ref() == controller && of_disk(&it.disk))
            .fold(0, |sum: u64, it| sum.saturating_add(count(&it.counts)))
    }

    /// Interrupt lines of its disks by the name of their chip.
    fn chips(&self, wanted: impl Fn(&str) -> bool) -> u32 {
        let lines = self.disks.iter().flat_map(|disk| &disk.lines);
        let chips = lines.filter_map(|line| line.chip.as_deref());
        let count = chips.filter(|chip| wanted(chip)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Mean of the times that were sampled of its disks.
    fn sampled_us(&self, times: impl Fn(&SampleCounts) -> &Times) -> Option<f64> {
        let is_ours = |disk: &str| self.disks.iter().any(|it| it.name == disk);
        let samples = self.window.counters.samples.iter();
        let (mut sum_ns, mut count) = (0.0, 0.0);
        for samples in samples.filter(|it| is_ours(&it.disk)) {
            let times = times(&samples.counts);
            sum_ns += times.sum_ns as f64;
            // Not `Times::count`: whatever is in a file must not overflow.
            count += times.buckets.iter().map(|&it| it as f64).sum::<f64>();
        }
        ratio(sum_ns / 1e3, count)
    }

    fn disk(&self, disk: &Disk) -> DiskUse {
        let seconds = self.seconds();
        let activity = self.window.activity.as_ref();
        let others = || {
            let all = self.window.topology.disks.iter();
            all.filter(|other| other.name != disk.name)
        };
        // With native multipath a namespace belongs to several disks, and how
        // much of it each has is not known.
        let is_shared =
            |name: &str| others().any(|other| other.namespaces.iter().any(|it| it.name == name));
        let found: Option<Vec<&DiskActivity>> = activity.and_then(|activity| {
            let namespaces = disk.namespaces.iter();
            namespaces
                .map(|namespace| {
                    let mut disks = activity.disks.iter();
                    disks
                        .find(|it| it.name == namespace.name)
                        .filter(|_| !is_shared(&namespace.name))
                })
                .collect()
        });
        let found = found.filter(|found| !found.is_empty());
        let sum = |count: fn(&DiskActivity) -> u64| -> Option<f64> {
            Some(found.as_ref()?.iter().map(|it| count(it) as f64).sum())
        };
        let (reads, writes) = (sum(|it| it.reads), sum(|it| it.writes));
        let ios = reads.zip(writes).map(|(reads, writes)| reads + writes);
        let time_ms = sum(|it| it.read_ms.saturating_add(it.write_ms));
        let sectors = sum(|it| it.read_sectors.saturating_add(it.written_sectors));
        let lines = || {
            let lines = self.lines.iter();
            lines.filter(|line| line.disk.as_deref() == Some(&disk.name))
        };
        let completions =
            (self.window.counted.completions && self.window.counted.interrupts).then(|| {
                lines()
                    .map(|line| line.counts.completions as f64)
                    .sum::<f64>()
            });
        // Flushes and discards are completions and no reads or writes; beyond
        // a tenth something bypasses the block device.
        let most_others = 1.1;
        let is_passthrough = match (ios, completions) {
            (Some(ios), Some(completions)) => completions > ios * most_others && completions > 10.0,
            (None, Some(_)) => true,
            _ => false,
        };
        let known = |value: Option<f64>| value.filter(|_| !is_passthrough);
        let iops = if is_passthrough { completions } else { ios };
        DiskUse {
            name: disk.name.clone(),
            iops: iops.and_then(|ios| ratio(ios, seconds)),
            in_flight: known(time_ms).and_then(|ms| ratio(ms / 1e3, seconds)),
            latency_us: known(time_ms)
                .zip(ios)
                .and_then(|(ms, ios)| ratio(ms * 1e3, ios)),
            bytes_per_second: known(sectors).and_then(|it| ratio(it * 512.0, seconds)),
            read_share: known(reads)
                .zip(ios)
                .and_then(|(reads, ios)| ratio(reads, ios)),
            busy: false,
            stalled: found.as_ref().and_then(|found| {
                let stalled =
                    |it: &&&DiskActivity| it.in_flight > 0 && it.reads == 0 && it.writes == 0;
                let disks = || found.iter().filter(stalled);
                let busy = |it: &&DiskActivity| ratio(it.busy_ms as f64 / 1e3, seconds);
                Some(Stalled {
                    requests: disks().map(|it| it.in_flight).reduce(u64::saturating_add)?,
                    busy: disks().filter_map(busy).fold(0.0, f64::max),
                })
            }),
            timeouts: self
                .window
                .counted
                .timeouts
                .then(|| self.losses(|name| name == disk.name, |it| it.timeouts)),
            lost_interrupts: self
                .window
                .counted
                .lost_interrupts
                .then(|| self.losses(|name| name == disk.name, |it| it.lost_interrupts)),
            came: children::came(self.window, disk),
            io_queues: disk
                .queues
                .iter()
                .filter(|queue| queue.id > 0 && queue.irq.is_some())
                .count()
                .try_into()
                .unwrap_or(u32::MAX),
            link: disk.link.clone(),
            port_link: disk.port.as_ref().and_then(|port| port.link.clone()),
            settings: disk
                .namespaces
                .iter()
                .map(|it| it.settings.clone())
                .collect(),
        }
    }

    /// What shares of lines and CPUs are shares of.
    fn weight(&self, line: &LineCounts) -> f64 {
        if line.hardware_interrupts() == 0 {
            0.0
        } else if self.window.counted.handler_time {
            line.counts.inclusive_ns as f64
        } else {
            line.hardware_interrupts() as f64
        }
    }

    fn has_lines(&self) -> bool {
        self.window.counted.interrupts && self.window.detail == Detail::Lines
    }

    fn hottest_line(&self) -> Option<(String, f64)> {
        if !self.has_lines() {
            return None;
        }
        let total: f64 = self.lines.iter().map(|line| self.weight(line)).sum();
        let hottest = self
            .lines
            .iter()
            .max_by(|a, b| self.weight(a).total_cmp(&self.weight(b)))?;
        let share = ratio(self.weight(hottest), total)?;
        Some((format!("{} ({})", hottest.irq, hottest.action), share))
    }

    fn serving(&self, cpus: &[CpuUse]) -> Option<Serving> {
        if !self.window.counted.interrupts {
            return None;
        }
        let weights = if self.is_alone {
            let counts = self.window.counters.cpus.iter();
            counts
                .map(|cpu| {
                    let weight = if self.window.counted.handler_time {
                        cpu.interrupt_ns
                    } else {
                        cpu.depth0_runs
                    };
                    (cpu.cpu, weight as f64)
                })
                .collect()
        } else {
            self.weights_by_affinity()?
        };
        let lines = self.has_lines().then(|| {
            let lines = self.lines.iter();
            effective(lines.map(|line| self.weight(line)))
        });
        let mut serving = serving(&weights, lines.flatten(), cpus)?;
        serving.other_node = self.other_node(&weights);
        Some(serving)
    }

    /// Share of the weight on other nodes than the controller's (of disks
    /// without one: than theirs, where it is the same).
    fn other_node(&self, weights: &BTreeMap<u32, f64>) -> Option<f64> {
        let node = match self.controller {
            Some(controller) => controller.numa_node?,
            None => {
                let first = self.disks.first()?.numa_node?;
                let all = self.disks.iter();
                Some(first).filter(|_| all.into_iter().all(|it| it.numa_node == Some(first)))?
            }
        };
        let nodes = &self.window.topology.machine.numa_nodes;
        let local = nodes.iter().find(|it| it.id == node)?;
        let local: BTreeSet<u32> = NumberList::parse(&local.cpus).ok()?.numbers().collect();
        let other = weights.iter().filter(|(cpu, _)| !local.contains(cpu));
        let other: f64 = other.map(|(_, weight)| weight).sum();
        ratio(other, weights.values().sum())
    }

    /// Interrupt time by CPU, from where each line is delivered. Only where it
    /// stayed there and nearly all of it is known.
    fn weights_by_affinity(&self) -> Option<BTreeMap<u32, f64>> {
        if !self.has_lines() {
            return None;
        }
        let delivered_to = self.deliveries();
        let mut weights = BTreeMap::new();
        let (mut known, mut total) = (0.0, 0.0);
        for line in &self.lines {
            let weight = self.weight(line);
            total += weight;
            if let Some(&cpu) = delivered_to.get(&line.irq) {
                *weights.entry(cpu).or_default() += weight;
                known += weight;
            }
        }
        (ratio(known, total)? >= 0.9).then_some(weights)
    }

    /// The one CPU that each interrupt is delivered to; not of those that moved.
    fn deliveries(&self) -> BTreeMap<u32, u32> {
        let lines = self.disks.iter().flat_map(|disk| &disk.lines);
        let lines = lines.map(|it| (it.irq, &it.effective_affinity));
        let vectors = self.controller.iter().flat_map(|it| &it.vectors);
        let vectors = vectors.map(|it| (it.irq, &it.effective_affinity));
        // Read at the end of the window, the topology perhaps long before.
        let activity = self.window.activity.iter().flat_map(|it| &it.vectors);
        let now = activity.map(|it| (it.irq, &it.cpus));
        let mut deliveries = BTreeMap::new();
        for (irq, cpus) in lines.chain(vectors).chain(now) {
            let list = cpus.as_deref().and_then(|it| NumberList::parse(it).ok());
            if let Some(list) = list.filter(|list| list.count() == 1) {
                deliveries.extend(list.max().map(|cpu| (irq, cpu)));
            }
        }
        for change in &self.window.changes {
            if let Change::VectorMoved { irq, .. } = change {
                deliveries.remove(irq);
            }
        }
        deliveries
    }
}

/// 1 / sum of squared shares: how many equal ones would be as uneven.
fn effective(weights: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut squares) = (0.0, 0.0);
    for weight in weights {
        sum += weight;
        squares += weight * weight;
    }
    ratio(sum * sum, squares)
}

fn serving(
    weights: &BTreeMap<u32, f64>,
    effective_lines: Option<f64>,
    cpus: &[CpuUse],
) -> Option<Serving> {
    let total: f64 = weights.values().sum();
    let effective_cpus = effective(weights.values().copied())?;
    let shares: BTreeMap<u32, f64> = weights
        .iter()
        .filter(|&(_, &weight)| weight > 0.0)
        .map(|(&cpu, &weight)| (cpu, weight / total))
        .collect();
    let (&hottest_cpu, &hottest_share) = shares.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    // One that has less than half of an even share is not what serves it.
    let fair = 0.5 / effective_cpus;
    let share = |cpu: &CpuUse| shares.get(&cpu.cpu).copied().unwrap_or(0.0);
    let is_serving = |cpu: &CpuUse| share(cpu) >= fair;
    let mean = |value: &dyn Fn(&CpuUse) -> Option<f64>| {
        let (mut sum, mut of) = (0.0, 0.0);
        for cpu in cpus.iter().filter(|&cpu| is_serving(cpu)) {
            if let Some(value) = value(cpu) {
                sum += share(cpu) * value;
                of += share(cpu);
            }
        }
        // Of most of them, or of none.
        (of >= 0.5).then(|| sum / of)
    };
    let interrupt = |cpu: &CpuUse| Some(cpu.interrupt? + cpu.softirq?);
    let busy = mean(&|cpu| cpu.busy);
    let others: Vec<f64> = cpus
        .iter()
        .filter(|&cpu| !is_serving(cpu))
        .filter_map(|cpu| cpu.busy)
        .collect();
    let deep = |cpu: &CpuUse| ratio(cpu.deep_entries? as f64, cpu.interrupts? as f64);
    let exit = cpus
        .iter()
        .filter(|&cpu| is_serving(cpu))
        .filter_map(|cpu| Some((cpu.deep_entries?, cpu.deep_exit_us?)))
        .max_by_key(|&(entries, _)| entries);
    Some(Serving {
        cpus: cpus
            .iter()
            .filter(|&cpu| is_serving(cpu))
            .map(|cpu| cpu.cpu)
            .collect(),
        hottest_cpu,
        hottest_share,
        effective_cpus,
        effective_lines,
        busy,
        busiest: cpus
            .iter()
            .filter(|&cpu| is_serving(cpu))
            .filter_map(|cpu| cpu.busy)
            .max_by(f64::total_cmp),
        interrupt_part: mean(&interrupt)
            .zip(busy)
            .and_then(|(interrupt, busy)| ratio(interrupt, busy))
            .map(|part| part.min(1.0)),
        others_busy: ratio(others.iter().sum(), others.len() as f64),
        other_node: None,
        deep_idle_per_interrupt: mean(&deep),
        deep_idle_exit_us: exit.map(|(_, exit)| exit),
    })
}

impl Group {
    /// Requests in flight per disk that takes part.
    #[must_use]
    pub fn in_flight_per_disk(&self) -> Option<f64> {
        let busy = self.disks.iter().filter(|disk| disk.busy);
        let known: Option<Vec<f64>> = busy.map(|disk| disk.in_flight).collect();
        let known = known?;
        ratio(known.iter().sum(), known.len() as f64)
    }

    /// I/Os per second of a disk that takes part.
    #[must_use]
    pub fn iops_per_disk(&self) -> Option<f64> {
        let busy = self.disks.iter().filter(|disk| disk.busy);
        let known: Vec<f64> = busy.filter_map(|disk| disk.iops).collect();
        ratio(known.iter().sum(), known.len() as f64)
    }

    /// The sampled time up to the completion where there is one, else the
    /// kernel's of the whole request; and which it is.
    #[must_use]
    pub fn best_latency_us(&self) -> Option<(f64, &'static str)> {
        let sampled = self.completion_us.map(|it| (it, "start to completion"));
        sampled.or_else(|| self.latency_us.map(|it| (it, "whole request")))
    }
}
