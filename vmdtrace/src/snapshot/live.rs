//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::time::{ClockId, clock_gettime};

use super::{
    Counters, DiskLosses, Host, LineCounts, LineKind, LossCounts, Losses, MsiCounts, MsiOperation,
    OperationCount, Snapshot,
    attribution::Attribution,
    source::{SnapshotError, SnapshotSource, SourceOptions},
};
use crate::{
    host::{
        self, Roots, TopologyIndex,
        topology::{DiskPath, PciAddress, Topology},
    },
    probes::{
        Options, Sizes, Tracer,
        losses::{DiskName, LossesByName},
        messages,
        msi::{ControllerName, OperationsByName},
        msi_messages::Subject,
    },
};

/// The running host.
#[derive(Debug)]
pub struct Live {
    tracer: Tracer,
    roots: Roots,
    host: Host,
    owners: Arc<Mutex<Owners>>,
}

impl Live {
    fn new(tracer: Tracer, roots: Roots, possible_cpus: u32) -> Self {
        let kernel = std::fs::read_to_string(roots.procfs.join("sys/kernel/osrelease"));
        let host = Host {
            kernel: kernel.unwrap_or_default().trim().to_owned(),
            possible_cpus,
        };
        Self {
            tracer,
            roots,
            host,
            owners: Arc::default(),
        }
    }

    /// Loads and attaches the programs and passes their messages on.
    ///
    /// # Errors
    /// What the tracer or the host's facts say; each message names the remedy.
    pub fn open(options: &SourceOptions) -> anyhow::Result<Self> {
        let SourceOptions {
            roots,
            also_lines,
            level,
            kprobes,
        } = options;
        let possible_cpus = host::possible_cpus(roots)?;
        let tracer = Tracer::load(Options {
            sizes: Sizes::for_host(possible_cpus, host::max_irq(roots)?),
            level: *level,
            also_lines: also_lines.clone(),
            kprobes: *kprobes,
            roots: roots.clone(),
        })?;
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        let messages = tracer.take_msi_messages();
        let live = Self::new(tracer, roots.clone(), possible_cpus);
        let owners = Arc::clone(&live.owners);
        let passed_on = messages.and_then(|messages| {
            Ok(messages.pass_on(move |name, irq| lock(&owners).subject(name, irq))?)
        });
        if let Err(error) = passed_on {
            tracing::warn!("operations on interrupts are not logged: {error:#}");
        }
        live.tracer.attach();
        Ok(live)
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        lock(&self.owners)
    }
}

fn lock(owners: &Mutex<Owners>) -> MutexGuard<'_, Owners> {
    // A panic while it was held leaves at worst a topology to be read again.
    owners.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SnapshotSource for Live {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(SnapshotError::new)?;
        let mut counters = self.tracer.counters();
        let losses = self.tracer.losses().map_err(SnapshotError::new)?;
        let operations = self.tracer.operations().map_err(SnapshotError::new)?;
        let probes = self.tracer.probes();
        let mut owners = self.owners();
        owners.assign(&mut counters, &losses, &operations, || {
            host::read(&self.roots)
        });
        Ok(Snapshot {
            taken_ns: std::time::Duration::from(now).as_nanos() as u64,
            host: self.host.clone(),
            topology: owners.topology.clone().unwrap_or_default(),
            counters,
            probes,
        })
    }

    fn attach_pending(&self) {
        self.tracer.attach();
    }

    fn topology_changed(&self) {
        self.tracer.raise_generation();
        let mut owners = self.owners();
        owners.changed(|| self.tracer.counters().lines);
        match self.tracer.losses() {
            Ok(losses) => owners.losses.changed(losses.disks),
            Err(error) => tracing::debug!("time-outs cannot be read: {error:#}"),
        }
        match self.tracer.operations() {
            Ok(operations) => owners.operations.changed(operations.controllers),
            Err(error) => tracing::debug!("operations cannot be read: {error:#}"),
        }
    }

    fn close(&self) {
        self.tracer.remove_kprobes();
    }
}

