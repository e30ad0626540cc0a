//! The controllers' numbers, by which the programs count what each CPU does for
//! each of them.

use vmdtrace_common::shares::{
    DIRECT, FIRST_CONTROLLER, OTHER, OWNERS, REMAPPED, UNASSIGNED, WATCHED,
};

use super::owners::Owners;
use super::{CpuShare, ShareOwner};
use crate::host::topology::{DiskPath, PciAddress};
use crate::probes::shares::NumberedShare;

/// Controllers in the order of their numbers. A number is never given to another.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    controllers: Vec<PciAddress>,
}

impl Numbers {
    /// What the programs are told of a line.
    pub(super) fn of_line(&mut self, owners: &Owners, irq: u32, action: &str) -> u8 {
        let Some((controller, path)) = owners.of_line(irq, action) else {
            return UNASSIGNED as u8;
        };
        let number = controller.map_or(DIRECT, |controller| self.of_controller(controller));
        let remapped = path == Some(DiskPath::VmdRemap);
        number as u8 | if remapped { REMAPPED } else { 0 }
    }

    fn of_controller(&mut self, controller: &PciAddress) -> u32 {
        const MOST: usize = (OWNERS - FIRST_CONTROLLER) as usize;
        let known = self.controllers.iter().position(|it| it == controller);
        let index = known.unwrap_or_else(|| {
            if self.controllers.len() < MOST {
                self.controllers.push(controller.clone());
                self.controllers.len() - 1
            } else {
                MOST
            }
        });
        if index < MOST {
            FIRST_CONTROLLER + index as u32
        } else {
            OTHER
        }
    }

    /// Numbers -> owners.
    pub(super) fn resolve(&self, counted: Vec<NumberedShare>) -> Vec<CpuShare> {
        let resolve = |share| {
            let NumberedShare { cpu, owner, counts } = share;
            CpuShare {
                cpu,
                owner: self.owner(owner),
                counts,
            }
        };
        counted.into_iter().map(resolve).collect()
    }

    fn owner(&self, number: u32) -> ShareOwner {
        match number {
            UNASSIGNED => ShareOwner::Unassigned,
            WATCHED => ShareOwner::Watched,
            DIRECT => ShareOwner::Direct,
            OTHER => ShareOwner::Other,
            number => {
                let controller = self.controllers.get((number - FIRST_CONTROLLER) as usize);
                // Nobody was told another number.
                controller.map_or(ShareOwner::Other, |controller| {
                    ShareOwner::Controller(controller.clone())
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_keep_their_numbers_and_the_last_ones_share_one() {
        let mut numbers = Numbers::default();
        let address = |index: u32| PciAddress(format!("0000:{index:02x}:00.5"));
        let most = OWNERS - FIRST_CONTROLLER;
        for _ in 0..2 {
            for index in 0..most + 2 {
                let number = numbers.of_controller(&address(index));
                if index < most {
                    assert_eq!(number, FIRST_CONTROLLER + index);
                    let owner = ShareOwner::Controller(address(index));
                    assert_eq!(numbers.owner(number), owner);
                } else {
                    assert_eq!(numbers.owner(number), ShareOwner::Other);
                }
            }
        }
        assert_eq!(numbers.owner(UNASSIGNED), ShareOwner::Unassigned);
        assert_eq!(numbers.owner(WATCHED), ShareOwner::Watched);
        assert_eq!(numbers.owner(DIRECT), ShareOwner::Direct);
    }
}
