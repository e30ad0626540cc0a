//! The data model of a host's VMD controllers and NVMe disks. How it is read
//! is told in the modules beside this one; nothing here touches a file.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A PCI address as sysfs writes it, such as `0000:97:00.5` or `10000:01:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PciAddress(pub String);

impl PciAddress {
    /// The address, if `text` is one: domain of 4 to 8 hexadecimal digits, bus
    /// and device of 2, function of 1 (`0` to `7`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str| {
            part.bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let valid = (4..=8).contains(&domain.len())
            && bus.len() == 2
            && device.len() == 2
            && [domain, bus, device].into_iter().all(hex)
            && matches!(function.as_bytes(), [b'0'..=b'7']);
        valid.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether a VMD controller delivers its children's interrupts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Children interrupt through the controller's own MSI-X vectors.
    Remap,
    /// Children interrupt the CPUs directly.
    Bypass,
    /// The sources disagree, none could be read, or the driver is not `vmd`.
    Unknown,
}

impl Mode {
    /// As in JSON and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Remap => "remap",
            Self::Bypass => "bypass",
            Self::Unknown => "unknown",
        }
    }
}

/// One observation that speaks for a mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Where it was seen: `msi_irqs`, `actions`, `chip_name` or `driver`.
    pub source: String,
    /// What was seen there.
    pub observed: String,
    /// The mode it speaks for; unknown where it speaks for none.
    pub mode: Mode,
}

/// What a VMD vector serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VectorUse {
    /// NVMe queues.
    Nvme,
    /// Everything else: ports, hot-plug, error reports (the driver's slow vector).
    Other,
    /// NVMe queues and everything else: the controller has one usable vector.
    All,
    /// Allocated but never used by the driver (client parts reserve vector 0).
    Reserved,
}

impl VectorUse {
    /// Whether NVMe queues are delivered through it.
    #[must_use]
    pub fn serves_nvme(self) -> bool {
        matches!(self, Self::Nvme | Self::All)
    }
}

/// One MSI-X vector of a VMD controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Index in the controller's MSI-X table.
    pub index: u32,
    /// Linux interrupt number.
    pub irq: u32,
    #[serde(rename = "use")]
    pub used_for: VectorUse,
    /// CPUs the interrupt is delivered to now, as a kernel list (`0-3,8`).
    pub effective_affinity: Option<String>,
}

/// One interrupt line of a device behind a VMD, or of a disk that is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Linux interrupt number.
    pub irq: u32,
    /// Names of its actions, such as `nvme0q1`: none while no driver holds it,
    /// several where it is shared (a disk with a single vector).
    pub actions: Vec<String>,
    /// Name of its interrupt chip.
    pub chip: Option<String>,
    /// The VMD vector it is delivered through, where sysfs still tells (to 6.16).
    pub parent_irq: Option<u32>,
    /// CPUs the interrupt is delivered to now, as a kernel list. A remapped
    /// child is delivered where its vector is, whatever mask the kernel keeps
    /// for the child itself: absent where the vector is not known.
    pub effective_affinity: Option<String>,
}

/// One NVMe queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Queue id; 0 is the admin queue.
    pub id: u32,
    /// The interrupt line, absent for polled queues.
    pub irq: Option<u32>,
    /// CPUs that submit to it, as a kernel list; empty when none does. Absent
    /// for the admin queue and for a disk without a namespace.
    pub submit_cpus: Option<String>,
}

/// How a disk's interrupts reach a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskPath {
    /// Behind a VMD that remaps.
    VmdRemap,
    /// Behind a VMD in bypass.
    VmdBypass,
    /// Behind a VMD whose mode is unknown.
    VmdUnknown,
    /// Not behind a VMD.
    Direct,
}

impl DiskPath {
    /// As in JSON and metric labels.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::VmdRemap => "vmd-remap",
            Self::VmdBypass => "vmd-bypass",
            Self::VmdUnknown => "vmd-unknown",
            Self::Direct => "direct",
        }
    }
}

