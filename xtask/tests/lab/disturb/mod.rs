//! What happens to a server while its disks are read: devices, drivers, CPUs and
//! the daemon itself come and go. Counts never go back, and at rest they explain
//! each other and the devices' to the last unit, each by the term that has a name
//! for the difference.
//!
//! One boot for each kernel serves all of it.

mod daemon;
mod devices;
mod equations;
mod host;
mod terms;
mod threads;
mod watch;

use std::collections::BTreeSet;

use libtest_mimic::Trial;
use vmd_device::control::Client;
use vmd_device::{Config, DeviceId, Service};
use xtask_lab::{
    Artifacts, Background, Bound, CpuList, Guest, GuestCommand, GuestConfig, GuestDisk, LabError,
    Load, Signal, interrupt,
};

use crate::exact::Table;
use crate::kernel_test;
use crate::server::{PATIENCE, Readings, Server};
use equations::{Rise, hold, lines_equal_the_kernel};

const KERNELS: [&str; 3] = ["5.10", "6.12", "7.3"];
const CPUS: u32 = 3;
const DISKS: u8 = 2;
/// Of the disks behind the controller that remaps, and of those that bypass it.
const REMAPPED: &str = "R";
const BYPASSED: &str = "B";

/// About what a flash disk takes: there are always commands in service.
fn usual() -> Service {
    Service {
        latency: "uniform:60us:120us".parse().unwrap(),
        ..Service::default()
    }
}

fn config() -> GuestConfig {
    let vmd = |id, tag: &str| Config {
        id,
        disks: DISKS,
        // One for ports: all queues of all disks share the other.
        vectors: 2,
        tag: tag.to_owned(),
        service: usual(),
        ..Config::default()
    };
    GuestConfig {
        cpus: CPUS,
        controllers: vec![
            vmd(DeviceId::Remap201d, REMAPPED),
            vmd(DeviceId::Bypass28c0, BYPASSED),
        ],
        modules: vec!["vmd".to_owned(), "nvme_core".to_owned()],
        ..GuestConfig::default()
    }
}

/// A guest, and its daemon, which sees the disks come.
struct Disturbed {
    server: Server,
    series: &'static str,
    /// eBPF objects that were there before the daemon was first started.
    objects: BTreeSet<String>,
}

impl Disturbed {
    fn boot(artifacts: &Artifacts, series: &'static str) -> Self {
        let guest = Guest::boot(artifacts, &config()).unwrap_or_else(|error| panic!("{error}"));
        let objects = guest
            .bpf_objects()
            .unwrap_or_else(|error| panic!("{error}"));
        let (server, ready) = Server::serve(guest);
        ready.unwrap_or_else(|error| panic!("{error}"));
        let disturbed = Self {
            server,
            series,
            objects,
        };
        disturbed.load_nvme("poll_queues=1");
        disturbed
    }

    fn guest(&self) -> &Guest {
        &self.server.guest
    }

    fn load_nvme(&self, parameters: &str) {
        self.guest()
            .load_module("nvme", parameters)
            .unwrap_or_else(|error| panic!("{error}"));
        self.server.disks();
    }

