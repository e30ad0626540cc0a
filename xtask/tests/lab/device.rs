//! The emulated device where it is more than a disk that answers at once.

use libtest_mimic::Trial;
use vmd_device::control::{Client, Request};
use vmd_device::{
    BlockSize, CompletionFault, Config, Counters, DeviceId, FirstBus, Link, LinkSpeed, LinkWidth,
    MsiFault, QueueCounters, Service,
};
use xtask_lab::{
    Bound, CpuList, Done, Guest, GuestCommand, GuestConfig, Load, Verify, disk_of_action,
    interrupt, is_vmd_action,
};

use crate::server::{PATIENCE, Readings, Server, completions, sum};
use crate::{artifacts, lab_test};

const CPUS: u32 = 3;

/// A server with a device that takes about as long as a flash disk. The daemon
/// runs before the disks are found.
fn boot(config: Config, nvme: &str) -> Server {
    let config = GuestConfig {
        cpus: CPUS,
        controllers: vec![Config {
            service: Service {
                latency: "uniform:60us:120us".parse().unwrap(),
                ..Service::default()
            },
            ..config
        }],
        modules: vec!["vmd".to_owned(), "nvme_core".to_owned()],
        ..GuestConfig::default()
    };
    let (server, ready) = Server::start(artifacts(), &config);
    ready.unwrap_or_else(|error| panic!("{error}"));
    server.guest.load_module("nvme", nvme).unwrap();
    server.disks();
    server
}

/// Does that, and compares what the daemon counted since the disks were found with
/// what the device posted since then.
fn is_counted(server: &Server, test: impl FnOnce(&Guest)) {
    test(&server.guest);
    let readings = server.at_rest();
    let device = readings.device();
    assert_eq!(
        completions(&readings.daemon),
        device.cqes() - device.cqes_skipped()
    );
}

fn counters(guest: &Guest) -> Counters {
    guest.controllers()[0].counters().unwrap()
}

fn ask(guest: &Guest, request: &Request) {
    let mut client: Client = guest.controllers()[0].client().unwrap();
    client.ask(request).unwrap();
}

/// What a script wrote, and whether it succeeded.
fn shell(guest: &Guest, script: &str) -> (String, bool) {
    let output = guest.run(&GuestCommand::shell(script), PATIENCE).unwrap();
    (
        output.stdout_text() + &output.stderr_text(),
        output.success(),
    )
}

/// Reads one block of disk 0 from CPU 0, past any cache; whether that worked.
fn read_one(guest: &Guest) -> bool {
    let disk = &guest.disks().unwrap()[0].namespaces[0];
    shell(
        guest,
        &format!("taskset 1 dd if=/dev/{disk} of=/dev/null bs=4k count=1 iflag=direct"),
    )
    .1
}

/// The device's numbers explain each other.
fn assert_accounted(counters: &Counters) {
    let mut arrived = counters.msis();
    for disk in &counters.disks {
        let io = &disk.queues[1..];
        let taken: u64 = io.iter().map(QueueCounters::taken).sum();
        let discarded: u64 = io.iter().map(|it| it.discarded).sum();
        assert_eq!(taken, disk.io_cqes() + discarded + disk.in_service);
        arrived = arrived + disk.duplicated_msis - disk.dropped_msis;
    }
    let by_vectors: u64 = counters.vmd_vector_msis.iter().sum();
    let arrived = arrived + counters.vmd_duplicated_msis - counters.vmd_dropped_msis;
    assert_eq!(by_vectors + counters.bypass_msis, arrived);
    assert_eq!((counters.undelivered_msis, counters.rejected), (0, 0));
}

