//! The machine around controllers and disks: CPUs, nodes, caches, idle states,
//! mitigations, and what else decides about interrupts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Roots;
use super::files::{self, Files};
use super::number_list::{NumberList, number};
use super::topology::{IdleState, IdleStates, Machine, NumaNode};
use super::vmd_driver;

/// Options of the kernel's command line that are kept: exact names, and
/// beginnings that end in `.` or `=`.
const BOOT_OPTIONS: [&str; 18] = [
    "amd_iommu=",
    "idle=",
    "intel_idle.",
    "intel_iommu=",
    "intremap=",
    "iommu.",
    "iommu=",
    "irqaffinity=",
    "isolcpus=",
    "mitigations=",
    "nohz_full=",
    "nointremap",
    "nosmt",
    "nox2apic",
    "pci=",
    "pcie_aspm=",
    "processor.",
    "threadirqs",
];
/// Parameters of the NVMe driver that decide about queues and interrupts.
const NVME_PARAMETERS: [&str; 3] = ["poll_queues", "use_threaded_interrupts", "write_queues"];
/// Processes that are looked at for irqbalance.
const MAX_PROCESSES: usize = 1 << 16;

/// Reads what there is; nothing here is needed to count.
pub(super) fn read(files: &mut Files, roots: &Roots) -> Machine {
    let cpus = roots.sysfs.join("devices/system/cpu");
    let cpu_list = |files: &mut Files, path: &Path| {
        files.parsed(path, "a list of CPUs", |text| NumberList::parse(text).ok())
    };
    let online = cpu_list(files, &cpus.join("online"));
    let isolated = cpu_list(files, &cpus.join("isolated"));
    let numbers = cpu_numbers(files, &cpus);
    let (cpu_model, virtual_machine) = cpu_info(files, roots);
    Machine {
        cpu_model,
        online_cpus: online.map(|list| list.to_string()),
        isolated_cpus: isolated
            .map(|list| list.to_string())
            .filter(|list| !list.is_empty()),
        numa_nodes: numa_nodes(files, roots),
        last_level_caches: last_level_caches(files, &cpus, &numbers),
        idle_states: idle_states(files, &cpus, &numbers),
        vulnerabilities: vulnerabilities(files, &cpus),
        options: options(files, roots),
        virtual_machine,
        hypervisor: hypervisor(files, roots, virtual_machine),
        irqbalance: irqbalance(files, roots),
        interrupt_remapping: interrupt_remapping(files, roots),
        driver_knows_bypass: vmd_driver::knows_bypass(roots),
    }
}

/// The CPUs that have a directory, rising.
fn cpu_numbers(files: &mut Files, cpus: &Path) -> BTreeSet<u32> {
    let names = files.names(cpus).into_names();
    let cpu = |name: &String| name.strip_prefix("cpu").and_then(number);
    names.iter().filter_map(cpu).collect()
}

fn numa_nodes(files: &mut Files, roots: &Roots) -> Vec<NumaNode> {
    let dir = roots.sysfs.join("devices/system/node");
    let names = files.names(&dir).into_names();
    let node = |name: &String| name.strip_prefix("node").and_then(number);
    let ids: BTreeSet<u32> = names.iter().filter_map(node).collect();
    let mut nodes = Vec::with_capacity(ids.len());
    for id in ids {
        let path = dir.join(format!("node{id}/cpulist"));
        let list = files.parsed(&path, "a list of CPUs", |text| NumberList::parse(text).ok());
        nodes.extend(list.map(|list| NumaNode {
            id,
            cpus: list.to_string(),
        }));
    }
    nodes
}

/// The CPUs of each cache of the highest level that a CPU has. CPUs that an
/// earlier list names are not asked again.
fn last_level_caches(files: &mut Files, cpus: &Path, numbers: &BTreeSet<u32>) -> Vec<String> {
    let mut caches = Vec::new();
    let mut seen = BTreeSet::new();
    for cpu in numbers {
        if seen.contains(cpu) {
            continue;
        }
        let dir = cpus.join(format!("cpu{cpu}/cache"));
        let mut highest: Option<(u32, String)> = None;
        for name in files.names(&dir).into_names() {
            if !name.starts_with("index") {
                continue;
            }
            let level = files.parsed(&dir.join(&name).join("level"), "a cache's level", number);
            if let Some(level) = level
                && highest.as_ref().is_none_or(|(other, _)| level > *other)
            {
                highest = Some((level, name));
            }
        }
        let Some((_, index)) = highest else {
            continue;
        };
        let path = dir.join(index).join("shared_cpu_list");
        let list = files.parsed(&path, "a list of CPUs", |text| NumberList::parse(text).ok());
        if let Some(list) = list {
            seen.extend(list.numbers());
            caches.push(list.to_string());
        }
    }
    caches
}

