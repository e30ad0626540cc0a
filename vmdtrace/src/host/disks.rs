//! The NVMe disks: PCI ones; those of a fabric have no interrupts here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Roots;
use super::action::Action;
use super::controllers::{Controllers, direct_line};
use super::files::{Files, Listing};
use super::irqs::{self, MsiIrqs};
use super::number_list::{NumberList, number};
use super::pci::{self, PciDevice, PciDevices};
use super::topology::{Disk, DiskPath, Line, Namespace, PciAddress, Port, Queue};
use super::{block_settings, link};

/// `cpu_list` of blk-mq is cut at one page, between two numbers
/// (`blk_mq_hw_sysfs_cpus_show`): from this length on it may be incomplete.
const MAY_BE_CUT: usize = 4096 - 16;
/// Unit of a block device's `size`, whatever its own sector size is.
const SECTOR_BYTES: u64 = 512;

/// A disk before its lines are read.
#[derive(Debug)]
pub(super) struct Found {
    /// 3 of `nvme3`.
    number: u32,
    pub(super) address: PciAddress,
    /// `class/nvme/nvme3`.
    dir: PathBuf,
}

/// Finds the disks, by number.
pub(super) fn find(files: &mut Files, roots: &Roots, devices: &PciDevices) -> Vec<Found> {
    let class = roots.sysfs.join("class/nvme");
    let mut found = Vec::new();
    for name in files.names(&class).into_names() {
        let Some(number) = name.strip_prefix("nvme").and_then(number) else {
            continue;
        };
        let dir = class.join(&name);
        if files
            .text(&dir.join("transport"))
            .is_some_and(|transport| transport != "pcie")
        {
            continue;
        }
        // ../../devices/pci0000:00/0000:00:04.0/nvme/nvme3
        let Some(place) = files.link(&dir) else {
            continue;
        };
        let address = pci::addresses(&place)
            .next_back()
            .filter(|address| devices.get(address).is_some());
        match address {
            Some(address) => found.push(Found {
                number,
                address,
                dir,
            }),
            None => files.problem(
                &dir,
                format_args!("leads to no PCI device: {}", place.display()),
            ),
        }
    }
    found.sort_by_key(|disk| disk.number);
    found
}

/// Reads the disks found.
pub(super) fn read(
    files: &mut Files,
    roots: &Roots,
    devices: &PciDevices,
    found: Vec<Found>,
    controllers: &mut Controllers,
) -> Vec<Disk> {
    let mut disks = Vec::with_capacity(found.len());
    for disk in found {
        let Some(device) = devices.get(&disk.address) else {
            continue;
        };
        let controller = devices.vmd_of(device).cloned();
        let (path, lines) = match &controller {
            Some(vmd) => (
                DiskPath::from(controllers.mode(vmd)),
                controllers.take_disk_lines(&disk.address),
            ),
            None => (DiskPath::Direct, direct_lines(files, roots, device)),
        };
        let block_devices = block_devices(files, &disk.dir);
        disks.push(Disk {
            name: format!("nvme{}", disk.number),
            path,
            controller,
            model: files
                .text(&disk.dir.join("model"))
                .filter(|model| !model.is_empty()),
            numa_node: device.numa_node(files),
            iommu: device.iommu(files, roots),
            link: link::read(files, &device.dir),
            port: port(files, devices, device),
            namespaces: namespaces(files, &disk.dir, &block_devices),
            queues: queues(files, &disk, &lines, &block_devices),
            lines,
            address: disk.address,
        });
    }
    disks
}

/// The port right above the disk, where that is a device of its own.
fn port(files: &mut Files, devices: &PciDevices, disk: &PciDevice) -> Option<Port> {
    let above = devices.above(disk)?;
    Some(Port {
        address: above.address.clone(),
        link: link::read(files, &above.dir),
    })
}

fn direct_lines(files: &mut Files, roots: &Roots, device: &PciDevice) -> Vec<Line> {
    let irqs = match irqs::msi_irqs(files, &device.dir) {
        MsiIrqs::Irqs(irqs) if !irqs.is_empty() => irqs,
        MsiIrqs::Unreadable => Vec::new(),
        // No message-signalled interrupts: a legacy line, 0 where there is none.
        MsiIrqs::Irqs(_) | MsiIrqs::Missing => {
            let irq = files.parsed(&device.dir.join("irq"), "an interrupt number", number);
            irq.into_iter().filter(|&irq| irq != 0).collect()
        }
    };
    irqs.into_iter()
        .map(|irq| direct_line(files, roots, irq))
        .collect()
}

