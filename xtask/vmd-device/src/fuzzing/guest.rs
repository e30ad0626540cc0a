//! A guest with a little memory and one disk, and what must hold for both.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use rustix::event::{EventfdFlags, eventfd};

use super::{Bench, check_counters, memory_file};
use crate::bytes::put;
use crate::config::Config;
use crate::counters::Counters;
use crate::protocol::command;
use crate::service::Service;

const PAGE: u64 = 4096;

/// The memory's file, by page: one that is not mapped, the RAM in two halves, one
/// that is not mapped, one that is mapped for reading only, one that is not mapped.
const HALF_PAGES: u64 = 8;
const RAM_PAGES: u64 = 2 * HALF_PAGES;
const FILE_PAGES: u64 = RAM_PAGES + 4;
const GUARDS: [u64; 4] = [0, RAM_PAGES + 1, RAM_PAGES + 2, RAM_PAGES + 3];
const GUARD_BYTE: u8 = 0xa5;
/// Guest addresses. The read-only page follows the RAM.
const RAM: u64 = 0x10_0000;
const ROM: u64 = RAM + RAM_PAGES * PAGE;
/// The admin queue and the I/O queues.
pub(super) const QUEUES: usize = 3;

const MEMBAR1: u64 = 0xe000_0000;
const DISK_BAR: u64 = 0x10_0000;
const DISK_CONFIG: u64 = 1 << 20;
const VMD_VECTORS: u16 = 4;
const DISK_VECTORS: u64 = 4;
const ADMIN_ENTRIES: u16 = 8;
/// Of 512 bytes each.
const BLOCKS: u32 = 128;

const CFGBAR: u32 = 0;
const MEMORY: u32 = 2;
const CONFIG: u32 = 7;

/// The submission and the completion queue of a pair.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Ring {
    Submission,
    Completion,
}

/// A guest address that is worth trying.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) enum Address {
    /// A page.
    Page(u8),
    /// Slots of eight bytes from the end of a page of the RAM.
    Slot(u8, u8),
    At(u8, u16),
    Any(u64),
}

impl Address {
    pub(super) fn get(self) -> u64 {
        // Every fourth one is the read-only page or one of those around it.
        let page = |page: u8| match page {
            0..0xc0 => RAM + u64::from(page) % RAM_PAGES * PAGE,
            _ => ROM - PAGE + u64::from(page) % 4 * PAGE,
        };
        match self {
            Self::Page(number) => page(number),
            Self::Slot(number, slot) => page(number) + PAGE - 8 * u64::from(slot),
            Self::At(number, offset) => page(number) + u64::from(offset),
            Self::Any(address) => address,
        }
    }
}

/// How fast the disk is.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Microseconds; 0 is at once.
    latency: u8,
    /// Commands served at once, less one.
    parallelism: u8,
}

/// An I/O command that can be done where its memory allows it.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Io {
    operation: Operation,
    first: u8,
    /// Less one; a page at most.
    blocks: u8,
    page: Page,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Read,
    Write,
    WriteZeroes,
    Flush,
}

/// Where the data are.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Page {
    /// A page behind those of the queues.
    Ram(u8),
    ReadOnly,
    NotMapped,
}

/// Somewhere in the RAM.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Place {
    page: u8,
    /// In words of eight bytes, from the end of the page if not `start`.
    slot: u8,
    start: bool,
}

impl Place {
    /// Offset in the memory's file.
    fn offset(self) -> u64 {
        let page = (1 + u64::from(self.page) % RAM_PAGES) * PAGE;
        if self.start {
            page + 8 * u64::from(self.slot)
        } else {
            page + PAGE - 8 * (1 + u64::from(self.slot))
        }
    }
}

/// A submission queue entry.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Command {
    opcode: u8,
    flags: u8,
    /// All namespaces but 1 are wrong ones.
    other_namespace: Option<u32>,
    prp1: Address,
    prp2: Address,
    dwords: [Dword; 4],
}

/// Commands take small numbers, in one half or both.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Dword {
    Low(u8),
    Halves(u8, u8),
    Any(u32),
}

impl Dword {
    fn get(self) -> u32 {
        match self {
            Self::Low(value) => value.into(),
            Self::Halves(high, low) => u32::from(high) << 16 | u32::from(low),
            Self::Any(value) => value,
        }
    }
}

