//! A made-up server under load, for tests: its counters rise as a real one's
//! would, with noise. The same every time.

use std::collections::BTreeMap;

use super::{Header, Writer};
use crate::host::activity::{Activity, CpuActivity, CpuTimes, DiskActivity, IdleUsage, VectorCpus};
use crate::host::topology::{
    BlockSettings, Controller, Disk, DiskPath, Evidence, Line, Link, Machine, Mode, Namespace,
    NumaNode, PciAddress, Port, Queue, Topology, Vector, VectorUse,
};
use crate::snapshot::bio::{
    BioAllocations, BioContext, BioDestination, BioFrees, BioPurpose, BioRegime,
};
use crate::snapshot::{
    BioCounts, Counters, CpuCounts, Detail, DiskSamples, Host, LineCounts, LineKind, Losses,
    MsiCounts, Probe, ProbeState, Remote, RunCounts, SampleCounts, Snapshot, probes,
};

/// I/O of the whole server in a second, at four completions an interrupt.
const IOPS: u64 = 1_000_000;
const BLOCK_SECTORS: u64 = 8;
const IDLE_STATES: usize = 4;
const VMD: &str = "0000:97:00.5";

/// A server with one VMD.
pub(crate) struct Server {
    snapshot: Snapshot,
    random: u64,
}

fn address(text: impl Into<String>) -> PciAddress {
    PciAddress(text.into())
}

impl Server {
    /// Its disks have a queue for each CPU. Without vectors the VMD is in
    /// bypass.
    pub(crate) fn new(disks: u32, cpus: u32, vectors: u32) -> Self {
        let remaps = vectors > 0;
        let (mode, path) = if remaps {
            (Mode::Remap, DiskPath::VmdRemap)
        } else {
            (Mode::Bypass, DiskPath::VmdBypass)
        };
        let mut lines = Vec::new();
        for index in 0..vectors {
            lines.push(line(
                24 + index,
                "vmd0".to_owned(),
                LineKind::VmdVector,
                None,
                None,
            ));
        }
        let mut found = Vec::new();
        let mut irq = 24 + vectors;
        for disk in 0..disks {
            let name = format!("nvme{disk}");
            let mut disk_lines = Vec::new();
            for queue in 0..=cpus {
                let action = format!("{name}q{queue}");
                let mut counts = line(irq, action.clone(), LineKind::Nvme, Some(&name), Some(path));
                counts.parent_irq = remaps.then(|| 25 + irq % (vectors - 1).max(1));
                disk_lines.push(Line {
                    irq,
                    actions: vec![action],
                    chip: Some("VMD-MSI".to_owned()),
                    parent_irq: counts.parent_irq,
                    effective_affinity: Some(queue.saturating_sub(1).to_string()),
                });
                lines.push(counts);
                irq += 1;
            }
            found.push(self::disk(disk, cpus, path, disk_lines));
        }
        let vector = |index: u32| Vector {
            index,
            irq: 24 + index,
            used_for: if index == 0 {
                VectorUse::Other
            } else {
                VectorUse::Nvme
            },
            effective_affinity: Some((index % cpus).to_string()),
        };
        let controller = Controller {
            address: address(VMD),
            device_id: Some(0x28c0),
            driver: Some("vmd".to_owned()),
            action: remaps.then(|| "vmd0".to_owned()),
            domain: Some("10000".to_owned()),
            numa_node: Some(0),
            iommu: Some("DMA-FQ".to_owned()),
            mode,
            mode_evidence: vec![Evidence {
                source: "msi_irqs".to_owned(),
                observed: format!("{vectors} vectors"),
                mode,
            }],
            vectors: (0..vectors).map(vector).collect(),
            other_lines: Vec::new(),
            child_interrupts: disks * (cpus + 1),
            sharing_factor: None,
        };
        let topology = Topology {
            controllers: vec![controller],
            machine: machine(cpus),
            disks: found,
            problems: Vec::new(),
        };
        let samples_of = |disk: &Disk| DiskSamples {
            disk: disk.name.clone(),
            controller: disk.controller.clone(),
            counts: SampleCounts::default(),
        };
        let found_samples = topology.disks.iter().map(samples_of).collect();
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            state: ProbeState::Attached,
            mechanism: "raw_tracepoint".to_owned(),
            reason: None,
            missed_runs: Some(0),
            runs: None,
        };
        let cpu = |cpu| CpuCounts {
            cpu,
            ..CpuCounts::default()
        };
        let snapshot = Snapshot {
            taken_ns: 5_000_000_000_000,
            counting_since_ns: Some(4_999_000_000_000),
            detail: Detail::Lines,
            host: Host {
                kernel: "6.12.0".to_owned(),
                possible_cpus: cpus,
            },
            counters: Counters {
                lines,
                cpus: (0..cpus).map(cpu).collect(),
                samples: found_samples,
                other_samples: SampleCounts::default(),
                bio: bios(),
                losses: Losses::default(),
                outside: Vec::new(),
                shares: Vec::new(),
                msi: MsiCounts::default(),
            },
            probes: [
                probes::IRQ_HANDLER_ENTRY,
                probes::IRQ_HANDLER_EXIT,
                probes::NVME_SQ,
                probes::BLOCK_RQ_COMPLETE,
                probes::PLACEMENT,
                probes::COMPLETION_TIMES,
                probes::REPEATED_RUNS,
            ]
            .map(probe)
            .into(),
            activity: Some(activity(&topology, cpus)),
            topology,
        };
        Self {
            snapshot,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot.clone()
    }