/// A line: interrupt number and action name.
type LineKey = (u32, String);

fn key(line: &LineCounts) -> LineKey {
    (line.irq, line.action.clone())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    controller: Option<PciAddress>,
    disk: Option<String>,
    path: Option<DiskPath>,
}

impl Owner {
    fn label(&self, line: &mut LineCounts) {
        let Self {
            controller,
            disk,
            path,
        } = self;
        line.controller.clone_from(controller);
        line.disk.clone_from(disk);
        line.path = *path;
    }
}

/// Who owns a line now, and what had been counted on it before.
#[derive(Clone, Debug)]
struct Tenancy {
    owner: Owner,
    before: Option<LineCounts>,
}

/// Who owns which line. Sysfs is read when devices came or went, and when a
/// line is counted that the last reading does not know; never otherwise.
///
/// Names and numbers are re-used, counts are not: what was counted for an
/// earlier owner of a line stays with that owner, and so does a line whose
/// device is gone. No counter ever goes back.
#[derive(Debug, Default)]
struct Owners {
    topology: Option<Topology>,
    stale: bool,
    known: HashMap<LineKey, Tenancy>,
    /// Counts of earlier owners.
    past: HashMap<(LineKey, Owner), LineCounts>,
    /// All counts when the first change since the last reading was noticed: the
    /// line between an old and a new owner.
    boundary: Option<HashMap<LineKey, LineCounts>>,
    /// Lines that the last reading did not know: not a reason to read again.
    unknown: HashSet<LineKey>,
    losses: Attribution<DiskName, DiskOwner, 2>,
    operations: Attribution<ControllerName, PciAddress, { MsiOperation::ALL.len() }>,
}

/// The VMD of this name by a reading.
fn find_controller(topology: &Topology, name: &ControllerName) -> Option<PciAddress> {
    let found = topology.controllers.iter().find(|controller| match name {
        ControllerName::Domain(number) => controller
            .domain
            .as_deref()
            .is_some_and(|it| u32::from_str_radix(it, 16) == Ok(*number)),
        ControllerName::Address(address) => controller.address.0 == *address,
        ControllerName::Vector(irq) => controller.vectors.iter().any(|it| it.irq == *irq),
        ControllerName::Unknown => false,
    })?;
    Some(found.address.clone())
}

/// Whose time-outs they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DiskOwner {
    controller: Option<PciAddress>,
    disk: String,
}

impl DiskOwner {
    /// The disk of this name by a reading.
    fn find(topology: &Topology, name: &DiskName) -> Option<Self> {
        let disk = topology.disks.iter().find(|disk| match name {
            DiskName::Number(number) => disk.name == format!("nvme{number}"),
            DiskName::BlockDevice(device) => disk.namespaces.iter().any(|it| it.name == *device),
            DiskName::Unknown => false,
        })?;
        Some(Self {
            controller: disk.controller.clone(),
            disk: disk.name.clone(),
        })
    }
}

impl Owners {
    /// Devices came or went; `counts` is what has been counted until now.
    fn changed(&mut self, counts: impl FnOnce() -> Vec<LineCounts>) {
        if !self.stale {
            self.boundary = Some(
                counts()
                    .into_iter()
                    .map(|line| (key(&line), line))
                    .collect(),
            );
        }
        self.stale = true;
    }

