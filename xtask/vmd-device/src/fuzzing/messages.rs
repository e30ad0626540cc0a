//! A client that sends anything, descriptors included, over a real socket.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::set_socket_send_buffer_size;
use signal_hook::consts::SIGPIPE;

use super::client::{Expected, drain, send};
use super::program::{Descriptor, Split, Step, Steps};
use super::{check_counters, memory_file, serve};
use crate::config::{Config, DeviceId};
use crate::protocol::{HEADER_LEN, MAX_FDS};

const PAGE: usize = 4096;
const RAM_PAGES: usize = 16;

/// The first byte of an input describes the device and the client, the rest is
/// what the client does (see `program`).
#[derive(Debug)]
struct Shape {
    config: Config,
    /// The client goes away without reading.
    leaves: bool,
}

impl Shape {
    fn of(byte: u8) -> Self {
        Self {
            config: Config {
                id: if byte & 1 == 0 {
                    DeviceId::Bypass28c0
                } else {
                    DeviceId::Remap201d
                },
                disks: 1 + (byte >> 1 & 1),
                vectors: 4,
                disk_bytes: 64 << 10,
                queue_vectors: 4,
                ..Config::default()
            },
            leaves: byte & 0x80 != 0,
        }
    }
}

/// Serves one client, and checks that every request it sent was answered, in
/// order and by whole messages, that the counts are right, and that its memory
/// changed only if it allowed that.
///
/// # Panics
///
/// If the device breaks a promise.
pub fn run(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let shape = Shape::of(*first);
    ignore_broken_pipes();
    let (Ok((client, server)), Some(ram)) = (UnixStream::pair(), memory_file()) else {
        return;
    };
    // A hint: what does not fit is not sent.
    let _ = set_socket_send_buffer_size(&client, 1 << 20);
    let image = image(rest);
    if ram.write_all_at(&image, 0).is_err() {
        return;
    }
    let sent = send_steps(&client, rest, &ram);
    if client.shutdown(Shutdown::Write).is_err() {
        return;
    }
    if shape.leaves {
        drop(client);
        if let Some((_, counters)) = serve(server, &shape.config) {
            check_counters(&counters);
        }
        return;
    }
    let (served, received) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| drain(&client));
        let served = serve(server, &shape.config);
        let received = reader.join();
        (
            served,
            received.unwrap_or_else(|panic| resume_unwind(panic)),
        )
    });
    let Some((served, counters)) = served else {
        return;
    };
    check_counters(&counters);
    let expected = Expected::of(&sent.bytes);
    if sent.fds <= MAX_FDS {
        assert_eq!(served.is_ok(), expected.well_formed, "{served:?}");
    }
    assert!(received.is_ok(), "a message is not whole: {received:?}");
    let received = received.unwrap_or_default();
    if sent.fds <= MAX_FDS {
        assert_eq!(received.answers, expected.answers);
        assert!(!received.reset || !expected.well_formed);
    }
    assert_eq!(received.msis, counters.bypass_msis);
    if !expected.may_write {
        let mut now = vec![0; image.len()];
        assert!(ram.read_exact_at(&mut now, 0).is_ok());
        assert!(
            now == image,
            "memory that was not mapped for writing changed"
        );
    }
}

/// As every Rust program does when it starts; a fuzzer's start is C++.
fn ignore_broken_pipes() {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        // If this fails the signal ends the fuzzer, which nobody overlooks.
        let _ = signal_hook::flag::register(SIGPIPE, Arc::clone(&flag));
        flag
    });
}

/// The guest's memory before the first message.
fn image(input: &[u8]) -> Vec<u8> {
    let mut image = vec![0; RAM_PAGES * PAGE];
    for step in Steps(input) {
        if let Step::Patch {
            page,
            offset,
            bytes,
        } = step
        {
            let start = usize::from(page) % RAM_PAGES * PAGE + usize::from(offset) % PAGE;
            for (target, source) in image.iter_mut().skip(start).zip(bytes) {
                *target = *source;
            }
        }
    }
    image
}

/// What went into the socket.
#[derive(Debug, Default)]
struct Sent {
    bytes: Vec<u8>,
    fds: usize,
    /// Other ends of sockets that were sent, so that they stay open.
    other_ends: Vec<UnixStream>,
}

/// Sends every message, until the socket takes no more.
fn send_steps(client: &UnixStream, input: &[u8], ram: &File) -> Sent {
    let mut sent = Sent::default();
    for (id, step) in (0..).zip(Steps(input)) {
        let Step::Message {
            command,
            flags,
            announced,
            body,
            fds,
            descriptor,
            split,
        } = step
        else {
            continue;
        };
        let size = announced.unwrap_or((HEADER_LEN + body.len()) as u32);
        let message = message(id, command, flags, size, body);
        let made = (0..fds).map_while(|_| make(descriptor, ram, &mut sent.other_ends));
        let made: Vec<OwnedFd> = made.collect();
        let (head, tail) = message.split_at(match split {
            Split::Whole => 0,
            Split::AfterFirstByte => 1,
            Split::InHeader => HEADER_LEN / 2,
            Split::AfterHeader => HEADER_LEN,
        });
        for (part, fds) in [(head, &[][..]), (tail, &made)] {
            if part.is_empty() {
                continue;
            }
            if !send(client, part, fds) {
                return sent;
            }
            sent.bytes.extend_from_slice(part);
            sent.fds += fds.len();
        }
    }
    sent
}

fn message(id: u16, command: u8, flags: u8, size: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_LEN + body.len());
    message.extend_from_slice(&id.to_le_bytes());
    message.extend_from_slice(&u16::from(command).to_le_bytes());
    message.extend_from_slice(&size.to_le_bytes());
    message.extend_from_slice(&u32::from(flags).to_le_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(body);
    message
}

fn make(descriptor: Descriptor, ram: &File, other_ends: &mut Vec<UnixStream>) -> Option<OwnedFd> {
    match descriptor {
        Descriptor::Ram => Some(ram.try_clone().ok()?.into()),
        Descriptor::ReadOnlyRam => {
            let path = format!("/proc/self/fd/{}", ram.as_raw_fd());
            Some(File::open(path).ok()?.into())
        }
        Descriptor::Event => eventfd(0, EventfdFlags::CLOEXEC).ok(),
        Descriptor::Socket => {
            let (ours, theirs) = UnixStream::pair().ok()?;
            // Every other one is closed instead.
            let closed = other_ends.len() % 2 == 1;
            other_ends.push(if closed {
                theirs.try_clone().ok()?
            } else {
                ours
            });
            Some(theirs.into())
        }
    }
}