    /// Goes on by so many seconds.
    pub(crate) fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.second();
        }
    }

    fn second(&mut self) {
        let mut snapshot = self.snapshot.clone();
        snapshot.taken_ns += self.near(1_000_000_000, 100_000);
        let cpus = snapshot.counters.cpus.len() as u64;
        let disks = snapshot.topology.disks.len() as u64;
        let per_queue = IOPS / (cpus * disks);
        let vectors = snapshot.topology.controllers[0].vectors.len() as u64;
        let mut cpu_ns = vec![0; cpus as usize];
        let mut cpu_runs = vec![0; cpus as usize];
        let mut completed = BTreeMap::<String, u64>::new();
        // Completions, runs for nothing and time below each vector.
        let mut below = BTreeMap::<u32, (u64, u64, u64, u64)>::new();
        let runs_of_vector = |server: &mut Self| server.noisy(IOPS / 4 / (vectors - 1).max(1));
        let mut vector_runs = BTreeMap::<u32, u64>::new();
        for line in snapshot.counters.lines.iter_mut().rev() {
            let queue: u64 = match line.action.split_once('q') {
                Some((_, queue)) => queue.parse().unwrap(),
                // A vector: its children came before it.
                None => {
                    let Some(&runs) = vector_runs.get(&line.irq) else {
                        continue;
                    };
                    let (children, nothing, completions, ns) = below[&line.irq];
                    let own_ns = self.time(runs, 350);
                    line.counts.depth0_runs += runs;
                    line.counts.child_runs += children;
                    line.counts.child_unhandled_runs += nothing;
                    line.counts.child_completions += completions;
                    line.counts.self_ns += own_ns;
                    line.counts.inclusive_ns += own_ns + ns;
                    let cpu = (u64::from(line.irq) % cpus) as usize;
                    cpu_ns[cpu] += own_ns + ns;
                    cpu_runs[cpu] += runs;
                    continue;
                }
            };
            if queue == 0 {
                continue;
            }
            let completions = self.noisy(per_queue);
            let handled = self.noisy(completions / 4 + 1);
            let ns = self.time(handled, 900) + self.time(completions, 150);
            line.counts.completions += completions;
            self.remote(line, completions);
            *completed.entry(line.disk.clone().unwrap()).or_default() += completions;
            if let Some(parent) = line.parent_irq {
                let runs = match vector_runs.get(&parent) {
                    Some(&runs) => runs,
                    None => {
                        let runs = runs_of_vector(self);
                        vector_runs.insert(parent, runs);
                        runs
                    }
                };
                let handled = handled.min(runs);
                let nothing_ns = self.time(runs - handled, 120);
                line.counts.nested_runs += runs;
                line.counts.unhandled_runs += runs - handled;
                line.counts.self_ns += ns + nothing_ns;
                line.counts.inclusive_ns += ns + nothing_ns;
                let sum = below.entry(parent).or_default();
                sum.0 += runs;
                sum.1 += runs - handled;
                sum.2 += completions;
                sum.3 += ns + nothing_ns;
            } else {
                line.counts.depth0_runs += handled;
                line.counts.self_ns += ns;
                line.counts.inclusive_ns += ns;
                let cpu = (queue - 1) as usize;
                cpu_ns[cpu] += ns;
                cpu_runs[cpu] += handled;
            }
            line.counts.repeated_runs = Some(0);
        }
        self.bios(&mut snapshot.counters.bio, completed.values().sum());
        for (number, cpu) in snapshot.counters.cpus.iter_mut().enumerate() {
            cpu.interrupt_ns += cpu_ns[number];
            cpu.depth0_runs += cpu_runs[number];
        }
        for disk in &mut snapshot.counters.samples {
            // One in 64; a quarter, a half and so on around the middle.
            let sampled = completed[&disk.disk] / 64;
            for (times, middle) in [
                (&mut disk.counts.latency, 4),
                (&mut disk.counts.handling, 1),
            ] {
                for (bucket, share) in [(0, 4), (1, 2), (2, 8), (3, 16), (5, 128)] {
                    times.buckets[middle + bucket] += self.noisy(sampled / share);
                }
                times.sum_ns += self.time(sampled, 90_000);
            }
        }
        let mut activity = snapshot.activity.take().unwrap();
        let all = activity.all_cpus.as_mut().unwrap();
        for (number, cpu) in activity.cpus.iter_mut().enumerate() {
            let irq = cpu_ns[number] / 10_000_000;
            let (user, softirq) = (self.noisy(12), self.noisy(4));
            let system = self.noisy(30);
            let idle = 100_u64.saturating_sub(irq + user + softirq + system);
            for times in [&mut cpu.times, all] {
                times.user += user;
                times.system += system;
                times.irq += irq;
                times.softirq += softirq;
                times.idle += idle;
            }
            *cpu.block_softirqs.as_mut().unwrap() += self.noisy(40);
            for (depth, usage) in cpu.idle.iter_mut().enumerate() {
                let entries = self.noisy(400 >> (2 * depth));
                usage.entries += entries;
                usage.time_us += self.time(entries, 120 << depth);
            }
        }
        for (name, count) in &mut activity.softirqs {
            *count += self.noisy(1000 + 100 * name.len() as u64);
        }
        for disk in &mut activity.disks {
            let reads = completed[&disk.name[..disk.name.len() - 2]];
            disk.reads += reads;
            disk.read_sectors += reads * BLOCK_SECTORS;
            disk.read_ms += self.time(reads, 90) / 1000;
            disk.in_flight = self.near(64, 16);
            disk.busy_ms += self.near(1000, 1);
            disk.in_flight_ms += self.time(reads, 90) / 1000;
        }
        snapshot.activity = Some(activity);
        self.snapshot = snapshot;
    }

    /// Completions on another CPU than the submitter's. In remap that is where the
    /// vector is, so as far for nearly all of a queue; in bypass it is after a task
    /// has moved.
    fn remote(&mut self, line: &mut LineCounts, completions: u64) {
        let Remote {
            same_cache,
            other_cache,
            other_node,
            unknown: _,
        } = &mut line.counts.remote;
        let moved = self.noisy(completions / 100);
        let (far, near) = match line.irq % 4 {
            0 => (same_cache, other_cache),
            1 => (other_cache, other_node),
            _ => (other_node, same_cache),
        };
        *near += moved;
        if line.parent_irq.is_some() {
            *far += completions.saturating_sub(moved);
        }
    }

    /// A bio for each I/O, of a cache that mostly has one.
    fn bios(&mut self, bio: &mut BioCounts, ios: u64) {
        let (own, splice) = (self.noisy(ios / 2), self.noisy(ios / 3));
        for set in &mut bio.allocations {
            set.hits_own += own;
            set.hits_splice += splice;
            set.misses_empty += ios.saturating_sub(own + splice);
        }
        let softirq = self.noisy(ios / 50);
        for (frees, count) in bio.frees.iter_mut().zip([ios - softirq, softirq]) {
            frees.count += count;
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// About `middle`, at most `most` off.
    fn near(&mut self, middle: u64, most: u64) -> u64 {
        (middle + self.next() % (2 * most + 1)).saturating_sub(most)
    }

    /// Of so many independent events that take this long on average, each with a
    /// spread as wide as that.
    fn time(&mut self, events: u64, mean: u64) -> u64 {
        self.noisy(events) * mean + self.next() % mean
    }

    /// About `mean`, as far off as a count of independent events is.
    fn noisy(&mut self, mean: u64) -> u64 {
        // Twelve uniform numbers: nearly normal, with a variance of 1.
        let sum: f64 = (0..12)
            .map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64)
            .sum();
        (mean as f64 + (sum - 6.0) * (mean as f64).sqrt())
            .round()
            .max(0.0) as u64
    }
}