/// A directory of a namespace below a disk's.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BlockDevice {
    /// 1 of `nvme0n1`.
    namespace: u32,
    /// 0 of `nvme0n1`: the subsystem's number where there is native multipath.
    subsystem: u32,
    /// Name of the directory: `nvme0n1`, or `nvme0c3n1` for a path of a
    /// multipath namespace, which is hidden and has the queues.
    directory: String,
}

impl BlockDevice {
    fn parse(directory: &str) -> Option<Self> {
        let (owner, namespace) = directory.strip_prefix("nvme")?.split_once('n')?;
        let subsystem = match owner.split_once('c') {
            Some((subsystem, controller)) => {
                number(controller)?;
                subsystem
            }
            None => owner,
        };
        Some(Self {
            namespace: number(namespace)?,
            subsystem: number(subsystem)?,
            directory: directory.to_owned(),
        })
    }

    /// The name of the disk that users see (`nvme_set_disk_name` and
    /// `nvme_mpath_alloc_disk`).
    fn visible_name(&self) -> String {
        format!("nvme{}n{}", self.subsystem, self.namespace)
    }
}

fn block_devices(files: &mut Files, dir: &Path) -> Vec<BlockDevice> {
    let names = files.names(dir).into_names();
    let mut devices: Vec<BlockDevice> = names
        .iter()
        .filter_map(|name| BlockDevice::parse(name))
        .collect();
    devices.sort_unstable();
    devices
}

fn namespaces(files: &mut Files, dir: &Path, devices: &[BlockDevice]) -> Vec<Namespace> {
    let mut namespaces = Vec::with_capacity(devices.len());
    for device in devices {
        let path = dir.join(&device.directory).join("size");
        let bytes = |text: &str| text.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
        let size_bytes = files.parsed(&path, "a number of sectors", bytes);
        namespaces.push(Namespace {
            name: device.visible_name(),
            size_bytes,
            settings: block_settings::read(files, &dir.join(&device.directory).join("queue")),
        });
    }
    namespaces
}

/// Queues are known by the actions of the lines, and by blk-mq's hardware
/// contexts: context n is queue n + 1 (`nvme_init_hctx`), for polled queues too.
fn queues(files: &mut Files, disk: &Found, lines: &[Line], devices: &[BlockDevice]) -> Vec<Queue> {
    let mut queues: BTreeMap<u32, Queue> = BTreeMap::new();
    for line in lines {
        for action in &line.actions {
            if let Action::NvmeQueue {
                disk: owner,
                queue: id,
            } = Action::parse(action)
                && owner == disk.number
            {
                queues.insert(
                    id,
                    Queue {
                        id,
                        irq: Some(line.irq),
                        submit_cpus: None,
                    },
                );
            }
        }
    }
    // All namespaces of a disk share one set of queues.
    for device in devices {
        let mq = disk.dir.join(&device.directory).join("mq");
        let Listing::Names(contexts) = files.names(&mq) else {
            continue;
        };
        for name in contexts {
            let Some(id) = number(&name).and_then(|context| context.checked_add(1)) else {
                continue;
            };
            let path = mq.join(&name).join("cpu_list");
            let cpus = files.parsed(&path, "a complete list of CPUs", |text| {
                let whole = text.len() < MAY_BE_CUT;
                NumberList::parse(text).ok().filter(|_| whole)
            });
            let queue = queues.entry(id).or_insert(Queue {
                id,
                irq: None,
                submit_cpus: None,
            });
            queue.submit_cpus = cpus.map(|cpus| cpus.to_string());
        }
        break;
    }
    queues.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_block_devices() {
        let name =
            |directory: &str| BlockDevice::parse(directory).map(|device| device.visible_name());
        assert_eq!(name("nvme0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(name("nvme2c5n3").as_deref(), Some("nvme2n3"));
        for other in [
            "ng0n1",
            "nvme0",
            "nvme0n1p1",
            "nvmen1",
            "nvme0cn1",
            "nvme0c1",
            "hwmon3",
            "numa_node",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
