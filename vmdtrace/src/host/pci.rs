//! The PCI devices of the host, and which of them are behind a VMD.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::files::{Files, Listing};
use super::topology::PciAddress;
use super::{Roots, number_list};

/// `PCI_CLASS_STORAGE_EXPRESS`. The driver compares the whole class with it
/// when it chooses a vector (`vmd_next_irq`).
const CLASS_NVME: u32 = 0x01_08_02;

/// One PCI device.
#[derive(Debug)]
pub(super) struct PciDevice {
    pub(super) address: PciAddress,
    /// `bus/pci/devices/<address>`.
    pub(super) dir: PathBuf,
    /// Where it is in the device tree: `.../0000:97:00.5/pci10000:00/10000:00:02.0/...`.
    place: PathBuf,
}

/// All PCI devices.
#[derive(Debug)]
pub(super) struct PciDevices {
    devices: BTreeMap<PciAddress, PciDevice>,
    /// Addresses bound to the driver `vmd`, or with a root bus below: when the driver
    /// lets go of a VMD, sysfs says so before the disks behind it are gone
    /// (`__device_release_driver` in drivers/base/dd.c).
    vmds: BTreeSet<PciAddress>,
}

/// Reads the bus and the driver's directory: one link per device, no more.
pub(super) fn read(files: &mut Files, roots: &Roots) -> PciDevices {
    let bus = roots.sysfs.join("bus");
    let dir = bus.join("pci/devices");
    let mut devices = BTreeMap::new();
    match files.names(&dir) {
        // A host may well have no PCI bus, but a sysfs always has a bus directory.
        Listing::Missing if !bus.exists() => {
            files.problem(
                &bus,
                "is missing: this is not a sysfs; is it mounted, is --path.sysfs right?",
            );
        }
        listing => {
            for name in listing.into_names() {
                let dir = dir.join(&name);
                let Some(address) = PciAddress::parse(&name) else {
                    files.problem(&dir, "is not named by a PCI address");
                    continue;
                };
                let place = files.link(&dir).unwrap_or_default();
                devices.insert(
                    address.clone(),
                    PciDevice {
                        address,
                        dir,
                        place,
                    },
                );
            }
        }
    }
    let driver = bus.join("pci/drivers/vmd");
    let mut vmds = BTreeSet::new();
    // Among the driver's own files (`bind`, `new_id`, ...) are its devices.
    for address in files
        .names(&driver)
        .into_names()
        .iter()
        .filter_map(|name| PciAddress::parse(name))
    {
        if devices.contains_key(&address) {
            vmds.insert(address);
        } else {
            files.problem(
                &driver.join(&address.0),
                "is bound to vmd but is not in bus/pci/devices",
            );
        }
    }
    // No other PCI device has a root bus below it.
    let above = devices.values().filter_map(PciDevice::above_root_bus);
    vmds.extend(above.filter(|address| devices.contains_key(address)));
    PciDevices { devices, vmds }
}

impl PciDevices {
    pub(super) fn iter(&self) -> impl Iterator<Item = &PciDevice> {
        self.devices.values()
    }

    pub(super) fn get(&self, address: &PciAddress) -> Option<&PciDevice> {
        self.devices.get(address)
    }

    /// Whether the driver `vmd` holds it, or is about to let it go.
    pub(super) fn is_vmd(&self, address: &PciAddress) -> bool {
        self.vmds.contains(address)
    }

    /// The VMD the device is behind.
    pub(super) fn vmd_of(&self, device: &PciDevice) -> Option<&PciAddress> {
        addresses(&device.place)
            .filter(|above| *above != device.address)
            .find_map(|above| self.vmds.get(&above))
    }
}

impl PciDevices {
    /// The device right above: a disk's port. None on a root bus, and none
    /// where that is the VMD itself.
    pub(super) fn above(&self, device: &PciDevice) -> Option<&PciDevice> {
        let above = addresses(&device.place)
            .rev()
            .find(|above| *above != device.address)?;
        self.get(&above)
            .filter(|above| !self.is_vmd(&above.address))
    }
}

impl PciDevice {
    /// The kind of the device's IOMMU domain (`iommu_group_show_type` in
    /// drivers/iommu/iommu.c). The group's own directory is reached by number,
    /// so that a tree without working links is read, too.
    pub(super) fn iommu(&self, files: &mut Files, roots: &Roots) -> Option<String> {
        let group = files.link_name(&self.dir.join("iommu_group"))?;
        let path = roots
            .sysfs
            .join("kernel/iommu_groups")
            .join(group)
            .join("type");
        files.text(&path).filter(|kind| !kind.is_empty())
    }

    /// The PCI device that this one's root bus is below.
    fn above_root_bus(&self) -> Option<PciAddress> {
        let mut above = None;
        for component in &self.place {
            let component = component.to_string_lossy();
            if above.is_some() && root_bus_domain(&component).is_some() {
                return above;
            }
            above = PciAddress::parse(&component);
        }
        None
    }

    /// The PCI domain below `vmd` as this device's place tells it.
    pub(super) fn domain_below(&self, vmd: &PciAddress) -> Option<String> {
        let mut components = self
            .place
            .iter()
            .skip_while(|component| *component != vmd.0.as_str());
        components
            .nth(1)
            .and_then(|component| root_bus_domain(&component.to_string_lossy()))
    }

    pub(super) fn vendor(&self, files: &mut Files) -> Option<u16> {
        hex_file(files, &self.dir.join("vendor"))
    }

    pub(super) fn device_id(&self, files: &mut Files) -> Option<u16> {
        hex_file(files, &self.dir.join("device"))
    }

    pub(super) fn is_nvme(&self, files: &mut Files) -> bool {
        hex_file(files, &self.dir.join("class")) == Some(CLASS_NVME)
    }

    /// Absent too where the kernel does not know (-1).
    pub(super) fn numa_node(&self, files: &mut Files) -> Option<u32> {
        let path = self.dir.join("numa_node");
        let parse = |text: &str| {
            if text == "-1" {
                Some(None)
            } else {
                number_list::number(text).map(Some)
            }
        };
        files.parsed(&path, "a NUMA node", parse).flatten()
    }

    pub(super) fn driver(&self, files: &mut Files) -> Option<String> {
        files.link_name(&self.dir.join("driver"))
    }
}

/// The PCI addresses in a path, outermost first.
pub(super) fn addresses(path: &Path) -> impl DoubleEndedIterator<Item = PciAddress> {
    path.iter()
        .filter_map(|component| PciAddress::parse(&component.to_string_lossy()))
}

/// `10000` of `pci10000:00`.
pub(super) fn root_bus_domain(name: &str) -> Option<String> {
    let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    ((4..=8).contains(&domain.len()) && bus.len() == 2 && hex(domain) && hex(bus))
        .then(|| domain.to_owned())
}

/// A number as `0x28c0`.
fn hex_file<T: TryFrom<u32>>(files: &mut Files, path: &Path) -> Option<T> {
    files.parsed(path, "a hexadecimal number such as 0x28c0", |text| {
        let digits = text.strip_prefix("0x")?;
        // from_str_radix would take a sign.
        let digits = digits
            .bytes()
            .all(|b| b.is_ascii_hexdigit())
            .then_some(digits)?;
        T::try_from(u32::from_str_radix(digits, 16).ok()?).ok()
    })
}