/// A recording of so many seconds, the first Snapshot included, and what went
/// into it.
pub(crate) fn recorded(
    server: &mut Server,
    detail: Detail,
    snapshots: usize,
) -> (Vec<u8>, Vec<Snapshot>) {
    let header = Header {
        created_by: "vmdtrace test".to_owned(),
        boot_unix_ns: 1_700_000_000_000_000_000,
        every_ns: 1_000_000_000,
        detail,
        note: None,
    };
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    let mut written = Vec::new();
    for _ in 0..snapshots {
        let snapshot = server.snapshot();
        writer.write(&snapshot).unwrap();
        written.push(snapshot);
        server.run(1);
    }
    (writer.finish(None).unwrap(), written)
}

fn line(
    irq: u32,
    action: String,
    kind: LineKind,
    disk: Option<&str>,
    path: Option<DiskPath>,
) -> LineCounts {
    LineCounts {
        irq,
        action,
        kind,
        controller: Some(address(VMD)),
        disk: disk.map(str::to_owned),
        path,
        parent_irq: None,
        counts: RunCounts {
            repeated_runs: Some(0),
            ..RunCounts::default()
        },
    }
}

fn disk(number: u32, cpus: u32, path: DiskPath, lines: Vec<Line>) -> Disk {
    let link = Link {
        current_speed: Some(16_000),
        max_speed: Some(16_000),
        current_width: Some(4),
        max_width: Some(4),
    };
    let queue = |id: u32| Queue {
        id,
        irq: Some(lines[id as usize].irq),
        submit_cpus: id.checked_sub(1).map(|cpu| cpu.to_string()),
    };
    Disk {
        name: format!("nvme{number}"),
        address: address(format!("10000:{:02x}:00.0", number + 1)),
        path,
        controller: Some(address(VMD)),
        model: Some("A model of 7.68 TB".to_owned()),
        numa_node: Some(0),
        iommu: Some("DMA-FQ".to_owned()),
        link: Some(link.clone()),
        port: Some(Port {
            address: address(format!("10000:00:{:02x}.0", number + 2)),
            link: Some(link),
        }),
        namespaces: vec![Namespace {
            name: format!("nvme{number}n1"),
            size_bytes: Some(7_681_501_126_656),
            settings: BlockSettings {
                scheduler: Some("none".to_owned()),
                rq_affinity: Some(1),
                wbt_lat_usec: Some(0),
                nr_requests: Some(1023),
                nomerges: Some(0),
                io_poll: Some(false),
            },
        }],
        queues: (0..=cpus).map(queue).collect(),
        lines,
    }
}

