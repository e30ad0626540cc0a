//! Made-up servers with magnitudes of real ones, for tests: a load described by
//! a few numbers, as the two Snapshots of a window.

use crate::host::activity::{Activity, CpuActivity, CpuTimes, DiskActivity, IdleUsage, VectorCpus};
use crate::host::topology::{
    BlockSettings, Controller, Disk, DiskPath, Evidence, IdleState, IdleStates, Line, Link,
    Machine, Mode, Namespace, NumaNode, PciAddress, Port, Queue, Topology, Vector, VectorUse,
};
use crate::snapshot::bio::{BioAllocations, BioPurpose, BioRegime};
use crate::snapshot::window::Window;
use crate::snapshot::{
    BioCounts, Counters, CpuCounts, Detail, DiskSamples, Host, LineCounts, LineKind, Probe,
    ProbeState, Remote, RunCounts, SampleCounts, Snapshot, Times, probes,
};

const VMD: &str = "0000:97:00.5";
const SECONDS: u64 = 10;
const TICKS: u64 = 100;

/// How a CPU spends its time, as shares of wall time, beside interrupts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) softirq: f64,
}

/// Where the bios of passed-through commands come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bios {
    Cache,
    Kmalloc,
}

/// One controller with disks of one kind. The default is healthy: 12 Gen4 disks in
/// bypass on 64 CPUs, at a third of what they can do.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) kernel: &'static str,
    pub(super) mode: Mode,
    pub(super) cpus: u32,
    pub(super) disks: u32,
    /// Disks with a load, from the first on.
    pub(super) busy_disks: u32,
    pub(super) queues: u32,
    /// Vectors for NVMe (remap only).
    pub(super) vectors: u32,
    pub(super) iops_per_disk: u64,
    pub(super) latency_us: f64,
    pub(super) completions_per_interrupt: f64,
    /// Time in handlers per hardware interrupt.
    pub(super) interrupt_ns: u64,
    /// Handlers that run for nothing, per completion (remap only).
    pub(super) nothing_per_completion: f64,
    /// The CPUs that interrupts go to, in turn.
    pub(super) serving: Vec<u32>,
    pub(super) on_serving: Work,
    pub(super) elsewhere: Work,
    /// Entries into the state C6, which is left in 133 us, per interrupt.
    pub(super) deep_idle_per_interrupt: f64,
    pub(super) iommu: Option<&'static str>,
    pub(super) link: (u32, u32),
    pub(super) port: (u32, u32),
    pub(super) scheduler: &'static str,
    pub(super) mitigation: &'static str,
    /// Completions on another CPU than the submitter's, with another cache.
    pub(super) remote: f64,
    /// Of the latency, from the completion to the end.
    pub(super) handling_us: f64,
    /// The load is passed-through commands, of bios that come from the CPU's
    /// cache or of no set.
    pub(super) passthrough: Option<Bios>,
    /// CPUs kept from the scheduler and from managed interrupts.
    pub(super) isolated: Option<&'static str>,
    pub(super) virtual_machine: bool,
}

impl Default for Scene {
    fn default() -> Self {
        let work = Work {
            user: 0.10,
            system: 0.15,
            softirq: 0.02,
        };
        Self {
            kernel: "6.12.74-amd64",
            mode: Mode::Bypass,
            cpus: 64,
            disks: 12,
            busy_disks: 12,
            queues: 64,
            vectors: 63,
            iops_per_disk: 250_000,
            latency_us: 85.0,
            completions_per_interrupt: 2.0,
            interrupt_ns: 1500,
            nothing_per_completion: 0.4,
            serving: (0..64).collect(),
            on_serving: work,
            elsewhere: work,
            deep_idle_per_interrupt: 0.01,
            iommu: Some("identity"),
            link: (16_000, 4),
            port: (16_000, 4),
            scheduler: "none",
            mitigation: "Not affected",
            remote: 0.02,
            handling_us: 1.0,
            passthrough: None,
            isolated: None,
            virtual_machine: false,
        }
    }
}

impl Scene {
    pub(super) fn window(&self) -> Window {
        let (first, last) = self.snapshots();
        Window::between(&first, &last).unwrap()
    }

    /// Its beginning and its end.
    pub(super) fn snapshots(&self) -> (Snapshot, Snapshot) {
        (self.snapshot(0), self.snapshot(SECONDS))
    }

