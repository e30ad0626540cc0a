//! Whole trees read at once.

use std::collections::{HashMap, HashSet};
use std::fs;

use proptest::prelude::*;

use super::fixture::{
    CAPTURED_BYPASS, CAPTURED_REMAP, Kernel, Server, Tree, VMD, VMD_PLACE, disk_place, port_place,
};
use super::topology::*;
use super::{LineOwner, Roots, TopologyIndex, max_irq, possible_cpus, read};

fn address(text: &str) -> PciAddress {
    PciAddress::parse(text).unwrap()
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn evidence(source: &str, observed: &str, mode: Mode) -> Evidence {
    Evidence {
        source: source.to_owned(),
        observed: observed.to_owned(),
        mode,
    }
}

#[test]
fn remap_on_6_12_in_full() {
    let topology = Server::default().build().read();
    let vector = |index, used_for, cpu: &str| Vector {
        index,
        irq: 24 + index,
        used_for,
        effective_affinity: text(cpu),
    };
    let line = |irq, action: &str, parent, cpu: &str| Line {
        irq,
        actions: action.split(',').map(str::to_owned).collect(),
        chip: text("VMD-MSI"),
        parent_irq: Some(parent),
        // The vector's, not the child's own.
        effective_affinity: text(cpu),
    };
    let queue = |id, submit: Option<&str>| Queue {
        id,
        irq: Some(28 + id),
        submit_cpus: submit.and_then(text),
    };
    let expected = Topology {
        controllers: vec![Controller {
            address: address(VMD),
            device_id: Some(0x28c0),
            driver: text("vmd"),
            action: text("vmd0"),
            domain: text("10000"),
            numa_node: Some(1),
            iommu: None,
            mode: Mode::Remap,
            mode_evidence: vec![
                evidence("msi_irqs", "3 vectors", Mode::Remap),
                evidence("actions", "vmd0 on 3 of 3 vectors", Mode::Remap),
                evidence("chip_name", "VMD-MSI on 4 child lines", Mode::Remap),
            ],
            vectors: vec![
                vector(0, VectorUse::Other, "0"),
                vector(1, VectorUse::Nvme, "1"),
                vector(2, VectorUse::Nvme, "0"),
            ],
            other_lines: vec![line(27, "PCIe PME,pciehp", 24, "0")],
            child_interrupts: 3,
            sharing_factor: Some(1.5),
        }],
        disks: vec![Disk {
            name: "nvme0".to_owned(),
            address: address("10000:01:00.0"),
            path: DiskPath::VmdRemap,
            controller: Some(address(VMD)),
            model: text("QEMU NVMe Ctrl"),
            numa_node: Some(1),
            iommu: None,
            link: None,
            port: Some(Port {
                address: address("10000:00:02.0"),
                link: None,
            }),
            namespaces: vec![Namespace {
                name: "nvme0n1".to_owned(),
                size_bytes: Some(1 << 20),
                settings: BlockSettings::default(),
            }],
            queues: vec![queue(0, None), queue(1, Some("0")), queue(2, Some("1"))],
            lines: vec![
                line(28, "nvme0q0", 25, "1"),
                line(29, "nvme0q1", 26, "0"),
                line(30, "nvme0q2", 25, "1"),
            ],
        }],
        machine: Machine::default(),
        problems: vec![],
    };
    assert_eq!(topology, expected);
    let json = serde_json::to_string(&topology).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology);
}

#[test]
fn links_iommu_and_settings_of_disks_and_controllers() {
    let tree = Server::default().build();
    let (disk, port) = (disk_place(0), port_place(0));
    for place in [VMD_PLACE, &disk] {
        let up = "../".repeat(place.split('/').count() + 1);
        tree.link(
            &format!("sys/devices/{place}/iommu_group"),
            &format!("{up}kernel/iommu_groups/17"),
        );
    }
    tree.file("sys/kernel/iommu_groups/17/type", "DMA-FQ\n");
    for (place, speed, width) in [(&disk, "16.0", 4), (&port, "8.0", 2)] {
        for (name, content) in [
            ("current_link_speed", "8.0 GT/s PCIe".to_owned()),
            ("max_link_speed", format!("{speed} GT/s PCIe")),
            ("current_link_width", "2".to_owned()),
            ("max_link_width", width.to_string()),
        ] {
            tree.file(&format!("sys/devices/{place}/{name}"), content + "\n");
        }
    }
    let queue = format!("sys/devices/{disk}/nvme/nvme0/nvme0n1/queue");
    tree.file(&format!("{queue}/scheduler"), "[none] mq-deadline\n");
    tree.file(&format!("{queue}/rq_affinity"), "1\n");
    let topology = tree.read();
    assert_eq!(topology.problems, [""; 0]);
    let vmd = &topology.controllers[0];
    let disk = &topology.disks[0];
    assert_eq!(vmd.iommu, text("DMA-FQ"));
    assert_eq!(disk.iommu, text("DMA-FQ"));
    let link = |max_speed, max_width| Link {
        current_speed: Some(8000),
        max_speed: Some(max_speed),
        current_width: Some(2),
        max_width: Some(max_width),
    };
    assert_eq!(disk.link, Some(link(16_000, 4)));
    let port = disk.port.as_ref().unwrap();
    assert_eq!(port.address, address("10000:00:02.0"));
    assert_eq!(port.link, Some(link(8000, 2)));
    let settings = &disk.namespaces[0].settings;
    assert_eq!(settings.scheduler, text("none"));
    assert_eq!(settings.rq_affinity, Some(1));
    assert_eq!(settings.wbt_lat_usec, None);
}

