//! Controllers and disks: facts to join with, and the sharing of vectors.

use prometheus::proto::MetricFamily;

use super::family::GaugeFamily;
use crate::host::topology::{Controller, Disk, PciAddress, Topology};

pub(super) fn add(topology: &Topology, families: &mut Vec<MetricFamily>) {
    let Topology {
        controllers,
        disks,
        machine: _,
        problems,
    } = topology;
    add_controllers(controllers, families);
    add_disks(disks, families);

    let mut unreadable = GaugeFamily::new(
        "vmdtrace_topology_problems",
        "Things in /sys and /proc that could not be read; `vmdtrace topology` lists them.",
        [],
    );
    unreadable.set([], problems.len() as f64);
    unreadable.push_to(families);
}

fn add_controllers(controllers: &[Controller], families: &mut Vec<MetricFamily>) {
    let mut info = GaugeFamily::new(
        "vmdtrace_controller_info",
        "A VMD controller: its PCI device id, the PCI domain of its children, and whether it \
         remaps their interrupts (remap, bypass, unknown).",
        ["controller", "device_id", "domain", "mode", "numa_node"],
    );
    let mut vector_count = GaugeFamily::new(
        "vmdtrace_controller_vectors",
        "MSI-X vectors of the controller itself; 0 in bypass.",
        ["controller"],
    );
    let mut children = GaugeFamily::new(
        "vmdtrace_controller_child_interrupts",
        "Interrupt lines of the NVMe disks behind the controller.",
        ["controller"],
    );
    let mut sharing = GaugeFamily::new(
        "vmdtrace_controller_sharing_ratio",
        "Child interrupts per controller vector that serves NVMe; absent where nothing is shared.",
        ["controller"],
    );
    for controller in controllers {
        let Controller {
            address: PciAddress(address),
            device_id,
            driver: _,
            action: _,
            domain,
            numa_node,
            iommu: _,
            mode,
            mode_evidence: _,
            vectors,
            other_lines: _,
            child_interrupts,
            sharing_factor,
        } = controller;
        let device_id = device_id.map(|id| format!("{id:04x}")).unwrap_or_default();
        let numa_node = numa_node.map(|node| node.to_string()).unwrap_or_default();
        let domain = domain.as_deref().unwrap_or("");
        info.set(
            [address, &device_id, domain, mode.as_str(), &numa_node],
            1.0,
        );
        vector_count.set([address], vectors.len() as f64);
        children.set([address], f64::from(*child_interrupts));
        if let Some(factor) = sharing_factor.filter(|factor| factor.is_finite()) {
            sharing.set([address], factor);
        }
    }
    info.push_to(families);
    vector_count.push_to(families);
    children.push_to(families);
    sharing.push_to(families);
}

fn add_disks(disks: &[Disk], families: &mut Vec<MetricFamily>) {
    let mut info = GaugeFamily::new(
        "vmdtrace_disk_info",
        "An NVMe disk and how its interrupts reach a CPU (vmd-remap, vmd-bypass, vmd-unknown, \
         direct).",
        ["controller", "disk", "address", "path", "model"],
    );
    for disk in disks {
        let Disk {
            name,
            address: PciAddress(address),
            path,
            controller,
            model,
            numa_node: _,
            iommu: _,
            link: _,
            port: _,
            namespaces: _,
            queues: _,
            lines: _,
        } = disk;
        let controller = controller_value(controller.as_ref());
        let model = model.as_deref().unwrap_or("");
        info.set([controller, name, address, path.as_str(), model], 1.0);
    }
    info.push_to(families);
}

/// Value of the `controller` label: empty for what is not behind a VMD.
pub(super) fn controller_value(controller: Option<&PciAddress>) -> &str {
    controller.map_or("", |PciAddress(address)| address)
}
