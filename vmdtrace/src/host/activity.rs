//! What CPUs, idle states and block devices have done so far, by the kernel's
//! own counts. Read for recordings and diagnoses only, never for a scrape:
//! `/proc/stat` alone makes the kernel sum every interrupt over every CPU.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Roots;
use super::files::Files;
use super::irqs;
use super::machine::idle_state_numbers;
use super::number_list::number;
use super::topology::Topology;

/// Everything the kernel counted since boot that a diagnosis looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Length of the ticks of [`CpuTimes`]: this many are a second.
    pub ticks_per_second: u64,
    /// All CPUs together, as the kernel sums them.
    pub all_cpus: Option<CpuTimes>,
    /// CPUs that are online. Empty in a Snapshot of sums.
    pub cpus: Vec<CpuActivity>,
    /// Softirqs of all CPUs, by name.
    pub softirqs: BTreeMap<String, u64>,
    /// The namespaces of NVMe disks.
    pub disks: Vec<DiskActivity>,
    /// Where the controllers' own vectors are delivered now: unlike the
    /// interrupts of NVMe queues they can be moved at any time. Empty in a
    /// Snapshot of sums.
    pub vectors: Vec<VectorCpus>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// How a CPU spent its time, in ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    pub user: u64,
    pub nice: u64,
    pub system: u64,
    /// May go back by a little, and start again when the CPU was offline.
    pub idle: u64,
    /// As `idle`.
    pub iowait: u64,
    pub irq: u64,
    pub softirq: u64,
    pub steal: u64,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuActivity {
    pub cpu: u32,
    pub times: CpuTimes,
    /// Softirqs of block devices: completions that were sent on, or polled.
    pub block_softirqs: Option<u64>,
    /// In the order of the machine's
    /// [`IdleStates`](super::topology::IdleStates).
    pub idle: Vec<IdleUsage>,
}

/// How a CPU used one of its idle states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleUsage {
    /// Times it was entered.
    pub entries: u64,
    pub time_us: u64,
}

/// A block device, by `/proc/diskstats`. Passthrough commands are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskActivity {
    pub name: String,
    pub reads: u64,
    pub reads_merged: u64,
    pub read_sectors: u64,
    pub read_ms: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub written_sectors: u64,
    pub write_ms: u64,
    /// Requests in flight now.
    pub in_flight: u64,
    /// Time with any request in flight.
    pub busy_ms: u64,
    /// Time in flight summed over the requests.
    pub in_flight_ms: u64,
}

/// The CPUs that a vector is delivered to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VectorCpus {
    pub irq: u32,
    pub cpus: Option<String>,
}

impl Activity {
    /// Reads everything now. `topology` tells which vectors there are.
    #[must_use]
    pub fn read(roots: &Roots, topology: &Topology) -> Self {
        let mut files = Files::default();
        let (all_cpus, times) = cpu_times(&mut files, roots);
        let softirqs = softirqs(&mut files, roots);
        let mut cpus = Vec::with_capacity(times.len());
        for (cpu, times) in times {
            let dir = roots
                .sysfs
                .join(format!("devices/system/cpu/cpu{cpu}/cpuidle"));
            cpus.push(CpuActivity {
                cpu,
                times,
                block_softirqs: softirqs.block_by_cpu.get(&cpu).copied(),
                idle: idle_usage(&mut files, &dir),
            });
        }
        let vectors = topology
            .controllers
            .iter()
            .flat_map(|controller| &controller.vectors)
            .map(|vector| VectorCpus {
                irq: vector.irq,
                cpus: irqs::effective_affinity(&mut files, roots, vector.irq),
            })
            .collect();
        Self {
            ticks_per_second: procfs::ticks_per_second(),
            all_cpus,
            cpus,
            softirqs: softirqs.all_cpus,
            disks: disks(&mut files, roots),
            vectors,
            problems: files.into_problems(),
        }
    }
}

/// The lines of `/proc/stat` about CPUs: all together, and each.
fn cpu_times(files: &mut Files, roots: &Roots) -> (Option<CpuTimes>, BTreeMap<u32, CpuTimes>) {
    let path = roots.procfs.join("stat");
    // The line of interrupts comes after them, and may be half a megabyte.
    let lines = files.first_lines(&path, |line| line.starts_with("cpu"));
    let mut all = None;
    let mut each = BTreeMap::new();
    for line in lines.unwrap_or_default() {
        let parsed = line.split_once(' ').and_then(|(name, rest)| {
            let cpu = match name.strip_prefix("cpu")? {
                "" => None,
                digits => Some(number(digits)?),
            };
            Some((cpu, parse_times(rest)?))
        });
        match parsed {
            Some((None, times)) => all = Some(times),
            Some((Some(cpu), times)) => {
                each.insert(cpu, times);
            }
            None => files.problem(&path, "has a line of a CPU that is not understood"),
        }
    }
    (all, each)
}