#[test]
fn both_modes_on_every_kernel() {
    for kernel in [Kernel::V5_10, Kernel::V6_1, Kernel::V6_12, Kernel::V6_17] {
        for remap in [true, false] {
            let server = Server {
                kernel,
                remap,
                vectors: 8,
                disks: 12,
                cpus: 6,
                ..Server::default()
            };
            let topology = server.build().read();
            let case = format!("{kernel:?} remap={remap}");
            assert_eq!(topology.problems, [""; 0], "{case}");
            let [vmd] = &topology.controllers[..] else {
                panic!("{case}")
            };
            assert_eq!(
                vmd.mode,
                if remap { Mode::Remap } else { Mode::Bypass },
                "{case}"
            );
            assert!(
                vmd.mode_evidence.iter().all(|one| one.mode == vmd.mode),
                "{case}: {:?}",
                vmd.mode_evidence
            );
            assert_eq!(vmd.child_interrupts, 84, "{case}");
            assert_eq!(vmd.sharing_factor, remap.then_some(12.0), "{case}");
            assert_eq!(vmd.vectors.len(), if remap { 8 } else { 0 }, "{case}");
            assert_eq!(vmd.other_lines.len(), 12, "{case}");
            let action = if kernel == Kernel::V5_10 {
                "vmd"
            } else {
                "vmd0"
            };
            assert_eq!(vmd.action.as_deref(), remap.then_some(action), "{case}");
            assert_eq!(topology.disks.len(), 12, "{case}");
            for disk in &topology.disks {
                assert_eq!(disk.path, DiskPath::from(vmd.mode), "{case}");
                assert_eq!((disk.lines.len(), disk.queues.len()), (7, 7), "{case}");
                let has_parent = remap && kernel != Kernel::V6_17;
                for (line, queue) in disk.lines.iter().zip(&disk.queues) {
                    assert_eq!(queue.irq, Some(line.irq), "{case}");
                    assert_eq!(line.parent_irq.is_some(), has_parent, "{case}");
                    // Bypass: the CPU itself. Remap: the vector's, where it is known.
                    assert_eq!(
                        line.effective_affinity.is_some(),
                        !remap || has_parent,
                        "{case}"
                    );
                    if !remap && queue.id > 0 {
                        assert_eq!(line.effective_affinity, queue.submit_cpus, "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn client_parts_reserve_vector_0() {
    let topology = Server {
        id: "0x9a0b",
        vectors: 4,
        ..Server::default()
    }
    .build()
    .read();
    let vmd = &topology.controllers[0];
    let uses: Vec<VectorUse> = vmd.vectors.iter().map(|vector| vector.used_for).collect();
    assert_eq!(
        uses,
        [
            VectorUse::Reserved,
            VectorUse::Other,
            VectorUse::Nvme,
            VectorUse::Nvme
        ]
    );
    assert_eq!(vmd.sharing_factor, Some(1.5));
    assert_eq!(vmd.other_lines[0].parent_irq, Some(25));
}

#[test]
fn a_single_vector_serves_everything() {
    let topology = Server {
        vectors: 1,
        ..Server::default()
    }
    .build()
    .read();
    let vmd = &topology.controllers[0];
    assert_eq!(vmd.vectors[0].used_for, VectorUse::All);
    assert_eq!(vmd.sharing_factor, Some(3.0));
    assert!(
        vmd.other_lines
            .iter()
            .chain(&topology.disks[0].lines)
            .all(|line| line.parent_irq == Some(24))
    );
}

#[test]
fn an_id_the_driver_was_told_of_is_used_and_named() {
    let topology = Server {
        id: "0xabcd",
        vectors: 4,
        ..Server::default()
    }
    .build()
    .read();
    assert_eq!(topology.controllers[0].mode, Mode::Remap);
    assert_eq!(topology.controllers[0].device_id, Some(0xabcd));
    assert_eq!(topology.problems.len(), 1, "{:?}", topology.problems);
    assert!(topology.problems[0].contains("/device: is not a VMD known here"));
}

#[test]
fn evidence_that_disagrees_is_shown() {
    let tree = Server::default().build();
    tree.remove(&format!("sys/devices/{VMD_PLACE}/msi_irqs"));
    let topology = tree.read();
    let vmd = &topology.controllers[0];
    assert_eq!(vmd.mode, Mode::Unknown);
    assert_eq!(
        vmd.mode_evidence,
        [
            evidence(
                "msi_irqs",
                "absent: the controller has no vectors",
                Mode::Bypass
            ),
            evidence("chip_name", "VMD-MSI on 4 child lines", Mode::Remap),
        ]
    );
    assert_eq!(vmd.sharing_factor, None);
    assert_eq!(topology.disks[0].path, DiskPath::VmdUnknown);
    // The children name vectors that the VMD does not have.
    assert_eq!(topology.problems.len(), 4);
    assert!(
        topology.problems[0].contains("kernel/irq/27/hwirq: 24 is not a vector of"),
        "{:?}",
        topology.problems
    );
}

#[test]
fn mode_without_any_name_of_an_interrupt() {
    let tree = Server::default().build();
    tree.remove("sys/kernel/irq");
    tree.remove("proc/irq");
    let topology = tree.read();
    let vmd = &topology.controllers[0];
    assert_eq!(vmd.mode, Mode::Remap);
    assert_eq!(vmd.mode_evidence.len(), 1);
    assert_eq!((vmd.vectors.len(), vmd.child_interrupts), (3, 3));
    assert_eq!(topology.disks[0].lines.len(), 3);
    assert_eq!(topology.problems.len(), 2);
    assert!(
        topology.problems[0]
            .ends_with("proc/irq: is missing: CPU affinity is not known; is --path.procfs right?")
    );
    assert!(topology.problems[1].ends_with("names and chips of interrupt lines are not known"));
}

#[test]
fn a_vmd_that_its_driver_does_not_hold() {
    for (driver, observed) in [
        (
            None,
            "none: the module vmd is not loaded or not bound to the device",
        ),
        (Some("vfio-pci"), "vfio-pci holds the device instead of vmd"),
    ] {
        let tree = Tree::new();
        tree.pci(VMD_PLACE, "0x8086", "0x28c0", "0x010400", driver);
        tree.irq(
            VMD_PLACE,
            24,
            "vfio-msix[0](0000:97:00.5)",
            "PCI-MSIX",
            0,
            "0",
        );
        // The same device id of another vendor.
        tree.pci(
            "pci0000:00/0000:00:01.0",
            "0x1af4",
            "0x28c0",
            "0x010000",
            None,
        );
        let topology = tree.read();
        let [vmd] = &topology.controllers[..] else {
            panic!("{topology:?}")
        };
        assert_eq!(vmd.driver.as_deref(), driver);
        assert_eq!(vmd.mode, Mode::Unknown);
        assert_eq!(
            vmd.mode_evidence,
            [evidence("driver", observed, Mode::Unknown)]
        );
        assert!(vmd.vectors.is_empty());
        assert!(topology.problems.is_empty());
    }
}

/// The driver lets go of the VMD: sysfs says so first, then its disks go.
#[test]
fn a_vmd_that_is_let_go_has_its_disks_until_they_are_gone() {
    for remap in [true, false] {
        let tree = Server {
            remap,
            disks: 2,
            ..Server::default()
        }
        .build();
        let before = tree.read();
        tree.remove("sys/bus/pci/drivers/vmd/0000:97:00.5");
        tree.remove(&format!("sys/devices/{VMD_PLACE}/driver"));
        let after = tree.read();
        assert_eq!(after.controllers, before.controllers);
        assert_eq!(after.disks, before.disks);
    }
}

#[test]
fn disks_without_a_vmd() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:04.0";
    tree.pci(place, "0x1b36", "0x0010", "0x010802", Some("nvme"));
    tree.nvme(place, 10, 1);
    // One vector for both queues, and a polled queue.
    tree.irq(
        place,
        30,
        "nvme10q0,nvme10q1",
        "IR-PCI-MSIX-0000:00:04.0",
        0,
        "3",
    );
    tree.file(
        &format!("sys/devices/{place}/nvme/nvme10/nvme10n1/mq/1/cpu_list"),
        "0, 1, 2, 3\n",
    );
    // A disk with a legacy interrupt; numbers sort as numbers.
    let legacy = "pci0000:00/0000:00:05.0";
    tree.pci(legacy, "0x1b36", "0x0010", "0x010802", Some("nvme"));
    tree.nvme(legacy, 9, 0);
    tree.file(&format!("sys/devices/{legacy}/irq"), "11\n");
    tree.file("sys/kernel/irq/11/actions", "nvme9q0,nvme9q1\n");
    // A fabric's controller is not a disk of this host.
    tree.file(
        "sys/devices/virtual/nvme-fabrics/ctl/nvme2/transport",
        "tcp\n",
    );
    tree.link(
        "sys/class/nvme/nvme2",
        "../../devices/virtual/nvme-fabrics/ctl/nvme2",
    );
    let topology = tree.read();
    assert_eq!(topology.problems, [""; 0]);
    assert!(topology.controllers.is_empty());
    let [nine, ten] = &topology.disks[..] else {
        panic!("{topology:?}")
    };
    assert_eq!((nine.name.as_str(), ten.name.as_str()), ("nvme9", "nvme10"));
    assert_eq!(nine.lines[0].irq, 11);
    assert_eq!(ten.path, DiskPath::Direct);
    assert_eq!(ten.controller, None);
    assert_eq!(ten.lines[0].actions, ["nvme10q0", "nvme10q1"]);
    assert_eq!(ten.lines[0].effective_affinity.as_deref(), Some("3"));
    assert_eq!(
        ten.queues,
        [
            Queue {
                id: 0,
                irq: Some(30),
                submit_cpus: None
            },
            Queue {
                id: 1,
                irq: Some(30),
                submit_cpus: text("0")
            },
            Queue {
                id: 2,
                irq: None,
                submit_cpus: text("0-3")
            },
        ]
    );
}

#[test]
fn multipath_namespaces_are_named_as_users_see_them() {
    let tree = Tree::new();
    let place = "pci0000:00/0000:00:04.0";
    tree.pci(place, "0x1b36", "0x0010", "0x010802", Some("nvme"));
    tree.nvme(place, 3, 1);
    let dir = format!("sys/devices/{place}/nvme/nvme3");
    tree.remove(&format!("{dir}/nvme3n1"));
    tree.file(&format!("{dir}/nvme0c3n12/size"), "8\n");
    tree.file(&format!("{dir}/nvme0c3n2/size"), "16\n");
    tree.file(&format!("{dir}/nvme0c3n2/mq/0/cpu_list"), "0, 1\n");
    tree.dir(&format!("{dir}/ng0n2"));
    tree.irq(place, 30, "nvme3q1", "PCI-MSIX-0000:00:04.0", 0, "0");
    let disk = &tree.read().disks[0];
    let namespace = |name: &str, size| Namespace {
        name: name.to_owned(),
        size_bytes: Some(size),
        settings: BlockSettings::default(),
    };
    assert_eq!(
        disk.namespaces,
        [namespace("nvme0n2", 8192), namespace("nvme0n12", 4096)]
    );
    assert_eq!(
        disk.queues,
        [Queue {
            id: 1,
            irq: Some(30),
            submit_cpus: text("0-1")
        }]
    );
}

#[test]
fn the_domain_is_known_without_its_link() {
    let tree = Server::default().build();
    tree.remove(&format!("sys/devices/{VMD_PLACE}/domain"));
    assert_eq!(tree.read().controllers[0].domain.as_deref(), Some("10000"));
}

#[test]
fn an_nvme_device_without_a_disk_still_uses_vectors() {
    let tree = Server {
        disks: 2,
        ..Server::default()
    }
    .build();
    tree.remove("sys/class/nvme/nvme1");
    let topology = tree.read();
    assert_eq!(topology.controllers[0].child_interrupts, 6);
    assert_eq!(topology.controllers[0].sharing_factor, Some(3.0));
    assert_eq!(topology.controllers[0].other_lines.len(), 2 + 3);
    assert_eq!(topology.disks.len(), 1);
}

#[test]
fn lines_find_their_owners() {
    for remap in [true, false] {
        let topology = Server {
            remap,
            disks: 2,
            ..Server::default()
        }
        .build()
        .read();
        let index = TopologyIndex::new(&topology);
        let vmd = address(VMD);
        let path = Some(if remap {
            DiskPath::VmdRemap
        } else {
            DiskPath::VmdBypass
        });
        let vector = remap.then_some(LineOwner {
            controller: Some(&vmd),
            disk: None,
            path: None,
        });
        assert_eq!(index.line(24, "vmd0"), vector);
        assert_eq!(index.line(24, "vmd"), vector);
        assert_eq!(index.line(99, "vmd0"), None);
        // By name: its number may have changed since.
        let disk = Some(LineOwner {
            controller: Some(&vmd),
            disk: Some("nvme1"),
            path,
        });
        assert_eq!(index.line(999, "nvme1q2"), disk);
        assert_eq!(index.line(24, "nvme7q2"), None);
        let port = topology.controllers[0].other_lines[0].irq;
        assert_eq!(
            index.line(port, "pciehp"),
            Some(LineOwner {
                controller: Some(&vmd),
                disk: None,
                path
            })
        );
        assert_eq!(index.line(5, "i8042"), None);
    }
}

#[test]
fn highest_interrupt() {
    let tree = Server::default().build();
    assert_eq!(max_irq(&tree.roots()).unwrap(), 30);
    tree.remove("sys/kernel/irq");
    assert!(
        max_irq(&tree.roots())
            .unwrap_err()
            .to_string()
            .contains("sys/kernel/irq")
    );
    tree.dir("sys/kernel/irq");
    assert!(
        max_irq(&tree.roots())
            .unwrap_err()
            .to_string()
            .ends_with("lists no interrupt")
    );
}

#[test]
fn an_empty_or_wrong_root_is_named() {
    let tree = Tree::new();
    let topology = tree.read();
    assert_eq!(topology, Topology::default());
    let topology = read(&Roots {
        sysfs: tree.path("proc"),
        procfs: tree.path("sys"),
    });
    assert_eq!(topology.problems.len(), 1);
    assert!(
        topology.problems[0].contains("this is not a sysfs"),
        "{:?}",
        topology.problems
    );
}

#[test]
fn device_text_keeps_any_bytes() {
    let tree = Server::default().build();
    tree.file(
        &format!("sys/devices/{}/nvme/nvme0/model", disk_place(0)),
        b"\xff\x1b[31mX\n",
    );
    assert_eq!(
        tree.read().disks[0].model.as_deref(),
        Some("\u{fffd}\u{1b}[31mX")
    );
}

#[test]
fn nonsense_in_every_file_is_reported_and_the_rest_is_read() {
    for remap in [true, false] {
        let server = Server {
            remap,
            ..Server::default()
        };
        let tree = server.build();
        let whole = tree.read();
        let mut reported = Vec::new();
        for file in tree.files() {
            let content = fs::read(tree.path(&file)).unwrap();
            tree.file(&file, b"\x00nonsense\xff");
            let topology = tree.read();
            tree.file(&file, content);
            assert_eq!(topology.controllers.len(), 1, "{file}");
            if topology.problems.is_empty() {
                continue;
            }
            assert_ne!(topology, whole, "{file}");
            let name = file.rsplit('/').next().unwrap();
            let problem = format!("{name}: \"\\0nonsense\u{fffd}\" is not ");
            assert!(
                topology.problems[0].contains(&problem),
                "{file}: {:?}",
                topology.problems
            );
            reported.push(name.to_owned());
        }
        assert_eq!(tree.read(), whole);
        // All files that are read and have a form. Per controller: device,
        // numa_node. Per disk: class, numa_node, size, 2 x cpu_list. Per port: class.
        let count = |name: &str| reported.iter().filter(|other| *other == name).count();
        assert_eq!(count("device"), 1);
        assert_eq!(count("numa_node"), 2);
        assert_eq!(count("class"), 2);
        assert_eq!(count("size"), 1);
        assert_eq!(count("cpu_list"), 2);
        // Remap: 3 vectors, and 4 children that only name a vector. Bypass: 4 children.
        let (hwirq, affinity) = if remap { (7, 3) } else { (0, 4) };
        assert_eq!(count("hwirq"), hwirq);
        assert_eq!(count("effective_affinity_list"), affinity);
        assert_eq!(reported.len(), 8 + hwirq + affinity, "{reported:?}");
    }
}

#[test]
fn every_link_may_be_a_loop() {
    for link in [
        "sys/class/nvme/nvme0".to_owned(),
        format!("sys/bus/pci/devices/{VMD}"),
        format!("sys/devices/{VMD_PLACE}/domain"),
        format!("sys/devices/{VMD_PLACE}/msi_irqs"),
        format!("sys/devices/{}/msi_irqs", port_place(0)),
        "sys/kernel/irq".to_owned(),
        "sys/bus".to_owned(),
    ] {
        let tree = Server::default().build();
        tree.remove(&link);
        tree.link(&link, link.rsplit('/').next().unwrap());
        let topology = tree.read();
        if !link.ends_with("/domain") {
            assert!(!topology.problems.is_empty(), "{link}");
        }
    }
}

/// A loop stands for a directory without permission: the tests may run as root.
#[test]
fn a_directory_that_cannot_be_read_says_nothing() {
    let tree = Server::default().build();
    let dir = format!("sys/devices/{VMD_PLACE}/msi_irqs");
    tree.remove(&dir);
    tree.link(&dir, "msi_irqs");
    let topology = tree.read();
    let vmd = &topology.controllers[0];
    // The chips still tell.
    assert_eq!(vmd.mode, Mode::Remap);
    assert_eq!(
        vmd.mode_evidence[0],
        evidence("msi_irqs", "cannot be read", Mode::Unknown)
    );
    assert_eq!(vmd.sharing_factor, None);
    // What the children say of vectors cannot be checked, and is not lost.
    assert_eq!(topology.disks[0].lines[0].parent_irq, Some(25));
    assert_eq!(topology.problems.len(), 1);
    let reported = |problem: &String| problem.contains("/msi_irqs: cannot be read: ");
    assert!(
        topology.problems.iter().any(reported),
        "{:?}",
        topology.problems
    );
}

#[test]
fn a_large_host_is_read_in_one_pass() {
    // 24 disks with 33 lines each behind one VMD; 792 lines in all.
    let server = Server {
        vectors: 64,
        disks: 24,
        cpus: 32,
        ..Server::default()
    };
    let topology = server.build().read();
    assert_eq!(topology.problems, [""; 0]);
    let vmd = &topology.controllers[0];
    assert_eq!(vmd.child_interrupts, 24 * 33);
    assert_eq!(vmd.sharing_factor, Some(24.0 * 33.0 / 63.0));
}

/// A row of the capture's `/proc/interrupts`.
#[derive(Debug)]
struct Row {
    irq: u32,
    counts: Vec<u64>,
    chip: String,
    hwirq: u32,
    action: String,
}

fn interrupts(tree: &Tree, cpus: usize) -> Vec<Row> {
    let text = fs::read_to_string(tree.path("proc/interrupts")).unwrap();
    let row = |line: &str| {
        let (irq, rest) = line.trim().split_once(':')?;
        let irq = irq.parse().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let (counts, rest) = fields.split_at(cpus);
        Some(Row {
            irq,
            counts: counts.iter().map(|count| count.parse().unwrap()).collect(),
            chip: rest[0].to_owned(),
            // `7-edge` or `7`.
            hwirq: rest[1].split('-').next().unwrap().parse().unwrap(),
            action: rest[2..].join(" "),
        })
    };
    text.lines().filter_map(row).collect()
}

/// Everything in the two captures, against `/proc/interrupts` of the same moment.
#[test]
fn captured_trees_agree_with_proc_interrupts() {
    for (archive, remap) in [(CAPTURED_REMAP, true), (CAPTURED_BYPASS, false)] {
        let tree = Tree::unpack(archive);
        let rows = interrupts(&tree, 6);
        let topology = tree.read();
        assert_eq!(topology.problems, [""; 0]);

        let [vmd] = &topology.controllers[..] else {
            panic!("{topology:?}")
        };
        let vmd_address = address("0000:00:03.0");
        let (mode, id) = if remap {
            (Mode::Remap, 0x201d)
        } else {
            (Mode::Bypass, 0x28c0)
        };
        assert_eq!(vmd.address, vmd_address);
        assert_eq!(
            (vmd.device_id, vmd.driver.as_deref()),
            (Some(id), Some("vmd"))
        );
        assert_eq!(
            (vmd.mode, vmd.domain.as_deref(), vmd.numa_node),
            (mode, Some("10000"), None)
        );
        assert_eq!(vmd.action.as_deref(), remap.then_some("vmd0"));
        let told: &[Evidence] = if remap {
            &[
                evidence("msi_irqs", "8 vectors", mode),
                evidence("actions", "vmd0 on 8 of 8 vectors", mode),
                evidence("chip_name", "VMD-MSI on 96 child lines", mode),
            ]
        } else {
            &[
                evidence("msi_irqs", "absent: the controller has no vectors", mode),
                evidence("chip_name", "PCI-MSI on 12 child lines", mode),
                evidence("chip_name", "PCI-MSIX on 84 child lines", mode),
            ]
        };
        assert_eq!(vmd.mode_evidence, told);
        assert_eq!(
            (vmd.child_interrupts, vmd.sharing_factor),
            (84, remap.then_some(12.0))
        );

        // A vector, a disk's line or a port's for every row, and no other.
        let vectors: Vec<&Row> = rows.iter().filter(|row| row.action == "vmd0").collect();
        assert_eq!(vmd.vectors.len(), vectors.len());
        assert_eq!(vmd.vectors.len(), if remap { 8 } else { 0 });
        for (vector, row) in vmd.vectors.iter().zip(&vectors) {
            let used_for = if row.hwirq == 0 {
                VectorUse::Other
            } else {
                VectorUse::Nvme
            };
            assert_eq!(
                (vector.irq, vector.index, vector.used_for),
                (row.irq, row.hwirq, used_for)
            );
        }
        let affinity_of = |irq| {
            let mut vectors = vmd.vectors.iter();
            vectors
                .find(|vector| vector.irq == irq)
                .and_then(|vector| vector.effective_affinity.clone())
        };
        let check = |line: &Line, row: &Row| {
            assert_eq!(
                (line.irq, line.chip.as_deref()),
                (row.irq, Some(row.chip.as_str()))
            );
            assert_eq!(line.actions, [row.action.as_str()]);
            assert_eq!(line.parent_irq, remap.then_some(row.hwirq));
            assert!(line.effective_affinity.is_some());
            if remap {
                assert_eq!(line.effective_affinity, affinity_of(row.hwirq));
                assert_eq!(
                    row.counts.iter().sum::<u64>(),
                    0,
                    "the kernel does not count a remapped child"
                );
            }
        };
        let ports: Vec<&Row> = rows.iter().filter(|row| row.action == "PCIe PME").collect();
        assert_eq!((vmd.other_lines.len(), ports.len()), (12, 12));
        for (line, row) in vmd.other_lines.iter().zip(ports) {
            check(line, row);
        }
        assert_eq!(topology.disks.len(), 12);
        for (number, disk) in topology.disks.iter().enumerate() {
            assert_eq!(disk.name, format!("nvme{number}"));
            assert_eq!(disk.path, DiskPath::from(mode));
            assert_eq!(disk.controller.as_ref(), Some(&vmd_address));
            assert_eq!(
                (disk.model.as_deref(), disk.numa_node),
                (Some("VMD Lab NVMe"), None)
            );
            let namespace = Namespace {
                name: format!("nvme{number}n1"),
                size_bytes: Some(256 << 20),
                settings: BlockSettings::default(),
            };
            assert_eq!(disk.namespaces, [namespace]);
            let prefix = format!("nvme{number}q");
            let of_disk = |row: &&Row| row.action.starts_with(&prefix);
            let mut of_disk: Vec<&Row> = rows.iter().filter(of_disk).collect();
            assert_eq!((disk.lines.len(), of_disk.len()), (7, 7));
            for (line, row) in disk.lines.iter().zip(&of_disk) {
                check(line, row);
            }
            of_disk.sort_by(|a, b| a.action.cmp(&b.action));
            for (id, (queue, row)) in disk.queues.iter().zip(&of_disk).enumerate() {
                assert_eq!((queue.id as usize, queue.irq), (id, Some(row.irq)));
                assert_eq!(row.action, format!("{prefix}{id}"));
                // 6 CPUs and 6 queues: one each.
                let cpu = (id > 0).then(|| (id - 1).to_string());
                assert_eq!(queue.submit_cpus, cpu);
                let line = disk.lines.iter().find(|line| line.irq == row.irq).unwrap();
                if !remap && id > 0 {
                    assert_eq!(line.effective_affinity, cpu);
                }
            }
            assert_eq!(disk.queues.len(), 7);
        }
        let addresses: HashSet<&PciAddress> =
            topology.disks.iter().map(|disk| &disk.address).collect();
        let expected: Vec<PciAddress> = (1..=12)
            .map(|bus| address(&format!("10000:{bus:02x}:00.0")))
            .collect();
        assert_eq!(addresses, expected.iter().collect());

        // What the kernel counted came in on the CPUs that sysfs names.
        let mut counted = 0;
        let lines = topology.disks.iter().flat_map(|disk| &disk.lines);
        let affinities: HashMap<u32, Option<&str>> = lines
            .map(|line| (line.irq, line.effective_affinity.as_deref()))
            .chain(
                vmd.vectors
                    .iter()
                    .map(|vector| (vector.irq, vector.effective_affinity.as_deref())),
            )
            .collect();
        for row in &rows {
            for (cpu, _) in row
                .counts
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
            {
                if let Some(affinity) = affinities.get(&row.irq) {
                    assert_eq!(*affinity, Some(cpu.to_string().as_str()), "{row:?}");
                    counted += 1;
                }
            }
        }
        assert!(counted >= 7, "{counted}");

        // Each row finds its owner.
        let index = TopologyIndex::new(&topology);
        let owned = rows
            .iter()
            .filter(|row| index.line(row.irq, &row.action).is_some())
            .count();
        assert_eq!(owned, 84 + 12 + if remap { 8 } else { 0 });
        assert_eq!(
            max_irq(&tree.roots()).unwrap(),
            rows.iter().map(|row| row.irq).max().unwrap()
        );
        assert_eq!(possible_cpus(&tree.roots()).unwrap(), 6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any content of any files, and any of them gone: an answer, no panic.
    #[test]
    fn no_content_panics(
        remap in any::<bool>(),
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80))),
            1..40,
        ),
    ) {
        let tree = Server { remap, disks: 2, ..Server::default() }.build();
        let files = tree.files();
        for (file, content) in changes {
            let file: &String = file.get(&files);
            match content {
                Some(content) => tree.file(file, content),
                None => { let _ = fs::remove_file(tree.path(file)); }
            }
        }
        let topology = tree.read();
        prop_assert_eq!(topology.controllers.len(), 1);
        prop_assert_eq!(topology.disks.len() <= 2, true);
        let json = serde_json::to_string(&topology).unwrap();
        prop_assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology);
    }

    /// Numbers that are numbers, only wrong.
    #[test]
    fn no_number_panics(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 1..40),
    ) {
        let tree = Server::default().build();
        let files = tree.files();
        for (file, number, hex) in changes {
            let content = if hex { format!("{number:#x}\n") } else { format!("{number}\n") };
            tree.file(file.get::<String>(&files), content);
        }
        let topology = tree.read();
        prop_assert_eq!(topology.controllers.len(), 1);
    }
}

/// What names a person, a host or a single device is in no reading, wherever the
/// kernel tells it.
#[test]
fn nothing_is_read_that_names_someone() {
    const SECRET: &str = "S3CR3T";
    let tree = Tree::unpack(CAPTURED_REMAP);
    let of_disks: Vec<String> = tree
        .files()
        .into_iter()
        .filter_map(|file| file.strip_suffix("/model").map(str::to_owned))
        .collect();
    assert_eq!(of_disks.len(), 12);
    let names = [
        "serial",
        "subsysnqn",
        "hostnqn",
        "hostid",
        "uuid",
        "wwid",
        "address",
    ];
    for (disk, dir) in of_disks.iter().enumerate() {
        for name in names {
            tree.file(&format!("{dir}/{name}"), format!("{SECRET}{disk}\n"));
        }
        for name in ["nguid", "eui", "uuid", "wwid"] {
            let file = format!("{dir}/nvme{disk}n1/{name}");
            tree.file(&file, format!("{SECRET}{disk}\n"));
        }
    }
    for file in [
        "sys/class/dmi/id/product_serial",
        "sys/class/dmi/id/product_uuid",
        "sys/class/dmi/id/board_serial",
        "sys/class/dmi/id/chassis_asset_tag",
        "proc/sys/kernel/hostname",
        "proc/sys/kernel/domainname",
        "proc/sys/kernel/random/boot_id",
        "proc/version",
        "proc/self/environ",
        "proc/77/comm",
        "proc/77/cmdline",
    ] {
        tree.file(file, format!("{SECRET}\n"));
    }
    tree.file("proc/2/comm", "kthreadd\n");
    tree.file(
        "proc/cmdline",
        format!("root=UUID={SECRET} ip=:::::{SECRET} user={SECRET} threadirqs\n"),
    );
    let topology = tree.read();
    let activity = crate::host::activity::Activity::read(&tree.roots(), &topology);
    assert_eq!(topology.disks.len(), 12);
    assert_eq!(topology.machine.options, ["threadirqs"]);
    assert_eq!(topology.machine.irqbalance, Some(false));
    let json = serde_json::to_string(&(&topology, &activity)).unwrap();
    assert!(json.contains("VMD Lab NVMe"), "{json}");
    assert!(!json.contains(SECRET), "{json}");
}
