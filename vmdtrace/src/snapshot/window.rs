//! What happened between two Snapshots of one run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use super::counts::Counts;
use super::probes::Counted;
use super::{
    BioCounts, Counters, Detail, DiskSamples, Host, LineCounts, LineKind, Losses, MsiCounts, Probe,
    Snapshot,
};
use crate::host::activity::{Activity, CpuActivity, CpuTimes, DiskActivity};
use crate::host::topology::{DiskPath, Mode, PciAddress, Topology};

/// The difference of two Snapshots. Every counter in it is what was counted in
/// between; what is no counter is as it was at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Time between the two, suspended time included.
    pub elapsed_ns: u64,
    /// The coarser of the two.
    pub detail: Detail,
    pub host: Host,
    pub topology: Topology,
    /// Which of the counters mean anything: at both ends.
    pub counted: Counted,
    /// A line or CPU that came in between counted from 0. One that is gone
    /// keeps what it counted.
    pub counters: Counters,
    pub probes: Vec<Probe>,
    /// Present where both have it. CPUs, disks and softirqs that are not at both
    /// ends are left out, and so are the times of a CPU that went back;
    /// `in_flight` is that of the end.
    pub activity: Option<Activity>,
    /// What came, went or changed in between.
    pub changes: Vec<Change>,
}

/// Something that was not the same at both ends of a [`Window`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    ControllerCame(PciAddress),
    ControllerWent(PciAddress),
    /// A controller's mode.
    Mode {
        controller: PciAddress,
        before: &'static str,
        after: &'static str,
    },
    DiskCame(String),
    DiskWent(String),
    /// A line that first ran in between, or ran for a new owner.
    LineCame {
        irq: u32,
        action: String,
    },
    CpuCame(u32),
    CpuWent(u32),
    /// The kernel's times of a CPU went back, so nothing is told of them.
    CpuTimesWentBack(u32),
    /// As of one CPU, for the kernel's sum over all.
    AllCpuTimesWentBack,
    /// The kernel's counts of a block device began anew.
    DiskCountsBeganAnew(String),
    /// A vector is delivered to other CPUs than before.
    VectorMoved {
        irq: u32,
        before: Option<String>,
        after: Option<String>,
    },
    /// A probe's state.
    Probe {
        name: String,
        before: &'static str,
        after: &'static str,
    },
}

/// Why two Snapshots have no difference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error(
        "the second snapshot was not taken after the first ({later_ns} ns since boot against \
         {earlier_ns}): they are in the wrong order, or the host was booted in between"
    )]
    NotLater { earlier_ns: u64, later_ns: u64 },
    #[error(
        "vmdtrace was started anew between the two snapshots, so its counters began at 0: take \
         both from one run"
    )]
    Restarted,
    #[error(
        "{what} went back from {earlier} to {later}: the counters were reset between the two \
         snapshots; take both from one run"
    )]
    WentBack {
        what: String,
        earlier: u64,
        later: u64,
    },
    #[error(
        "{what} is in the first snapshot and not in the second: they are not of one run of \
         vmdtrace, or sums hide who owns it (record with --lines)"
    )]
    Vanished { what: String },
}