/// Reads from every namespace: the device counts what fio does, and the kernel
/// takes no more interrupts than were sent.
fn reads_are_counted(guest: &Guest) {
    let load = Load {
        disks: guest
            .disks()
            .unwrap()
            .into_iter()
            .flat_map(|it| it.namespaces)
            .collect(),
        cpus: CpuList::first(CPUS),
        depth: 16,
        bound: Bound::Reads(300),
    };
    let (before, kernel) = (counters(guest), guest.kernel_counts().unwrap());
    let output = guest.check(&load.command(), PATIENCE).unwrap();
    let done = Done::parse(&output.stdout_text(), &load).unwrap();
    assert_eq!(done.total(), 300 * load.disks.len() as u64);
    let (after, later) = (counters(guest), guest.kernel_counts().unwrap());
    assert_eq!(after.io_cqes() - before.io_cqes(), done.total());
    let ours = |action: &str| is_vmd_action(action) || disk_of_action(action).is_some();
    let interrupts = later.since(&kernel, &ours);
    assert!(0 < interrupts && interrupts <= after.msis() - before.msis());
    assert_accounted(&after);
}

fn written_data_verify(guest: &Guest, block: &str) {
    for disk in guest.disks().unwrap() {
        for namespace in disk.namespaces {
            let size = guest
                .read_file(&format!("/sys/block/{namespace}/queue/logical_block_size"))
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&size).trim(), block);
            let load = Verify {
                disks: vec![namespace],
                bytes: 1 << 20,
                writes_per_sync: 0,
            };
            guest.check(&load.command(), PATIENCE).unwrap();
        }
    }
    assert_accounted(&counters(guest));
}

/// Reads through a queue without interrupts.
fn polled_queues_complete_without_interrupts(server: &Server) {
    let guest = &server.guest;
    let disk = &guest.disks().unwrap()[0].namespaces[0];
    let before = server.at_rest();
    let fio = GuestCommand::new("fio").args([
        "--name=polled".to_owned(),
        format!("--filename=/dev/{disk}"),
        "--rw=randread".to_owned(),
        "--bs=4k".to_owned(),
        "--io_size=800k".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=io_uring".to_owned(),
        "--hipri=1".to_owned(),
        "--iodepth=4".to_owned(),
    ]);
    guest.check(&fio, PATIENCE).unwrap();
    let after = server.at_rest();
    let io = |readings: &Readings| readings.device().io_cqes();
    assert_eq!(io(&after) - io(&before), 200);
    assert_eq!(after.device().msis(), before.device().msis());
    // No handler ran for them.
    let increase = |metric| sum(&after.daemon, metric) - sum(&before.daemon, metric);
    assert_eq!(increase("vmdtrace_completions_outside_handler_total"), 200);
    assert_eq!(increase("vmdtrace_completions_total"), 0);
}

/// Resets the controller while it has commands in service: every read is done in
/// the end, and none is lost or answered twice.
fn resets_under_load_lose_nothing(guest: &Guest) {
    const READS: u64 = 200;
    let disk = guest.disks().unwrap().swap_remove(0);
    let load = Load {
        disks: disk.namespaces[..1].to_vec(),
        cpus: CpuList::first(CPUS),
        depth: 16,
        bound: Bound::Reads(READS),
    };
    let usual = guest.controllers()[0].config().service;
    let slow = Service {
        latency: "300ms".parse().unwrap(),
        ..usual
    };
    let before = counters(guest);
    let mut client = guest.controllers()[0].client().unwrap();
    client.set_service(Some(0), slow).unwrap();
    let fio = guest.spawn(&load.command()).unwrap();
    for _ in 0..3 {
        interrupt::until("commands to be in service", PATIENCE, || {
            Ok((counters(guest).disks[0].in_service > 0).then_some(()))
        })
        .unwrap();
        let reset = format!("/sys/class/nvme/{}/reset_controller", disk.name);
        assert!(shell(guest, &format!("echo 1 > {reset}")).1);
    }
    client.set_service(Some(0), usual).unwrap();
    let output = fio.wait(PATIENCE).unwrap();
    let done = Done::parse(&output.stdout_text(), &load).unwrap();
    assert_eq!(done.total(), READS);
    let after = counters(guest);
    let discarded = |counters: &Counters| -> u64 {
        let io = &counters.disks[0].queues[1..];
        io.iter().map(|it| it.discarded).sum()
    };
    assert!(discarded(&after) > discarded(&before));
    // What a reset discarded was read again.
    assert_eq!(after.io_cqes() - before.io_cqes(), READS);
    assert_accounted(&after);
}

