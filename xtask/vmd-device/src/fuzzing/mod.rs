//! What the fuzz targets in fuzz/ run, and the unit test that replays their
//! kept inputs. An input never fails because it is malformed, only by a panic:
//! the device's own, or that of a check of what the device promises.
//!
//! [`Bench`] and [`serve`] are all that the targets know of the device.

mod client;
mod guest;
mod messages;
mod program;
mod queues;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Connection;
use crate::counters::{Counters, QueueCounters};
use crate::device::Device;
use crate::interrupts::Sink;
use crate::nvme::MAX_EVENT_REQUESTS;
use crate::scheduler::Scheduler;
use crate::server;
use crate::service::Nanos;

pub use messages::run as messages;
pub use queues::run as queues;

/// Counts what the device sends by itself.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Sink for Count {
    fn send(&self, _message: &[u8]) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A device without a socket, whose time is what it is told.
#[derive(Debug)]
struct Bench {
    device: Device,
    sent: Arc<Count>,
    clock: Arc<AtomicU64>,
}

impl Bench {
    /// `None` if there is no memory for it.
    fn new(config: &Config) -> Option<Self> {
        let sent = Arc::new(Count::default());
        let clock = Arc::new(AtomicU64::new(0));
        let set = Clock::Set(Arc::clone(&clock));
        let device = Device::new(config, sent.clone(), set, false).ok()?;
        Some(Self {
            device,
            sent,
            clock,
        })
    }

    /// Lets time pass, and what is due by then happen.
    fn pass(&mut self, time: Nanos) {
        self.clock.fetch_add(time, Ordering::Relaxed);
        self.device.advance();
    }

    /// The body of the reply, or `None` if the request was refused.
    fn request(&mut self, command: u16, body: &[u8], fds: Vec<OwnedFd>) -> Option<Vec<u8>> {
        self.device.handle(command, body, fds).ok()
    }

    fn raise_event(&mut self, disk: usize) {
        self.device.raise_event(disk);
    }

    fn counters(&self) -> Counters {
        self.device.counters()
    }

    /// Messages sent to the client: the MSIs that bypass the VMD.
    fn sent(&self) -> u64 {
        self.sent.0.load(Ordering::Relaxed)
    }
}

/// Serves the client at the other end of `stream` until it closes. The first
/// result tells whether it kept to the protocol; `None` if there is no memory
/// for the device.
fn serve(stream: UnixStream, config: &Config) -> Option<(anyhow::Result<()>, Counters)> {
    let connection = Arc::new(Connection::new(stream));
    let device = Device::new(config, connection.clone(), Clock::start(), false).ok()?;
    let device = Scheduler::new(device);
    let served = server::serve(&connection, &device);
    let counters = device.with(|device| device.counters());
    Some((served, counters))
}

/// Memory of a guest: a file without a name.
fn memory_file() -> Option<File> {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).ok()?;
    Some(File::from(file))
}

/// What holds at any moment, whatever was asked of the device.
fn check_counters(counters: &Counters) {
    for queue in counters.disks.iter().flat_map(|disk| &disk.queues) {
        assert!(
            queue.cqes <= queue.taken(),
            "more completions than commands"
        );
        assert!(queue.cqes_skipped <= queue.cqes);
    }
    for disk in &counters.disks {
        let sum = |queues: &[QueueCounters]| {
            queues.iter().fold((0, 0), |(taken, ended), it| {
                (taken + it.taken(), ended + it.cqes + it.discarded)
            })
        };
        let (admin, io) = disk.queues.split_at(disk.queues.len().min(1));
        let (taken, ended) = sum(io);
        assert_eq!(
            taken,
            ended + disk.in_service,
            "each command is completed, or discarded, or in service"
        );
        // Those that wait for an event are neither.
        let (taken, ended) = sum(admin);
        assert!(
            (ended..=ended + MAX_EVENT_REQUESTS as u64).contains(&taken),
            "{taken} admin commands, {ended} ended"
        );
    }
    assert!(
        counters.msis() <= counters.cqes(),
        "an MSI without a completion"
    );
    let remapped: u64 = counters.vmd_vector_msis.iter().sum();
    assert_eq!(
        counters.msis(),
        remapped + counters.bypass_msis + counters.undelivered_msis,
        "an MSI is remapped, or bypasses, or is not delivered"
    );
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs every kept input of a target.
    fn replay(target: &str, run: impl Fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let mut inputs = 0;
        for item in std::fs::read_dir(&folder).unwrap() {
            let path = item.unwrap().path();
            eprintln!("replaying {}", path.display());
            run(&std::fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{} is empty", folder.display());
    }

    #[test]
    fn kept_messages_do_no_harm() {
        replay("messages", super::messages);
    }

    #[test]
    fn kept_queues_do_no_harm() {
        replay("queues", super::queues);
    }
}
