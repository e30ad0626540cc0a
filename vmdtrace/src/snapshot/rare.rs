//! Who owns what is counted in hash maps: time-outs, and completions outside any
//! handler, by disk; operations on interrupts by controller.

use vmdtrace_common::msi::Operation;

use super::{
    Counters, DiskLosses, LossCounts, Losses, MsiCounts, OperationCount, OutsideCompletions,
    attribution::Attribution, line_names::LineNames,
};
use crate::{
    host::topology::{PciAddress, Topology},
    probes::{
        losses::{DiskName, LossesByName},
        msi::{ControllerName, OperationsByName},
        msi_messages::Subject,
        outside::OutsideByName,
    },
};

/// What was counted in hash maps, by what the programs call its owners.
#[derive(Clone, Debug, Default)]
pub(super) struct ByName {
    pub(super) losses: LossesByName,
    pub(super) outside: OutsideByName,
    pub(super) operations: OperationsByName,
}

/// Their owners.
#[derive(Debug, Default)]
pub(super) struct Rare {
    losses: Attribution<DiskName, DiskOwner, 2>,
    outside: Attribution<DiskName, DiskOwner, 1>,
    operations: Attribution<ControllerName, PciAddress, { Operation::ALL.len() }>,
}

/// Whose time-outs they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DiskOwner {
    controller: Option<PciAddress>,
    disk: String,
}

impl DiskOwner {
    /// The disk of this name by a reading.
    fn find(topology: &Topology, name: &DiskName) -> Option<Self> {
        let disk = topology.disks.iter().find(|disk| match name {
            DiskName::Number(number) => disk.name == format!("nvme{number}"),
            DiskName::BlockDevice(device) => disk.namespaces.iter().any(|it| it.name == *device),
            DiskName::Unknown => false,
        })?;
        Some(Self {
            controller: disk.controller.clone(),
            disk: disk.name.clone(),
        })
    }
}

/// The VMD of this name by a reading.
fn find_controller(topology: &Topology, name: &ControllerName) -> Option<PciAddress> {
    let found = topology.controllers.iter().find(|controller| match name {
        ControllerName::Domain(number) => controller
            .domain
            .as_deref()
            .is_some_and(|it| u32::from_str_radix(it, 16) == Ok(*number)),
        ControllerName::Address(address) => controller.address.0 == *address,
        ControllerName::Vector(irq) => controller.vectors.iter().any(|it| it.irq == *irq),
        ControllerName::Unknown => false,
    })?;
    Some(found.address.clone())
}

impl Rare {
    /// Devices came or went; this is what has been counted until now.
    pub(super) fn changed(&mut self, counted: ByName) {
        let ByName {
            losses,
            outside,
            operations,
        } = counted;
        self.losses.changed(losses.disks);
        self.outside.changed(outside);
        self.operations.changed(operations.controllers);
    }

    /// Whether something is counted that no reading was asked about.
    pub(super) fn has_news(&self, counted: &ByName) -> bool {
        let ByName {
            losses,
            outside,
            operations,
        } = counted;
        self.losses.has_news(&losses.disks)
            || self.outside.has_news(outside)
            || self.operations.has_news(&operations.controllers)
    }

    /// Takes note of who has what is counted by a new reading.
    pub(super) fn hand_over(&mut self, topology: &Topology, counted: &ByName) {
        let ByName {
            losses,
            outside,
            operations,
        } = counted;
        self.losses
            .hand_over(&losses.disks, |name| DiskOwner::find(topology, name));
        self.outside
            .hand_over(outside, |name| DiskOwner::find(topology, name));
        self.operations.hand_over(&operations.controllers, |name| {
            find_controller(topology, name)
        });
    }

    pub(super) fn assign(&self, counters: &mut Counters, counted: &ByName) {
        let ByName {
            losses,
            outside,
            operations,
        } = counted;
        counters.losses = self.losses(losses);
        counters.outside = self.outside(outside);
        counters.msi = self.msi(operations);
    }

    fn msi(&self, operations: &OperationsByName) -> MsiCounts {
        let OperationsByName {
            controllers,
            unassigned,
            allocation_failures,
            lost_messages,
        } = operations;
        let mut owned = self.operations.by_owner(controllers);
        let of_nobody = owned.remove(&None).unwrap_or_default();
        let mut counts = MsiCounts {
            operations: Vec::new(),
            unassigned: of_nobody.into_iter().fold(*unassigned, u64::saturating_add),
            allocation_failures: *allocation_failures,
            lost_messages: *lost_messages,
        };
        for (controller, sums) in owned {
            let Some(controller) = controller else {
                continue;
            };
            for (operation, count) in Operation::ALL.into_iter().zip(sums) {
                if count > 0 {
                    counts.operations.push(OperationCount {
                        controller: controller.clone(),
                        operation,
                        count,
                    });
                }
            }
        }
        counts
    }

    /// What an operation is about, by the last reading of the devices.
    pub(super) fn subject(
        topology: &Topology,
        names: &LineNames,
        name: &ControllerName,
        irq: Option<u32>,
    ) -> Subject {
        let (action, vector) = irq.map_or((None, None), |irq| names.of(irq));
        Subject {
            controller: find_controller(topology, name).map(|PciAddress(address)| address),
            action: action.map(str::to_owned),
            vector,
        }
    }

    fn outside(&self, outside: &OutsideByName) -> Vec<OutsideCompletions> {
        let owned = self.outside.by_owner(outside).into_iter();
        owned
            .filter_map(|(owner, [count])| {
                let DiskOwner { controller, disk } = owner?;
                Some(OutsideCompletions {
                    controller,
                    disk,
                    count,
                })
            })
            .collect()
    }