    fn assign(
        &mut self,
        counters: &mut Counters,
        losses: &LossesByName,
        operations: &OperationsByName,
        read: impl FnOnce() -> Topology,
    ) {
        let unheard_of = |line: &LineCounts| {
            let key = key(line);
            line.kind != LineKind::Watched
                && !self.known.contains_key(&key)
                && !self.unknown.contains(&key)
        };
        if self.stale
            || self.topology.is_none()
            || counters.lines.iter().any(unheard_of)
            || self.losses.has_news(&losses.disks)
            || self.operations.has_news(&operations.controllers)
        {
            let topology = read();
            self.hand_over(&topology, &counters.lines);
            self.losses
                .hand_over(&losses.disks, |name| DiskOwner::find(&topology, name));
            self.operations.hand_over(&operations.controllers, |name| {
                find_controller(&topology, name)
            });
            self.topology = Some(topology);
            self.stale = false;
            self.boundary = None;
        }
        for line in &mut counters.lines {
            if let Some(Tenancy { owner, before }) = self.known.get(&key(line)) {
                owner.label(line);
                if let Some(before) = before {
                    subtract(line, before);
                }
            }
        }
        counters.lines.extend(self.past.values().cloned());
        counters.losses = self.losses(losses);
        counters.msi = self.msi(operations);
    }

    fn msi(&self, operations: &OperationsByName) -> MsiCounts {
        let OperationsByName {
            controllers,
            unassigned,
            allocation_failures,
            lost_messages,
        } = operations;
        let mut owned = self.operations.by_owner(controllers);
        let of_nobody = owned.remove(&None).unwrap_or_default();
        let mut counts = MsiCounts {
            operations: Vec::new(),
            unassigned: of_nobody.into_iter().fold(*unassigned, u64::saturating_add),
            allocation_failures: *allocation_failures,
            lost_messages: *lost_messages,
        };
        for (controller, sums) in owned {
            let Some(controller) = controller else {
                continue;
            };
            for (operation, count) in MsiOperation::ALL.into_iter().zip(sums) {
                if count > 0 {
                    counts.operations.push(OperationCount {
                        controller: controller.clone(),
                        operation,
                        count,
                    });
                }
            }
        }
        counts
    }

    /// What an operation is about, by the last reading of the devices.
    fn subject(&self, name: &ControllerName, irq: Option<u32>) -> Subject {
        let Some(topology) = &self.topology else {
            return Subject::default();
        };
        let of_disks = topology.disks.iter().flat_map(|disk| &disk.lines);
        let of_others = topology.controllers.iter().flat_map(|it| &it.other_lines);
        let line = of_disks.chain(of_others).find(|line| Some(line.irq) == irq);
        Subject {
            controller: find_controller(topology, name).map(|PciAddress(address)| address),
            action: line.and_then(|line| line.actions.first().cloned()),
            vector: line.and_then(|line| line.parent_irq),
        }
    }

    fn losses(&self, losses: &LossesByName) -> Losses {
        let counts = |[timeouts, lost_interrupts]: [u64; 2]| LossCounts {
            timeouts,
            lost_interrupts,
        };
        let mut owned = self.losses.by_owner(&losses.disks);
        let [timeouts, lost] = owned.remove(&None).unwrap_or_default();
        let [more, more_lost] = losses.unassigned;
        Losses {
            unassigned: counts([
                timeouts.saturating_add(more),
                lost.saturating_add(more_lost),
            ]),
            disks: owned
                .into_iter()
                .filter_map(|(owner, sum)| {
                    let DiskOwner { controller, disk } = owner?;
                    Some(DiskLosses {
                        controller,
                        disk,
                        counts: counts(sum),
                    })
                })
                .collect(),
        }
    }