/// Lets a command without an interrupt be found after two seconds instead of 30.
fn shorten_timeouts(guest: &Guest) {
    for disk in guest.disks().unwrap() {
        for namespace in disk.namespaces {
            let path = format!("/sys/block/{namespace}/queue/io_timeout");
            guest.write_file(&path, 0, "2000").unwrap();
        }
    }
}

/// How often the kernel found a command only when its time was over.
fn polled_after_timeout(guest: &Guest) -> usize {
    let (log, success) = shell(guest, "dmesg");
    assert!(success, "{log}");
    log.matches("timeout, completion polled").count()
}

/// Each fault of an MSI, of the disk's vector or the VMD's as `request` makes it,
/// and one read each time. What was posted is reaped in any case.
fn msis_go_wrong(guest: &Guest, request: impl Fn(MsiFault) -> Request) {
    let late = MsiFault::Delay("5ms".to_owned().try_into().unwrap());
    for (fault, timeouts) in [(MsiFault::Duplicate, 0), (late, 0), (MsiFault::Drop, 1)] {
        let before = polled_after_timeout(guest);
        ask(guest, &request(fault));
        assert!(read_one(guest));
        assert_eq!(polled_after_timeout(guest) - before, timeouts, "{fault:?}");
    }
    assert_accounted(&counters(guest));
}

/// The vector of the disk that its next read's MSI names, and of the VMD, found by
/// one read from the same CPU.
fn vectors_of_a_read(guest: &Guest) -> (u16, Option<u16>) {
    let before = counters(guest);
    assert!(read_one(guest));
    let after = counters(guest);
    let risen = |earlier: &[u64], later: &[u64]| {
        let old = |index| earlier.get(index).copied().unwrap_or_default();
        let index = (0..later.len()).find(|index| later[*index] > old(*index));
        index.map(|index| u16::try_from(index).unwrap())
    };
    let child = risen(
        &before.disks[0].child_vector_msis,
        &after.disks[0].child_vector_msis,
    );
    let vmd = risen(&before.vmd_vector_msis, &after.vmd_vector_msis);
    (child.unwrap(), vmd)
}

fn faults_are_made_as_told(guest: &Guest) {
    shorten_timeouts(guest);
    let before = counters(guest);
    let (vector, vmd_vector) = vectors_of_a_read(guest);
    let completion = |fault| Request::CompletionFault {
        disk: 0,
        queue: None,
        nth: 1,
        fault,
    };
    ask(guest, &completion(CompletionFault::Status));
    assert!(
        !read_one(guest),
        "a read succeeds although the disk says otherwise"
    );
    for vector in [None, Some(vector)] {
        msis_go_wrong(guest, |fault| Request::MsiFault {
            disk: 0,
            vector,
            nth: 1,
            fault,
        });
    }
    let mut reads = 8;
    if let Some(vmd_vector) = vmd_vector {
        msis_go_wrong(guest, |fault| Request::VmdMsiFault {
            vmd_vector,
            nth: 1,
            fault,
        });
        reads += 3;
    }
    let after = counters(guest);
    let disk = &after.disks[0];
    assert_eq!(
        (disk.dropped_msis, disk.duplicated_msis, disk.delayed_msis),
        (2, 2, 2)
    );
    let of_vmd = if vmd_vector.is_some() { 1 } else { 0 };
    assert_eq!(
        (
            after.vmd_dropped_msis,
            after.vmd_duplicated_msis,
            after.vmd_delayed_msis
        ),
        (of_vmd, of_vmd, of_vmd)
    );
    assert_eq!(disk.queues.iter().map(|it| it.corrupted).sum::<u64>(), 1);
    assert_eq!(after.io_cqes() - before.io_cqes(), reads);
}