    fn losses(&self, losses: &LossesByName) -> Losses {
        let counts = |[timeouts, lost_interrupts]: [u64; 2]| LossCounts {
            timeouts,
            lost_interrupts,
        };
        let mut owned = self.losses.by_owner(&losses.disks);
        let [timeouts, lost] = owned.remove(&None).unwrap_or_default();
        let [more, more_lost] = losses.unassigned;
        Losses {
            unassigned: counts([
                timeouts.saturating_add(more),
                lost.saturating_add(more_lost),
            ]),
            disks: owned
                .into_iter()
                .filter_map(|(owner, sum)| {
                    let DiskOwner { controller, disk } = owner?;
                    Some(DiskLosses {
                        controller,
                        disk,
                        counts: counts(sum),
                    })
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::host::topology::{Controller, Disk, DiskPath, Mode, Namespace, Vector, VectorUse};

    /// What was counted, joined with this reading.
    fn assigned(
        topology: &Topology,
        losses: &LossesByName,
        operations: &OperationsByName,
    ) -> Counters {
        let counted = ByName {
            losses: losses.clone(),
            outside: losses
                .disks
                .iter()
                .map(|(name, [timeouts, _])| (name.clone(), [10 * timeouts]))
                .collect(),
            operations: operations.clone(),
        };
        let mut rare = Rare::default();
        assert!(rare.has_news(&counted));
        rare.hand_over(topology, &counted);
        assert!(!rare.has_news(&counted));
        let mut counters = Counters::default();
        rare.assign(&mut counters, &counted);
        counters
    }

    fn topology(disks: &[&str]) -> Topology {
        let disk = |name: &&str| Disk {
            controller: Some(PciAddress("0000:97:00.5".into())),
            ..Disk::bare(name, "10000:01:00.0", DiskPath::VmdBypass)
        };
        Topology {
            disks: disks.iter().map(disk).collect(),
            ..Topology::default()
        }
    }

    #[test]
    fn time_outs_belong_to_the_disk_they_were_counted_for() {
        let losses = |disks: &[(DiskName, [u64; 2])]| LossesByName {
            disks: disks.iter().cloned().collect(),
            unassigned: [7, 1],
        };
        let mut topology = topology(&["nvme0", "nvme1"]);
        topology.disks[1].namespaces.push(Namespace {
            name: "nvme5n1".to_owned(),
            size_bytes: None,
            settings: crate::host::topology::BlockSettings::default(),
        });
        let counted = [
            (DiskName::Number(0), [2, 1]),
            (DiskName::BlockDevice("nvme5n1".to_owned()), [3, 0]),
            (DiskName::Unknown, [1, 0]),
        ];
        let counters = assigned(&topology, &losses(&counted), &OperationsByName::default());
        let of = |disk: &str| {
            let found = counters.losses.disks.iter().find(|it| it.disk == disk);
            let LossCounts {
                timeouts,
                lost_interrupts,
            } = found.unwrap().counts;
            (timeouts, lost_interrupts)
        };
        assert_eq!((of("nvme0"), of("nvme1")), ((2, 1), (3, 0)));
        // Those of nobody are in the CPUs' counts alone.
        let outside: Vec<_> = counters
            .outside
            .iter()
            .map(|it| (it.disk.as_str(), it.count))
            .collect();
        assert_eq!(outside, [("nvme0", 20), ("nvme1", 30)]);
        assert_eq!(
            counters.losses.unassigned,
            LossCounts {
                timeouts: 8,
                lost_interrupts: 1
            }
        );
    }

    #[test]
    fn operations_belong_to_the_controller_that_any_of_its_names_tells() {
        let address = PciAddress("0000:97:00.5".to_owned());
        let mut topology = topology(&[]);
        topology.controllers.push(Controller {
            address: address.clone(),
            driver: None,
            device_id: None,
            action: None,
            domain: Some("10000".to_owned()),
            numa_node: None,
            mode: Mode::Remap,
            mode_evidence: Vec::new(),
            vectors: vec![Vector {
                index: 0,
                irq: 41,
                used_for: VectorUse::All,
                effective_affinity: None,
            }],
            other_lines: Vec::new(),
            child_interrupts: 0,
            sharing_factor: None,
            iommu: None,
        });
        let once = |operation: Operation| {
            let mut counts = [0; Operation::ALL.len()];
            counts[operation as usize] = 1;
            counts
        };
        let operations = OperationsByName {
            controllers: HashMap::from([
                (ControllerName::Domain(0x10000), once(Operation::Free)),
                (ControllerName::Domain(0x10001), once(Operation::Free)),
                (
                    ControllerName::Address(address.0.clone()),
                    once(Operation::RemapOn),
                ),
                (ControllerName::Vector(41), once(Operation::Move)),
                (ControllerName::Unknown, once(Operation::Enable)),
            ]),
            unassigned: 5,
            ..OperationsByName::default()
        };
        let counters = assigned(&topology, &LossesByName::default(), &operations);
        let counted: Vec<_> = counters
            .msi
            .operations
            .iter()
            .map(|it| (&it.controller, it.operation, it.count))
            .collect();
        assert_eq!(
            counted,
            [
                (&address, Operation::Free, 1),
                (&address, Operation::RemapOn, 1),
                (&address, Operation::Move, 1),
            ]
        );
        assert_eq!(counters.msi.unassigned, 7);
    }
}
