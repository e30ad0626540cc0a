//! The data model of a host's VMD controllers and NVMe disks. How it is read
//! is told in the modules beside this one; nothing here touches a file.

use serde::{Deserialize, Serialize};

/// A PCI address as sysfs writes it, such as `0000:97:00.5` or `10000:01:00.0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PciAddress(pub String);

/// Whether a VMD controller delivers its children's interrupts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Children interrupt through the controller's own MSI-X vectors.
    Remap,
    /// Children interrupt the CPUs directly.
    Bypass,
    /// The sources disagree, or none could be read.
    Unknown,
}

/// One observation that speaks for a mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Where it was seen, for example `msi_irqs` or `chip_name`.
    pub source: String,
    /// What was seen there.
    pub observed: String,
    /// The mode it speaks for.
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
    /// Allocated but never used by the driver (client parts reserve vector 0).
    Reserved,
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
    /// CPUs the interrupt may be delivered to now, as a kernel list (`0-3,8`).
    pub effective_affinity: Option<String>,
}

/// One interrupt line of a device behind a VMD, or of a disk that is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub irq: u32,
    /// Name of its action, such as `nvme0q1`; empty while no driver holds it.
    pub action: Option<String>,
    pub chip: Option<String>,
    /// The VMD vector it is delivered through, where sysfs still tells (to 6.16).
    pub parent_irq: Option<u32>,
    pub effective_affinity: Option<String>,
}

/// One NVMe queue with an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Queue id; 0 is the admin queue.
    pub id: u32,
    /// The interrupt line, absent for polled queues.
    pub irq: Option<u32>,
    /// CPUs that submit to it, as a kernel list.
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

/// A namespace of a disk: what the rest of the system calls a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Block device name, such as `nvme0n1`.
    pub name: String,
    pub size_bytes: Option<u64>,
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
    /// Text from the device, untrusted.
    pub model: Option<String>,
    pub numa_node: Option<i32>,
    pub namespaces: Vec<Namespace>,
    pub queues: Vec<Queue>,
    pub lines: Vec<Line>,
}

/// One VMD controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Controller {
    pub address: PciAddress,
    pub device_id: Option<u16>,
    /// Name of its vectors' action where it has one: `vmd0`, or `vmd` on 5.10.
    pub action: Option<String>,
    /// PCI domain of its children, such as `10000`.
    pub domain: Option<String>,
    pub numa_node: Option<i32>,
    pub mode: Mode,
    /// Everything that spoke for or against it.
    pub mode_evidence: Vec<Evidence>,
    /// Its own vectors; empty in bypass.
    pub vectors: Vec<Vector>,
    /// Interrupt lines of devices behind it that are not NVMe disks.
    pub other_lines: Vec<Line>,
    /// How many interrupt lines its NVMe children have.
    pub child_interrupts: u32,
    /// `child_interrupts` per vector that serves NVMe; absent in bypass.
    pub sharing_factor: Option<f64>,
}

/// All controllers and disks of a host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    pub controllers: Vec<Controller>,
    pub disks: Vec<Disk>,
    /// What could not be read, each with its path: never a silent gap.
    pub problems: Vec<String>,
}