impl Window {
    /// What happened from `earlier` to `later`.
    ///
    /// # Errors
    /// When the two are not of one run, in this order: no counter of ours ever
    /// goes back.
    pub fn between(earlier: &Snapshot, later: &Snapshot) -> Result<Self, WindowError> {
        if earlier.detail != later.detail {
            return Self::between(&earlier.sums(), &later.sums());
        }
        let elapsed_ns = later
            .taken_ns
            .checked_sub(earlier.taken_ns)
            .filter(|&elapsed| elapsed > 0)
            .ok_or(WindowError::NotLater {
                earlier_ns: earlier.taken_ns,
                later_ns: later.taken_ns,
            })?;
        if let (Some(before), Some(after)) = (earlier.counting_since_ns, later.counting_since_ns)
            && before != after
        {
            return Err(WindowError::Restarted);
        }
        let mut changes = BTreeSet::new();
        topology_changes(&earlier.topology, &later.topology, &mut changes);
        let counters = Counters {
            lines: lines(earlier, later, &mut changes)?,
            cpus: keyed(
                &earlier.counters.cpus,
                &later.counters.cpus,
                |cpu| cpu.cpu,
                |cpu| format!("CPU {cpu}"),
            )?,
            samples: samples(earlier, later)?,
            other_samples: {
                let mut difference = later.counters.other_samples.clone();
                subtract(&mut difference, &earlier.counters.other_samples, || {
                    "completions outside handlers".to_owned()
                })?;
                difference
            },
            bio: bio(&earlier.counters.bio, &later.counters.bio)?,
            losses: losses(&earlier.counters.losses, &later.counters.losses)?,
            outside: keyed(
                &earlier.counters.outside,
                &later.counters.outside,
                |it| (it.controller.clone(), it.disk.clone()),
                |(_, disk)| format!("completions of {disk} outside handlers"),
            )?,
            shares: keyed(
                &earlier.counters.shares,
                &later.counters.shares,
                |it| (it.cpu, it.owner.clone()),
                |(cpu, owner)| format!("CPU {cpu} for {owner:?}"),
            )?,
            msi: msi(&earlier.counters.msi, &later.counters.msi)?,
        };
        let activity = match (&earlier.activity, &later.activity) {
            (Some(earlier), Some(later)) => Some(activity(earlier, later, &mut changes)),
            _ => None,
        };
        let (before, after) = (earlier.counted(), later.counted());
        Ok(Self {
            elapsed_ns,
            detail: later.detail,
            host: later.host.clone(),
            topology: later.topology.clone(),
            counted: Counted {
                interrupts: before.interrupts && after.interrupts,
                handler_time: before.handler_time && after.handler_time,
                repeated_runs: before.repeated_runs && after.repeated_runs,
                completions: before.completions && after.completions,
                placement: before.placement && after.placement,
                latency: before.latency && after.latency,
                handling: before.handling && after.handling,
                bio: before.bio.and(after.bio),
                timeouts: before.timeouts && after.timeouts,
                lost_interrupts: before.lost_interrupts && after.lost_interrupts,
                allocation_failures: before.allocation_failures && after.allocation_failures,
            },
            counters,
            probes: probes(&earlier.probes, &later.probes, &mut changes)?,
            activity,
            changes: changes.into_iter().collect(),
        })
    }
}

/// Takes `earlier` off every counter of `count`; `what` names whose they are.
fn subtract<T: Counts>(
    count: &mut T,
    earlier: &T,
    what: impl Fn() -> String,
) -> Result<(), WindowError> {
    let mut error = None;
    count.combine(earlier, &mut |later: u64, earlier| {
        later.checked_sub(earlier).unwrap_or_else(|| {
            error.get_or_insert_with(|| WindowError::WentBack {
                what: format!("a counter of {}", what()),
                earlier,
                later,
            });
            0
        })
    });
    error.map_or(Ok(()), Err)
}

/// As [`subtract`], where going back is no fault: nothing is left then.
fn try_subtract<T: Counts + Clone>(later: &T, earlier: &T) -> Option<T> {
    let mut difference = later.clone();
    subtract(&mut difference, earlier, String::new)
        .ok()
        .map(|()| difference)
}

/// The differences of what can only come, never go.
fn keyed<T, K>(
    earlier: &[T],
    later: &[T],
    key: impl Fn(&T) -> K,
    what: impl Fn(&K) -> String,
) -> Result<Vec<T>, WindowError>
where
    T: Counts + Clone,
    K: Ord,
{
    let mut before: BTreeMap<K, &T> = earlier.iter().map(|item| (key(item), item)).collect();
    let mut differences = later.to_vec();
    for item in &mut differences {
        let key = key(item);
        if let Some(earlier) = before.remove(&key) {
            subtract(item, earlier, || what(&key))?;
        }
    }
    match before.into_keys().next() {
        Some(gone) => Err(WindowError::Vanished { what: what(&gone) }),
        None => Ok(differences),
    }
}

fn losses(earlier: &Losses, later: &Losses) -> Result<Losses, WindowError> {
    let mut difference = later.clone();
    subtract(&mut difference.unassigned, &earlier.unassigned, || {
        "time-outs of unknown disks".to_owned()
    })?;
    difference.disks = keyed(
        &earlier.disks,
        &later.disks,
        |it| (it.controller.clone(), it.disk.clone()),
        |(_, disk)| format!("time-outs of {disk}"),
    )?;
    Ok(difference)
}