impl From<Mode> for DiskPath {
    /// The path of what is behind a controller in this mode.
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Remap => Self::VmdRemap,
            Mode::Bypass => Self::VmdBypass,
            Mode::Unknown => Self::VmdUnknown,
        }
    }
}

/// A namespace of a disk: what the rest of the system calls a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Block device name, such as `nvme0n1`. With native multipath several
    /// disks may have the same namespace.
    pub name: String,
    pub size_bytes: Option<u64>,
    /// How the block layer treats its requests.
    #[serde(default)]
    pub settings: BlockSettings,
}

/// Settings of a block device's queue (`/sys/block/*/queue`); absent where the
/// kernel has no such file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockSettings {
    /// The I/O scheduler in use, such as `none`.
    pub scheduler: Option<String>,
    /// 0: complete where the interrupt comes; 1: on a CPU that shares a cache
    /// with the submitter; 2: on the submitter's CPU.
    pub rq_affinity: Option<u32>,
    /// Latency target of writeback throttling in microseconds; 0 is off.
    /// Absent where the kernel was built without it.
    pub wbt_lat_usec: Option<u64>,
    /// Requests a hardware queue (or the scheduler) holds.
    pub nr_requests: Option<u32>,
    /// 0: all merging; 1: simple merges only; 2: none.
    pub nomerges: Option<u32>,
    /// Whether polled I/O is on.
    pub io_poll: Option<bool>,
}

/// A PCI Express link. Speeds are in million transfers per second and lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    pub current_speed: Option<u32>,
    /// What this end of the link is capable of.
    pub max_speed: Option<u32>,
    /// Lanes.
    pub current_width: Option<u32>,
    pub max_width: Option<u32>,
}

/// The port a disk is plugged into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub address: PciAddress,
    pub link: Option<Link>,
}

/// One NVMe controller, which its users call a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// `nvme0` and so on: the label in every metric.
    pub name: String,
    pub address: PciAddress,
    pub path: DiskPath,
    /// The VMD it is behind.
    pub controller: Option<PciAddress>,
    /// Text from the device, untrusted: any character may be in it.
    pub model: Option<String>,
    pub numa_node: Option<u32>,
    /// Kind of its IOMMU domain: `identity`, `DMA`, `DMA-FQ` and so on; absent
    /// where it has none. Behind a VMD it is the VMD's.
    #[serde(default)]
    pub iommu: Option<String>,
    /// Its own end of its link.
    #[serde(default)]
    pub link: Option<Link>,
    #[serde(default)]
    pub port: Option<Port>,
    pub namespaces: Vec<Namespace>,
    pub queues: Vec<Queue>,
    pub lines: Vec<Line>,
}

#[cfg(test)]
impl Disk {
    /// A disk of which nothing else is known.
    pub(crate) fn bare(name: &str, address: &str, path: DiskPath) -> Self {
        Self {
            name: name.to_owned(),
            address: PciAddress(address.to_owned()),
            path,
            controller: None,
            model: None,
            numa_node: None,
            iommu: None,
            link: None,
            port: None,
            namespaces: Vec::new(),
            queues: Vec::new(),
            lines: Vec::new(),
        }
    }
}

/// One VMD controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    pub address: PciAddress,
    pub device_id: Option<u16>,
    /// The driver that holds it. Unless it is `vmd`, nothing behind the
    /// controller is visible and the mode is unknown.
    pub driver: Option<String>,
    /// Name of its vectors' action where it has one: `vmd0`, or `vmd` on 5.10.
    pub action: Option<String>,
    /// PCI domain of its children, such as `10000`.
    pub domain: Option<String>,
    pub numa_node: Option<u32>,
    /// Kind of its IOMMU domain, as of a disk's.
    #[serde(default)]
    pub iommu: Option<String>,
    pub mode: Mode,
    /// Everything that spoke for or against it.
    pub mode_evidence: Vec<Evidence>,
    /// Its own vectors; empty in bypass.
    pub vectors: Vec<Vector>,
    /// Interrupt lines of devices behind it that are not NVMe disks.
    pub other_lines: Vec<Line>,
    /// How many interrupt lines its NVMe children have.
    pub child_interrupts: u32,
    /// `child_interrupts` per vector that serves NVMe; present in remap only.
    pub sharing_factor: Option<f64>,
}