    fn shell(&self, script: &str) -> String {
        self.guest()
            .check(&GuestCommand::shell(script), PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"))
            .stdout_text()
    }

    fn spawn(&self, command: &GuestCommand) -> Background {
        self.guest()
            .spawn(command)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Disks of a controller, by the tag of their serial numbers.
    fn disks_of(&self, tag: &str) -> Vec<GuestDisk> {
        let disks = self.server.disks().into_iter();
        disks
            .filter(|disk| disk.serial.starts_with(&format!("VMDLAB{tag}")))
            .collect()
    }

    fn client(&self, tag: &str) -> Client {
        self.guest().controllers()[usize::from(tag == BYPASSED)]
            .client()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// The PCI address of a controller: its disks' path leads through it.
    fn controller(&self, tag: &str) -> String {
        let disk = self.disks_of(tag).swap_remove(0).name;
        let script = format!(
            "for vmd in /sys/bus/pci/drivers/vmd/0*; do
                case $(readlink -f /sys/class/nvme/{disk}) in
                    */${{vmd##*/}}/*) echo ${{vmd##*/}};;
                esac
            done"
        );
        self.shell(&script).trim().to_owned()
    }

    fn io_cqes(&self) -> u64 {
        let controllers = self.guest().controllers().iter();
        controllers
            .map(|it| {
                it.counters()
                    .unwrap_or_else(|error| panic!("{error}"))
                    .io_cqes()
            })
            .sum()
    }

    /// Waits until the devices have done more.
    fn await_io(&self, more: u64) {
        let before = self.io_cqes();
        interrupt::until("the disks to be read", PATIENCE, || {
            Ok((self.io_cqes() >= before + more).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Reads all disks until it is stopped.
    fn load(&self) -> Background {
        let fio = self.read(&self.server.disks(), 8);
        self.await_io(100);
        fio
    }

    /// Reads these with so many reads in flight until it is stopped.
    fn read(&self, disks: &[GuestDisk], depth: u32) -> Background {
        let load = Load {
            disks: namespaces(disks),
            cpus: CpuList::first(CPUS),
            depth,
            bound: Bound::Time(std::time::Duration::from_secs(3600)),
        };
        self.spawn(&load.command())
    }

    /// Does that while all disks are read and /metrics is looked at; then everything
    /// explains everything else. What happened is returned.
    fn disturb(&self, what: &str, work: impl FnOnce(&Self)) -> Rise {
        let (before, after) = self.watched(what, work);
        Rise::new(&before.daemon, &after.daemon)
    }

    /// As above where all lines stay what they are: the kernel counts each as we do.
    fn disturb_and_compare_lines(&self, what: &str, work: impl FnOnce(&Self)) -> Rise {
        let (before, after) = self.watched(what, work);
        lines_equal_the_kernel(what, &before, &after);
        Rise::new(&before.daemon, &after.daemon)
    }

    /// Does that while all disks are read and the counters are scraped.
    fn watched(&self, what: &str, work: impl FnOnce(&Self)) -> (Readings, Readings) {
        self.readings_around(what, |disturbed| {
            watch::during(disturbed.guest(), || work(disturbed));
        })
    }

    /// Does that while all disks are read, and returns what all sources said before and
    /// after.
    fn readings_around(&self, what: &str, work: impl FnOnce(&Self)) -> (Readings, Readings) {
        let before = self.server.at_rest();
        let fio = self.load();
        work(self);
        stop(fio);
        self.server.disks();
        let after = self.server.at_rest();
        watch::never_back(&before.daemon, &after.daemon).unwrap_or_else(|error| panic!("{error}"));
        hold(what, &before, &after);
        (before, after)
    }

    /// Nothing is disturbed: a bounded load is counted exactly, on every line.
    fn is_exact(&self, what: &str) -> (Readings, Readings) {
        const READS: u64 = 200;
        let before = self.server.at_rest();
        let reads = self.server.read_all_disks_from(CPUS, READS);
        let after = self.server.at_rest();
        assert_eq!(reads, READS * 2 * u64::from(DISKS));
        hold(what, &before, &after);
        lines_equal_the_kernel(what, &before, &after);
        (before, after)
    }
}

fn namespaces(disks: &[GuestDisk]) -> Vec<String> {
    disks.iter().map(|it| it.namespaces[0].clone()).collect()
}

/// Ends fio; one that lost all its disks has ended.
fn stop(fio: Background) {
    let ended = fio
        .signal(Signal::SIGTERM)
        .and_then(|()| fio.wait(PATIENCE));
    ended
        .map(drop)
        .unwrap_or_else(|error: LabError| panic!("{error}"));
}

fn disturbances(artifacts: &Artifacts, series: &'static str, table: &Table) {
    let disturbed = Disturbed::boot(artifacts, series);
    disturbed.is_exact("before all");
    let repeated = host::affinities_move(&disturbed);
    host::cpus_go_and_come(&disturbed);
    let missed = terms::completions_that_interrupt_completions_are_missed(&disturbed);
    let resent = terms::children_disabled_while_walked_are_resent(&disturbed);
    devices::controllers_are_reset(&disturbed);
    devices::disks_are_unbound(&disturbed);
    devices::disks_are_removed(&disturbed);
    devices::disks_are_pulled_out(&disturbed);
    devices::controllers_are_unbound(&disturbed);
    devices::the_module_is_reloaded(&disturbed);
    disturbed.is_exact("after all devices");
    daemon::it_is_stopped_and_goes_on(&disturbed);
    threads::completions_in_threads_are_their_disks(&disturbed);
    daemon::it_is_killed_and_started_again(disturbed);
    let result =
        format!("exact, with {repeated} repeated, {resent} sent again and {missed} skipped runs");
    table.tell(artifacts, "disturbed", result);
}

pub(crate) fn trials(table: &Table) -> Vec<Trial> {
    let trial = |series: &'static str| {
        let table = table.clone();
        kernel_test(series, format!("disturb::{series}"), move |artifacts| {
            disturbances(artifacts, series, &table);
            Ok(())
        })
    };
    KERNELS.map(trial).into()
}