    /// Takes note of who owns the counted lines by a new reading.
    fn hand_over(&mut self, topology: &Topology, lines: &[LineCounts]) {
        self.unknown.clear();
        let index = TopologyIndex::new(topology);
        for line in lines.iter().filter(|line| line.kind != LineKind::Watched) {
            let key = key(line);
            let Some(owner) = index.line(line.irq, &line.action) else {
                if !self.known.contains_key(&key) {
                    self.unknown.insert(key);
                }
                continue;
            };
            let owner = Owner {
                controller: owner.controller.cloned(),
                disk: owner.disk.map(str::to_owned),
                path: owner.path,
            };
            let Some(tenancy) = self.known.get_mut(&key) else {
                self.known.insert(
                    key,
                    Tenancy {
                        owner,
                        before: None,
                    },
                );
                continue;
            };
            if tenancy.owner == owner {
                continue;
            }
            // A line that the boundary does not have had no counts there.
            let until = match &self.boundary {
                Some(boundary) => boundary.get(&key).cloned(),
                None => Some(line.clone()),
            };
            let Some(until) = until else {
                tenancy.owner = owner;
                continue;
            };
            let mut served = until.clone();
            if let Some(before) = &tenancy.before {
                subtract(&mut served, before);
            }
            tenancy.owner.label(&mut served);
            let old = std::mem::replace(
                tenancy,
                Tenancy {
                    owner,
                    before: Some(until),
                },
            );
            match self.past.entry((key, old.owner)) {
                Entry::Occupied(mut past) => add(past.get_mut(), &served),
                Entry::Vacant(past) => {
                    past.insert(served);
                }
            }
        }
    }
}

/// Applies `change` to every counter of `line` and its like in `other`.
fn change(line: &mut LineCounts, other: &LineCounts, change: fn(u64, u64) -> u64) {
    let LineCounts {
        irq: _,
        action: _,
        kind: _,
        controller: _,
        disk: _,
        path: _,
        parent_irq: _,
        depth0_runs,
        nested_runs,
        unhandled_runs,
        repeated_runs,
        inclusive_ns,
        self_ns,
        completions,
        child_runs,
        child_unhandled_runs,
        child_completions,
    } = line;
    for (count, by) in [
        (depth0_runs, other.depth0_runs),
        (nested_runs, other.nested_runs),
        (unhandled_runs, other.unhandled_runs),
        (inclusive_ns, other.inclusive_ns),
        (self_ns, other.self_ns),
        (completions, other.completions),
        (child_runs, other.child_runs),
        (child_unhandled_runs, other.child_unhandled_runs),
        (child_completions, other.child_completions),
    ] {
        *count = change(*count, by);
    }
    *repeated_runs = match (*repeated_runs, other.repeated_runs) {
        (Some(count), Some(by)) => Some(change(count, by)),
        _ => None,
    };
}

fn subtract(line: &mut LineCounts, earlier: &LineCounts) {
    change(line, earlier, u64::saturating_sub);
}

