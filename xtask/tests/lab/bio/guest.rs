//! The guest of the loads: a VMD that can be bypassed with two disks, one of them
//! with ext4 on it, and a VMD that remaps with one vector for its only disk.

use std::collections::BTreeMap;

use vmd_device::{Config, DeviceId};
use xtask_lab::{Artifacts, GuestCommand, GuestConfig, GuestDisk, GuestFile, Scrape};
use xtask_setup::Setup;

use super::loads::Target;
use super::oracle::{Counts, Oracle, named_bio_sets};
use crate::server::{PATIENCE, Server};

/// A file that is not written any more: its reads are the only I/O.
const FILE: &str = "/mnt/file";

pub(crate) struct BioGuest {
    pub(crate) server: Server,
    oracle: Oracle,
    pub(crate) series: &'static str,
    /// Debian's version of it.
    pub(crate) kernel: String,
    /// Bio sets that have a name, by address.
    pub(crate) named: BTreeMap<u64, String>,
    disks: Vec<GuestDisk>,
}

/// What daemon and bpftrace counted so far.
pub(crate) struct Reading {
    pub(crate) daemon: Scrape,
    pub(crate) oracle: Counts,
}

/// What ext4 needs loaded; the kernel would have a program load its checksum.
fn modules(series: &str) -> Vec<String> {
    let checksum = matches!(series, "5.10" | "6.1" | "6.12").then_some("crc32c_generic");
    let names = ["vmd", "nvme_core"].into_iter().chain(checksum);
    names.chain(["ext4"]).map(str::to_owned).collect()
}

impl BioGuest {
    pub(crate) fn boot(artifacts: &Artifacts, series: &'static str) -> Self {
        let setup = Setup::new().unwrap();
        let files = [setup.guest_bpftrace(), setup.guest_mke2fs()];
        let controller = |id, tag: &str, disks| Config {
            id,
            disks,
            vectors: 2,
            tag: tag.to_owned(),
            ..Config::default()
        };
        let config = GuestConfig {
            // Two sockets: neither CPU shares a cache with the other.
            numa_nodes: 2,
            // bpftrace's libraries are large.
            memory_mib: 2048,
            controllers: vec![
                controller(DeviceId::Bypass28c0, "B", 2),
                controller(DeviceId::Remap201d, "R", 1),
            ],
            modules: modules(series),
            files: files
                .iter()
                .flat_map(|program| {
                    let program = program.as_ref();
                    GuestFile::of_program(program.unwrap_or_else(|error| panic!("{error}")))
                })
                .collect(),
            ..GuestConfig::default()
        };
        let guest = xtask_lab::Guest::boot(artifacts, &config)
            .and_then(|guest| {
                guest.load_module("nvme", "poll_queues=1")?;
                guest.await_disks(PATIENCE)?;
                Ok(guest)
            })
            .unwrap_or_else(|error| panic!("{error}"));
        let (server, ready) = Server::serve(guest);
        ready.unwrap_or_else(|error| panic!("{error}"));
        let guest = Self {
            oracle: Oracle::start(&server.guest, series),
            series,
            kernel: artifacts.kernel.package_version.clone(),
            named: named_bio_sets(&server.guest),
            disks: server.disks(),
            server,
        };
        guest.make_file();
        guest.server.at_rest();
        guest
    }

    /// What both say at one moment of rest.
    pub(crate) fn read(&mut self) -> Reading {
        let daemon = self.server.at_rest().daemon;
        Reading {
            daemon,
            oracle: self.oracle.read(),
        }
    }

    /// The name of a namespace by its disk's serial number, such as `nvme2n1`.
    pub(crate) fn namespace(&self, serial: &str) -> &str {
        let disk = self.disks.iter().find(|disk| disk.serial == serial);
        &disk
            .unwrap_or_else(|| panic!("no disk {serial}"))
            .namespaces[0]
    }

    /// What a load reads; `None` if the kernel does not offer it.
    pub(crate) fn target(&self, target: Target) -> Option<String> {
        let block = self.namespace("VMDLABB0000");
        match target {
            Target::Block => Some(block.to_owned()),
            Target::File => Some(FILE.to_owned()),
            Target::Character => {
                let name = block.replace("nvme", "ng");
                self.run("ls /dev")
                    .lines()
                    .any(|it| it == name)
                    .then_some(name)
            }
        }
    }

    fn make_file(&self) {
        let disk = self.namespace("VMDLABB0001");
        self.run(&format!(
            "set -e
            /bin/mke2fs -q -t ext4 /dev/{disk}
            mkdir -p /mnt
            mount -t ext4 /dev/{disk} /mnt
            dd if=/dev/zero of={FILE} bs=64k count=256 conv=fsync
            umount /mnt
            mount -t ext4 -o ro /dev/{disk} /mnt"
        ));
    }

    /// What a script prints.
    pub(crate) fn run(&self, script: &str) -> String {
        let output = self
            .server
            .guest
            .check(&GuestCommand::shell(script), PATIENCE);
        output
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout_text()
    }

    pub(crate) fn end(self) {
        self.oracle.stop();
        self.server.end();
    }
}