fn msi(earlier: &MsiCounts, later: &MsiCounts) -> Result<MsiCounts, WindowError> {
    let mut difference = later.clone();
    subtract(&mut difference, earlier, || {
        "operations on interrupts".to_owned()
    })?;
    difference.operations = keyed(
        &earlier.operations,
        &later.operations,
        |it| (it.controller.clone(), it.operation),
        |(controller, operation)| format!("{} of {controller}", operation.as_str()),
    )?;
    Ok(difference)
}

/// A line of one owner. When a line gets another owner, what the old one counted
/// stays as an entry of its own.
type LineKey<'a> = (
    u32,
    &'a str,
    LineKind,
    Option<&'a PciAddress>,
    Option<&'a str>,
    Option<DiskPath>,
);

fn line_key(line: &LineCounts) -> LineKey<'_> {
    (
        line.irq,
        &line.action,
        line.kind,
        line.controller.as_ref(),
        line.disk.as_deref(),
        line.path,
    )
}

fn describe(line: &LineCounts) -> String {
    let LineCounts {
        irq,
        action,
        controller,
        disk,
        ..
    } = line;
    match (disk, controller) {
        _ if !action.is_empty() => format!("interrupt {irq} ({action})"),
        (Some(disk), _) => format!("the lines of {disk}"),
        (None, Some(controller)) => format!("the lines of the controller {controller}"),
        (None, None) => format!("interrupt {irq}"),
    }
}

fn lines(
    earlier: &Snapshot,
    later: &Snapshot,
    changes: &mut BTreeSet<Change>,
) -> Result<Vec<LineCounts>, WindowError> {
    let mut before: HashMap<LineKey<'_>, &LineCounts> = earlier
        .counters
        .lines
        .iter()
        .map(|line| (line_key(line), line))
        .collect();
    let mut differences = Vec::with_capacity(later.counters.lines.len());
    let mut without = Vec::new();
    for line in &later.counters.lines {
        match before.remove(&line_key(line)) {
            Some(earlier) => {
                let mut difference = line.clone();
                subtract(&mut difference, earlier, || describe(line))?;
                differences.push(difference);
            }
            None => without.push(line),
        }
    }
    for line in without {
        // Its owner may just not have been known yet.
        let unowned = (line.irq, line.action.as_str(), line.kind, None, None, None);
        let mut difference = line.clone();
        if let Some(earlier) = before.remove(&unowned) {
            subtract(&mut difference, earlier, || describe(line))?;
        } else {
            changes.insert(Change::LineCame {
                irq: line.irq,
                action: line.action.clone(),
            });
        }
        differences.push(difference);
    }
    match before.into_values().min_by_key(|line| line.irq) {
        Some(gone) => Err(WindowError::Vanished {
            what: describe(gone),
        }),
        None => Ok(differences),
    }
}

fn bio(earlier: &BioCounts, later: &BioCounts) -> Result<BioCounts, WindowError> {
    let BioCounts {
        regime,
        allocations,
        kmallocs,
        frees,
    } = later;
    Ok(BioCounts {
        regime: *regime,
        allocations: keyed(
            &earlier.allocations,
            allocations,
            |it| (it.set.clone(), it.purpose),
            |(set, _)| format!("the bios of {set}"),
        )?,
        kmallocs: kmallocs
            .checked_sub(earlier.kmallocs)
            .ok_or_else(|| WindowError::WentBack {
                what: "the count of bios of no set".to_owned(),
                earlier: earlier.kmallocs,
                later: *kmallocs,
            })?,
        frees: keyed(
            &earlier.frees,
            frees,
            |it| (it.destination, it.context),
            |(destination, _)| format!("freed bios ({destination:?})"),
        )?,
    })
}