impl Command {
    /// The entry, with its id, for the admin queue or an I/O queue. Half of all
    /// commands have fields that let them succeed if their addresses do.
    fn bytes(&self, id: u16, is_admin: bool) -> [u8; 64] {
        // Most opcodes that exist are below 16; fused and SGL commands are all
        // refused alike.
        let (opcode, flags) = if self.flags < 0xf0 {
            (self.opcode & 0xf, 0)
        } else {
            (self.opcode, self.flags)
        };
        let mut dwords = self.dwords.map(Dword::get);
        let plausible = self.flags.is_multiple_of(2);
        match (is_admin, opcode) {
            // Reads, writes and write zeroes: the first block, the number of blocks.
            (false, 1 | 2 | 8) if plausible => {
                dwords[0] %= BLOCKS + 8;
                dwords[1] = 0;
                dwords[2] %= 64;
            }
            // Identify: what of.
            (true, 6) if plausible => dwords[0] %= 8,
            // A log: which one, and how much of it.
            (true, 2) if plausible => {
                dwords[0] = dwords[0] & 0x07ff_0000 | (dwords[0] % 4);
                dwords[1] = 0;
            }
            _ => {}
        }
        let mut bytes = [0; 64];
        put(&mut bytes, 0, &[opcode, flags]);
        put(&mut bytes, 2, &id.to_le_bytes());
        put(
            &mut bytes,
            4,
            &self.other_namespace.unwrap_or(1).to_le_bytes(),
        );
        put(&mut bytes, 24, &self.prp1.get().to_le_bytes());
        put(&mut bytes, 32, &self.prp2.get().to_le_bytes());
        for (index, dword) in dwords.iter().enumerate() {
            put(&mut bytes, 40 + 4 * index, &dword.to_le_bytes());
        }
        bytes
    }
}

/// Where the guest's driver believes a queue pair to be.
#[derive(Clone, Copy, Debug)]
struct Pair {
    entries: u16,
    tail: u16,
    head: u16,
    phase: bool,
}

impl Pair {
    fn new(entries: u16) -> Self {
        Self {
            entries,
            tail: 0,
            head: 0,
            phase: true,
        }
    }
}

/// The guest.
#[derive(Debug)]
pub(super) struct Guest {
    bench: Bench,
    file: File,
    /// Listeners of the VMD's vectors.
    events: Vec<OwnedFd>,
    pairs: [Pair; QUEUES],
    next_id: u16,
    last: Counters,
}

