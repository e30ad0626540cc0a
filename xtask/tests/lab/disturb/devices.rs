//! Disks, controllers and their drivers come and go.

use vmd_device::control::Request;

use super::{BYPASSED, Disturbed, REMAPPED};
use crate::server::PATIENCE;
use xtask_lab::interrupt;

/// One disk of each controller.
const TAGS: [&str; 2] = [REMAPPED, BYPASSED];

pub(super) fn controllers_are_reset(disturbed: &Disturbed) {
    disturbed.disturb("controllers are reset", |disturbed| {
        for tag in [REMAPPED, BYPASSED, REMAPPED, BYPASSED] {
            for disk in disturbed.disks_of(tag) {
                disturbed.shell(&format!(
                    "echo 1 > /sys/class/nvme/{}/reset_controller",
                    disk.name
                ));
            }
            disturbed.await_io(100);
        }
    });
}

pub(super) fn disks_are_unbound(disturbed: &Disturbed) {
    disturbed.disturb("disks are unbound and bound", |disturbed| {
        for tag in TAGS {
            let address = disturbed.disks_of(tag).swap_remove(1).address;
            disturbed.shell(&format!(
                "cd /sys/bus/pci/drivers/nvme && echo {address} > unbind"
            ));
            disturbed.await_io(100);
            disturbed.shell(&format!(
                "cd /sys/bus/pci/drivers/nvme && echo {address} > bind"
            ));
            disturbed.server.disks();
        }
    });
}

pub(super) fn disks_are_removed(disturbed: &Disturbed) {
    disturbed.disturb("disks are removed by sysfs and found again", |disturbed| {
        for tag in TAGS {
            let address = disturbed.disks_of(tag).swap_remove(0).address;
            disturbed.shell(&format!("echo 1 > /sys/bus/pci/devices/{address}/remove"));
            disturbed.await_io(100);
            disturbed.shell("echo 1 > /sys/bus/pci/rescan");
            disturbed.server.disks();
        }
    });
}

/// The driver finds out when the time of a command is over, and gives the disk up.
pub(super) fn disks_are_pulled_out(disturbed: &Disturbed) {
    disturbed.disturb("disks are pulled out and put in", |disturbed| {
        for tag in TAGS {
            disturbed.shorten_timeouts(tag);
            let disk = disturbed.disks_of(tag).swap_remove(1);
            let mut client = disturbed.client(tag);
            client.ask(&Request::Remove { disk: 1 }).unwrap();
            interrupt::until("the disk to be given up", PATIENCE, || {
                let disks = disturbed.guest().disks()?;
                let found = disks.iter().find(|it| it.serial == disk.serial);
                Ok(found.is_none_or(|it| it.state == "dead").then_some(()))
            })
            .unwrap_or_else(|error| panic!("{error}"));
            client.ask(&Request::Insert { disk: 1 }).unwrap();
            disturbed.shell(&format!(
                "echo 1 > /sys/bus/pci/devices/{}/remove; echo 1 > /sys/bus/pci/rescan",
                disk.address
            ));
            disturbed.server.disks();
        }
    });
}

pub(super) fn controllers_are_unbound(disturbed: &Disturbed) {
    disturbed.disturb("VMDs are unbound and bound", |disturbed| {
        for tag in TAGS {
            let address = disturbed.controller(tag);
            disturbed.shell(&format!(
                "cd /sys/bus/pci/drivers/vmd && echo {address} > unbind && echo {address} > bind"
            ));
            disturbed.server.disks();
        }
    });
}

pub(super) fn the_module_is_reloaded(disturbed: &Disturbed) {
    disturbed.disturb("vmd is unloaded and loaded", |disturbed| {
        disturbed.shell("rmmod vmd");
        disturbed
            .guest()
            .load_module("vmd", "")
            .unwrap_or_else(|error| panic!("{error}"));
        disturbed.server.disks();
    });
}

impl Disturbed {
    /// Lets a command that does not end be late after a second instead of 30.
    pub(super) fn shorten_timeouts(&self, tag: &str) {
        for disk in self.disks_of(tag) {
            for namespace in disk.namespaces {
                let path = format!("/sys/block/{namespace}/queue/io_timeout");
                self.guest()
                    .write_file(&path, 0, "1000")
                    .unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}
