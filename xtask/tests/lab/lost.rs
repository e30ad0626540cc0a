//! Commands that are late, and interrupts that do not come: the device drops
//! them, and the driver finds out when a command's time is over.

use libtest_mimic::Trial;
use vmd_device::control::{Client, Request};
use vmd_device::{Config, DeviceId, MsiFault};
use xtask_lab::{
    Artifacts, Background, Guest, GuestCommand, GuestConfig, GuestDisk, Scrape, interrupt,
};

use crate::kernel_test;
use crate::server::{PATIENCE, Server};

/// Each has the functions that are hooked, by Debian's binaries.
const KERNELS: [&str; 5] = ["5.10", "6.1", "6.12", "6.18", "7.3"];

/// A disk whose two queues have a vector each, beside the one for ports.
const ALONE: &str = "A";
/// Two disks whose queues share one vector.
const SHARED: &str = "S";

/// The only queue for I/O: there is one CPU.
const IO_VECTOR: u16 = 1;

fn config() -> GuestConfig {
    let vmd = |disks, vectors, tag: &str| Config {
        id: DeviceId::Remap201d,
        disks,
        vectors,
        tag: tag.to_owned(),
        ..Config::default()
    };
    GuestConfig {
        cpus: 1,
        controllers: vec![vmd(1, 3, ALONE), vmd(2, 2, SHARED)],
        modules: Vec::new(),
        ..GuestConfig::default()
    }
}

/// A guest, and its daemon, which sees the modules come.
struct Lost {
    server: Server,
}

impl Lost {
    fn boot(artifacts: &Artifacts) -> Self {
        let (server, ready) = Server::start(artifacts, &config());
        ready.unwrap_or_else(|error| panic!("{error}"));
        let lost = Self { server };
        assert_eq!(lost.state("nvme_timeout"), "not-applicable");
        lost.load_modules();
        lost
    }

