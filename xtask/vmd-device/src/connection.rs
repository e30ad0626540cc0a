//! The vfio-user socket. Messages go out whole, one at a time, by one writer at
//! a time. Whoever has to wait for room to send keeps reading meanwhile: a
//! client that cannot send may not be able to receive either (QEMU holds one
//! lock for both), and two sides that only wait for room would wait for ever.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::interrupts::Sink;
use crate::protocol::{HEADER_LEN, Header, MAX_FDS};

/// Messages and bytes kept while a send waits.
const MAX_BACKLOG_MESSAGES: usize = 65_536;
const MAX_BACKLOG_BYTES: usize = 64 << 20;

/// How long a client that sends no more may take to make room for what it is sent.
const LAST_PATIENCE: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// A message from the client.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Why the connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("the client sent a message of {size} bytes; 16 to {max} are allowed", max = crate::protocol::MAX_MESSAGE)]
    Size { size: u32 },
    #[error("the client sent more than {MAX_FDS} file descriptors with one message")]
    TooManyFds,
    #[error("the client closed the connection in the middle of a message")]
    Interrupted,
    #[error("the client sends requests but does not read what it is sent")]
    Backlog,
    #[error("the client sends no more requests and does not read what it is sent")]
    Unread,
    #[error("a message could not be sent whole, so that later ones would not be understood")]
    CutShort,
    #[error("the socket failed: {0}")]
    Socket(#[from] Errno),
}

/// One client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    writer: Mutex<()>,
    inbound: Mutex<Inbound>,
    /// A message to the client was lost or cut; nothing after it makes sense.
    cut_short: AtomicBool,
}