/// As [`lines`], of the times of each disk.
fn samples(earlier: &Snapshot, later: &Snapshot) -> Result<Vec<DiskSamples>, WindowError> {
    let what = |disk: &str| format!("the samples of {disk}");
    let key = |it: &DiskSamples| (it.disk.clone(), it.controller.clone());
    let earlier = earlier.counters.samples.iter();
    let mut before: BTreeMap<_, &DiskSamples> = earlier.map(|it| (key(it), it)).collect();
    let mut differences = later.counters.samples.clone();
    for disk in &mut differences {
        let known = before.remove(&key(disk));
        // Its owner may just not have been known yet.
        let known = known.or_else(|| before.remove(&(disk.disk.clone(), None)));
        if let Some(earlier) = known {
            let name = disk.disk.clone();
            subtract(disk, earlier, || what(&name))?;
        }
    }
    match before.into_keys().next() {
        Some((disk, _)) => Err(WindowError::Vanished { what: what(&disk) }),
        None => Ok(differences),
    }
}

fn probes(
    earlier: &[Probe],
    later: &[Probe],
    changes: &mut BTreeSet<Change>,
) -> Result<Vec<Probe>, WindowError> {
    let mut differences = later.to_vec();
    for probe in &mut differences {
        let name = probe.name.clone();
        let Some(before) = earlier.iter().find(|before| before.name == name) else {
            continue;
        };
        if before.state != probe.state {
            changes.insert(Change::Probe {
                name: name.clone(),
                before: before.state.as_str(),
                after: probe.state.as_str(),
            });
        }
        subtract(probe, before, || format!("the probe {name}"))?;
    }
    Ok(differences)
}