    /// Loads all modules, with a short time for commands.
    fn load_modules(&self) {
        for (module, parameters) in [("nvme_core", "io_timeout=2"), ("nvme", ""), ("vmd", "")] {
            self.server
                .guest
                .load_module(module, parameters)
                .unwrap_or_else(|error| panic!("{error}"));
        }
        interrupt::until("three disks", PATIENCE, || {
            Ok((self.server.guest.await_disks(PATIENCE)?.len() == 3).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
        for probe in ["nvme_timeout", "nvme_dev_disable", "nvme_sq"] {
            self.await_state(probe, "attached");
        }
    }

    fn scrape(&self) -> Scrape {
        self.server.guest.scrape().unwrap()
    }

    fn state(&self, probe: &str) -> String {
        let scrape = self.scrape();
        let mut found = scrape.series("vmdtrace_probe_info");
        let found = found.find(|sample| sample.label("probe") == probe).unwrap();
        found.label("state").to_owned()
    }

    fn await_state(&self, probe: &str, state: &str) {
        interrupt::until(&format!("{probe} to be {state}"), PATIENCE, || {
            Ok((self.state(probe) == state).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// A disk by the tag of its controller and its index there.
    fn disk(&self, tag: &str, index: usize) -> GuestDisk {
        let serial = format!("VMDLAB{tag}{index:04}");
        let disks = self.server.guest.disks().unwrap();
        disks.into_iter().find(|it| it.serial == serial).unwrap()
    }

    fn ask(&self, tag: &str, request: &Request) {
        let index = usize::from(tag == SHARED);
        let mut client: Client = self.server.guest.controllers()[index].client().unwrap();
        client.ask(request).unwrap();
    }

    fn drop_msi(&self, tag: &str, disk: usize) {
        let fault = Request::MsiFault {
            disk,
            vector: Some(IO_VECTOR),
            nth: 1,
            fault: MsiFault::Drop,
        };
        self.ask(tag, &fault);
    }

    /// One read past any cache.
    fn read(&self, disk: &GuestDisk, count: u32) -> GuestCommand {
        GuestCommand::shell(format!(
            "dd if=/dev/{} of=/dev/null bs=4k count={count} iflag=direct",
            disk.namespaces[0]
        ))
    }

    fn check_read(&self, disk: &GuestDisk, count: u32) {
        self.server
            .guest
            .check(&self.read(disk, count), PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// What the daemon counted for a disk, and how often Linux said so.
    fn losses(&self, disk: &GuestDisk) -> Losses {
        let scrape = self.scrape();
        let of = |metric: &str| {
            let series = scrape
                .series(metric)
                .filter(|it| it.label("disk") == disk.name);
            series.map(|it| it.value as u64).sum()
        };
        let script = format!(
            "dmesg | grep -c '{}: I/O.*timeout, completion polled'",
            disk.name
        );
        let said = self
            .server
            .guest
            .run(&GuestCommand::shell(script), PATIENCE)
            .unwrap();
        Losses {
            timeouts: of("vmdtrace_disk_timeouts_total"),
            lost: of("vmdtrace_disk_lost_interrupts_total"),
            said: said.stdout_text().trim().parse().unwrap(),
        }
    }

    fn total(&self, metric: &str) -> u64 {
        self.scrape().sum(metric, |_| true).unwrap() as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Losses {
    timeouts: u64,
    lost: u64,
    /// By the kernel's log.
    said: u64,
}

fn losses(timeouts: u64, lost: u64, said: u64) -> Losses {
    Losses {
        timeouts,
        lost,
        said,
    }
}

/// The queue has its vector for itself: nobody else looks into it.
fn dropped_on_a_queue_alone_is_lost(lost: &Lost) {
    let disk = lost.disk(ALONE, 0);
    let before = lost.losses(&disk);
    lost.drop_msi(ALONE, 0);
    lost.check_read(&disk, 1);
    let after = lost.losses(&disk);
    let expected = losses(before.timeouts + 1, before.lost + 1, before.said + 1);
    assert_eq!(after, expected);
}

/// The neighbour's interrupt makes the vector's handler look into all queues.
fn dropped_beside_a_neighbour_is_not_lost(lost: &Lost) {
    let (disk, neighbour) = (lost.disk(SHARED, 0), lost.disk(SHARED, 1));
    // However long the neighbour takes, on a busy host.
    let patient = format!(
        "echo 100000 > /sys/block/{}/queue/io_timeout",
        disk.namespaces[0]
    );
    lost.server
        .guest
        .check(&GuestCommand::shell(patient), PATIENCE)
        .unwrap();
    let before = lost.total("vmdtrace_timeouts_total");
    lost.drop_msi(SHARED, 0);
    let read: Background = lost.server.guest.spawn(&lost.read(&disk, 1)).unwrap();
    let dropped = || lost.server.guest.controllers()[1].counters().unwrap().disks[0].dropped_msis;
    interrupt::until("the interrupt to be dropped", PATIENCE, || {
        Ok((dropped() > 0).then_some(()))
    })
    .unwrap();
    lost.check_read(&neighbour, 20);
    assert!(read.wait(PATIENCE).unwrap().success());
    assert_eq!(lost.losses(&disk), losses(0, 0, 0));
    assert_eq!(lost.losses(&neighbour), losses(0, 0, 0));
    assert_eq!(lost.total("vmdtrace_timeouts_total"), before);
}

/// The disk takes its time: commands are late, and nothing is lost.
fn a_stalled_disk_is_late_and_loses_nothing(lost: &Lost) {
    let disk = lost.disk(ALONE, 0);
    let before = lost.losses(&disk);
    lost.ask(ALONE, &Request::Stall { disk: 0 });
    let read = lost.server.guest.spawn(&lost.read(&disk, 1)).unwrap();
    interrupt::until("the read to be late", PATIENCE, || {
        Ok((lost.losses(&disk).timeouts > before.timeouts).then_some(()))
    })
    .unwrap();
    lost.ask(ALONE, &Request::Resume { disk: 0 });
    assert!(read.wait(PATIENCE).unwrap().success());
    let after = lost.losses(&disk);
    assert_eq!((after.lost, after.said), (before.lost, before.said));
}

/// The probes come back with the modules, and counts go on.
fn reloaded_modules_are_counted_on(lost: &Lost) {
    let total = || {
        [
            lost.total("vmdtrace_timeouts_total"),
            lost.total("vmdtrace_lost_interrupts_total"),
        ]
    };
    let before = total();
    let unload = GuestCommand::shell("rmmod nvme && rmmod vmd");
    lost.server
        .guest
        .check(&unload, PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    lost.await_state("nvme_timeout", "not-applicable");
    assert_eq!(total(), before);
    lost.load_modules();
    assert_eq!(total(), before);
    let disk = lost.disk(ALONE, 0);
    lost.drop_msi(ALONE, 0);
    lost.check_read(&disk, 1);
    assert_eq!(total(), [before[0] + 1, before[1] + 1]);
    assert_eq!(lost.total("vmdtrace_unassigned_timeouts_total"), 0);
}

/// What the kernel lists of ours.
fn kprobe_events(lost: &Lost) -> Vec<String> {
    let list = lost
        .server
        .guest
        .read_file("/sys/kernel/tracing/kprobe_events")
        .unwrap();
    let list = String::from_utf8(list).unwrap();
    let ours = list.lines().filter(|line| line.contains("vmdtrace/"));
    ours.map(str::to_owned).collect()
}

/// The daemon once more, in the same guest.
fn served_again(guest: Guest) -> Lost {
    let (server, ready) = Server::serve(guest);
    ready.unwrap_or_else(|error| panic!("{error}"));
    Lost { server }
}

/// Kills one of the daemon's two processes. (A signal to the command is one to both.)
fn kill(lost: &Lost, name: &str) {
    let script = format!(
        "for process in /proc/[0-9]*; do \
         [ \"$(cat $process/comm)\" = {name} ] && kill -9 ${{process#/proc/}}; done; true"
    );
    lost.server
        .guest
        .check(&GuestCommand::shell(script), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Whatever is killed, in the end nothing of ours is in the kernel's list.
fn nothing_stays_behind(lost: Lost) {
    assert!(!kprobe_events(&lost).is_empty());
    // The helper of a killed server removes what it made.
    kill(&lost, "vmdtrace");
    let Server { guest, daemon } = lost.server;
    interrupt::until("the events to be removed", PATIENCE, || {
        let list = guest.read_file("/sys/kernel/tracing/kprobe_events")?;
        Ok((!String::from_utf8_lossy(&list).contains("vmdtrace/")).then_some(()))
    })
    .unwrap();
    daemon.wait(PATIENCE).unwrap();

    // A killed helper cannot. The server ends, and the next daemon removes them.
    let lost = served_again(guest);
    let made = kprobe_events(&lost);
    assert!(!made.is_empty());
    kill(&lost, "vmdtrace-helper");
    let Server { guest, daemon } = lost.server;
    let ended = daemon.wait(PATIENCE).unwrap();
    assert!(!ended.success());
    let said = ended.stderr_text();
    assert!(said.contains("nothing is counted any more"), "{said}");
    let lost = served_again(guest);
    let again = kprobe_events(&lost);
    assert!(!again.is_empty());
    assert!(again.iter().all(|event| !made.contains(event)), "{again:?}");

    let Server { guest, daemon } = lost.server;
    assert!(daemon.stop(PATIENCE).unwrap().success());
    let list = guest
        .read_file("/sys/kernel/tracing/kprobe_events")
        .unwrap();
    assert!(!String::from_utf8_lossy(&list).contains("vmdtrace"));
    guest.power_off().unwrap();
}

fn lost(artifacts: &Artifacts) {
    let lost = Lost::boot(artifacts);
    dropped_on_a_queue_alone_is_lost(&lost);
    dropped_beside_a_neighbour_is_not_lost(&lost);
    a_stalled_disk_is_late_and_loses_nothing(&lost);
    reloaded_modules_are_counted_on(&lost);
    nothing_stays_behind(lost);
}

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |series: &'static str| {
        kernel_test(series, format!("lost::{series}"), |artifacts| {
            lost(artifacts);
            Ok(())
        })
    };
    KERNELS.map(trial).into()
}