fn add(line: &mut LineCounts, more: &LineCounts) {
    change(line, more, u64::saturating_add);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::host::topology::{Controller, Disk, Mode, Namespace, Vector, VectorUse};

    fn line(irq: u32, action: &str, kind: LineKind) -> LineCounts {
        LineCounts {
            irq,
            action: action.to_owned(),
            kind,
            controller: None,
            disk: None,
            path: None,
            parent_irq: None,
            depth0_runs: 1,
            nested_runs: 0,
            unhandled_runs: 0,
            repeated_runs: None,
            inclusive_ns: 0,
            self_ns: 0,
            completions: 0,
            child_runs: 0,
            child_unhandled_runs: 0,
            child_completions: 0,
        }
    }

    fn topology(disks: &[&str]) -> Topology {
        let disk = |name: &&str| Disk {
            name: (*name).to_owned(),
            address: PciAddress("10000:01:00.0".into()),
            path: DiskPath::VmdBypass,
            controller: Some(PciAddress("0000:97:00.5".into())),
            model: None,
            numa_node: None,
            namespaces: Vec::new(),
            queues: Vec::new(),
            lines: Vec::new(),
        };
        Topology {
            disks: disks.iter().map(disk).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn a_line_keeps_its_owner_when_the_disk_is_gone() {
        let mut owners = Owners::default();
        let mut counters = Counters {
            lines: vec![line(40, "nvme0q1", LineKind::Nvme)],
            ..Counters::default()
        };
        owners.assign(
            &mut counters,
            &LossesByName::default(),
            &OperationsByName::default(),
            || topology(&["nvme0"]),
        );
        owners.changed(|| counters.lines.clone());
        counters.lines = vec![line(40, "nvme0q1", LineKind::Nvme)];
        owners.assign(
            &mut counters,
            &LossesByName::default(),
            &OperationsByName::default(),
            || topology(&[]),
        );
        assert_eq!(counters.lines[0].disk.as_deref(), Some("nvme0"));
        assert_eq!(counters.lines[0].path, Some(DiskPath::VmdBypass));
    }

    #[test]
    fn sysfs_is_read_for_news_only() {
        let reads = Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            topology(&["nvme0"])
        };
        let mut owners = Owners::default();
        let mut lines = vec![
            line(40, "nvme0q1", LineKind::Nvme),
            line(9, "virtio0", LineKind::Watched),
        ];
        for expected in [1, 1] {
            owners.assign(
                &mut Counters {
                    lines: lines.clone(),
                    ..Counters::default()
                },
                &LossesByName::default(),
                &OperationsByName::default(),
                read,
            );
            assert_eq!(reads.get(), expected);
        }
        lines.push(line(41, "nvme5q1", LineKind::Nvme));
        for expected in [2, 2] {
            owners.assign(
                &mut Counters {
                    lines: lines.clone(),
                    ..Counters::default()
                },
                &LossesByName::default(),
                &OperationsByName::default(),
                read,
            );
            assert_eq!(reads.get(), expected, "an unknown line is a reason once");
        }
        owners.changed(|| lines.clone());
        owners.assign(
            &mut Counters {
                lines,
                ..Counters::default()
            },
            &LossesByName::default(),
            &OperationsByName::default(),
            read,
        );
        assert_eq!(reads.get(), 3);
    }

    #[test]
    fn time_outs_belong_to_the_disk_they_were_counted_for() {
        let mut owners = Owners::default();
        let losses = |disks: &[(DiskName, [u64; 2])]| LossesByName {
            disks: disks.iter().cloned().collect(),
            unassigned: [7, 1],
        };
        let mut topology = topology(&["nvme0", "nvme1"]);
        topology.disks[1].namespaces.push(Namespace {
            name: "nvme5n1".to_owned(),
            size_bytes: None,
        });
        let counted = [
            (DiskName::Number(0), [2, 1]),
            (DiskName::BlockDevice("nvme5n1".to_owned()), [3, 0]),
            (DiskName::Unknown, [1, 0]),
        ];
        let mut counters = Counters::default();
        owners.assign(
            &mut counters,
            &losses(&counted),
            &OperationsByName::default(),
            || topology.clone(),
        );
        let of = |disk: &str| {
            let found = counters.losses.disks.iter().find(|it| it.disk == disk);
            let LossCounts {
                timeouts,
                lost_interrupts,
            } = found.unwrap().counts;
            (timeouts, lost_interrupts)
        };
        assert_eq!((of("nvme0"), of("nvme1")), ((2, 1), (3, 0)));
        assert_eq!(
            counters.losses.unassigned,
            LossCounts {
                timeouts: 8,
                lost_interrupts: 1
            }
        );
    }

    #[test]
    fn operations_belong_to_the_controller_that_any_of_its_names_tells() {
        let address = PciAddress("0000:97:00.5".to_owned());
        let mut topology = topology(&[]);
        topology.controllers.push(Controller {
            address: address.clone(),
            driver: None,
            device_id: None,
            action: None,
            domain: Some("10000".to_owned()),
            numa_node: None,
            mode: Mode::Remap,
            mode_evidence: Vec::new(),
            vectors: vec![Vector {
                index: 0,
                irq: 41,
                used_for: VectorUse::All,
                effective_affinity: None,
            }],
            other_lines: Vec::new(),
            child_interrupts: 0,
            sharing_factor: None,
        });
        let once = |operation: MsiOperation| {
            let mut counts = [0; MsiOperation::ALL.len()];
            counts[operation as usize] = 1;
            counts
        };
        let operations = OperationsByName {
            controllers: HashMap::from([
                (ControllerName::Domain(0x10000), once(MsiOperation::Free)),
                (ControllerName::Domain(0x10001), once(MsiOperation::Free)),
                (
                    ControllerName::Address(address.0.clone()),
                    once(MsiOperation::RemapOn),
                ),
                (ControllerName::Vector(41), once(MsiOperation::Move)),
                (ControllerName::Unknown, once(MsiOperation::Enable)),
            ]),
            unassigned: 5,
            ..OperationsByName::default()
        };
        let mut owners = Owners::default();
        let mut counters = Counters::default();
        owners.assign(&mut counters, &LossesByName::default(), &operations, || {
            topology
        });
        let counted: Vec<_> = counters
            .msi
            .operations
            .iter()
            .map(|it| (&it.controller, it.operation, it.count))
            .collect();
        assert_eq!(
            counted,
            [
                (&address, MsiOperation::Free, 1),
                (&address, MsiOperation::RemapOn, 1),
                (&address, MsiOperation::Move, 1),
            ]
        );
        assert_eq!(counters.msi.unassigned, 7);
    }

    /// What a disk's owner had counted: by controller and path.
    fn depth0(counters: &Counters) -> Vec<(Option<&str>, Option<DiskPath>, u64)> {
        let mut counts: Vec<_> = counters
            .lines
            .iter()
            .map(|line| {
                (
                    line.controller.as_ref().map(|it| it.0.as_str()),
                    line.path,
                    line.depth0_runs,
                )
            })
            .collect();
        counts.sort();
        counts
    }

    #[test]
    fn counts_stay_with_the_owner_they_were_counted_for() {
        let mut direct = topology(&["nvme0"]);
        direct.disks[0].controller = None;
        direct.disks[0].path = DiskPath::Direct;
        let counted = |runs| {
            let mut line = line(40, "nvme0q1", LineKind::Nvme);
            line.depth0_runs = runs;
            vec![line]
        };
        let mut owners = Owners::default();
        let mut at = |runs, topology: &Topology, changed_at: Option<u64>| {
            if let Some(runs) = changed_at {
                owners.changed(|| counted(runs));
                // A burst: only the first of them draws the line.
                owners.changed(|| panic!("counted again"));
            }
            let mut counters = Counters {
                lines: counted(runs),
                ..Counters::default()
            };
            owners.assign(
                &mut counters,
                &LossesByName::default(),
                &OperationsByName::default(),
                || topology.clone(),
            );
            counters
        };
        let vmd = topology(&["nvme0"]);
        let bypass = (Some("0000:97:00.5"), Some(DiskPath::VmdBypass));
        let alone = (None, Some(DiskPath::Direct));
        assert_eq!(depth0(&at(5, &vmd, None)), [(bypass.0, bypass.1, 5)]);
        // Another disk took the name: 6 were counted when that was noticed.
        let counters = at(9, &direct, Some(6));
        assert_eq!(
            depth0(&counters),
            [(alone.0, alone.1, 3), (bypass.0, bypass.1, 6)]
        );
        // And back: what each had, it keeps.
        let counters = at(20, &vmd, Some(12));
        assert_eq!(
            depth0(&counters),
            [
                (alone.0, alone.1, 6),
                (bypass.0, bypass.1, 6),
                (bypass.0, bypass.1, 8)
            ]
        );
        assert_eq!(
            counters
                .lines
                .iter()
                .map(|line| line.depth0_runs)
                .sum::<u64>(),
            20
        );
        let counters = at(25, &direct, Some(25));
        assert_eq!(
            depth0(&counters),
            [
                (alone.0, alone.1, 0),
                (alone.0, alone.1, 6),
                (bypass.0, bypass.1, 19)
            ]
        );
    }
}
