//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::time::{ClockId, clock_gettime};

use super::{
    Counters, Host, LineCounts, LineKind, Snapshot,
    source::{SnapshotError, SnapshotSource, SourceOptions},
};
use crate::{
    host::{
        self, Roots, TopologyIndex,
        topology::{DiskPath, PciAddress, Topology},
    },
    probes::{Options, Sizes, Tracer, messages},
};

/// The running host.
#[derive(Debug)]
pub struct Live {
    tracer: Tracer,
    roots: Roots,
    host: Host,
    owners: Mutex<Owners>,
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
            owners: Mutex::new(Owners::default()),
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
        } = options;
        let possible_cpus = host::possible_cpus(roots)?;
        let tracer = Tracer::load(Options {
            sizes: Sizes::for_host(possible_cpus, host::max_irq(roots)?),
            level: *level,
            also_lines: also_lines.clone(),
            roots: roots.clone(),
        })?;
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        tracer.attach();
        Ok(Self::new(tracer, roots.clone(), possible_cpus))
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        // A panic while it was held leaves at worst a topology to be read again.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotSource for Live {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(SnapshotError::new)?;
        let mut counters = self.tracer.counters();
        let probes = self.tracer.probes();
        let mut owners = self.owners();
        owners.assign(&mut counters, || host::read(&self.roots));
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
        self.owners().stale = true;
    }
}

/// A line: interrupt number and action name.
type LineKey = (u32, String);

#[derive(Clone, Debug)]
struct Owner {
    controller: Option<PciAddress>,
    disk: Option<String>,
    path: Option<DiskPath>,
}

/// Who owns which line. Sysfs is read when devices came or went, and when a
/// line is counted that the last reading does not know; never otherwise.
#[derive(Debug, Default)]
struct Owners {
    topology: Option<Topology>,
    stale: bool,
    /// The last owner known of every line: a line whose device is gone keeps
    /// its labels, so its counters never go back.
    known: HashMap<LineKey, Owner>,
    /// Lines that the last reading did not know: not a reason to read again.
    unknown: HashSet<LineKey>,
}

impl Owners {
    fn assign(&mut self, counters: &mut Counters, read: impl FnOnce() -> Topology) {
        let unheard_of = |line: &LineCounts| {
            let key = (line.irq, line.action.clone());
            line.kind != LineKind::Watched
                && !self.known.contains_key(&key)
                && !self.unknown.contains(&key)
        };
        if self.stale || self.topology.is_none() || counters.lines.iter().any(unheard_of) {
            self.topology = Some(read());
            self.stale = false;
            self.unknown.clear();
        }
        let Self {
            topology: Some(topology),
            known,
            unknown,
            ..
        } = self
        else {
            return;
        };
        let index = TopologyIndex::new(topology);
        for line in counters
            .lines
            .iter_mut()
            .filter(|line| line.kind != LineKind::Watched)
        {
            let key = (line.irq, line.action.clone());
            if let Some(owner) = index.line(line.irq, &line.action) {
                let owner = Owner {
                    controller: owner.controller.cloned(),
                    disk: owner.disk.map(str::to_owned),
                    path: owner.path,
                };
                known.insert(key.clone(), owner);
            }
            match known.get(&key) {
                Some(Owner {
                    controller,
                    disk,
                    path,
                }) => {
                    line.controller.clone_from(controller);
                    line.disk.clone_from(disk);
                    line.path = *path;
                }
                None => {
                    unknown.insert(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::host::topology::Disk;

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
            cpus: Vec::new(),
        };
        owners.assign(&mut counters, || topology(&["nvme0"]));
        owners.stale = true;
        counters.lines = vec![line(40, "nvme0q1", LineKind::Nvme)];
        owners.assign(&mut counters, || topology(&[]));
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
                    cpus: Vec::new(),
                },
                read,
            );
            assert_eq!(reads.get(), expected);
        }
        lines.push(line(41, "nvme5q1", LineKind::Nvme));
        for expected in [2, 2] {
            owners.assign(
                &mut Counters {
                    lines: lines.clone(),
                    cpus: Vec::new(),
                },
                read,
            );
            assert_eq!(reads.get(), expected, "an unknown line is a reason once");
        }
        owners.stale = true;
        owners.assign(
            &mut Counters {
                lines,
                cpus: Vec::new(),
            },
            read,
        );
        assert_eq!(reads.get(), 3);
    }
}
