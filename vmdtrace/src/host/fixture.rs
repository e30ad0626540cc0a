//! Trees like `/sys` and `/proc` for tests: built from what is known of a
//! kernel, or unpacked from a capture.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::topology::Topology;
use super::{Roots, read};

/// Captures of the virtual server on 6.12: a remapping VMD, and one in bypass.
pub(crate) const CAPTURED_REMAP: &str = include_str!("../../tests/trees/remap-6.12.tree");
pub(crate) const CAPTURED_BYPASS: &str = include_str!("../../tests/trees/bypass-6.12.tree");

/// The VMD of every built tree.
pub(crate) const VMD: &str = "0000:97:00.5";

/// A directory with a `sys` and a `proc`, removed in the end.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// What even a host without any PCI device has.
    pub(crate) fn new() -> Self {
        let tree = Self { dir: scratch() };
        for dir in ["sys/bus", "sys/kernel/irq", "proc/irq"] {
            fs::create_dir_all(tree.path(dir)).unwrap();
        }
        tree
    }

    pub(crate) fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots {
            sysfs: self.path("sys"),
            procfs: self.path("proc"),
        }
    }

    pub(crate) fn read(&self) -> Topology {
        read(&self.roots())
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn dir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// Every regular file, by path below the tree, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        fn walk(root: &Path, dir: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap();
                if kind.is_dir() {
                    walk(root, &path, found);
                } else if kind.is_file() {
                    found.push(
                        path.strip_prefix(root)
                            .unwrap()
                            .to_str()
                            .unwrap()
                            .to_owned(),
                    );
                }
            }
        }
        let mut found = Vec::new();
        walk(self.dir.path(), self.dir.path(), &mut found);
        found.sort();
        found
    }

    /// A PCI device at `place`, its path below `/sys/devices`.
    pub(crate) fn pci(
        &self,
        place: &str,
        vendor: &str,
        device: &str,
        class: &str,
        driver: Option<&str>,
    ) {
        let address = place.rsplit('/').next().unwrap();
        let dir = format!("sys/devices/{place}");
        for (name, content) in [
            ("vendor", vendor),
            ("device", device),
            ("class", class),
            ("numa_node", "1"),
        ] {
            self.file(&format!("{dir}/{name}"), format!("{content}\n"));
        }
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/{place}"),
        );
        if let Some(driver) = driver {
            let up = "../".repeat(place.split('/').count() + 1);
            self.link(
                &format!("{dir}/driver"),
                &format!("{up}bus/pci/drivers/{driver}"),
            );
            self.link(
                &format!("sys/bus/pci/drivers/{driver}/{address}"),
                &format!("../../../../devices/{place}"),
            );
        }
    }

    /// An interrupt line of the device at `place`.
    pub(crate) fn irq(
        &self,
        place: &str,
        irq: u32,
        actions: &str,
        chip: &str,
        hwirq: u64,
        cpus: &str,
    ) {
        self.file(&format!("sys/devices/{place}/msi_irqs/{irq}"), "msix\n");
        let dir = format!("sys/kernel/irq/{irq}");
        self.file(&format!("{dir}/actions"), format!("{actions}\n"));
        self.file(&format!("{dir}/chip_name"), format!("{chip}\n"));
        self.file(&format!("{dir}/hwirq"), format!("{hwirq}\n"));
        self.file(
            &format!("proc/irq/{irq}/effective_affinity_list"),
            format!("{cpus}\n"),
        );
    }

    /// An NVMe controller at `place` with one namespace and a queue per CPU.
    pub(crate) fn nvme(&self, place: &str, number: u32, cpus: u32) {
        let dir = format!("sys/devices/{place}/nvme/nvme{number}");
        self.file(&format!("{dir}/transport"), "pcie\n");
        self.file(
            &format!("{dir}/model"),
            "QEMU NVMe Ctrl                          \n",
        );
        self.file(&format!("{dir}/nvme{number}n1/size"), "2048\n");
        for cpu in 0..cpus {
            self.file(
                &format!("{dir}/nvme{number}n1/mq/{cpu}/cpu_list"),
                format!("{cpu}\n"),
            );
        }
        self.link(
            &format!("sys/class/nvme/nvme{number}"),
            &format!("../../devices/{place}/nvme/nvme{number}"),
        );
    }

    /// Unpacks a capture (`tests/trees/README.md` tells the format).
    pub(crate) fn unpack(archive: &str) -> Self {
        let tree = Self { dir: scratch() };
        for line in archive.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["d", path] => tree.dir(path),
                ["l", path, target] => tree.link(path, target),
                ["f", path, content] => tree.file(path, unescape(content)),
                _ => panic!("not an entry of a tree: {line}"),
            }
        }
        tree
    }
}