fn topology_changes(earlier: &Topology, later: &Topology, changes: &mut BTreeSet<Change>) {
    let modes = |topology: &Topology| -> BTreeMap<PciAddress, Mode> {
        let mode = |it: &crate::host::topology::Controller| (it.address.clone(), it.mode);
        topology.controllers.iter().map(mode).collect()
    };
    let (before, after) = (modes(earlier), modes(later));
    for (address, mode) in &after {
        match before.get(address) {
            None => {
                changes.insert(Change::ControllerCame(address.clone()));
            }
            Some(other) if other != mode => {
                changes.insert(Change::Mode {
                    controller: address.clone(),
                    before: other.as_str(),
                    after: mode.as_str(),
                });
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().filter(|it| !after.contains_key(it));
    changes.extend(gone.cloned().map(Change::ControllerWent));
    let disks = |topology: &Topology| -> BTreeSet<String> {
        topology.disks.iter().map(|it| it.name.clone()).collect()
    };
    let (before, after) = (disks(earlier), disks(later));
    changes.extend(after.difference(&before).cloned().map(Change::DiskCame));
    changes.extend(before.difference(&after).cloned().map(Change::DiskWent));
}

fn activity(earlier: &Activity, later: &Activity, changes: &mut BTreeSet<Change>) -> Activity {
    let Activity {
        ticks_per_second,
        all_cpus,
        cpus,
        softirqs,
        disks,
        vectors,
        problems,
    } = later;
    for before in &earlier.vectors {
        let after = vectors.iter().find(|after| after.irq == before.irq);
        if let Some(after) = after
            && after.cpus != before.cpus
        {
            changes.insert(Change::VectorMoved {
                irq: after.irq,
                before: before.cpus.clone(),
                after: after.cpus.clone(),
            });
        }
    }
    let softirq = |(name, count): (&String, &u64)| {
        let count = count.checked_sub(*earlier.softirqs.get(name)?)?;
        Some((name.clone(), count))
    };
    let mut all_problems: BTreeSet<&String> = problems.iter().collect();
    all_problems.extend(&earlier.problems);
    Activity {
        ticks_per_second: *ticks_per_second,
        all_cpus: all_cpu_times(earlier, all_cpus.as_ref(), changes),
        cpus: cpu_activity(&earlier.cpus, cpus, changes),
        softirqs: softirqs.iter().filter_map(softirq).collect(),
        disks: disk_activity(&earlier.disks, disks, changes),
        vectors: vectors.clone(),
        problems: all_problems.into_iter().cloned().collect(),
    }
}

fn all_cpu_times(
    earlier: &Activity,
    later: Option<&CpuTimes>,
    changes: &mut BTreeSet<Change>,
) -> Option<CpuTimes> {
    let difference = cpu_times(later?, earlier.all_cpus.as_ref()?);
    if difference.is_none() {
        changes.insert(Change::AllCpuTimesWentBack);
    }
    difference
}

/// The kernel decides at each reading whether a CPU's current idle period is
/// `iowait` (`get_iowait_time` in fs/proc/stat.c), so time may move from one to
/// the other; their sum does not go back. Where one of them did, all of it is
/// `idle`.
fn cpu_times(later: &CpuTimes, earlier: &CpuTimes) -> Option<CpuTimes> {
    if later.idle >= earlier.idle && later.iowait >= earlier.iowait {
        return try_subtract(later, earlier);
    }
    let together = |times: &CpuTimes| CpuTimes {
        idle: times.idle.saturating_add(times.iowait),
        iowait: 0,
        ..times.clone()
    };
    try_subtract(&together(later), &together(earlier))
}

fn cpu_difference(later: &CpuActivity, earlier: &CpuActivity) -> Option<CpuActivity> {
    let times = cpu_times(&later.times, &earlier.times)?;
    // Everything else, with the times out of the way.
    let without_times = |cpu: &CpuActivity| CpuActivity {
        times: CpuTimes::default(),
        ..cpu.clone()
    };
    let difference = try_subtract(&without_times(later), &without_times(earlier))?;
    Some(CpuActivity {
        times,
        ..difference
    })
}

fn cpu_activity(
    earlier: &[CpuActivity],
    later: &[CpuActivity],
    changes: &mut BTreeSet<Change>,
) -> Vec<CpuActivity> {
    let mut before: BTreeMap<u32, &CpuActivity> = earlier.iter().map(|it| (it.cpu, it)).collect();
    let mut differences = Vec::with_capacity(later.len());
    for cpu in later {
        match before.remove(&cpu.cpu).map(|it| cpu_difference(cpu, it)) {
            None => {
                changes.insert(Change::CpuCame(cpu.cpu));
            }
            Some(None) => {
                changes.insert(Change::CpuTimesWentBack(cpu.cpu));
            }
            Some(Some(difference)) => differences.push(difference),
        }
    }
    changes.extend(before.into_keys().map(Change::CpuWent));
    differences
}

fn disk_activity(
    earlier: &[DiskActivity],
    later: &[DiskActivity],
    changes: &mut BTreeSet<Change>,
) -> Vec<DiskActivity> {
    let before: HashMap<&str, &DiskActivity> =
        earlier.iter().map(|it| (it.name.as_str(), it)).collect();
    let mut differences = Vec::with_capacity(later.len());
    for disk in later {
        let Some(before) = before.get(disk.name.as_str()) else {
            continue;
        };
        match try_subtract(disk, before) {
            Some(difference) => differences.push(difference),
            // The name is another disk's now.
            None => {
                changes.insert(Change::DiskCountsBeganAnew(disk.name.clone()));
            }
        }
    }
    differences
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = |cpus: &Option<String>| cpus.clone().unwrap_or_else(|| "none".to_owned());
        match self {
            Self::ControllerCame(address) => write!(f, "controller {address} came"),
            Self::ControllerWent(address) => write!(f, "controller {address} went"),
            Self::Mode {
                controller,
                before,
                after,
            } => write!(f, "controller {controller} went from {before} to {after}"),
            Self::DiskCame(disk) => write!(f, "disk {disk} came"),
            Self::DiskWent(disk) => write!(f, "disk {disk} went"),
            Self::LineCame { irq, action } => write!(f, "interrupt {irq} ({action}) came"),
            Self::CpuCame(cpu) => write!(f, "CPU {cpu} came online"),
            Self::CpuWent(cpu) => write!(f, "CPU {cpu} went offline"),
            Self::CpuTimesWentBack(cpu) => {
                write!(f, "the kernel's times of CPU {cpu} went back")
            }
            Self::AllCpuTimesWentBack => {
                write!(f, "the kernel's times of all CPUs together went back")
            }
            Self::DiskCountsBeganAnew(disk) => {
                write!(f, "the kernel's counts of {disk} began anew")
            }
            Self::VectorMoved { irq, before, after } => write!(
                f,
                "interrupt {irq} moved from CPUs {} to {}",
                cpus(before),
                cpus(after)
            ),
            Self::Probe {
                name,
                before,
                after,
            } => write!(f, "probe {name} went from {before} to {after}"),
        }
    }
}

#[cfg(test)]
mod tests;
