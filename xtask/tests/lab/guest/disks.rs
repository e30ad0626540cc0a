//! Emulated controllers and their counters.

use vmd_device::{Config, DeviceId};
use xtask_lab::{Bound, CpuList, Done, GuestConfig, Load, disk_of_action, is_vmd_action};

use super::boot;
use crate::server::PATIENCE;

pub(super) fn two_controllers_in_one_guest() {
    let controller = |id, disks, tag: &str| Config {
        id,
        disks,
        vectors: 4,
        tag: tag.to_owned(),
        ..Config::default()
    };
    let guest = boot(&GuestConfig {
        controllers: vec![
            controller(DeviceId::Remap201d, 2, "R"),
            controller(DeviceId::Bypass28c0, 1, "B"),
        ],
        ..GuestConfig::default()
    });
    let disks = guest.await_disks(PATIENCE).unwrap();
    let serials: Vec<_> = disks.iter().map(|disk| disk.serial.as_str()).collect();
    assert_eq!(serials, ["VMDLABB0000", "VMDLABR0000", "VMDLABR0001"]);

    let counters = || {
        let of = |it: &xtask_lab::Controller| it.counters().unwrap();
        guest.controllers().iter().map(of).collect::<Vec<_>>()
    };
    let (before, kernel_before) = (counters(), guest.kernel_counts().unwrap());
    let load = Load {
        disks: disks
            .iter()
            .map(|disk| disk.namespaces[0].clone())
            .collect(),
        cpus: CpuList::first(2),
        depth: 4,
        bound: Bound::Reads(500),
    };
    let output = guest.check(&load.command(), PATIENCE).unwrap();
    let done = Done::parse(&output.stdout_text(), &load).unwrap();
    assert_eq!(done.reads, [500, 500, 500]);

    let (after, kernel_after) = (counters(), guest.kernel_counts().unwrap());
    let read = |index: usize| after[index].io_cqes() - before[index].io_cqes();
    assert_eq!((read(0), read(1)), (1000, 500));
    let behind_bypass = disks[0].name.as_str();
    let kernel = |wanted: &dyn Fn(&str) -> bool| kernel_after.since(&kernel_before, wanted);
    assert!(kernel(&is_vmd_action) > 0);
    assert!(kernel(&|action| disk_of_action(action) == Some(behind_bypass)) > 0);
    // The kernel does not count what runs behind a remapping controller.
    for remapped in &disks[1..] {
        assert_eq!(
            kernel(&|action| disk_of_action(action) == Some(&remapped.name)),
            0
        );
    }
    guest.power_off().unwrap();
}