fn unescape(content: &str) -> String {
    let mut text = String::with_capacity(content.len());
    let mut chars = content.chars();
    while let Some(c) = chars.next() {
        text.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('\\') => '\\',
                other => panic!("unknown escape {other:?} in {content}"),
            },
            c => c,
        });
    }
    text
}

/// In memory where that is possible: the tests write thousands of small files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// How a kernel names the chips of a VMD's children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    V5_10,
    V6_1,
    V6_12,
    V6_17,
}

/// A server with one VMD.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Server {
    pub(crate) kernel: Kernel,
    pub(crate) id: &'static str,
    pub(crate) remap: bool,
    pub(crate) vectors: u32,
    pub(crate) disks: u32,
    pub(crate) cpus: u32,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            kernel: Kernel::V6_12,
            id: "0x28c0",
            remap: true,
            vectors: 3,
            disks: 1,
            cpus: 2,
        }
    }
}

/// Where the VMD is.
pub(crate) const VMD_PLACE: &str = "pci0000:97/0000:97:00.5";

/// Place of a disk's port (one per disk).
pub(crate) fn port_place(disk: u32) -> String {
    format!("{VMD_PLACE}/pci10000:00/10000:00:{:02x}.0", disk + 2)
}

/// Place of a disk.
pub(crate) fn disk_place(disk: u32) -> String {
    format!("{}/10000:{:02x}:00.0", port_place(disk), disk + 1)
}

impl Server {
    /// Interrupts: the VMD's from 24, then one per port, then those of the disks.
    pub(crate) fn build(self) -> Tree {
        let tree = Tree::new();
        tree.pci(VMD_PLACE, "0x8086", self.id, "0x010400", Some("vmd"));
        tree.file("sys/bus/pci/drivers/vmd/new_id", "");
        tree.link(&format!("sys/devices/{VMD_PLACE}/domain"), "pci10000:00");
        tree.dir(&format!("sys/devices/{VMD_PLACE}/pci10000:00"));
        let per_device = matches!(self.kernel, Kernel::V6_12 | Kernel::V6_17);
        let platform_chip = |kind: &str, address: &str| {
            if per_device {
                format!("IR-PCI-{kind}-{address}")
            } else {
                "IR-PCI-MSI".to_owned()
            }
        };
        let mut irq = 24;
        if self.remap {
            for index in 0..self.vectors {
                let action = if self.kernel == Kernel::V5_10 {
                    "vmd"
                } else {
                    "vmd0"
                };
                let hwirq = if per_device { 0 } else { 0x9705 << 11 } | u64::from(index);
                let cpu = (index % self.cpus).to_string();
                tree.irq(
                    VMD_PLACE,
                    irq,
                    action,
                    &platform_chip("MSIX", VMD),
                    hwirq,
                    &cpu,
                );
                irq += 1;
            }
        }
        let first = u32::from(!matches!(self.id, "0x201d" | "0x28c0" | "0x28c1"));
        let slow = 24 + first;
        let fast = self.vectors.saturating_sub(first + 1);
        let child = |place: &str, irq: u32, action: &str, index: u32, parent: u32, cpu: u32| {
            let address = place.rsplit('/').next().unwrap();
            let (chip, hwirq) = match (self.remap, self.kernel) {
                (false, _) => (platform_chip("MSIX", address), index),
                (true, Kernel::V6_17) => (format!("VMD-PCI-MSIX-{address}"), index),
                (true, _) => ("VMD-MSI".to_owned(), parent),
            };
            tree.irq(place, irq, action, &chip, hwirq.into(), &cpu.to_string());
        };
        for disk in 0..self.disks {
            let port = port_place(disk);
            tree.pci(&port, "0x8086", "0x352a", "0x060400", Some("pcieport"));
            child(&port, irq, "PCIe PME,pciehp", 0, slow, 0);
            irq += 1;
        }
        let mut used = 0;
        for disk in 0..self.disks {
            let place = disk_place(disk);
            tree.pci(&place, "0x1b36", "0x0010", "0x010802", Some("nvme"));
            tree.nvme(&place, disk, self.cpus);
            for queue in 0..=self.cpus {
                let parent = if fast == 0 {
                    slow
                } else {
                    slow + 1 + used % fast
                };
                child(
                    &place,
                    irq,
                    &format!("nvme{disk}q{queue}"),
                    queue,
                    parent,
                    queue.saturating_sub(1),
                );
                used += 1;
                irq += 1;
            }
        }
        tree
    }
}
