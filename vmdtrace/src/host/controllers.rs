//! The VMD controllers and the interrupt lines behind them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::disks::Found;
use super::files::Files;
use super::irqs::{self, Irq, MsiIrqs};
use super::pci::{self, PciDevice, PciDevices};
use super::topology::{Controller, Evidence, Line, Mode, PciAddress, Vector, VectorUse};
use super::vmd_ids::{self, INTEL, VmdId};
use super::{Roots, mode};

/// Bits of a PCI MSI hardware number that are the index in the table. The rest
/// was the device's address up to 6.1 (`pci_msi_domain_calc_hwirq`) and is zero
/// since every device has a domain of its own.
const HWIRQ_INDEX: u64 = 0x7ff;

/// All controllers, and the lines of the disks behind them until
/// [`disks`](super::disks) takes them.
#[derive(Debug)]
pub(super) struct Controllers {
    controllers: Vec<Controller>,
    disk_lines: HashMap<PciAddress, Vec<Line>>,
}

impl Controllers {
    pub(super) fn mode(&self, address: &PciAddress) -> Mode {
        // Sorted: they were read from a sorted map.
        let position = self
            .controllers
            .binary_search_by(|controller| controller.address.cmp(address));
        position.map_or(Mode::Unknown, |position| self.controllers[position].mode)
    }

    pub(super) fn take_disk_lines(&mut self, disk: &PciAddress) -> Vec<Line> {
        self.disk_lines.remove(disk).unwrap_or_default()
    }

    pub(super) fn into_controllers(self) -> Vec<Controller> {
        self.controllers
    }
}

/// Reads every device bound to the driver `vmd`, and every device with a VMD's
/// id that is not.
pub(super) fn read(
    files: &mut Files,
    roots: &Roots,
    devices: &PciDevices,
    disks: &[Found],
) -> Controllers {
    let disks: HashSet<&PciAddress> = disks.iter().map(|disk| &disk.address).collect();
    let mut children: BTreeMap<&PciAddress, Vec<&PciDevice>> = BTreeMap::new();
    for device in devices.iter() {
        if let Some(vmd) = devices.vmd_of(device) {
            children.entry(vmd).or_default().push(device);
        }
    }
    let mut disk_lines = HashMap::new();
    let mut controllers = Vec::new();
    for device in devices.iter() {
        if devices.is_vmd(&device.address) {
            let children = children.get(&device.address).map_or(&[][..], Vec::as_slice);
            controllers.push(bound(
                files,
                roots,
                device,
                children,
                &disks,
                &mut disk_lines,
            ));
        } else if devices.vmd_of(device).is_none() {
            controllers.extend(unbound(files, roots, device));
        }
    }
    Controllers {
        controllers,
        disk_lines,
    }
}

/// The device, if it is a VMD that its driver does not hold.
fn unbound(files: &mut Files, roots: &Roots, device: &PciDevice) -> Option<Controller> {
    if device.vendor(files)? != INTEL {
        return None;
    }
    let id = vmd_ids::vmd_id(device.device_id(files)?)?;
    let driver = device.driver(files);
    let observed = match &driver {
        Some(name) => format!("{name} holds the device instead of vmd"),
        None => "none: the module vmd is not loaded or not bound to the device".to_owned(),
    };
    Some(Controller {
        address: device.address.clone(),
        device_id: Some(id.device),
        driver,
        action: None,
        domain: None,
        numa_node: device.numa_node(files),
        iommu: device.iommu(files, roots),
        mode: Mode::Unknown,
        mode_evidence: vec![Evidence {
            source: "driver".to_owned(),
            observed,
            mode: Mode::Unknown,
        }],
        vectors: Vec::new(),
        other_lines: Vec::new(),
        child_interrupts: 0,
        sharing_factor: None,
    })
}