/// What of the machine decides about interrupts and I/O. Lists of CPUs are the
/// kernel's (`0-3,8`); what its files do not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpu_model: Option<String>,
    pub online_cpus: Option<String>,
    /// CPUs that the scheduler was told to leave alone.
    pub isolated_cpus: Option<String>,
    pub numa_nodes: Vec<NumaNode>,
    /// The CPUs of each last-level cache.
    pub last_level_caches: Vec<String>,
    /// CPUs with the same idle states are one entry.
    pub idle_states: Vec<IdleStates>,
    /// What the kernel says of each weakness of the CPU and its mitigation.
    pub vulnerabilities: BTreeMap<String, String>,
    /// Options of the kernel's command line and of the NVMe driver that decide
    /// about interrupts, as they were given. No other option is kept.
    pub options: Vec<String>,
    /// Whether this is a virtual machine, by the CPU's flag.
    pub virtual_machine: Option<bool>,
    /// What it runs on, where that is told: `xen`, `QEMU` and so on.
    pub hypervisor: Option<String>,
    /// Whether irqbalance runs; absent where other processes are hidden.
    pub irqbalance: Option<bool>,
    /// Whether the IOMMU remaps interrupts, by the names of their chips.
    pub interrupt_remapping: Option<bool>,
    /// Whether the driver `vmd` knows bypass, by its BTF.
    pub driver_knows_bypass: Option<bool>,
}

impl Machine {
    /// Whether it is a domain of Xen, the first one included.
    #[must_use]
    pub fn is_xen(&self) -> bool {
        let hypervisor = self.hypervisor.as_deref();
        hypervisor.is_some_and(|name| name.trim().eq_ignore_ascii_case("xen"))
    }
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    pub id: u32,
    pub cpus: String,
}

/// The idle states of some CPUs, shallowest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleStates {
    pub cpus: String,
    pub states: Vec<IdleState>,
}

/// An idle state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdleState {
    pub name: String,
    /// Time to leave it, in microseconds.
    pub exit_latency_us: Option<u32>,
    /// Whether it was switched off.
    pub disabled: Option<bool>,
}

/// All controllers and disks of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// By address.
    pub controllers: Vec<Controller>,
    /// By number.
    pub disks: Vec<Disk>,
    /// The machine around them.
    #[serde(default)]
    pub machine: Machine,
    /// What could not be read, each with its path: never a silent gap.
    pub problems: Vec<String>,
}

impl Topology {
    /// Controllers and disks without their single lines and queues, and without
    /// the machine around them: what does not grow with the number of CPUs.
    #[must_use]
    pub fn outline(&self) -> Self {
        let controller = |controller: &Controller| Controller {
            other_lines: Vec::new(),
            ..controller.clone()
        };
        let disk = |disk: &Disk| {
            // Taken apart, so that the long lists are not copied first.
            let Disk {
                name,
                address,
                path,
                controller,
                model,
                numa_node,
                iommu,
                link,
                port,
                namespaces,
                queues: _,
                lines: _,
            } = disk;
            Disk {
                name: name.clone(),
                address: address.clone(),
                path: *path,
                controller: controller.clone(),
                model: model.clone(),
                numa_node: *numa_node,
                iommu: iommu.clone(),
                link: link.clone(),
                port: port.clone(),
                namespaces: namespaces.clone(),
                queues: Vec::new(),
                lines: Vec::new(),
            }
        };
        Self {
            controllers: self.controllers.iter().map(controller).collect(),
            disks: self.disks.iter().map(disk).collect(),
            machine: Machine::default(),
            problems: self.problems.clone(),
        }
    }
}