fn parse_times(text: &str) -> Option<CpuTimes> {
    let mut fields = numbers(text);
    let mut next = || fields.next().flatten();
    Some(CpuTimes {
        user: next()?,
        nice: next()?,
        system: next()?,
        idle: next()?,
        iowait: next()?,
        irq: next()?,
        softirq: next()?,
        steal: next()?,
    })
}

fn numbers(text: &str) -> impl Iterator<Item = Option<u64>> {
    text.split_ascii_whitespace()
        .map(|field| field.parse().ok())
}

#[derive(Debug, Default)]
struct Softirqs {
    all_cpus: BTreeMap<String, u64>,
    block_by_cpu: BTreeMap<u32, u64>,
}

/// `/proc/softirqs`: a heading with the possible CPUs, then a line for each kind.
fn softirqs(files: &mut Files, roots: &Roots) -> Softirqs {
    let path = roots.procfs.join("softirqs");
    let mut found = Softirqs::default();
    let mut lines = files
        .first_lines(&path, |_| true)
        .unwrap_or_default()
        .into_iter();
    let heading = lines.next().unwrap_or_default();
    let cpus: Option<Vec<u32>> = heading
        .split_ascii_whitespace()
        .map(|name| name.strip_prefix("CPU").and_then(number))
        .collect();
    let parse = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let counts: Vec<u64> = numbers(counts).collect::<Option<_>>()?;
        let cpus = cpus.as_ref().filter(|cpus| cpus.len() == counts.len())?;
        let by_cpu: BTreeMap<u32, u64> = cpus.iter().copied().zip(counts).collect();
        Some((name.to_owned(), by_cpu))
    };
    for line in lines {
        match parse(&line) {
            Some((name, by_cpu)) => {
                let sum = by_cpu.values().copied().fold(0, u64::saturating_add);
                if name == "BLOCK" {
                    found.block_by_cpu = by_cpu;
                }
                found.all_cpus.insert(name, sum);
            }
            None => files.problem(&path, "has a line that is not understood"),
        }
    }
    found
}

/// Usage of a CPU's idle states. A state whose files are gone or nonsense
/// leaves nothing for the CPU: the order would no longer tell which is which.
fn idle_usage(files: &mut Files, dir: &Path) -> Vec<IdleUsage> {
    let states = idle_state_numbers(files, dir);
    let mut count = |state: u32, name: &str| {
        let path = dir.join(format!("state{state}/{name}"));
        files.parsed(&path, "a count", |text| text.parse().ok())
    };
    let usage = |state| {
        Some(IdleUsage {
            entries: count(state, "usage")?,
            time_us: count(state, "time")?,
        })
    };
    let usage: Option<Vec<IdleUsage>> = states.into_iter().map(usage).collect();
    usage.unwrap_or_default()
}

/// The NVMe namespaces of `/proc/diskstats`; not their partitions.
fn disks(files: &mut Files, roots: &Roots) -> Vec<DiskActivity> {
    let path = roots.procfs.join("diskstats");
    let mut found = Vec::new();
    for line in files.first_lines(&path, |_| true).unwrap_or_default() {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.nth(2).filter(|name| is_namespace(name)) else {
            continue;
        };
        let mut next = || words.next().and_then(|word| word.parse().ok());
        let mut parse = || {
            Some(DiskActivity {
                name: name.to_owned(),
                reads: next()?,
                reads_merged: next()?,
                read_sectors: next()?,
                read_ms: next()?,
                writes: next()?,
                writes_merged: next()?,
                written_sectors: next()?,
                write_ms: next()?,
                in_flight: next()?,
                busy_ms: next()?,
                in_flight_ms: next()?,
            })
        };
        match parse() {
            Some(disk) => found.push(disk),
            None => files.problem(&path, format_args!("the line of {name} is not understood")),
        }
    }
    found
}