fn bound(
    files: &mut Files,
    roots: &Roots,
    device: &PciDevice,
    children: &[&PciDevice],
    disks: &HashSet<&PciAddress>,
    disk_lines: &mut HashMap<PciAddress, Vec<Line>>,
) -> Controller {
    let own = irqs::msi_irqs(files, &device.dir);
    let own_lines: Vec<Irq> = match &own {
        MsiIrqs::Irqs(irqs) => irqs
            .iter()
            .map(|&irq| irqs::read_vector(files, roots, irq))
            .collect(),
        MsiIrqs::Missing | MsiIrqs::Unreadable => Vec::new(),
    };
    let mut child_lines: Vec<(&PciDevice, Vec<Irq>)> = Vec::with_capacity(children.len());
    for &child in children {
        let lines = match irqs::msi_irqs(files, &child.dir) {
            MsiIrqs::Irqs(irqs) => irqs
                .into_iter()
                .map(|irq| irqs::read(files, roots, irq))
                .collect(),
            MsiIrqs::Missing | MsiIrqs::Unreadable => Vec::new(),
        };
        child_lines.push((child, lines));
    }

    let mut evidence = vec![mode::from_vectors(&own)];
    evidence.extend(mode::from_actions(&own_lines));
    evidence.extend(mode::from_chips(
        child_lines.iter().flat_map(|(_, lines)| lines),
    ));
    let mode = mode::decide(&evidence);

    let device_id = device.device_id(files);
    let vectors = vectors(files, roots, device, device_id, &own_lines);
    let affinities: Option<Affinities> = (own != MsiIrqs::Unreadable).then(|| {
        let affinity = |vector: &Vector| (vector.irq, vector.effective_affinity.clone());
        vectors.iter().map(affinity).collect()
    });
    let mut other_lines = Vec::new();
    let mut child_interrupts = 0_u32;
    for (child, lines) in child_lines {
        let is_disk = disks.contains(&child.address);
        // By class as in the driver: an NVMe device takes NVMe vectors whatever holds it.
        if !lines.is_empty() && (child.is_nvme(files) || is_disk) {
            child_interrupts = child_interrupts.saturating_add(lines.len() as u32);
        }
        let lines = lines
            .into_iter()
            .map(|line| child_line(files, roots, line, mode, affinities.as_ref()));
        if is_disk {
            let lines = lines.collect();
            disk_lines.insert(child.address.clone(), lines);
        } else {
            other_lines.extend(lines);
        }
    }
    other_lines.sort_by_key(|line: &Line| line.irq);

    let serving = vectors
        .iter()
        .filter(|vector| vector.used_for.serves_nvme())
        .count();
    let sharing_factor =
        (mode == Mode::Remap && serving > 0).then(|| f64::from(child_interrupts) / serving as f64);
    let domain = files
        .link_name(&device.dir.join("domain"))
        .and_then(|name| pci::root_bus_domain(&name));
    // Where the kernel has not made the link (yet), the children tell.
    let domain = domain.or_else(|| {
        children
            .iter()
            .find_map(|child| child.domain_below(&device.address))
    });
    Controller {
        address: device.address.clone(),
        device_id,
        driver: Some("vmd".to_owned()),
        action: own_lines
            .iter()
            .find_map(|line| mode::vmd_action(line.actions.as_deref()?))
            .map(str::to_owned),
        domain,
        numa_node: device.numa_node(files),
        iommu: device.iommu(files, roots),
        mode,
        mode_evidence: evidence,
        vectors,
        other_lines,
        child_interrupts,
        sharing_factor,
    }
}

fn vectors(
    files: &mut Files,
    roots: &Roots,
    device: &PciDevice,
    id: Option<u16>,
    lines: &[Irq],
) -> Vec<Vector> {
    if lines.is_empty() {
        return Vec::new();
    }
    let known = id.and_then(vmd_ids::vmd_id);
    if known.is_none() {
        files.problem(
            &device.dir.join("device"),
            "is not a VMD known here: it cannot be told whether its vector 0 is reserved (taken as not)",
        );
    }
    let uses = vector_uses(lines.len(), known);
    let mut vectors: Vec<Vector> = Vec::with_capacity(lines.len());
    for (index, line) in indexes(lines).into_iter().zip(lines) {
        vectors.push(Vector {
            index,
            irq: line.irq,
            used_for: uses.get(index as usize).copied().unwrap_or(VectorUse::Nvme),
            effective_affinity: irqs::effective_affinity(files, roots, line.irq),
        });
    }
    vectors.sort_by_key(|vector| vector.index);
    vectors
}

