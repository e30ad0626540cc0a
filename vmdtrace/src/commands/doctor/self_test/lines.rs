//! Which interrupt lines the self-test looks at, by the topology.

use crate::host::Action;
use crate::host::topology::{DiskPath, Mode, Topology};

/// Lines that are compared at most: each is a file that is read four times. A
/// controller's vectors come first.
const MOST: usize = 4096;

/// A line and the name of its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) irq: u32,
    pub(super) action: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Vectors of remapping controllers.
    pub(super) vectors: Vec<Line>,
    /// Lines whose interrupts the kernel counts: these vectors, and queues of
    /// disks that no controller remaps.
    pub(super) counted: Vec<Line>,
    /// Lines of remapped children: the kernel counts none of theirs.
    pub(super) children: Vec<Line>,
    /// How many were left out.
    pub(super) left_out: usize,
}

impl Lines {
    pub(super) fn of(topology: &Topology) -> Self {
        let mut lines = Self::default();
        for controller in &topology.controllers {
            if controller.mode != Mode::Remap {
                continue;
            }
            let action = controller
                .action
                .clone()
                .unwrap_or_else(|| "vmd".to_owned());
            let vectors = controller.vectors.iter().map(|vector| Line {
                irq: vector.irq,
                action: action.clone(),
            });
            lines.vectors.extend(vectors);
            let others = controller.other_lines.iter().map(|line| Line {
                irq: line.irq,
                action: line.actions.join(","),
            });
            lines.children.extend(others);
        }
        let mut queues = Vec::new();
        for disk in &topology.disks {
            let found = disk.lines.iter().map(|line| Line {
                irq: line.irq,
                action: line.actions.join(","),
            });
            match disk.path {
                DiskPath::VmdRemap => lines.children.extend(found),
                // A number that several actions share is counted once for all of them.
                DiskPath::VmdBypass | DiskPath::Direct => queues.extend(found.filter(|line| {
                    matches!(Action::parse(&line.action), Action::NvmeQueue { .. })
                })),
                DiskPath::VmdUnknown => {}
            }
        }
        lines.counted = lines.vectors.iter().cloned().chain(queues).collect();
        for list in [&mut lines.counted, &mut lines.children] {
            lines.left_out += list.len().saturating_sub(MOST);
            list.truncate(MOST);
        }
        lines.vectors.truncate(MOST);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::topology::{self, Controller, Disk, PciAddress, Vector, VectorUse};

    fn line(irq: u32, actions: &[&str]) -> topology::Line {
        topology::Line {
            irq,
            actions: actions.iter().map(|it| (*it).to_owned()).collect(),
            chip: None,
            parent_irq: None,
            effective_affinity: None,
        }
    }

    fn disk(name: &str, path: DiskPath, lines: Vec<topology::Line>) -> Disk {
        Disk {
            name: name.to_owned(),
            address: PciAddress("10000:01:00.0".to_owned()),
            path,
            controller: None,
            model: None,
            numa_node: None,
            iommu: None,
            link: None,
            port: None,
            namespaces: Vec::new(),
            queues: Vec::new(),
            lines,
        }
    }

    fn controller(mode: Mode) -> Controller {
        Controller {
            address: PciAddress("0000:97:00.5".to_owned()),
            device_id: None,
            driver: None,
            action: Some("vmd0".to_owned()),
            domain: None,
            numa_node: None,
            iommu: None,
            mode,
            mode_evidence: Vec::new(),
            vectors: vec![Vector {
                index: 0,
                irq: 24,
                used_for: VectorUse::All,
                effective_affinity: None,
            }],
            other_lines: vec![line(30, &["PCIe PME", "pciehp"])],
            child_interrupts: 1,
            sharing_factor: None,
        }
    }

    #[test]
    fn lines_fall_apart_by_who_counts_them() {
        let topology = Topology {
            controllers: vec![controller(Mode::Remap)],
            disks: vec![
                disk("nvme0", DiskPath::VmdRemap, vec![line(40, &["nvme0q1"])]),
                disk("nvme1", DiskPath::VmdBypass, vec![line(50, &["nvme1q1"])]),
                disk(
                    "nvme2",
                    DiskPath::Direct,
                    vec![line(11, &["nvme2q0", "uhci"]), line(51, &["nvme2q1"])],
                ),
                disk("nvme3", DiskPath::VmdUnknown, vec![line(60, &["nvme3q1"])]),
            ],
            ..Topology::default()
        };
        let found = Lines::of(&topology);
        let irqs = |lines: &[Line]| lines.iter().map(|line| line.irq).collect::<Vec<_>>();
        assert_eq!(irqs(&found.vectors), [24]);
        assert_eq!(irqs(&found.counted), [24, 50, 51]);
        assert_eq!(irqs(&found.children), [30, 40]);
        assert_eq!(found.left_out, 0);
    }

    #[test]
    fn a_controller_of_unknown_mode_has_no_lines_to_look_at() {
        let topology = Topology {
            controllers: vec![controller(Mode::Unknown)],
            ..Topology::default()
        };
        assert_eq!(Lines::of(&topology), Lines::default());
    }

    #[test]
    fn the_number_of_lines_is_bounded() {
        let lines = (0..5000).map(|irq| line(irq, &["nvme0q1"])).collect();
        let topology = Topology {
            disks: vec![disk("nvme0", DiskPath::Direct, lines)],
            ..Topology::default()
        };
        let found = Lines::of(&topology);
        assert_eq!((found.counted.len(), found.left_out), (4096, 904));
    }
}