fn idle_states(files: &mut Files, cpus: &Path, numbers: &BTreeSet<u32>) -> Vec<IdleStates> {
    let mut groups: BTreeMap<Vec<IdleState>, Vec<u32>> = BTreeMap::new();
    for &cpu in numbers {
        let dir = cpus.join(format!("cpu{cpu}/cpuidle"));
        let mut states = Vec::new();
        for state in idle_state_numbers(files, &dir) {
            let dir = dir.join(format!("state{state}"));
            let Some(name) = files.text(&dir.join("name")) else {
                continue;
            };
            let exit_latency_us =
                files.parsed(&dir.join("latency"), "a number of microseconds", number);
            let disabled = files.parsed(&dir.join("disable"), "0 or 1", |text| match text {
                "0" => Some(false),
                "1" => Some(true),
                _ => None,
            });
            states.push(IdleState {
                name,
                exit_latency_us,
                disabled,
            });
        }
        if !states.is_empty() {
            groups.entry(states).or_default().push(cpu);
        }
    }
    let mut groups: Vec<(Vec<u32>, Vec<IdleState>)> = groups
        .into_iter()
        .map(|(states, cpus)| (cpus, states))
        .collect();
    groups.sort_unstable();
    let group = |(cpus, states)| IdleStates {
        cpus: NumberList::from_numbers(cpus).to_string(),
        states,
    };
    groups.into_iter().map(group).collect()
}

/// The numbers of a CPU's idle states, rising: shallowest first.
pub(super) fn idle_state_numbers(files: &mut Files, dir: &Path) -> BTreeSet<u32> {
    let names = files.names(dir).into_names();
    let state = |name: &String| name.strip_prefix("state").and_then(number);
    names.iter().filter_map(state).collect()
}

fn vulnerabilities(files: &mut Files, cpus: &Path) -> BTreeMap<String, String> {
    let dir = cpus.join("vulnerabilities");
    let mut found = BTreeMap::new();
    for name in files.names(&dir).into_names() {
        if let Some(text) = files.text(&dir.join(&name)) {
            found.insert(name, text);
        }
    }
    found
}

fn options(files: &mut Files, roots: &Roots) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    let command_line = files
        .text(&roots.procfs.join("cmdline"))
        .unwrap_or_default();
    for word in command_line.split_ascii_whitespace() {
        let known = BOOT_OPTIONS.iter().any(|known| {
            if known.ends_with(['=', '.']) {
                word.starts_with(known)
            } else {
                word == *known
            }
        });
        if known {
            options.push(word.to_owned());
        }
    }
    for name in NVME_PARAMETERS {
        let path = roots.sysfs.join("module/nvme/parameters").join(name);
        if let Some(value) = files.text(&path) {
            options.push(format!("nvme.{name}={value}"));
        }
    }
    options
}

/// Model, and whether the CPU says that it is a virtual machine's.
fn cpu_info(files: &mut Files, roots: &Roots) -> (Option<String>, Option<bool>) {
    let path = roots.procfs.join("cpuinfo");
    // The first CPU speaks for all; an empty line ends it.
    let lines = files.first_lines(&path, |line| !line.trim().is_empty());
    let lines = lines.unwrap_or_default();
    let value = |name: &str| {
        let pair = |line: &String| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        };
        lines.iter().find_map(pair)
    };
    let is_virtual = |flags: String| {
        flags
            .split_ascii_whitespace()
            .any(|flag| flag == "hypervisor")
    };
    (value("model name"), value("flags").map(is_virtual))
}

fn hypervisor(files: &mut Files, roots: &Roots, virtual_machine: Option<bool>) -> Option<String> {
    let told = files.text(&roots.sysfs.join("hypervisor/type"));
    if told.is_some() {
        return told;
    }
    // On a real machine the vendor is nobody's business.
    if virtual_machine != Some(true) {
        return None;
    }
    files.text(&roots.sysfs.join("class/dmi/id/sys_vendor"))
}

