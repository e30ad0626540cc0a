//! Whole messages over a pair of sockets, with descriptors. A message is a packet:
//! it arrives whole or not at all, and nothing after it is read in its place.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
        recvmsg, sendmsg, shutdown, socketpair,
        sockopt::{Timeout, set_socket_timeout, socket_type},
    },
};

use super::protocol::MAX_DESCRIPTORS;

/// One end.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// What came.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl Channel {
    /// Two ends. Neither is inherited by a program that is started, unless as its
    /// standard input or output.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(one), Self(other)))
    }

    /// An end that was inherited.
    ///
    /// # Errors
    /// If it is no end of a channel.
    pub fn inherited(descriptor: impl AsFd) -> io::Result<Self> {
        let of_packets = socket_type(&descriptor).is_ok_and(|kind| kind == SocketType::SEQPACKET);
        if !of_packets {
            return Err(io::Error::other("is no channel to a server"));
        }
        Ok(Self(descriptor.as_fd().try_clone_to_owned()?))
    }

    /// Lets [`Channel::receive`] fail when nothing comes for this long.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(patience))?)
    }

    /// Sends one message; waits for room.
    ///
    /// # Errors
    /// If the other end is gone, or the message is too long for the socket.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        let data = [IoSlice::new(bytes)];
        retry_on_intr(|| sendmsg(&self.0, &data, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for one message of at most `limit` bytes; None if the other end is gone.
    ///
    /// # Errors
    /// If it was longer, if its descriptors were too many, or what the kernel says.
    pub fn receive(&self, limit: usize) -> io::Result<Option<Packet>> {
        self.receive_with(limit, RecvFlags::empty())
    }

    /// The same without waiting: [`ErrorKind::WouldBlock`] if there is none.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub fn receive_now(&self, limit: usize) -> io::Result<Option<Packet>> {
        self.receive_with(limit, RecvFlags::DONTWAIT)
    }

    fn receive_with(&self, limit: usize, flags: RecvFlags) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; limit];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                flags | RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message is longer than {limit} bytes or has too many descriptors"),
            ));
        }
        // Nobody sends empty messages.
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, descriptors }))
    }

    /// Lets the other end, and who waits here, see that it is over.
    pub fn shut_down(&self) {
        // It fails where it is over already.
        let _over = shutdown(&self.0, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (one, other) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"inside").unwrap();
        one.send(b"first", &[file.as_fd()]).unwrap();
        one.send(&[7; 100_000], &[]).unwrap();
        let Packet { bytes, descriptors } = other.receive(16).unwrap().unwrap();
        assert_eq!(bytes, b"first");
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        let mut same = std::fs::File::from(descriptor);
        same.rewind().unwrap();
        let mut text = String::new();
        same.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        assert_eq!(
            other.receive(100_000).unwrap().unwrap().bytes.len(),
            100_000
        );
        drop(one);
        assert!(other.receive(16).unwrap().is_none());
    }

    #[test]
    fn a_longer_message_is_an_error_and_no_part_of_it_is_read() {
        let (one, other) = Channel::pair().unwrap();
        one.send(b"12345", &[]).unwrap();
        one.send(b"next", &[]).unwrap();
        let error = other.receive(4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(other.receive(4).unwrap().unwrap().bytes, b"next");
    }

    #[test]
    fn a_shut_down_channel_wakes_both_ends() {
        let (one, other) = Channel::pair().unwrap();
        assert_eq!(
            one.receive_now(4).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        one.shut_down();
        assert!(one.receive(4).unwrap().is_none());
        assert!(other.receive(4).unwrap().is_none());
        assert!(other.send(b"x", &[]).is_err());
    }

    #[test]
    fn what_is_no_channel_is_told() {
        assert!(Channel::inherited(tempfile::tempfile().unwrap()).is_err());
        let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Channel::inherited(stream).is_err());
    }
}