/// A completion of a command that Linux does not know: the command itself ends
/// only when its time is over and the controller was reset, and is then done again.
fn an_unknown_command_id_is_survived(guest: &Guest) {
    let before = counters(guest);
    ask(
        guest,
        &Request::CompletionFault {
            disk: 0,
            queue: None,
            nth: 1,
            fault: CompletionFault::CommandId,
        },
    );
    assert!(read_one(guest));
    let after = counters(guest);
    assert_eq!(after.cqes_skipped() - before.cqes_skipped(), 1);
    assert_eq!(after.io_cqes() - before.io_cqes(), 2);
    assert_accounted(&after);
}

fn a_stalled_disk_goes_on(guest: &Guest) {
    let before = counters(guest);
    ask(guest, &Request::Stall { disk: 0 });
    let disk = &guest.disks().unwrap()[0].namespaces[0];
    let script = format!("dd if=/dev/{disk} of=/dev/null bs=4k count=1 iflag=direct");
    let read = guest.spawn(&GuestCommand::shell(script)).unwrap();
    // Another disk is not held up.
    let other = &guest.disks().unwrap()[1].namespaces[0];
    let script = format!("dd if=/dev/{other} of=/dev/null bs=4k count=9 iflag=direct");
    guest.check(&GuestCommand::shell(script), PATIENCE).unwrap();
    read.check_running().unwrap();
    assert_eq!(counters(guest).io_cqes() - before.io_cqes(), 9);
    ask(guest, &Request::Resume { disk: 0 });
    assert!(read.wait(PATIENCE).unwrap().success());
    assert_eq!(counters(guest).io_cqes() - before.io_cqes(), 10);
}

/// Pulls a disk out while it has a read in service, and puts it in again.
fn a_disk_is_pulled_out_and_put_in_again(guest: &Guest) {
    shorten_timeouts(guest);
    let disk = guest.disks().unwrap().swap_remove(0);
    let usual = guest.controllers()[0].config().service;
    let never = Service {
        latency: "60s".parse().unwrap(),
        ..usual
    };
    let mut client = guest.controllers()[0].client().unwrap();
    client.set_service(Some(0), never).unwrap();
    let script = format!(
        "dd if=/dev/{} of=/dev/null bs=4k count=1 iflag=direct",
        disk.namespaces[0]
    );
    let read = guest.spawn(&GuestCommand::shell(script)).unwrap();
    interrupt::until("a read to be in service", PATIENCE, || {
        Ok((counters(guest).disks[0].in_service > 0).then_some(()))
    })
    .unwrap();
    let discarded = |counters: &Counters| -> u64 {
        let io = &counters.disks[0].queues[1..];
        io.iter().map(|it| it.discarded).sum()
    };
    let before = counters(guest);
    ask(guest, &Request::Remove { disk: 0 });
    let after = counters(guest);
    assert_eq!(after.disks[0].in_service, 0);
    assert_eq!(discarded(&after) - discarded(&before), 1);
    // The driver looks when the read's time is over, and gives the disk up.
    interrupt::until("the disk to be given up", PATIENCE, || {
        Ok((guest.disks()?[0].state == "dead").then_some(()))
    })
    .unwrap();
    assert!(!read.wait(PATIENCE).unwrap().success());
    client.set_service(Some(0), usual).unwrap();
    ask(guest, &Request::Insert { disk: 0 });
    let rescan = format!(
        "echo 1 > /sys/bus/pci/devices/{}/remove; echo 1 > /sys/bus/pci/rescan",
        disk.address
    );
    assert!(shell(guest, &rescan).1);
    assert_eq!(guest.await_disks(PATIENCE).unwrap().len(), 2);
    assert!(read_one(guest));
    assert_accounted(&counters(guest));
}