    fn remaps(&self) -> bool {
        self.mode == Mode::Remap
    }

    fn path(&self) -> DiskPath {
        DiskPath::from(self.mode)
    }

    fn serving_cpu(&self, index: u32) -> u32 {
        self.serving[index as usize % self.serving.len()]
    }

    fn lines_of_disks(&self) -> u32 {
        self.disks * (self.queues + 1)
    }

    fn snapshot(&self, seconds: u64) -> Snapshot {
        let per_queue = self.iops_per_disk * seconds / u64::from(self.queues);
        let is_busy = |disk: u32| disk < self.busy_disks;
        let mut lines = Vec::new();
        let mut cpu_ns = vec![0; self.cpus as usize];
        let mut cpu_runs = vec![0; self.cpus as usize];
        let mut interrupt = |cpu: u32, runs: u64| {
            cpu_ns[cpu as usize] += runs * self.interrupt_ns;
            cpu_runs[cpu as usize] += runs;
        };
        if self.remaps() {
            let completions =
                per_queue * u64::from(self.queues * self.busy_disks) / u64::from(self.vectors);
            let runs = (completions as f64 / self.completions_per_interrupt) as u64;
            let nothing = (completions as f64 * self.nothing_per_completion) as u64;
            for vector in 0..=self.vectors {
                let mut line = line(24 + vector, "vmd0".to_owned(), LineKind::VmdVector);
                if vector > 0 {
                    line.counts.depth0_runs = runs;
                    line.counts.inclusive_ns = runs * self.interrupt_ns;
                    line.counts.self_ns = line.counts.inclusive_ns / 3;
                    line.counts.child_runs = nothing + runs;
                    line.counts.child_unhandled_runs = nothing;
                    line.counts.child_completions = completions;
                    interrupt(self.serving_cpu(vector - 1), runs);
                }
                lines.push(line);
            }
        }
        for disk in 0..self.disks {
            for queue in 0..=self.queues {
                let irq = self.irq(disk, queue);
                let mut line = line(irq, format!("nvme{disk}q{queue}"), LineKind::Nvme);
                line.disk = Some(format!("nvme{disk}"));
                line.path = Some(self.path());
                if queue > 0 && is_busy(disk) {
                    line.counts.completions = per_queue;
                    line.counts.remote = Remote {
                        other_cache: (per_queue as f64 * self.remote) as u64,
                        ..Remote::default()
                    };
                    let runs = (per_queue as f64 / self.completions_per_interrupt) as u64;
                    if self.remaps() {
                        line.counts.nested_runs = runs;
                    } else {
                        line.counts.depth0_runs = runs;
                        line.counts.inclusive_ns = runs * self.interrupt_ns;
                        line.counts.self_ns = line.counts.inclusive_ns;
                        interrupt(self.serving_cpu(queue - 1), runs);
                    }
                }
                lines.push(line);
            }
        }
        let probe = |name: &str| Probe {
            name: name.to_owned(),
            state: ProbeState::Attached,
            mechanism: "raw_tracepoint".to_owned(),
            reason: None,
            missed_runs: Some(0),
            runs: None,
        };
        let activity = self.activity(seconds, per_queue, &cpu_ns, &cpu_runs);
        Snapshot {
            taken_ns: 1_000_000_000_000 + seconds * 1_000_000_000,
            counting_since_ns: Some(999_000_000_000),
            detail: Detail::Lines,
            host: Host {
                kernel: self.kernel.to_owned(),
                possible_cpus: self.cpus,
            },
            topology: self.topology(),
            counters: Counters {
                lines,
                cpus: (0..self.cpus)
                    .map(|cpu| CpuCounts {
                        cpu,
                        interrupt_ns: cpu_ns[cpu as usize],
                        depth0_runs: cpu_runs[cpu as usize],
                        ..CpuCounts::default()
                    })
                    .collect(),
                samples: (0..self.busy_disks)
                    .map(|disk| self.samples(disk, per_queue))
                    .collect(),
                other_samples: SampleCounts::default(),
                bio: self.bios(per_queue),
                ..Counters::default()
            },
            probes: [
                probes::BIO_ALLOC_BIOSET_ENTRY,
                probes::BIO_ALLOC_BIOSET_EXIT,
                probes::BIO_KMALLOC,
                probes::BIO_PUT,
                probes::BIO_CONTEXT,
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
            activity: Some(activity),
        }
    }

    fn bios(&self, per_queue: u64) -> BioCounts {
        let all = per_queue * u64::from(self.queues * self.busy_disks);
        let mut counts = BioCounts {
            regime: BioRegime::OptIn,
            ..BioCounts::default()
        };
        match self.passthrough {
            Some(Bios::Cache) => counts.allocations.push(BioAllocations {
                set: "fs_bio_set".to_owned(),
                purpose: BioPurpose::Passthrough,
                hits_splice: all,
                ..BioAllocations::default()
            }),
            Some(Bios::Kmalloc) => counts.kmallocs = all,
            None => {}
        }
        counts
    }

    fn samples(&self, disk: u32, per_queue: u64) -> DiskSamples {
        let sampled = per_queue * u64::from(self.queues) / 64;
        let times = |us: f64| {
            let mut times = Times {
                sum_ns: (sampled as f64 * us * 1e3) as u64,
                ..Times::default()
            };
            times.buckets[7] = sampled;
            times
        };
        DiskSamples {
            disk: format!("nvme{disk}"),
            controller: Some(PciAddress(VMD.to_owned())),
            counts: SampleCounts {
                latency: times((self.latency_us - self.handling_us).max(0.0)),
                handling: times(self.handling_us),
                without_start: 0,
            },
        }
    }

    fn activity(&self, seconds: u64, per_queue: u64, ns: &[u64], runs: &[u64]) -> Activity {
        let wall = seconds * TICKS;
        let cpu = |cpu: u32| {
            let work = if self.serving.contains(&cpu) {
                self.on_serving
            } else {
                self.elsewhere
            };
            let ticks = |share: f64| (share * wall as f64).round() as u64;
            let interrupt = ns[cpu as usize] / (1_000_000_000 / TICKS);
            let (user, system, softirq) =
                (ticks(work.user), ticks(work.system), ticks(work.softirq));
            // Time in interrupts is in no field, and none of it is idle.
            let idle = wall.saturating_sub(user + system + softirq + interrupt);
            CpuActivity {
                cpu,
                times: CpuTimes {
                    user,
                    system,
                    softirq,
                    idle,
                    ..CpuTimes::default()
                },
                block_softirqs: Some(0),
                idle: vec![
                    IdleUsage::default(),
                    IdleUsage {
                        entries: (runs[cpu as usize] as f64 * self.deep_idle_per_interrupt) as u64,
                        time_us: 0,
                    },
                ],
            }
        };
        let disk = |disk: u32| {
            let reads = if disk < self.busy_disks && self.passthrough.is_none() {
                per_queue * u64::from(self.queues)
            } else {
                0
            };
            let ms = (reads as f64 * self.latency_us / 1000.0) as u64;
            DiskActivity {
                name: format!("nvme{disk}n1"),
                reads,
                read_sectors: reads * 8,
                read_ms: ms,
                in_flight_ms: ms,
                ..DiskActivity::default()
            }
        };
        Activity {
            ticks_per_second: TICKS,
            all_cpus: None,
            cpus: (0..self.cpus).map(cpu).collect(),
            softirqs: [("BLOCK".to_owned(), 0)].into(),
            disks: (0..self.disks).map(disk).collect(),
            vectors: self
                .vectors()
                .iter()
                .map(|vector| VectorCpus {
                    irq: vector.irq,
                    cpus: vector.effective_affinity.clone(),
                })
                .collect(),
            problems: Vec::new(),
        }
    }

    fn vectors(&self) -> Vec<Vector> {
        if !self.remaps() {
            return Vec::new();
        }
        let vector = |index: u32| Vector {
            index,
            irq: 24 + index,
            used_for: if index == 0 {
                VectorUse::Other
            } else {
                VectorUse::Nvme
            },
            effective_affinity: Some(self.serving_cpu(index.saturating_sub(1)).to_string()),
        };
        (0..=self.vectors).map(vector).collect()
    }

    fn irq(&self, disk: u32, queue: u32) -> u32 {
        1000 + disk * (self.queues + 1) + queue
    }

    fn topology(&self) -> Topology {
        let vectors = self.vectors();
        let controller = Controller {
            address: PciAddress(VMD.to_owned()),
            device_id: Some(0x28c0),
            driver: Some("vmd".to_owned()),
            action: self.remaps().then(|| "vmd0".to_owned()),
            domain: Some("10000".to_owned()),
            numa_node: Some(0),
            iommu: self.iommu.map(str::to_owned),
            mode: self.mode,
            mode_evidence: vec![Evidence {
                source: "msi_irqs".to_owned(),
                observed: if self.remaps() {
                    format!("{} vectors", vectors.len())
                } else {
                    "absent: the controller has no vectors".to_owned()
                },
                mode: self.mode,
            }],
            sharing_factor: self
                .remaps()
                .then(|| f64::from(self.lines_of_disks()) / f64::from(self.vectors)),
            vectors,
            other_lines: Vec::new(),
            child_interrupts: self.lines_of_disks(),
        };
        Topology {
            controllers: vec![controller],
            disks: (0..self.disks).map(|disk| self.disk(disk)).collect(),
            machine: self.machine(),
            problems: Vec::new(),
        }
    }

    fn disk(&self, number: u32) -> Disk {
        let link = |(current, max_of): (u32, u32), width| Link {
            current_speed: Some(current),
            max_speed: Some(max_of),
            current_width: Some(width),
            max_width: Some(4),
        };
        Disk {
            name: format!("nvme{number}"),
            address: PciAddress(format!("10000:{:02x}:00.0", number + 1)),
            path: self.path(),
            controller: Some(PciAddress(VMD.to_owned())),
            model: None,
            numa_node: Some(0),
            iommu: self.iommu.map(str::to_owned),
            link: Some(link((self.link.0, 16_000), self.link.1)),
            port: Some(Port {
                address: PciAddress(format!("10000:00:{:02x}.0", number + 2)),
                link: Some(link((self.link.0, self.port.0), self.link.1)),
            }),
            namespaces: vec![Namespace {
                name: format!("nvme{number}n1"),
                size_bytes: Some(3_840_755_982_336),
                settings: BlockSettings {
                    scheduler: Some(self.scheduler.to_owned()),
                    rq_affinity: Some(1),
                    wbt_lat_usec: Some(0),
                    nr_requests: Some(1023),
                    nomerges: Some(0),
                    io_poll: Some(false),
                },
            }],
            queues: (0..=self.queues)
                .map(|id| Queue {
                    id,
                    irq: Some(self.irq(number, id)),
                    submit_cpus: None,
                })
                .collect(),
            lines: (0..=self.queues)
                .map(|queue| Line {
                    irq: self.irq(number, queue),
                    actions: vec![format!("nvme{number}q{queue}")],
                    chip: None,
                    parent_irq: None,
                    effective_affinity: (!self.remaps())
                        .then(|| self.serving_cpu(queue.saturating_sub(1)).to_string()),
                })
                .collect(),
        }
    }

    fn machine(&self) -> Machine {
        let all = format!("0-{}", self.cpus - 1);
        let state = |name: &str, exit| IdleState {
            name: name.to_owned(),
            exit_latency_us: Some(exit),
            disabled: Some(false),
        };
        Machine {
            online_cpus: Some(all.clone()),
            numa_nodes: vec![NumaNode {
                id: 0,
                cpus: all.clone(),
            }],
            options: vec!["nvme.poll_queues=0".to_owned()],
            last_level_caches: vec![all.clone()],
            idle_states: vec![IdleStates {
                cpus: all,
                states: vec![state("C1", 1), state("C6", 133)],
            }],
            vulnerabilities: [("retbleed".to_owned(), self.mitigation.to_owned())].into(),
            isolated_cpus: self.isolated.map(str::to_owned),
            virtual_machine: Some(self.virtual_machine),
            irqbalance: Some(false),
            ..Machine::default()
        }
    }
}

fn line(irq: u32, action: String, kind: LineKind) -> LineCounts {
    LineCounts {
        irq,
        action,
        kind,
        controller: Some(PciAddress(VMD.to_owned())),
        disk: None,
        path: None,
        parent_irq: None,
        counts: RunCounts {
            repeated_runs: Some(0),
            ..RunCounts::default()
        },
    }
}