/// Index of each vector in the table: by hardware numbers where these are
/// 0 to n-1, else by the order of the interrupt numbers, which the kernel gives
/// out rising.
fn indexes(lines: &[Irq]) -> Vec<u32> {
    let by_order = 0..lines.len() as u32;
    let told: Option<Vec<u32>> = lines
        .iter()
        .map(|line| line.hwirq.map(|n| (n & HWIRQ_INDEX) as u32))
        .collect();
    let is_complete = |told: &Vec<u32>| {
        let mut sorted = told.clone();
        sorted.sort_unstable();
        sorted.into_iter().eq(by_order.clone())
    };
    told.filter(is_complete)
        .unwrap_or_else(|| by_order.collect())
}

/// What the driver does with each of `count` vectors (`vmd_next_irq`): with one
/// usable vector everything goes there; else the first usable one is for
/// everything but NVMe, the others are for NVMe.
fn vector_uses(count: usize, id: Option<VmdId>) -> Vec<VectorUse> {
    let first = id.map_or(0, |id| id.first_vector as usize);
    let use_of = |index: usize| match index {
        _ if index < first => VectorUse::Reserved,
        _ if count == first + 1 => VectorUse::All,
        _ if index == first => VectorUse::Other,
        _ => VectorUse::Nvme,
    };
    (0..count).map(use_of).collect()
}

/// The CPUs of each of a VMD's vectors.
type Affinities = HashMap<u32, Option<String>>;

/// A line of a device behind a VMD whose vectors are delivered as `affinities`
/// says; none where the vectors could not be read.
fn child_line(
    files: &mut Files,
    roots: &Roots,
    line: Irq,
    mode: Mode,
    affinities: Option<&Affinities>,
) -> Line {
    let mut parent_irq = None;
    if line.hwirq_is_parent()
        && let Some(hwirq) = line.hwirq
    {
        parent_irq = u32::try_from(hwirq)
            .ok()
            .filter(|irq| affinities.is_none_or(|known| known.contains_key(irq)));
        if parent_irq.is_none() {
            let path = roots.sysfs.join(format!("kernel/irq/{}/hwirq", line.irq));
            files.problem(
                &path,
                format_args!("{hwirq} is not a vector of the VMD the device is behind"),
            );
        }
    }
    let effective_affinity = if line.is_remapped().unwrap_or(mode == Mode::Remap) {
        parent_irq.and_then(|irq| affinities?.get(&irq).cloned().flatten())
    } else {
        irqs::effective_affinity(files, roots, line.irq)
    };
    Line {
        irq: line.irq,
        actions: line.actions.unwrap_or_default(),
        chip: line.chip,
        parent_irq,
        effective_affinity,
    }
}

/// A line of a disk that is not behind a VMD.
pub(super) fn direct_line(files: &mut Files, roots: &Roots, irq: u32) -> Line {
    let line = irqs::read(files, roots, irq);
    child_line(files, roots, line, Mode::Unknown, Some(&HashMap::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(irq: u32, hwirq: Option<u64>) -> Irq {
        Irq {
            irq,
            actions: None,
            chip: None,
            hwirq,
        }
    }

    #[test]
    fn uses_follow_the_driver() {
        use VectorUse::{All, Nvme, Other, Reserved};
        let server = vmd_ids::vmd_id(0x28c0);
        let client = vmd_ids::vmd_id(0x9a0b);
        assert_eq!(vector_uses(3, server), [Other, Nvme, Nvme]);
        assert_eq!(vector_uses(1, server), [All]);
        assert_eq!(vector_uses(3, client), [Reserved, Other, Nvme]);
        assert_eq!(vector_uses(2, client), [Reserved, All]);
        assert_eq!(vector_uses(1, client), [Reserved]);
        assert_eq!(vector_uses(0, None), []);
    }

    #[test]
    fn indexes_by_hardware_number_or_by_order() {
        assert_eq!(indexes(&[vector(24, Some(1)), vector(25, Some(0))]), [1, 0]);
        // Up to 6.1: index | address << 11.
        assert_eq!(
            indexes(&[
                vector(24, Some(0x9705 << 11)),
                vector(25, Some(0x9705 << 11 | 1))
            ]),
            [0, 1]
        );
        assert_eq!(indexes(&[vector(24, None), vector(25, Some(0))]), [0, 1]);
        assert_eq!(indexes(&[vector(24, Some(7)), vector(25, Some(7))]), [0, 1]);
    }
}