impl Guest {
    /// Memory mapped, interrupts listened to, the disk not enabled; `None` if
    /// this machine has no memory or descriptors for it.
    pub(super) fn new(speed: Speed) -> Option<Self> {
        let config = Config {
            service: Service {
                latency: format!("{}us", speed.latency).parse().ok()?,
                parallelism: u32::from(speed.parallelism) + 1,
                ..Service::default()
            },
            disks: 1,
            vectors: VMD_VECTORS,
            disk_bytes: u64::from(BLOCKS) * 512,
            queue_vectors: DISK_VECTORS as u16,
            ..Config::default()
        };
        let file = memory_file()?;
        file.set_len(FILE_PAGES * PAGE).ok()?;
        for page in GUARDS {
            file.write_all_at(&[GUARD_BYTE; PAGE as usize], page * PAGE)
                .ok()?;
        }
        let events: Vec<OwnedFd> = (0..VMD_VECTORS)
            .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok())
            .collect::<Option<_>>()?;
        let mut guest = Self {
            bench: Bench::new(&config)?,
            file,
            events,
            pairs: [Pair::new(ADMIN_ENTRIES); QUEUES],
            next_id: 0,
            last: Counters::default(),
        };
        let first_half = guest.map(true, 1, RAM, HALF_PAGES);
        let rom = guest.map(false, RAM_PAGES + 2, ROM, 1);
        assert!(first_half && rom, "a plain mapping was refused");
        guest.map_second_half(true);
        let mut body = [0; 20];
        for (offset, value) in [(4, 0x24_u32), (8, 2), (12, 0), (16, VMD_VECTORS.into())] {
            put(&mut body, offset, &value.to_le_bytes());
        }
        let listeners: Vec<OwnedFd> = guest
            .events
            .iter()
            .map(|event| event.try_clone().ok())
            .collect::<Option<_>>()?;
        let listening = guest
            .bench
            .request(command::DEVICE_SET_IRQS, &body, listeners);
        assert!(listening.is_some(), "listeners were refused");
        Some(guest)
    }

    fn map(&mut self, writable: bool, page: u64, address: u64, pages: u64) -> bool {
        let Ok(file) = self.file.try_clone() else {
            return false;
        };
        let mut body = [0; 32];
        put(&mut body, 4, &(1 | u32::from(writable) << 1).to_le_bytes());
        put(&mut body, 8, &(page * PAGE).to_le_bytes());
        put(&mut body, 16, &address.to_le_bytes());
        put(&mut body, 24, &(pages * PAGE).to_le_bytes());
        self.request(command::DMA_MAP, &body, vec![file.into()])
    }

    pub(super) fn map_second_half(&mut self, present: bool) {
        let address = RAM + HALF_PAGES * PAGE;
        if present {
            // Refused if it is there already.
            self.map(true, 1 + HALF_PAGES, address, HALF_PAGES);
        } else {
            let mut body = [0; 24];
            put(&mut body, 8, &address.to_le_bytes());
            put(&mut body, 16, &(HALF_PAGES * PAGE).to_le_bytes());
            self.request(command::DMA_UNMAP, &body, Vec::new());
        }
    }

    /// Whether it was served. What is refused is counted.
    fn request(&mut self, code: u16, body: &[u8], fds: Vec<OwnedFd>) -> bool {
        let before = self.bench.counters().rejected;
        let served = self.bench.request(code, body, fds).is_some();
        let rejected = self.bench.counters().rejected - before;
        assert!(served || rejected > 0, "refused and not counted");
        served
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend_from_slice(&region.to_le_bytes());
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(data);
        self.request(command::REGION_WRITE, &body, Vec::new());
    }

    fn disk_write(&mut self, offset: u64, data: &[u8]) {
        self.write(MEMORY, DISK_BAR + offset, data);
    }

    fn disk_word(&mut self, offset: u64, value: u32) {
        self.disk_write(offset, &value.to_le_bytes());
    }

    /// Gives everything its address, enables the disk, and makes I/O queues, as a
    /// driver does. What the input did before may let parts of it fail.
    pub(super) fn start(&mut self, bypass: bool, entries: &[u8; QUEUES - 1]) {
        self.write(CONFIG, 0x44, &(u16::from(bypass) << 1).to_le_bytes());
        self.write(CONFIG, 0x18, &(MEMBAR1 as u32).to_le_bytes());
        self.write(CFGBAR, 0x19, &[1, 1]);
        self.write(
            CFGBAR,
            DISK_CONFIG + 0x10,
            &(MEMBAR1 + DISK_BAR).to_le_bytes(),
        );
        self.write(CFGBAR, DISK_CONFIG + 4, &6_u16.to_le_bytes());
        self.write(CFGBAR, DISK_CONFIG + 0x82, &0x8000_u16.to_le_bytes());
        for vector in 0..DISK_VECTORS {
            self.vector(vector as u8, 0xfee0_0000 | vector << 12, false);
        }
        self.disk_word(0x14, 0);
        self.disk_word(0x24, u32::from(ADMIN_ENTRIES - 1) * 0x1_0001);
        self.disk_write(0x28, &Self::base(0, Ring::Submission).to_le_bytes());
        self.disk_write(0x30, &Self::base(0, Ring::Completion).to_le_bytes());
        self.clear_ring(0);
        self.disk_word(0x14, 0x0046_0001);
        self.pairs[0] = Pair::new(ADMIN_ENTRIES);
        for (queue, entries) in (1..).zip(entries) {
            // Two to 64: one page holds them.
            let entries = u16::from(*entries) % 63 + 2;
            self.clear_ring(queue);
            self.pairs[queue] = Pair::new(entries);
            let size = queue as u32 | u32::from(entries - 1) << 16;
            let vector = queue as u32;
            let completion = Self::base(queue, Ring::Completion);
            self.admin(0x05, completion, size, vector << 16 | 3);
            let submission = Self::base(queue, Ring::Submission);
            self.admin(0x01, submission, size, (queue as u32) << 16 | 1);
        }
    }

    /// The queues are in the first pages of the RAM.
    fn base(queue: usize, ring: Ring) -> u64 {
        let page = 2 * queue as u64 + u64::from(matches!(ring, Ring::Completion));
        RAM + page * PAGE
    }

    fn file_offset(queue: usize, ring: Ring) -> u64 {
        PAGE + Self::base(queue, ring) - RAM
    }

    /// No completion of an earlier life is left.
    fn clear_ring(&mut self, queue: usize) {
        self.poke(
            Self::file_offset(queue, Ring::Completion),
            &[0; PAGE as usize],
        );
    }

    /// The guest writes to its memory.
    fn poke(&self, offset: u64, bytes: &[u8]) {
        let written = self.file.write_all_at(bytes, offset);
        assert!(written.is_ok(), "{written:?}");
    }

    fn admin(&mut self, opcode: u8, prp1: u64, dword10: u32, dword11: u32) {
        let command = Command {
            opcode,
            flags: 0,
            other_namespace: None,
            prp1: Address::Any(prp1),
            prp2: Address::Any(0),
            dwords: [dword10, dword11, 0, 0].map(Dword::Any),
        };
        self.submit(0, &command);
        self.ring(0);
        self.consume(0);
    }

    pub(super) fn submit(&mut self, queue: u8, command: &Command) {
        let queue = usize::from(queue) % QUEUES;
        let pair = &mut self.pairs[queue];
        let slot = u64::from(pair.tail);
        pair.tail = (pair.tail + 1) % pair.entries;
        let bytes = command.bytes(self.next_id, queue == 0);
        self.next_id = self.next_id.wrapping_add(1);
        self.poke(
            Self::file_offset(queue, Ring::Submission) + slot * 64,
            &bytes,
        );
    }

    pub(super) fn io(&mut self, queue: u8, io: Io) {
        let page = match io.page {
            Page::Ram(page) => {
                let queues = 2 * QUEUES as u64;
                RAM + (queues + u64::from(page) % (RAM_PAGES - queues)) * PAGE
            }
            Page::ReadOnly => ROM,
            Page::NotMapped => ROM + PAGE,
        };
        let first = u32::from(io.first) % BLOCKS;
        let blocks = u32::from(io.blocks) % 8;
        let command = Command {
            opcode: match io.operation {
                Operation::Read => 2,
                Operation::Write => 1,
                Operation::WriteZeroes => 8,
                Operation::Flush => 0,
            },
            flags: 0,
            other_namespace: None,
            prp1: Address::Any(page),
            prp2: Address::Any(0),
            dwords: [first, 0, blocks.min(BLOCKS - 1 - first), 0].map(Dword::Any),
        };
        let queue = 1 + queue % (QUEUES as u8 - 1);
        self.submit(queue, &command);
        self.ring(queue);
    }

    pub(super) fn pass(&mut self, micros: u8) {
        self.bench.pass(u64::from(micros) * 1000);
    }

    pub(super) fn ring(&mut self, queue: u8) {
        let tail = self.pairs[usize::from(queue) % QUEUES].tail;
        self.doorbell(queue, Ring::Submission, tail);
    }

    pub(super) fn doorbell(&mut self, queue: u8, ring: Ring, value: u16) {
        // One beyond those that exist.
        let queue = u64::from(queue) % (QUEUES as u64 + 1);
        let offset = 0x1000 + 8 * queue + 4 * u64::from(matches!(ring, Ring::Completion));
        self.disk_word(offset, value.into());
    }

    pub(super) fn consume(&mut self, queue: u8) {
        let queue = usize::from(queue) % QUEUES;
        let base = Self::file_offset(queue, Ring::Completion);
        let pair = &mut self.pairs[queue];
        for _ in 0..pair.entries {
            let mut status = [0];
            let offset = base + u64::from(pair.head) * 16 + 14;
            if self.file.read_exact_at(&mut status, offset).is_err()
                || (status[0] & 1 != 0) != pair.phase
            {
                break;
            }
            pair.head += 1;
            if pair.head == pair.entries {
                pair.head = 0;
                pair.phase = !pair.phase;
            }
        }
        let head = pair.head;
        self.doorbell(queue as u8, Ring::Completion, head);
    }

    pub(super) fn fill(&mut self, place: Place, bytes: &[u8]) {
        let offset = place.offset();
        let left = (RAM_PAGES + 1) * PAGE - offset;
        self.poke(offset, &bytes[..bytes.len().min(left as usize)]);
    }

    pub(super) fn register(&mut self, offset: u16, value: u64, wide: bool) {
        let bytes = value.to_le_bytes();
        let length = if wide { 8 } else { 4 };
        self.disk_write(u64::from(offset) % 0x40, &bytes[..length]);
    }

    pub(super) fn vector(&mut self, vector: u8, address: u64, masked: bool) {
        let entry = 0x2000 + 16 * (u64::from(vector) % DISK_VECTORS);
        self.disk_write(entry, &address.to_le_bytes());
        self.disk_word(entry + 8, 0x40 + u32::from(vector));
        self.disk_word(entry + 12, masked.into());
    }

    /// Most offsets of a region mean nothing; the disk's BAR and configuration
    /// space do.
    fn place(region: u8, offset: u32) -> (u32, u64) {
        let offset = u64::from(offset);
        match region % 8 {
            0 => (CFGBAR, offset % 0x100),
            1 => (CFGBAR, DISK_CONFIG + offset % 0x100),
            2 => (MEMORY, DISK_BAR + offset % 0x4000),
            3 => (CONFIG, offset % 0x100),
            other => (u32::from(other - 4) * 2, offset),
        }
    }

    pub(super) fn access(&mut self, region: u8, offset: u32, data: &[u8]) {
        let (region, offset) = Self::place(region, offset);
        self.write(region, offset, data);
    }

    pub(super) fn read(&mut self, region: u8, offset: u32, count: u16) {
        let (region, offset) = Self::place(region, offset);
        let mut body = offset.to_le_bytes().to_vec();
        body.extend_from_slice(&region.to_le_bytes());
        body.extend_from_slice(&u32::from(count).to_le_bytes());
        let reply = self.bench.request(command::REGION_READ, &body, Vec::new());
        let length = reply.map(|reply| reply.len());
        assert!(length.is_none_or(|length| length == 16 + usize::from(count)));
    }

    pub(super) fn event(&mut self) {
        self.bench.raise_event(0);
    }

    pub(super) fn reset(&mut self) {
        self.request(command::DEVICE_RESET, &[], Vec::new());
    }

    /// What holds after every step.
    pub(super) fn check(&mut self) {
        let now = self.bench.counters();
        check_counters(&now);
        assert!(now.cqes() >= self.last.cqes() && now.msis() >= self.last.msis());
        assert_eq!(now.bypass_msis, self.bench.sent());
        self.last = now;
    }

    /// What holds at the end.
    pub(super) fn check_end(&self) {
        for page in GUARDS {
            let mut bytes = [0; PAGE as usize];
            assert!(self.file.read_exact_at(&mut bytes, page * PAGE).is_ok());
            assert!(
                bytes == [GUARD_BYTE; PAGE as usize],
                "page {page} of the file changed"
            );
        }
        self.check_signals();
    }

    /// Every signal of the VMD's vectors was counted, and nothing else.
    fn check_signals(&self) {
        let counters = self.bench.counters();
        for (event, count) in self.events.iter().zip(&counters.vmd_vector_msis) {
            let mut signals = [0; 8];
            // Nothing to read means that there were none.
            let signals = match rustix::io::read(event, &mut signals) {
                Ok(_) => u64::from_ne_bytes(signals),
                Err(_) => 0,
            };
            assert_eq!(signals, *count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(latency: u8) -> Guest {
        let speed = Speed {
            latency,
            parallelism: 0,
        };
        Guest::new(speed).unwrap()
    }

    fn read(page: Page) -> Io {
        Io {
            operation: Operation::Read,
            first: 0,
            blocks: 7,
            page,
        }
    }

    /// The status of the first completion of a queue, without its phase.
    fn status(guest: &Guest, queue: usize, slot: u64) -> u16 {
        let mut status = [0; 2];
        let offset = Guest::file_offset(queue, Ring::Completion) + slot * 16 + 14;
        guest.file.read_exact_at(&mut status, offset).unwrap();
        u16::from_le_bytes(status) >> 1
    }

    #[test]
    fn a_started_guest_reaches_its_memory_and_its_read_only_page() {
        for bypass in [false, true] {
            let mut guest = guest(0);
            guest.start(bypass, &[6, 6]);
            for page in [Page::Ram(3), Page::ReadOnly, Page::NotMapped] {
                guest.io(0, read(page));
                guest.check();
            }
            let statuses = [0, 1, 2].map(|slot| status(&guest, 1, slot));
            assert_eq!(statuses, [0, 0x4004, 0x4004]);
            let counters = guest.bench.counters();
            assert_eq!((counters.admin_cqes(), counters.io_cqes()), (4, 3));
            assert_eq!(counters.undelivered_msis, 0);
            guest.check_end();
        }
    }

    #[test]
    fn a_slow_disk_completes_one_command_after_the_other() {
        let mut guest = guest(10);
        guest.start(false, &[6, 6]);
        for _ in 0..2 {
            guest.io(1, read(Page::Ram(0)));
        }
        for (micros, done) in [(9, 0), (1, 1), (9, 1), (1, 2)] {
            guest.pass(micros);
            guest.check();
            assert_eq!(guest.bench.counters().io_cqes(), done);
        }
    }
}
