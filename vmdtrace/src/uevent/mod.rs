//! Listens to the kernel's uevents and tells the source of Snapshots when
//! devices or modules come and go. Waits without waking up: no polling.

mod message;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};

pub use message::{Changes, changes};

use crate::snapshot::source::SnapshotSource;

/// The multicast group the kernel itself sends to; udev has its own.
const KERNEL_GROUP: u32 = 1;

/// The kernel's messages end at 2 KiB of environment plus a device path
/// (`UEVENT_BUFFER_SIZE`); one that fills this was cut off.
const BUFFER_BYTES: usize = 16 * 1024;

/// A socket that receives the kernel's uevents from its opening on.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Opens the socket. Needs no privilege.
    pub fn open() -> io::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::NetlinkKObjectUEvent,
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Self { socket })
    }

    /// Waits for a change that matters, then takes in all messages that are
    /// there: a burst is one change. Blocks.
    pub fn changed(&self) -> io::Result<Changes> {
        loop {
            let mut waiting = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waiting, PollTimeout::NONE) {
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let changes = self.pending()?;
            if changes.any() {
                return Ok(changes);
            }
        }
    }

    /// Takes in all messages that are there now.
    pub fn pending(&self) -> io::Result<Changes> {
        drain(&self.socket)
    }

    /// Passes changes on to `source` until the socket fails. While the source
    /// works on one, further messages gather in the socket and become the
    /// next. Blocks: it wants a thread of its own.
    pub fn run(&self, source: &dyn SnapshotSource) -> io::Error {
        loop {
            match self.changed() {
                Ok(changes) => apply(changes, source),
                Err(error) => return error,
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn apply(changes: Changes, source: &dyn SnapshotSource) {
    let Changes {
        topology,
        modules,
        cpus,
    } = changes;
    tracing::debug!(topology, modules, cpus, "uevent");
    // A new module's probe first: its devices work at once.
    if modules {
        source.attach_pending();
    }
    if topology {
        source.topology_changed();
    }
    if cpus {
        source.cpus_changed();
    }
}

/// Reads until the socket is empty.
fn drain(socket: &OwnedFd) -> io::Result<Changes> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut found = Changes::default();
    loop {
        match recvfrom::<NetlinkAddr>(socket.as_raw_fd(), &mut buffer) {
            Ok((length, sender)) => {
                // Port 0 is the kernel; a privileged process could send, too.
                if sender.is_some_and(|sender| sender.pid() != 0) {
                    continue;
                }
                found |= match buffer.get(..length) {
                    Some(message) if length < BUFFER_BYTES => changes(message),
                    _ => Changes::ALL,
                };
            }
            // The socket's buffer overflowed: messages are lost.
            Err(Errno::ENOBUFS) => {
                tracing::debug!("uevents were lost; everything is read again");
                found = Changes::ALL;
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(found),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_without_privilege() {
        let listener = Listener::open().unwrap();
        // Nothing we want is there yet, or a real event of this machine.
        drain(&listener.socket).unwrap();
    }
}