/// Looks at the names of the processes. The kernel's own thread 2 is visible
/// where all processes of the host are.
fn irqbalance(files: &mut Files, roots: &Roots) -> Option<bool> {
    let comm = |pid: u32| files::read_text(&roots.procfs.join(format!("{pid}/comm"))).ok();
    if comm(2)? != "kthreadd" {
        return None;
    }
    let names = files.names(&roots.procfs).into_names();
    let processes = names.iter().filter_map(|name| number(name));
    // One that ends meanwhile is no problem.
    let mut names = processes.take(MAX_PROCESSES).filter_map(comm);
    Some(names.any(|name| name == "irqbalance"))
}

/// Looks at the first interrupts: where the IOMMU remaps any, it remaps those of
/// the I/O APIC, which have the lowest numbers (`IR-IO-APIC` in
/// arch/x86/kernel/apic/io_apic.c).
fn interrupt_remapping(files: &mut Files, roots: &Roots) -> Option<bool> {
    const LOOKED_AT: u32 = 64;
    let chip = |irq: u32| {
        let path = roots.sysfs.join(format!("kernel/irq/{irq}/chip_name"));
        files.text(&path)
    };
    let mut chips = (0..LOOKED_AT)
        .filter_map(chip)
        .filter(|chip| chip.contains("IO-APIC"));
    chips.next().map(|chip| chip.starts_with("IR-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixture::Tree;

    fn machine(tree: &Tree) -> (Machine, Vec<String>) {
        let mut files = Files::default();
        let machine = read(&mut files, &tree.roots());
        (machine, files.into_problems())
    }

    const CPUS: &str = "sys/devices/system/cpu";

    fn cpu(tree: &Tree, cpu: u32, cache: &str, latency: &str) {
        let dir = format!("{CPUS}/cpu{cpu}");
        for (index, level, cpus) in [(0, 1, cpu.to_string()), (3, 3, cache.to_owned())] {
            tree.file(
                &format!("{dir}/cache/index{index}/level"),
                format!("{level}\n"),
            );
            tree.file(
                &format!("{dir}/cache/index{index}/shared_cpu_list"),
                format!("{cpus}\n"),
            );
        }
        for (state, name, latency) in [(0, "POLL", "0"), (10, "C6", latency), (2, "C1E", "2")] {
            let dir = format!("{dir}/cpuidle/state{state}");
            tree.file(&format!("{dir}/name"), format!("{name}\n"));
            tree.file(&format!("{dir}/latency"), format!("{latency}\n"));
            tree.file(&format!("{dir}/disable"), "0\n");
        }
    }

    #[test]
    fn remapped_interrupts() {
        let tree = Tree::new();
        let remapped = |tree: &Tree| machine(tree).0.interrupt_remapping;
        assert_eq!(remapped(&tree), None);
        // Says nothing: a chip of its own, and one beyond those looked at.
        tree.file("sys/kernel/irq/1/chip_name", "VMD-MSI\n");
        tree.file("sys/kernel/irq/64/chip_name", "IR-IO-APIC\n");
        assert_eq!(remapped(&tree), None);
        tree.file("sys/kernel/irq/63/chip_name", "IR-IO-APIC\n");
        assert_eq!(remapped(&tree), Some(true));
        tree.file("sys/kernel/irq/2/chip_name", "IO-APIC\n");
        assert_eq!(remapped(&tree), Some(false));
    }

    #[test]
    fn a_server_in_full() {
        let tree = Tree::new();
        tree.file(&format!("{CPUS}/online"), "0-3\n");
        tree.file(&format!("{CPUS}/isolated"), "2\n");
        for number in 0..4 {
            let cache = if number < 2 { "0-1" } else { "2-3" };
            cpu(
                &tree,
                number,
                cache,
                if number == 3 { "200" } else { "133" },
            );
        }
        tree.dir(&format!("{CPUS}/cpuidle"));
        tree.file("sys/devices/system/node/node0/cpulist", "0-1\n");
        tree.file("sys/devices/system/node/node10/cpulist", "2-3\n");
        tree.file("sys/devices/system/node/possible", "0,10\n");
        tree.file(
            &format!("{CPUS}/vulnerabilities/meltdown"),
            "Mitigation: PTI\n",
        );
        tree.file(
            "proc/cmdline",
            "root=/dev/sda1 user=me isolcpus=managed_irq,2 threadirqs threadirqs2 iommu=pt\n",
        );
        tree.file("sys/module/nvme/parameters/poll_queues", "2\n");
        tree.file(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Fast CPU\nflags\t\t: fpu hypervisor vmx\n\nprocessor\t: 1\nmodel name\t: Other\n",
        );
        tree.file("sys/class/dmi/id/sys_vendor", "QEMU\n");
        tree.file("proc/2/comm", "kthreadd\n");
        tree.file("proc/77/comm", "irqbalance\n");
        tree.file("sys/kernel/irq/8/chip_name", "IR-IO-APIC\n");
        let (found, problems) = machine(&tree);
        assert_eq!(problems, [""; 0]);
        let state = |name: &str, latency| IdleState {
            name: name.to_owned(),
            exit_latency_us: Some(latency),
            disabled: Some(false),
        };
        let states = |latency| vec![state("POLL", 0), state("C1E", 2), state("C6", latency)];
        let text = |text: &str| Some(text.to_owned());
        let expected = Machine {
            cpu_model: text("Fast CPU"),
            online_cpus: text("0-3"),
            isolated_cpus: text("2"),
            numa_nodes: vec![
                NumaNode {
                    id: 0,
                    cpus: "0-1".to_owned(),
                },
                NumaNode {
                    id: 10,
                    cpus: "2-3".to_owned(),
                },
            ],
            last_level_caches: vec!["0-1".to_owned(), "2-3".to_owned()],
            idle_states: vec![
                IdleStates {
                    cpus: "0-2".to_owned(),
                    states: states(133),
                },
                IdleStates {
                    cpus: "3".to_owned(),
                    states: states(200),
                },
            ],
            vulnerabilities: [("meltdown".to_owned(), "Mitigation: PTI".to_owned())].into(),
            options: [
                "isolcpus=managed_irq,2",
                "threadirqs",
                "iommu=pt",
                "nvme.poll_queues=2",
            ]
            .map(str::to_owned)
            .into(),
            virtual_machine: Some(true),
            hypervisor: text("QEMU"),
            irqbalance: Some(true),
            interrupt_remapping: Some(true),
            driver_knows_bypass: None,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn nothing_to_read_is_no_problem() {
        let (found, problems) = machine(&Tree::new());
        assert_eq!(found, Machine::default());
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn what_cannot_be_told_is_absent() {
        let tree = Tree::new();
        // Hidden processes, a real machine, no irqbalance, no isolated CPU.
        tree.file("proc/77/comm", "irqbalance\n");
        tree.file("proc/cpuinfo", "flags\t: fpu\n");
        tree.file("sys/class/dmi/id/sys_vendor", "A vendor\n");
        tree.file(&format!("{CPUS}/isolated"), "\n");
        let (found, problems) = machine(&tree);
        assert_eq!(found.irqbalance, None);
        assert_eq!(
            (found.virtual_machine, found.hypervisor),
            (Some(false), None)
        );
        assert_eq!(found.isolated_cpus, None);
        assert_eq!(problems, [""; 0]);
        tree.remove("proc/77");
        tree.file("proc/2/comm", "kthreadd\n");
        assert_eq!(machine(&tree).0.irqbalance, Some(false));
        tree.file("sys/hypervisor/type", "xen\n");
        assert_eq!(machine(&tree).0.hypervisor.as_deref(), Some("xen"));
    }

    #[test]
    fn nonsense_is_named() {
        let tree = Tree::new();
        tree.file(&format!("{CPUS}/online"), "all\n");
        tree.file("sys/devices/system/node/node0/cpulist", "x\n");
        tree.file(&format!("{CPUS}/cpu0/cache/index0/level"), "L3\n");
        tree.file(&format!("{CPUS}/cpu0/cpuidle/state0/name"), "C1\n");
        tree.file(&format!("{CPUS}/cpu0/cpuidle/state0/latency"), "-2\n");
        tree.file("proc/cpuinfo", "x".repeat(100_000));
        let (found, problems) = machine(&tree);
        assert_eq!(found.idle_states[0].states[0].exit_latency_us, None);
        assert_eq!(problems.len(), 5, "{problems:?}");
        assert!(problems[0].contains("proc/cpuinfo: cannot be read: a line is longer than"));
    }
}