fn a_reduced_link_is_seen(guest: &Guest) {
    let address = guest.disks().unwrap().swap_remove(0).address;
    let link = || {
        let script = format!("cd /sys/bus/pci/devices/{address} && cat *_link_*");
        let (text, success) = shell(guest, &script);
        assert!(success, "{text}");
        text
    };
    assert_eq!(link(), "16.0 GT/s PCIe\n4\n16.0 GT/s PCIe\n4\n");
    let reduced = Link {
        speed: LinkSpeed::Gt8,
        width: LinkWidth::X2,
    };
    ask(
        guest,
        &Request::Link {
            disk: 0,
            link: reduced,
        },
    );
    assert_eq!(link(), "8.0 GT/s PCIe\n2\n16.0 GT/s PCIe\n4\n");
}

fn remapped() {
    let server = boot(
        Config {
            id: DeviceId::Remap201d,
            disks: 2,
            vectors: 3,
            ..Config::default()
        },
        "poll_queues=1",
    );
    is_counted(&server, reads_are_counted);
    is_counted(&server, |guest| written_data_verify(guest, "512"));
    polled_queues_complete_without_interrupts(&server);
    is_counted(&server, resets_under_load_lose_nothing);
    is_counted(&server, faults_are_made_as_told);
    is_counted(&server, an_unknown_command_id_is_survived);
    is_counted(&server, a_stalled_disk_goes_on);
    a_reduced_link_is_seen(&server.guest);
    server.end();
}

fn bypassed() {
    let server = boot(
        Config {
            id: DeviceId::Bypass28c0,
            disks: 2,
            block_size: BlockSize::B4096,
            namespaces: 2,
            ..Config::default()
        },
        "",
    );
    is_counted(&server, reads_are_counted);
    is_counted(&server, |guest| written_data_verify(guest, "4096"));
    is_counted(&server, resets_under_load_lose_nothing);
    is_counted(&server, faults_are_made_as_told);
    a_disk_is_pulled_out_and_put_in_again(&server.guest);
    server.end();
}

/// Other parts, and a part that is passed through: each takes another path
/// through vmd.ko.
fn other_parts() {
    let vmd = |id, tag: &str| Config {
        id,
        disks: 1,
        vectors: 3,
        tag: tag.to_owned(),
        ..Config::default()
    };
    let client = Config {
        first_bus: FirstBus::Bus128,
        ..vmd(DeviceId::ClientA77f, "A")
    };
    let shadow = Config {
        shadow: true,
        ..vmd(DeviceId::Bypass28c0, "B")
    };
    let quirky = Config {
        first_bus: FirstBus::Bus224,
        ..vmd(DeviceId::Client9a0b, "C")
    };
    let config = GuestConfig {
        controllers: vec![client, shadow, quirky],
        ..GuestConfig::default()
    };
    let guest = Guest::boot(artifacts(), &config).unwrap_or_else(|error| panic!("{error}"));
    let disks = guest.await_disks(PATIENCE).unwrap();
    let buses: Vec<_> = disks
        .iter()
        .filter_map(|it| it.address.split(':').nth(1))
        .collect();
    assert_eq!(buses, ["81", "01", "e1"]);
    written_data_verify(&guest, "512");
    for controller in guest.controllers() {
        let counters = controller.counters().unwrap();
        assert_eq!(counters.mode, vmd_device::Mode::Remap);
        assert_accounted(&counters);
        // The driver keeps one vector for ports, and client parts' first one for nobody.
        let first_used = counters.vmd_vector_msis.iter().position(|count| *count > 0);
        let is_client = controller.config().id != DeviceId::Bypass28c0;
        assert_eq!(first_used, Some(if is_client { 2 } else { 1 }));
    }
    guest.power_off().unwrap();
}

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 3] = [
        ("remapped", remapped),
        ("bypassed", bypassed),
        ("other_parts", other_parts),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            lab_test(format!("device::{name}"), move || {
                test();
                Ok(())
            })
        })
        .collect()
}