/// `nvme0n1`, and `nvme0c1n1`, a path of a multipath namespace.
fn is_namespace(name: &str) -> bool {
    let number_of = |rest: &str| {
        let (disk, namespace) = rest.split_once('n')?;
        let disk = disk.split_once('c').map_or(disk, |(_, path)| path);
        number(disk).and(number(namespace))
    };
    name.strip_prefix("nvme").and_then(number_of).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::{Server, Tree};

    const STAT: &str =
        "cpu  30 2 8 100 5 1 7 4 0 0\ncpu0 10 1 4 50 2 0 3 2 0 0\ncpu2 20 1 4 50 3 1 4 2 0 0\n";
    const SOFTIRQS: &str = "                    CPU0       CPU1       CPU2\n          HI:          1          0          2\n       BLOCK:         10          0      99887\n";
    const DISKSTATS: &str = " 259       0 nvme0n1 100 1 800 20 50 2 400 30 3 40 55 0 0 0 0 6 7\n 259       1 nvme0n1p1 9 9 9 9 9 9 9 9 9 9 9\n   8       0 sda 1 1 1 1 1 1 1 1 1 1 1\n 259       2 nvme0c1n1 1 2 3 4 5 6 7 8 9 10 11\n";

    fn tree() -> Tree {
        let tree = Server::default().build();
        // The line of interrupts is longer than any line that is read.
        let intr = format!("intr {}\nctxt 1\n", "0 ".repeat(200_000));
        tree.file("proc/stat", format!("{STAT}{intr}"));
        tree.file("proc/softirqs", SOFTIRQS);
        tree.file("proc/diskstats", DISKSTATS);
        for (state, usage, time) in [(0, 7, 70), (1, 8, 80)] {
            let dir = format!("sys/devices/system/cpu/cpu2/cpuidle/state{state}");
            tree.file(&format!("{dir}/usage"), format!("{usage}\n"));
            tree.file(&format!("{dir}/time"), format!("{time}\n"));
        }
        tree
    }

    #[test]
    fn everything_is_read() {
        let tree = tree();
        let activity = Activity::read(&tree.roots(), &tree.read());
        let times = |user, nice, system, idle, iowait, irq, softirq, steal| CpuTimes {
            user,
            nice,
            system,
            idle,
            iowait,
            irq,
            softirq,
            steal,
        };
        let idle = |entries, time_us| IdleUsage { entries, time_us };
        let disk = |name: &str, n: [u64; 11]| DiskActivity {
            name: name.to_owned(),
            reads: n[0],
            reads_merged: n[1],
            read_sectors: n[2],
            read_ms: n[3],
            writes: n[4],
            writes_merged: n[5],
            written_sectors: n[6],
            write_ms: n[7],
            in_flight: n[8],
            busy_ms: n[9],
            in_flight_ms: n[10],
        };
        let vector = |irq, cpus: &str| VectorCpus {
            irq,
            cpus: Some(cpus.to_owned()),
        };
        assert_eq!(
            activity,
            Activity {
                ticks_per_second: procfs::ticks_per_second(),
                all_cpus: Some(times(30, 2, 8, 100, 5, 1, 7, 4)),
                cpus: vec![
                    CpuActivity {
                        cpu: 0,
                        times: times(10, 1, 4, 50, 2, 0, 3, 2),
                        block_softirqs: Some(10),
                        idle: Vec::new(),
                    },
                    CpuActivity {
                        cpu: 2,
                        times: times(20, 1, 4, 50, 3, 1, 4, 2),
                        block_softirqs: Some(99_887),
                        idle: vec![idle(7, 70), idle(8, 80)],
                    },
                ],
                softirqs: [("HI".to_owned(), 3), ("BLOCK".to_owned(), 99_897)].into(),
                disks: vec![
                    disk("nvme0n1", [100, 1, 800, 20, 50, 2, 400, 30, 3, 40, 55]),
                    disk("nvme0c1n1", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
                ],
                vectors: vec![vector(24, "0"), vector(25, "1"), vector(26, "0")],
                problems: Vec::new(),
            }
        );
    }

    #[test]
    fn nonsense_is_named_and_left_out() {
        let tree = tree();
        tree.file(
            "proc/stat",
            "cpu  1 2\ncpux 1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n",
        );
        tree.file(
            "proc/softirqs",
            "CPU0 CPU1\nHI: 1\nBLOCK: 1 x\nNET_RX: 1 2\n",
        );
        tree.file("proc/diskstats", "259 0 nvme0n1 1 2 3\n\u{0}\n");
        tree.file("sys/devices/system/cpu/cpu1/cpuidle/state0/usage", "-1\n");
        let activity = Activity::read(&tree.roots(), &Topology::default());
        assert_eq!(activity.all_cpus, None);
        assert_eq!(activity.cpus.len(), 1);
        assert_eq!(activity.cpus[0].idle, []);
        assert_eq!(activity.softirqs, [("NET_RX".to_owned(), 3)].into());
        assert_eq!(activity.disks, []);
        assert_eq!(activity.problems.len(), 4, "{:?}", activity.problems);
    }

    #[test]
    fn nothing_to_read_is_nothing() {
        let activity = Activity::read(&Tree::new().roots(), &Topology::default());
        assert_eq!(
            activity,
            Activity {
                ticks_per_second: procfs::ticks_per_second(),
                ..Activity::default()
            }
        );
    }

    #[test]
    fn this_machine() {
        let activity = Activity::read(&Roots::default(), &Topology::default());
        assert!(activity.all_cpus.is_some());
        assert!(!activity.cpus.is_empty());
        assert_eq!(activity.problems, [""; 0]);
    }
}