/// What was received but not yet handled.
#[derive(Debug, Default)]
struct Inbound {
    header: [u8; HEADER_LEN],
    /// Bytes of the header that have arrived.
    header_len: usize,
    body: Vec<u8>,
    /// Bytes of the body that have arrived.
    body_len: usize,
    fds: Vec<OwnedFd>,
    complete: VecDeque<Incoming>,
    complete_bytes: usize,
    /// The client sends no more; it may still read.
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Some,
    /// Nothing to read now.
    Blocked,
    Closed,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            writer: Mutex::new(()),
            inbound: Mutex::default(),
            cut_short: AtomicBool::new(false),
        }
    }

    /// Waits for the next message; `None` when the client has closed.
    pub(crate) fn receive(&self) -> Result<Option<Incoming>, ConnectionError> {
        let mut inbound = lock(&self.inbound);
        loop {
            if self.cut_short.load(Ordering::Acquire) {
                return Err(ConnectionError::CutShort);
            }
            if let Some(message) = inbound.complete.pop_front() {
                inbound.complete_bytes -= message.body.len();
                return Ok(Some(message));
            }
            match inbound.pump(&self.stream, RecvFlags::empty()) {
                // Our own shutdown, or the client's.
                Ok(Progress::Closed) | Err(ConnectionError::Interrupted)
                    if self.cut_short.load(Ordering::Acquire) => {}
                Ok(Progress::Closed) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a whole message. If that fails the connection is over: the client
    /// would take the next message for the rest of this one, or wait for ever
    /// for one that was lost.
    pub(crate) fn send_all(&self, message: &[u8]) -> Result<(), ConnectionError> {
        let _writer = lock(&self.writer);
        if self.cut_short.load(Ordering::Acquire) {
            return Err(ConnectionError::CutShort);
        }
        let sent = self.send_locked(message);
        match &sent {
            // A client that has gone is no error here: the next read says so.
            Ok(()) | Err(ConnectionError::Socket(Errno::PIPE | Errno::CONNRESET)) => {}
            Err(_) => {
                self.cut_short.store(true, Ordering::Release);
                // Fails only if it is down already.
                let _ = self.stream.shutdown(Shutdown::Both);
            }
        }
        sent
    }

    fn send_locked(&self, message: &[u8]) -> Result<(), ConnectionError> {
        let mut rest = message;
        while !rest.is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match retry_on_intr(|| send(&self.stream, rest, flags)) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait_for_room()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the socket takes more, or something was read, be it the end.
    fn wait_for_room(&self) -> Result<(), ConnectionError> {
        // If another thread is reading, it will stop when it has a message; look again then.
        const PATIENCE: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        match self.inbound.try_lock() {
            Ok(inbound) => self.read_while_waiting(inbound),
            Err(TryLockError::Poisoned(poisoned)) => self.read_while_waiting(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let mut wait = [PollFd::new(&self.stream, PollFlags::OUT)];
                retry_on_intr(|| poll(&mut wait, Some(&PATIENCE)))?;
                Ok(())
            }
        }
    }

    fn read_while_waiting(
        &self,
        mut inbound: MutexGuard<'_, Inbound>,
    ) -> Result<(), ConnectionError> {
        if inbound.ended {
            // The end can always be read: there is only room to wait for.
            let mut wait = [PollFd::new(&self.stream, PollFlags::OUT)];
            return match retry_on_intr(|| poll(&mut wait, Some(&LAST_PATIENCE)))? {
                0 => Err(ConnectionError::Unread),
                _ => Ok(()),
            };
        }
        let mut wait = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        retry_on_intr(|| poll(&mut wait, None))?;
        while inbound.pump(&self.stream, RecvFlags::DONTWAIT)? == Progress::Some {
            if inbound.complete.len() > MAX_BACKLOG_MESSAGES
                || inbound.complete_bytes > MAX_BACKLOG_BYTES
            {
                return Err(ConnectionError::Backlog);
            }
        }
        Ok(())
    }
}

impl Sink for Connection {
    fn send(&self, message: &[u8]) -> io::Result<()> {
        self.send_all(message).map_err(io::Error::other)
    }
}

impl Inbound {
    /// Reads once, never beyond the end of the message that is being read, so
    /// that file descriptors are known to belong to it.
    fn pump(&mut self, stream: &UnixStream, flags: RecvFlags) -> Result<Progress, ConnectionError> {
        let in_header = self.header_len < HEADER_LEN;
        let target = if in_header {
            self.header.get_mut(self.header_len..)
        } else {
            self.body.get_mut(self.body_len..)
        }
        .unwrap_or_default();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(target)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = match retry_on_intr(|| recvmsg(stream, &mut parts, &mut control, flags)) {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(Progress::Blocked),
            Err(Errno::CONNRESET) => {
                self.ended = true;
                return Ok(Progress::Closed);
            }
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
            return Err(ConnectionError::TooManyFds);
        }
        if received.bytes == 0 {
            self.ended = true;
            let between_messages = self.header_len == 0;
            return if between_messages {
                Ok(Progress::Closed)
            } else {
                Err(ConnectionError::Interrupted)
            };
        }
        if in_header {
            self.header_len += received.bytes;
            if self.header_len == HEADER_LEN {
                let header = Header::parse(&self.header);
                let length = header
                    .body_len()
                    .ok_or(ConnectionError::Size { size: header.size })?;
                self.body = vec![0; length];
                self.body_len = 0;
            }
        } else {
            self.body_len += received.bytes;
        }
        if self.header_len == HEADER_LEN && self.body_len == self.body.len() {
            self.header_len = 0;
            self.body_len = 0;
            self.complete_bytes += self.body.len();
            self.complete.push_back(Incoming {
                header: Header::parse(&self.header),
                body: std::mem::take(&mut self.body),
                fds: std::mem::take(&mut self.fds),
            });
        }
        Ok(Progress::Some)
    }
}

/// The data are consistent between any two statements, so a panic elsewhere
/// does not spoil them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    fn request(id: u16, body: &[u8]) -> Vec<u8> {
        let mut message = id.to_le_bytes().to_vec();
        message.extend_from_slice(&1_u16.to_le_bytes());
        message.extend_from_slice(&(16 + body.len() as u32).to_le_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(body);
        message
    }

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        let mut bytes = request(1, &[7; 40]);
        bytes.extend(request(2, &[]));
        let writer = std::thread::spawn(move || {
            for byte in bytes {
                client.write_all(&[byte]).unwrap();
            }
        });
        let first = connection.receive().unwrap().unwrap();
        assert_eq!((first.header.id, &first.body[..]), (1, &[7; 40][..]));
        assert_eq!(connection.receive().unwrap().unwrap().header.id, 2);
        writer.join().unwrap();
        assert!(connection.receive().unwrap().is_none());
    }

    #[test]
    fn descriptors_belong_to_the_message_they_came_with() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        client.write_all(&request(1, &[1])).unwrap();
        let null = File::open("/dev/null").unwrap();
        let fds = [null.as_fd(), null.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let message = request(2, &[2]);
        sendmsg(
            &client,
            &[io::IoSlice::new(&message)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        client.write_all(&request(3, &[3])).unwrap();
        let counts: Vec<usize> = (0..3)
            .map(|_| connection.receive().unwrap().unwrap().fds.len())
            .collect();
        assert_eq!(counts, [0, 2, 0]);
    }

    #[test]
    fn bad_sizes_and_cut_messages_end_the_connection() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        let mut message = request(1, &[]);
        message[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        client.write_all(&message).unwrap();
        assert!(matches!(
            connection.receive(),
            Err(ConnectionError::Size { size: u32::MAX })
        ));

        let (mut client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        client.write_all(&request(1, &[1, 2, 3])[..17]).unwrap();
        drop(client);
        assert!(matches!(
            connection.receive(),
            Err(ConnectionError::Interrupted)
        ));
    }

    /// A client that floods the server and reads nothing: what the server could
    /// not send whole must not be followed by anything.
    #[test]
    fn a_message_cut_short_is_the_last_one() {
        let (client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        let mut writer = client.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            let bytes = request(1, &[0; 60_000]);
            while writer.write_all(&bytes).is_ok() {}
        });
        let message = [9; 1 << 20];
        let error = loop {
            match connection.send_all(&message) {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ConnectionError::Backlog), "{error}");
        flood.join().unwrap();
        assert!(matches!(
            connection.send_all(&[1]),
            Err(ConnectionError::CutShort)
        ));
        assert!(matches!(
            connection.receive(),
            Err(ConnectionError::CutShort)
        ));
        let mut received = Vec::new();
        let mut reader = client;
        reader.read_to_end(&mut received).unwrap();
        assert!(received.len() % message.len() != 0, "nothing was cut");
        assert!(received.iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_client_that_has_gone_is_no_error() {
        let (client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        drop(client);
        assert!(matches!(
            connection.send_all(&[0; 16]),
            Err(ConnectionError::Socket(Errno::PIPE))
        ));
        assert!(connection.receive().unwrap().is_none());
    }

    /// A connection whose client has closed its side for sending, with no room left.
    fn half_closed_and_full() -> (UnixStream, Connection) {
        let (client, server) = UnixStream::pair().unwrap();
        let connection = Connection::new(server);
        client.shutdown(Shutdown::Write).unwrap();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while send(&connection.stream, &[9; 4096], flags).is_ok() {}
        // Reads the end.
        connection.wait_for_room().unwrap();
        (client, connection)
    }

    /// It must wait, and not look again and again whether there is room.
    #[test]
    fn a_half_closed_client_is_waited_for_until_it_reads() {
        let (mut client, connection) = half_closed_and_full();
        let has_read = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                connection.wait_for_room().unwrap();
                has_read.load(Ordering::Acquire)
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            has_read.store(true, Ordering::Release);
            let flags = RecvFlags::DONTWAIT;
            let mut bytes = [0; 65_536];
            while rustix::net::recv(&client, &mut bytes[..], flags).is_ok() {}
            assert!(waiting.join().unwrap(), "it did not wait");
        });
        connection.send_all(&[7]).unwrap();
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
    }

    #[test]
    fn a_half_closed_client_that_reads_nothing_is_given_up() {
        let (_client, connection) = half_closed_and_full();
        assert!(matches!(
            connection.send_all(&[1; 4096]),
            Err(ConnectionError::Unread)
        ));
    }

    /// Both sides send more than the socket holds before either reads: this
    /// would hang if the server stopped reading while it waits for room.
    #[test]
    fn a_send_that_waits_for_room_keeps_reading() {
        const MESSAGES: u16 = 20_000;
        let (client, server) = UnixStream::pair().unwrap();
        let connection = Arc::new(Connection::new(server));
        let mut reader = client.try_clone().unwrap();
        let mut writer = client;
        let peer = std::thread::spawn(move || {
            for id in 0..MESSAGES {
                writer.write_all(&request(id, &[0; 16])).unwrap();
            }
            let mut bytes = vec![0; usize::from(MESSAGES) * 36];
            reader.read_exact(&mut bytes).unwrap();
            bytes
        });
        let message = [9; 36];
        for _ in 0..MESSAGES {
            connection.send_all(&message).unwrap();
        }
        for id in 0..MESSAGES {
            assert_eq!(connection.receive().unwrap().unwrap().header.id, id);
        }
        assert!(peer.join().unwrap().iter().all(|byte| *byte == 9));
    }
}