fn bios() -> BioCounts {
    let free = |destination, context| BioFrees {
        destination,
        context,
        count: 0,
    };
    BioCounts {
        regime: BioRegime::OptIn,
        allocations: vec![BioAllocations {
            set: "blkdev_dio_pool".to_owned(),
            purpose: BioPurpose::Block,
            ..BioAllocations::default()
        }],
        kmallocs: 0,
        frees: vec![
            free(BioDestination::IrqList, BioContext::Hardirq),
            free(BioDestination::SlabSoftirq, BioContext::Softirq),
        ],
    }
}

fn machine(cpus: u32) -> Machine {
    Machine {
        cpu_model: Some("A CPU".to_owned()),
        online_cpus: Some(format!("0-{}", cpus - 1)),
        numa_nodes: vec![NumaNode {
            id: 0,
            cpus: format!("0-{}", cpus - 1),
        }],
        last_level_caches: vec![format!("0-{}", cpus - 1)],
        virtual_machine: Some(false),
        irqbalance: Some(true),
        ..Machine::default()
    }
}

fn activity(topology: &Topology, cpus: u32) -> Activity {
    let cpu = |cpu| CpuActivity {
        cpu,
        times: CpuTimes::default(),
        block_softirqs: Some(0),
        idle: vec![IdleUsage::default(); IDLE_STATES],
    };
    let disk = |disk: &Disk| DiskActivity {
        name: format!("{}n1", disk.name),
        ..DiskActivity::default()
    };
    let vector = |vector: &Vector| VectorCpus {
        irq: vector.irq,
        cpus: vector.effective_affinity.clone(),
    };
    Activity {
        ticks_per_second: 100,
        all_cpus: Some(CpuTimes::default()),
        cpus: (0..cpus).map(cpu).collect(),
        softirqs: [
            "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
            "RCU",
        ]
        .map(|name| (name.to_owned(), 0))
        .into(),
        disks: topology.disks.iter().map(disk).collect(),
        vectors: topology.controllers[0].vectors.iter().map(vector).collect(),
        problems: Vec::new(),
    }
}
