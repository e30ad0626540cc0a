//! Finding the owner of an interrupt line that was counted.

use std::collections::HashMap;

use super::action::Action;
use super::number_list::number;
use super::topology::{Controller, Disk, DiskPath, PciAddress, Topology};

/// What a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOwner<'a> {
    /// The VMD it is a vector of or is behind.
    pub controller: Option<&'a PciAddress>,
    /// The disk it serves.
    pub disk: Option<&'a str>,
    /// How its interrupts reach a CPU; absent for a VMD's own vector.
    pub path: Option<DiskPath>,
}

/// The lines of a [`Topology`], by number and name.
#[derive(Debug)]
pub struct TopologyIndex<'a> {
    vectors: HashMap<u32, &'a Controller>,
    disks: HashMap<u32, &'a Disk>,
    others: HashMap<u32, &'a Controller>,
}

impl<'a> TopologyIndex<'a> {
    #[must_use]
    pub fn new(topology: &'a Topology) -> Self {
        let mut index = Self {
            vectors: HashMap::new(),
            disks: HashMap::new(),
            others: HashMap::new(),
        };
        for controller in &topology.controllers {
            index.vectors.extend(
                controller
                    .vectors
                    .iter()
                    .map(|vector| (vector.irq, controller)),
            );
            index.others.extend(
                controller
                    .other_lines
                    .iter()
                    .map(|line| (line.irq, controller)),
            );
        }
        index.disks.extend(
            topology
                .disks
                .iter()
                .filter_map(|disk| Some((number_of(&disk.name)?, disk))),
        );
        index
    }

    /// The disk of this name.
    #[must_use]
    pub fn disk(&self, name: &str) -> Option<&'a Disk> {
        self.disks.get(&number_of(name)?).copied()
    }

    /// The owner of the line with this number and action. An NVMe queue is
    /// found by name, because its number changes with every reset of the disk;
    /// the others by number.
    #[must_use]
    pub fn line(&self, irq: u32, action: &str) -> Option<LineOwner<'a>> {
        match Action::parse(action) {
            Action::Vmd => self.vectors.get(&irq).map(|vmd| LineOwner {
                controller: Some(&vmd.address),
                disk: None,
                path: None,
            }),
            Action::NvmeQueue { disk, .. } => self.disks.get(&disk).map(|disk| LineOwner {
                controller: disk.controller.as_ref(),
                disk: Some(&disk.name),
                path: Some(disk.path),
            }),
            Action::Other => self.others.get(&irq).map(|vmd| LineOwner {
                controller: Some(&vmd.address),
                disk: None,
                path: Some(vmd.mode.into()),
            }),
        }
    }
}

fn number_of(disk: &str) -> Option<u32> {
    disk.strip_prefix("nvme").and_then(number)
}
