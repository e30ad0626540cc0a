//! The client's side of a connection: what it sends, what it has to get back.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::protocol::{HEADER_LEN, Header, MAX_MESSAGE, command};

/// Sends all of `bytes`, the descriptors with the first of them; false if the
/// socket takes no more.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return false;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags));
    // A stream socket takes all of a short message or nothing of it.
    sent == Ok(bytes.len())
}

/// What a stream of bytes means to a server that reads it as messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Id and command of each request that is to be answered, in order.
    pub(super) answers: Vec<(u16, u16)>,
    /// The stream ends where a message ends, and every size is acceptable.
    pub(super) well_formed: bool,
    /// A request that lets the device write to the client's files: a writable
    /// mapping, or a listener for interrupts.
    pub(super) may_write: bool,
}

impl Expected {
    pub(super) fn of(stream: &[u8]) -> Self {
        let mut expected = Self::default();
        let mut rest = stream;
        loop {
            if rest.is_empty() {
                expected.well_formed = true;
                return expected;
            }
            let Some((header, tail)) = rest.split_first_chunk::<HEADER_LEN>() else {
                return expected;
            };
            let size = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
            if !(HEADER_LEN..=MAX_MESSAGE).contains(&size) {
                return expected;
            }
            let Some((body, tail)) = tail.split_at_checked(size - HEADER_LEN) else {
                return expected;
            };
            let code = u16::from_le_bytes([header[2], header[3]]);
            let is_reply = header[8] & 0xf == 1;
            if !is_reply {
                let writable = code == command::DMA_MAP && body.get(4).is_none_or(|f| f & 2 != 0);
                expected.may_write |= writable || code == command::DEVICE_SET_IRQS;
                if header[8] & 0x10 == 0 {
                    let id = u16::from_le_bytes([header[0], header[1]]);
                    expected.answers.push((id, code));
                }
            }
            rest = tail;
        }
    }
}

/// What the device sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) answers: Vec<(u16, u16)>,
    /// Writes to the interrupt controller.
    pub(super) msis: u64,
    /// The device went away without having read everything.
    pub(super) reset: bool,
}

/// Reads to the end. Fails where the device breaks the protocol.
pub(super) fn drain(mut stream: &UnixStream) -> io::Result<Received> {
    let mut received = Received::default();
    let mut body = Vec::new();
    loop {
        let mut header = [0; HEADER_LEN];
        match stream.read(&mut header[..1]) {
            Ok(0) => return Ok(received),
            // All that was sent has been read by now (unix_stream_read_generic in
            // net/unix/af_unix.c).
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                received.reset = true;
                return Ok(received);
            }
            result => result?,
        };
        stream.read_exact(&mut header[1..])?;
        let parsed = Header::parse(&header);
        let length = parsed.body_len();
        assert!(length.is_some(), "the device sends {} bytes", parsed.size);
        body.resize(length.unwrap_or_default(), 0);
        stream.read_exact(&mut body)?;
        if parsed.is_reply() {
            received.answers.push((parsed.id, parsed.command));
            assert!(parsed.error().is_none() || body.is_empty());
        } else {
            assert_eq!(parsed.command, command::DMA_WRITE);
            assert!(!parsed.wants_reply());
            // Address, length, and the data of an MSI.
            assert_eq!(body.len(), 20);
            assert_eq!((body[8], body[2] & 0xf0, body[3]), (4, 0xe0, 0xfe));
            received.msis += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(code: u16, size: u32, flags: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![5, 0];
        bytes.extend_from_slice(&code.to_le_bytes());
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn a_stream_is_read_as_the_server_reads_it() {
        let asks = message(4, 18, 0, &[1, 2]);
        let silent = message(10, 16, 0x10, &[]);
        let reply = message(12, 16, 1, &[]);
        let expected = Expected::of(&[asks.clone(), silent, reply].concat());
        assert_eq!(
            expected,
            Expected {
                answers: vec![(5, 4)],
                well_formed: true,
                may_write: false
            }
        );
        assert!(!Expected::of(&asks[..17]).well_formed);
        assert!(!Expected::of(&message(4, 15, 0, &[])).well_formed);
        assert!(Expected::of(&message(8, 16, 0, &[])).may_write);
        assert!(Expected::of(&message(2, 24, 0, &[0, 0, 0, 0, 2, 0, 0, 0])).may_write);
        assert!(!Expected::of(&message(2, 24, 0, &[0, 0, 0, 0, 1, 0, 0, 0])).may_write);
    }
}
