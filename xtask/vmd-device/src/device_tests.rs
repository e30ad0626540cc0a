//! The device driven by its own requests: a small guest that enables a disk and
//! does I/O, and random requests that must not harm anything.

use super::*;
use crate::bytes::{put, u16_at, u32_at};
use crate::counters::{Mode, QueueCounters};
use crate::faults::{CompletionFault, Delay, MsiFault};
use crate::interrupts::tests::Recorder;
use crate::memory::PAGE;
use crate::memory::tests::{contents, file};
use crate::protocol::command;
use crate::scheduler::Scheduler;
use crate::service::Latency;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Guest addresses: RAM of 16 pages, in a file with a page before and after it.
const RAM: u64 = 0x10_0000;
const RAM_PAGES: u64 = 16;
/// A read-only region behind the RAM, of two pages.
const ROM: u64 = RAM + RAM_PAGES * PAGE;
const ADMIN_SQ: u64 = RAM;
const ADMIN_CQ: u64 = RAM + PAGE;
const IO_SQ: u64 = RAM + 2 * PAGE;
const IO_CQ: u64 = RAM + 3 * PAGE;
const DATA: u64 = RAM + 8 * PAGE;

/// Where the guest puts MEMBAR1 and, in it, the disk's BAR.
const MEMBAR1: u32 = 0xe000_0000;
const DISK_BAR: u64 = 0x10_0000;
const MSIX_ADDRESS: u32 = 0xfee0_1000;
const ENTRIES: u16 = 8;

const CFGBAR: u32 = 0;
const MEMORY: u32 = 2;
const CONFIG: u32 = 7;

struct Guest {
    device: Device,
    file: File,
    sent: Arc<Recorder>,
    clock: Arc<AtomicU64>,
    admin_tail: u16,
    io_tail: u16,
}

impl Guest {
    /// A device with one disk of 1 MiB and guest memory, nothing enabled.
    fn new() -> Self {
        Self::with(Service::default(), SharedService::default())
    }

    /// The same with a certain speed.
    fn with(service: Service, shared: SharedService) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let set = Clock::Set(Arc::clone(&clock));
        Self::with_clock(service, shared, set, clock)
    }

    fn with_clock(
        service: Service,
        shared: SharedService,
        clock: Clock,
        set: Arc<AtomicU64>,
    ) -> Self {
        let config = Config {
            service,
            shared,
            ..Self::config()
        };
        Self::of(&config, clock, set)
    }

    fn config() -> Config {
        Config {
            disks: 1,
            disk_bytes: 1 << 20,
            queue_vectors: 3,
            ..Config::default()
        }
    }

    fn of(config: &Config, clock: Clock, set: Arc<AtomicU64>) -> Self {
        let sent = Arc::new(Recorder::default());
        let mut device = Device::new(config, sent.clone(), clock, false).unwrap();
        let file = file(RAM_PAGES + 4, 0xa5);
        for (flags, offset, address, size) in [
            (3_u32, PAGE, RAM, RAM_PAGES * PAGE),
            (1, (RAM_PAGES + 2) * PAGE, ROM, 2 * PAGE),
        ] {
            let body = map_body(flags, offset, address, size);
            let fd = OwnedFd::from(file.try_clone().unwrap());
            device.handle(command::DMA_MAP, &body, vec![fd]).unwrap();
        }
        let mut guest = Self {
            device,
            file,
            sent,
            clock: set,
            admin_tail: 0,
            io_tail: 0,
        };
        guest.fill_ram(0);
        guest
    }

    fn fill_ram(&mut self, byte: u8) {
        self.device
            .memory
            .write(RAM, &vec![byte; (RAM_PAGES * PAGE) as usize])
            .unwrap();
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.device
            .handle(
                command::REGION_WRITE,
                &write_body(region, offset, data),
                vec![],
            )
            .unwrap();
    }

    fn read_u32(&mut self, region: u32, offset: u64) -> u32 {
        let mut body = write_body(region, offset, &[]);
        put(&mut body, 12, &4_u32.to_le_bytes());
        let reply = self
            .device
            .handle(command::REGION_READ, &body, vec![])
            .unwrap();
        u32_at(&reply, 16).unwrap()
    }

    fn disk_write(&mut self, register: u64, value: u32) {
        self.write(MEMORY, DISK_BAR + register, &value.to_le_bytes());
    }

    fn disk_read(&mut self, register: u64) -> u32 {
        self.read_u32(MEMORY, DISK_BAR + register)
    }

    /// Gives the buses and BARs addresses and enables MSI-X, as an operating system does.
    fn enumerate(&mut self) {
        self.enumerate_at(1, MEMBAR1.into());
    }

    /// The same with the disk on `bus`, where MEMBAR1 is at `base` for it.
    fn enumerate_at(&mut self, bus: u8, base: u64) {
        self.write(CONFIG, 0x18, &MEMBAR1.to_le_bytes());
        self.write(CFGBAR, 0x19, &[bus, bus]);
        let disk = 1 << 20;
        self.write(CFGBAR, disk + 0x10, &(base + DISK_BAR).to_le_bytes());
        self.write(CFGBAR, disk + 4, &6_u16.to_le_bytes());
        self.write(CFGBAR, disk + 0x82, &0x8000_u16.to_le_bytes());
        for vector in 0..3_u64 {
            let entry = 0x2000 + vector * 16;
            self.disk_write(entry, MSIX_ADDRESS);
            self.disk_write(entry + 8, 0x40 + vector as u32);
            self.disk_write(entry + 12, 0);
        }
    }

    fn enable(&mut self) {
        self.disk_write(0x24, u32::from(ENTRIES - 1) * 0x1_0001);
        self.disk_write(0x28, ADMIN_SQ as u32);
        self.disk_write(0x30, ADMIN_CQ as u32);
        self.disk_write(0x14, 0x0046_0001);
    }

    /// A running guest with one I/O queue pair on vector 1.
    fn ready(bypass: bool) -> Self {
        Self::new().boot(bypass)
    }

    fn boot(mut self, bypass: bool) -> Self {
        let guest = &mut self;
        if bypass {
            guest.write(CONFIG, 0x44, &2_u16.to_le_bytes());
        }
        guest.enumerate();
        guest.enable();
        assert_eq!(guest.disk_read(0x1c), 1);
        guest.make_io_queues();
        self
    }

    fn make_io_queues(&mut self) {
        assert_eq!(self.admin(0x05, IO_CQ, queue_dword(1), 1 << 16 | 3), 0);
        assert_eq!(self.admin(0x01, IO_SQ, queue_dword(1), 1 << 16 | 1), 0);
        self.io_tail = 0;
    }

    /// Time passes; the scheduler's thread wakes at the end of it.
    fn pass(&mut self, time: Nanos) {
        self.clock.fetch_add(time, Ordering::Relaxed);
        self.device.advance();
    }

    /// Lets all that is under way come to its end: commands, then the interrupts
    /// that were held back, then those that arrive late.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.pass(3600 * 1_000_000 * US);
        }
    }

    /// Submits one admin command and returns its status, 0 for success.
    fn admin(&mut self, opcode: u8, prp1: u64, dword10: u32, dword11: u32) -> u16 {
        self.admin_on(u32::from(opcode == 0x06), opcode, prp1, &[dword10, dword11])
    }

    fn admin_on(&mut self, namespace: u32, opcode: u8, prp1: u64, dwords: &[u32]) -> u16 {
        let command = entry(opcode, namespace, prp1, dwords);
        let slot = u64::from(self.admin_tail);
        self.device
            .memory
            .write(ADMIN_SQ + slot * 64, &command)
            .unwrap();
        self.admin_tail = (self.admin_tail + 1) % ENTRIES;
        self.disk_write(0x1000, u32::from(self.admin_tail));
        let status = self.status(ADMIN_CQ, slot);
        self.disk_write(0x1004, u32::from(self.admin_tail));
        status
    }

    /// Puts a command into the I/O queue without ringing.
    fn put_io(&mut self, opcode: u8, lba: u64, blocks: u16, prp1: u64) {
        self.put_io_on(1, opcode, lba, blocks, prp1);
    }

    fn put_io_on(&mut self, namespace: u32, opcode: u8, lba: u64, blocks: u16, prp1: u64) {
        let dwords = [lba as u32, (lba >> 32) as u32, u32::from(blocks - 1)];
        let command = entry(opcode, namespace, prp1, &dwords);
        self.device
            .memory
            .write(IO_SQ + u64::from(self.io_tail) * 64, &command)
            .unwrap();
        self.io_tail = (self.io_tail + 1) % ENTRIES;
    }

    fn ring_io(&mut self) {
        self.disk_write(0x1008, u32::from(self.io_tail));
    }

    fn status(&self, queue: u64, slot: u64) -> u16 {
        let mut completion = [0; 16];
        self.device
            .memory
            .read(queue + slot * 16, &mut completion)
            .unwrap();
        u16_at(&completion, 14).unwrap() >> 1
    }

    fn messages(&self) -> usize {
        self.sent.0.lock().unwrap().len()
    }

    /// The pages around the RAM and the read-only region are as they were.
    fn assert_rest_untouched(&self) {
        let rest = [
            contents(&self.file, 0, 1),
            contents(&self.file, RAM_PAGES + 1, 3),
        ]
        .concat();
        assert!(
            rest.iter().all(|byte| *byte == 0xa5),
            "memory outside the mapped RAM changed"
        );
    }
}

fn map_body(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let mut body = vec![0; 32];
    put(&mut body, 0, &32_u32.to_le_bytes());
    put(&mut body, 4, &flags.to_le_bytes());
    put(&mut body, 8, &offset.to_le_bytes());
    put(&mut body, 16, &address.to_le_bytes());
    put(&mut body, 24, &size.to_le_bytes());
    body
}

fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend_from_slice(&region.to_le_bytes());
    body.extend_from_slice(&(data.len() as u32).to_le_bytes());
    body.extend_from_slice(data);
    body
}

fn queue_dword(id: u16) -> u32 {
    u32::from(id) | u32::from(ENTRIES - 1) << 16
}

/// A command with dwords from 10 on.
fn entry(opcode: u8, namespace: u32, prp1: u64, dwords: &[u32]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    put(&mut bytes, 2, &u16::from(opcode).to_le_bytes());
    put(&mut bytes, 4, &namespace.to_le_bytes());
    put(&mut bytes, 24, &prp1.to_le_bytes());
    for (index, dword) in dwords.iter().enumerate() {
        put(&mut bytes, 40 + index * 4, &dword.to_le_bytes());
    }
    bytes
}

#[test]
fn a_written_block_is_read_back() {
    let mut guest = Guest::ready(true);
    guest.device.memory.write(DATA, &[0x42; 512]).unwrap();
    guest.put_io(1, 5, 1, DATA);
    guest.ring_io();
    guest.put_io(2, 5, 1, DATA + PAGE);
    guest.ring_io();
    assert_eq!((guest.status(IO_CQ, 0), guest.status(IO_CQ, 1)), (0, 0));
    let mut back = [0; 512];
    guest.device.memory.read(DATA + PAGE, &mut back).unwrap();
    assert_eq!(back, [0x42; 512]);
    let counters = guest.device.counters();
    let queue = &counters.disks[0].queues[1];
    assert_eq!((queue.reads, queue.writes, queue.cqes), (1, 1, 2));
    assert_eq!(
        (counters.io_cqes(), counters.admin_cqes(), counters.rejected),
        (2, 2, 0)
    );
    // Two admin completions, two I/O completions, one message each.
    assert_eq!(
        (counters.msis(), counters.bypass_msis, guest.messages()),
        (4, 4, 4)
    );
}

#[test]
fn completions_of_one_doorbell_write_raise_one_interrupt() {
    let mut guest = Guest::ready(true);
    let before = guest.messages();
    for _ in 0..5 {
        guest.put_io(2, 0, 1, DATA);
    }
    guest.ring_io();
    assert_eq!(guest.device.counters().io_cqes(), 5);
    assert_eq!(guest.messages(), before + 1);
}

#[test]
fn a_full_completion_queue_holds_commands_back() {
    let mut guest = Guest::ready(true);
    for _ in 0..7 {
        guest.put_io(2, 0, 1, DATA);
    }
    guest.ring_io();
    assert_eq!(guest.device.counters().io_cqes(), 7);
    for _ in 0..3 {
        guest.put_io(2, 0, 1, DATA);
    }
    guest.ring_io();
    assert_eq!(guest.device.counters().io_cqes(), 7);
    guest.disk_write(0x100c, 2);
    assert_eq!(guest.device.counters().io_cqes(), 9);
    guest.disk_write(0x100c, 4);
    assert_eq!(guest.device.counters().io_cqes(), 10);
    assert_eq!(guest.device.counters().rejected, 0);
}

#[test]
fn a_masked_vector_sends_one_message_when_unmasked() {
    let mut guest = Guest::ready(true);
    let before = guest.messages();
    guest.disk_write(0x2000 + 16 + 12, 1);
    for _ in 0..3 {
        guest.put_io(0, 0, 1, 0);
        guest.ring_io();
    }
    assert_eq!(guest.messages(), before);
    assert_eq!(guest.disk_read(0x3000), 0b10);
    guest.disk_write(0x2000 + 16 + 12, 0);
    assert_eq!(guest.messages(), before + 1);
    assert_eq!(guest.device.counters().disks[0].queues[1].flushes, 3);
}

#[test]
fn without_interrupt_enable_nothing_is_sent() {
    let mut guest = Guest::ready(true);
    assert_eq!(
        guest.admin(0x05, IO_CQ + PAGE, queue_dword(2), 2 << 16 | 1),
        0
    );
    assert_eq!(
        guest.admin(0x01, IO_SQ + 3 * PAGE, queue_dword(2), 2 << 16 | 1),
        0
    );
    let before = guest.messages();
    let command = entry(0, 1, 0, &[]);
    guest
        .device
        .memory
        .write(IO_SQ + 3 * PAGE, &command)
        .unwrap();
    guest.disk_write(0x1010, 1);
    assert_eq!(
        (guest.messages(), guest.device.counters().io_cqes()),
        (before, 1)
    );
}

#[test]
fn events_complete_event_requests_and_are_counted_as_skipped() {
    let mut guest = Guest::ready(true);
    assert_eq!(guest.device.raise_event(0), EventOutcome::Accepted);
    let before = guest.device.counters();
    assert_eq!((before.cqes_skipped(), before.admin_cqes()), (0, 2));
    // The event waited for this request.
    assert_eq!(guest.admin(0x0c, 0, 0, 0), 0);
    let mut completion = [0; 16];
    guest
        .device
        .memory
        .read(ADMIN_CQ + 2 * 16, &mut completion)
        .unwrap();
    assert_eq!(u32_at(&completion, 0), Some(0x0002_0101));
    let after = guest.device.counters();
    assert_eq!((after.cqes_skipped(), after.admin_cqes()), (1, 3));
    assert_eq!(after.msis(), before.msis() + 1);
    assert_eq!(guest.device.raise_event(1), EventOutcome::NoSuchDisk);
}

#[test]
fn too_many_events_or_event_requests_are_refused() {
    let mut guest = Guest::ready(true);
    let accepted = (0..20).filter(|_| guest.device.raise_event(0) == EventOutcome::Accepted);
    assert_eq!(accepted.count(), 16);
    let mut guest = Guest::ready(true);
    for _ in 0..5 {
        guest.admin_tail = (guest.admin_tail + 1) % ENTRIES;
    }
    let requests = entry(0x0c, 0, 0, &[]);
    for slot in 0..8 {
        guest
            .device
            .memory
            .write(ADMIN_SQ + slot * 64, &requests)
            .unwrap();
    }
    guest.disk_write(0x1000, u32::from(guest.admin_tail));
    // Four wait, the fifth is refused: command-specific status 5, do not retry.
    assert_eq!(guest.device.counters().admin_cqes(), 3);
    assert_eq!(guest.status(ADMIN_CQ, 2), 0x4105);
}

#[test]
fn write_zeroes_covers_no_more_than_is_announced() {
    let mut guest = Guest::ready(true);
    assert_eq!(guest.admin(0x06, DATA, 6, 0), 0);
    let mut limits = [0; 2];
    guest.device.memory.read(DATA, &mut limits).unwrap();
    let announced = PAGE << limits[1];
    assert_eq!(announced, 128 << 10);
    guest.device.memory.write(DATA, &[7; 512]).unwrap();
    let blocks = (announced / 512) as u16;
    guest.put_io(1, 0, 1, DATA);
    guest.put_io(1, u64::from(blocks), 1, DATA);
    guest.put_io(8, 0, blocks + 1, 0);
    guest.put_io(2, 0, 1, DATA + PAGE);
    guest.put_io(8, 0, blocks, 0);
    guest.put_io(2, 0, 1, DATA + 2 * PAGE);
    guest.put_io(2, u64::from(blocks), 1, DATA + 3 * PAGE);
    guest.ring_io();
    let statuses: Vec<u16> = (0..7).map(|slot| guest.status(IO_CQ, slot)).collect();
    assert_eq!(statuses, [0, 0, 0x4002, 0, 0, 0, 0]);
    let mut first_bytes = [0; 3];
    for (byte, page) in first_bytes.iter_mut().zip(1..) {
        let address = DATA + page * PAGE;
        guest
            .device
            .memory
            .read(address, std::slice::from_mut(byte))
            .unwrap();
    }
    // Not zeroed by the refused command, zeroed by the other, and not beyond it.
    assert_eq!(first_bytes, [7, 0, 7]);
    let counters = &guest.device.counters().disks[0].queues[1];
    assert_eq!((counters.write_zeroes, counters.taken()), (2, 7));
    // The limits of another command set are not known.
    assert_eq!(guest.admin(0x06, DATA, 6, 2 << 24), 0x4002);
}

#[test]
fn a_guest_that_toggles_the_mode_does_not_fill_the_log() {
    let mut guest = Guest::new();
    for mode in [2_u16, 0].repeat(500) {
        guest.write(CONFIG, 0x44, &mode.to_le_bytes());
    }
    // Were this to last for seconds, a few more lines would be allowed.
    let lines = 1000 - guest.device.diagnostics.suppressed();
    assert!(lines >= u64::from(crate::diagnostics::LINES_PER_SECOND));
    assert!(lines <= 500, "{lines} lines");
}

#[test]
fn commands_out_of_bounds_get_a_status() {
    let mut guest = Guest::ready(true);
    guest.put_io(2, 2047, 1, DATA);
    guest.put_io(2, 2048, 1, DATA);
    guest.put_io(2, u64::MAX, 1, DATA);
    guest.put_io(2, 0, 1, 0xdead_0000);
    guest.put_io(2, 0, 1, ROM);
    guest.put_io(0x77, 0, 1, DATA);
    guest.ring_io();
    let statuses: Vec<u16> = (0..6).map(|slot| guest.status(IO_CQ, slot)).collect();
    assert_eq!(statuses, [0, 0x4080, 0x4080, 0x4004, 0x4004, 0x4001]);
    assert_eq!(guest.device.counters().rejected, 2);
    guest.assert_rest_untouched();
}

#[test]
fn queue_commands_are_checked() {
    let mut guest = Guest::ready(true);
    let page = IO_CQ + PAGE;
    // Completion queues: id 0, in use, too high; size 1; vector; not contiguous; alignment.
    assert_eq!(guest.admin(0x05, page, queue_dword(0), 3), 0x4101);
    assert_eq!(guest.admin(0x05, page, queue_dword(1), 3), 0x4101);
    assert_eq!(guest.admin(0x05, page, queue_dword(3), 3), 0x4101);
    assert_eq!(guest.admin(0x05, page, 2, 3), 0x4102);
    assert_eq!(guest.admin(0x05, page, 0xffff_0002, 3), 0x4102);
    assert_eq!(guest.admin(0x05, page, queue_dword(2), 3 << 16 | 3), 0x4108);
    assert_eq!(guest.admin(0x05, page, queue_dword(2), 2), 0x4002);
    assert_eq!(guest.admin(0x05, page + 8, queue_dword(2), 3), 0x4013);
    // Submission queues: no such completion queue, completion queue 0.
    assert_eq!(guest.admin(0x01, page, queue_dword(2), 2 << 16 | 1), 0x4100);
    assert_eq!(guest.admin(0x01, page, queue_dword(2), 1), 0x4101);
    // A completion queue in use stays; deleting in the right order works once.
    assert_eq!(guest.admin(0x04, 0, 1, 0), 0x410c);
    assert_eq!(guest.admin(0x00, 0, 1, 0), 0);
    assert_eq!(guest.admin(0x00, 0, 1, 0), 0x4101);
    assert_eq!(guest.admin(0x04, 0, 1, 0), 0);
    assert_eq!(guest.admin(0x04, 0, 1, 0), 0x4101);
    assert_eq!(guest.admin(0x04, 0, 0, 0), 0x4101);
}

fn announces_a_write_cache(guest: &mut Guest) -> bool {
    assert_eq!(guest.admin(0x06, DATA, 1, 0), 0);
    let mut present = [0];
    guest.device.memory.read(DATA + 525, &mut present).unwrap();
    present == [1]
}

#[test]
fn identify_and_features_answer() {
    let mut guest = Guest::ready(true);
    assert_eq!(guest.admin(0x06, DATA, 1, 0), 0);
    let mut serial = [0; 20];
    guest.device.memory.read(DATA + 4, &mut serial).unwrap();
    assert_eq!(&serial, b"VMDLABA0000         ");
    assert!(!announces_a_write_cache(&mut guest));
    let config = Config {
        write_cache: true,
        ..Guest::config()
    };
    let mut cached = Guest::of(&config, Clock::start(), Arc::default()).boot(true);
    assert!(announces_a_write_cache(&mut cached));
    assert_eq!(guest.admin(0x06, DATA, 0, 0), 0);
    let mut blocks = [0; 8];
    guest.device.memory.read(DATA, &mut blocks).unwrap();
    assert_eq!(u64::from_le_bytes(blocks), 2048);
    assert_eq!(guest.admin(0x06, DATA, 0x55, 0), 0x4002);
    assert_eq!(guest.admin(0x09, 0, 7, 0x00ff_00ff), 0);
    assert_eq!(guest.admin(0x09, 0, 0x7f, 0), 0x4002);
    assert_eq!(guest.admin(0x02, DATA, 0x007f_0002, 0), 0);
    assert_eq!(guest.admin(0x02, DATA, 0xffff_0002, 0xffff), 0x4002);
}

#[test]
fn unusable_queues_stop_the_controller_until_it_is_reset() {
    let mut guest = Guest::new();
    guest.enumerate();
    guest.disk_write(0x24, 0);
    guest.disk_write(0x14, 1);
    assert_eq!(guest.disk_read(0x1c), 2);
    guest.disk_write(0x14, 0);
    guest.disk_write(0x24, 0x0007_0007);
    guest.disk_write(0x28, 0x7000_0000);
    guest.disk_write(0x30, 0x7000_1000);
    guest.disk_write(0x14, 1);
    assert_eq!(guest.disk_read(0x1c), 1);
    // The queue lies in memory that is not mapped.
    guest.disk_write(0x1000, 1);
    assert_eq!(guest.disk_read(0x1c), 3);
    guest.disk_write(0x14, 0);
    guest.enable();
    assert_eq!(guest.admin(0x06, DATA, 1, 0), 0);
    assert_eq!(guest.device.counters().rejected, 2);
}

#[test]
fn remapping_counts_by_vector_of_the_vmd() {
    let mut guest = Guest::new();
    guest.enumerate();
    let (_listener, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut body = vec![0; 20];
    for (offset, value) in [(4, 0x24_u32), (8, 2), (12, 1), (16, 1)] {
        put(&mut body, offset, &value.to_le_bytes());
    }
    guest
        .device
        .handle(command::DEVICE_SET_IRQS, &body, vec![ours.into()])
        .unwrap();
    guest.enable();
    guest.admin(0x06, DATA, 1, 0);
    let counters = guest.device.counters();
    assert_eq!(counters.mode, Mode::Remap);
    assert_eq!(counters.vmd_vector_msis, [0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!((counters.msis(), guest.messages()), (1, 0));

    let mut plan = |vector, fault| guest.device.plan_vmd_fault(vector, 1, fault);
    let late = MsiFault::Delay("1ms".to_owned().try_into().unwrap());
    for fault in [MsiFault::Drop, MsiFault::Duplicate, late] {
        assert_eq!(plan(1, fault), Ok(()));
    }
    assert!(matches!(
        plan(8, MsiFault::Drop),
        Err(VmdFaultRefusal::NoSuchVector { vectors: 8, .. })
    ));
    for _ in 0..3 {
        guest.admin(0x06, DATA, 1, 0);
    }
    assert_eq!(guest.device.counters().vmd_vector_msis[1], 3);
    assert_eq!(guest.device.next_due(), Some(1_000_000));
    guest.pass(1_000_000);
    let counters = guest.device.counters();
    assert_eq!((counters.msis(), counters.vmd_vector_msis[1]), (4, 4));
    let faults = (
        counters.vmd_dropped_msis,
        counters.vmd_duplicated_msis,
        counters.vmd_delayed_msis,
    );
    assert_eq!(faults, (1, 1, 1));

    guest.write(CONFIG, 0x44, &[2, 0]);
    assert_eq!(
        guest.device.plan_vmd_fault(1, 1, MsiFault::Drop),
        Err(VmdFaultRefusal::Bypass)
    );
}

#[test]
fn resets_stop_the_disk_but_keep_data_and_counts() {
    let mut guest = Guest::ready(true);
    guest.device.memory.write(DATA, &[7; 512]).unwrap();
    guest.put_io(1, 0, 1, DATA);
    guest.ring_io();
    guest
        .device
        .handle(command::DEVICE_RESET, &[], vec![])
        .unwrap();
    assert_eq!(guest.device.counters().mode, Mode::Remap);
    assert_eq!(guest.device.counters().io_cqes(), 1);
    guest.admin_tail = 0;
    guest.enumerate();
    guest.enable();
    guest.make_io_queues();
    guest.put_io(2, 0, 1, DATA + PAGE);
    guest.ring_io();
    let mut back = [0; 512];
    guest.device.memory.read(DATA + PAGE, &mut back).unwrap();
    assert_eq!(back, [7; 512]);
    // A function level reset leaves the disk without its BAR.
    guest.write(CFGBAR, (1 << 20) + 0x48, &0x8000_u16.to_le_bytes());
    assert_eq!(guest.disk_read(0x1c), u32::MAX);
}

#[test]
fn shadowed_devices_and_restricted_buses_are_found_where_they_say() {
    let config = Config {
        shadow: true,
        first_bus: crate::FirstBus::Bus224,
        ..Guest::config()
    };
    let mut guest = Guest::of(&config, Clock::start(), Arc::default());
    for _ in 0..2 {
        assert_eq!(guest.read_u32(CONFIG, 0x40) & 1, 1);
        assert_eq!(guest.read_u32(CONFIG, 0x44) >> 8 & 3, 2);
        assert_eq!(guest.read_u32(CONFIG, 0x70) & 2, 2);
        guest
            .device
            .handle(command::DEVICE_RESET, &[], vec![])
            .unwrap();
    }
    let membar2 = 4;
    let base = guest.read_u32(membar2, 0x2000);
    assert_eq!((base, guest.read_u32(membar2, 0x2004)), (0x9000_0000, 0));
    assert_eq!(guest.read_u32(membar2, 0x2008), 0xff00_0000);
    assert_eq!(guest.read_u32(membar2, 0x200c), 0x383f);
    guest.enumerate_at(225, base.into());
    guest.enable();
    assert_eq!(guest.disk_read(0x1c), 1);
    assert_eq!(guest.admin(0x06, DATA, 1, 0), 0);
}

#[test]
fn the_quirky_id_appears_only_after_a_reset() {
    let config = Config {
        id: crate::DeviceId::Remap201d,
        disks: 1,
        disk_bytes: 4096,
        ..Config::default()
    };
    let recorder = Arc::new(Recorder::default());
    let mut device = Device::new(&config, recorder, Clock::start(), false).unwrap();
    let mut id = || {
        let mut body = write_body(CONFIG, 0, &[]);
        put(&mut body, 12, &4_u32.to_le_bytes());
        let reply = device.handle(command::REGION_READ, &body, vec![]).unwrap();
        let id = u32_at(&reply, 16).unwrap();
        device.handle(command::DEVICE_RESET, &[], vec![]).unwrap();
        id
    };
    assert_eq!(id(), 0x1fff_8086);
    assert_eq!(id(), 0x201d_8086);
}

#[test]
fn refused_requests_have_the_right_error_and_are_counted() {
    let mut guest = Guest::new();
    let mut errno = |code, body: &[u8]| guest.device.handle(code, body, vec![]).unwrap_err();
    assert_eq!(errno(99, &[]), Errno::NOSYS);
    assert_eq!(errno(command::REGION_READ, &[0; 3]), Errno::INVAL);
    assert_eq!(
        errno(command::REGION_WRITE, &write_body(1, 0, &[1])),
        Errno::INVAL
    );
    assert_eq!(
        errno(command::REGION_WRITE, &write_body(7, 4095, &[1, 2])),
        Errno::INVAL
    );
    assert_eq!(
        errno(command::REGION_WRITE, &write_body(0, u64::MAX, &[1])),
        Errno::INVAL
    );
    assert_eq!(
        errno(command::DMA_UNMAP, &map_body(0, RAM, PAGE, 0)),
        Errno::INVAL
    );
    assert_eq!(errno(command::VERSION, &[1, 0, 0, 0]), Errno::NOTSUP);
    let fd = OwnedFd::from(guest.file.try_clone().unwrap());
    let overlap = guest
        .device
        .handle(command::DMA_MAP, &map_body(3, 0, RAM, PAGE), vec![fd]);
    assert_eq!(overlap.unwrap_err(), Errno::EXIST);
    assert_eq!(guest.device.counters().rejected, 8);
}

const US: Nanos = 1_000;

fn fixed(latency: Nanos) -> Service {
    Service {
        latency: Latency::Fixed(latency),
        ..Service::default()
    }
}

#[test]
fn a_command_completes_when_its_time_has_come() {
    let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
    let before = guest.messages();
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    assert_eq!(guest.device.next_due(), Some(80 * US));
    guest.pass(79 * US);
    let counters = guest.device.counters();
    assert_eq!((counters.io_cqes(), counters.disks[0].in_service), (0, 1));
    guest.pass(US);
    let counters = guest.device.counters();
    assert_eq!((counters.io_cqes(), counters.disks[0].in_service), (1, 0));
    assert_eq!(guest.messages(), before + 1);
    assert_eq!(guest.device.next_due(), None);
}

#[test]
fn the_schedulers_thread_completes_what_nobody_asks_for() {
    let (service, shared) = (fixed(2000 * US), SharedService::default());
    let mut guest = Guest::with_clock(service, shared, Clock::start(), Arc::default()).boot(true);
    for _ in 0..3 {
        guest.put_io(2, 0, 1, DATA);
    }
    let scheduler = Arc::new(Scheduler::new(guest.device));
    let thread = std::thread::spawn({
        let scheduler = Arc::clone(&scheduler);
        move || scheduler.run()
    });
    let limit = Instant::now() + Duration::from_secs(60);
    for tail in 1..=3_u32 {
        let body = write_body(MEMORY, DISK_BAR + 0x1008, &tail.to_le_bytes());
        scheduler
            .with(|device| device.handle(command::REGION_WRITE, &body, vec![]))
            .unwrap();
        while scheduler.with(|device| device.counters().io_cqes()) < u64::from(tail) {
            assert!(Instant::now() < limit, "command {tail} does not complete");
            std::thread::yield_now();
        }
    }
    scheduler.end();
    thread.join().unwrap();
}

#[test]
fn completions_due_together_raise_one_interrupt() {
    let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
    let before = guest.messages();
    for _ in 0..3 {
        guest.put_io(2, 0, 1, DATA);
        guest.ring_io();
        guest.clock.fetch_add(US, Ordering::Relaxed);
    }
    // Nobody woke until all three were due.
    guest.pass(80 * US);
    assert_eq!(guest.device.counters().io_cqes(), 3);
    assert_eq!(guest.messages(), before + 1);
}

#[test]
fn what_is_due_is_completed_before_a_request_is_served() {
    let one_at_once = Service {
        parallelism: 1,
        ..fixed(80 * US)
    };
    let mut guest = Guest::with(one_at_once, SharedService::default()).boot(true);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    guest.clock.fetch_add(100 * US, Ordering::Relaxed);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    // The second one starts when it is rung, not when the first one was over.
    assert_eq!(guest.device.next_due(), Some(180 * US));
}

#[test]
fn more_commands_than_a_disk_serves_at_once_wait_in_the_queue() {
    let two_at_once = Service {
        parallelism: 2,
        ..fixed(10 * US)
    };
    let mut guest = Guest::with(two_at_once, SharedService::default()).boot(true);
    for _ in 0..5 {
        guest.put_io(2, 0, 1, DATA);
    }
    guest.ring_io();
    for completed in [2, 4, 5] {
        assert!(guest.device.counters().disks[0].in_service <= 2);
        guest.pass(10 * US);
        assert_eq!(guest.device.counters().io_cqes(), completed);
    }
    // A thread that wakes late loses no time.
    for _ in 0..5 {
        guest.put_io(2, 0, 1, DATA);
    }
    guest.disk_write(0x100c, 5);
    guest.ring_io();
    guest.pass(30 * US);
    assert_eq!(guest.device.counters().io_cqes(), 10);
}

#[test]
fn a_new_speed_holds_for_new_commands() {
    let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    assert!(guest.device.set_service(Some(0), fixed(10 * US)));
    assert!(!guest.device.set_service(Some(1), fixed(10 * US)));
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    guest.device.set_shared_service(SharedService {
        latency: Latency::Fixed(5 * US),
        ..SharedService::default()
    });
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    for (time, completed) in [(10, 1), (5, 2), (64, 2), (1, 3)] {
        guest.pass(time * US);
        assert_eq!(guest.device.counters().io_cqes(), completed);
    }
}

#[test]
fn namespaces_are_apart_and_may_have_blocks_of_4_kib() {
    let config = Config {
        namespaces: 2,
        block_size: crate::BlockSize::B4096,
        ..Guest::config()
    };
    let mut guest = Guest::of(&config, Clock::start(), Arc::default()).boot(true);
    let memory = |guest: &Guest, address: u64, length: usize| {
        let mut bytes = vec![0; length];
        guest.device.memory.read(address, &mut bytes).unwrap();
        bytes
    };
    // The list of namespaces after 0 and after 1, and how many there may be.
    assert_eq!(guest.admin_on(0, 6, DATA, &[2]), 0);
    assert_eq!(
        memory(&guest, DATA, 12),
        [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(guest.admin_on(1, 6, DATA, &[2]), 0);
    assert_eq!(memory(&guest, DATA, 8), [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(guest.admin_on(0, 6, DATA, &[1]), 0);
    assert_eq!(memory(&guest, DATA + 516, 4), [2, 0, 0, 0]);
    let mut identifiers = vec![];
    for namespace in [1, 2] {
        assert_eq!(guest.admin_on(namespace, 6, DATA, &[0]), 0);
        assert_eq!(memory(&guest, DATA, 8), 256_u64.to_le_bytes());
        assert_eq!(memory(&guest, DATA + 130, 1), [12]);
        identifiers.push(memory(&guest, DATA + 120, 8));
        assert_eq!(guest.admin_on(namespace, 6, DATA, &[3]), 0);
        assert_eq!(
            memory(&guest, DATA + 4, 8),
            identifiers[identifiers.len() - 1]
        );
    }
    assert_ne!(identifiers[0], identifiers[1]);
    for cns in [0, 3] {
        for namespace in [0, 3, u32::MAX] {
            assert_eq!(guest.admin_on(namespace, 6, DATA, &[cns]), 0x400b);
        }
    }

    guest.device.memory.write(DATA, &[0x42; 4096]).unwrap();
    guest.put_io_on(2, 1, 255, 1, DATA);
    guest.put_io_on(1, 2, 255, 1, DATA + PAGE);
    guest.put_io_on(2, 2, 255, 1, DATA + 2 * PAGE);
    guest.put_io_on(2, 2, 256, 1, DATA);
    guest.put_io_on(3, 2, 0, 1, DATA);
    guest.put_io_on(u32::MAX, 0, 0, 1, 0);
    guest.put_io_on(u32::MAX, 2, 0, 1, DATA);
    guest.ring_io();
    let statuses: Vec<u16> = (0..7).map(|slot| guest.status(IO_CQ, slot)).collect();
    assert_eq!(statuses, [0, 0, 0, 0x4080, 0x400b, 0, 0x400b]);
    assert_eq!(memory(&guest, DATA + PAGE, 4096), [0; 4096]);
    assert_eq!(memory(&guest, DATA + 2 * PAGE, 4096), [0x42; 4096]);
}

impl Guest {
    /// Reads one block.
    fn read_once(&mut self) {
        self.put_io(2, 0, 1, DATA);
        self.ring_io();
        self.disk_write(0x100c, self.io_tail.into());
    }

    fn plan_msi(&mut self, nth: u32, fault: MsiFault) {
        let plan = |disk: &mut Controller| disk.plan_msi_fault(Some(1), nth, fault);
        assert_eq!(self.device.plan(0, plan), Some(true));
    }
}

#[test]
fn msis_are_lost_doubled_and_late_as_told() {
    let mut guest = Guest::ready(true);
    guest.plan_msi(2, MsiFault::Drop);
    guest.plan_msi(3, MsiFault::Duplicate);
    guest.plan_msi(4, MsiFault::Delay(Delay(50 * US)));
    let before = guest.messages();
    for arrived in [1, 1, 3, 3, 4] {
        guest.read_once();
        assert_eq!(guest.messages(), before + arrived);
    }
    assert_eq!(guest.device.next_due(), Some(50 * US));
    guest.pass(50 * US);
    assert_eq!(guest.messages(), before + 5);
    assert_eq!(guest.device.next_due(), None);
    let counters = guest.device.counters();
    let disk = &counters.disks[0];
    assert_eq!(disk.child_vector_msis[1], 5);
    assert_eq!(
        (disk.dropped_msis, disk.duplicated_msis, disk.delayed_msis),
        (1, 1, 1)
    );
    assert_eq!(counters.bypass_msis, counters.msis());
}

#[test]
fn completions_are_wrong_as_told() {
    let mut guest = Guest::ready(true);
    for (nth, fault) in [
        (2, CompletionFault::CommandId),
        (3, CompletionFault::Status),
    ] {
        let plan = |disk: &mut Controller| disk.plan_completion_fault(Some(1), nth, fault);
        assert_eq!(guest.device.plan(0, plan), Some(true));
    }
    for _ in 0..4 {
        guest.read_once();
    }
    let seen: Vec<(u16, u16)> = (0..4)
        .map(|slot| {
            let mut completion = [0; 16];
            guest
                .device
                .memory
                .read(IO_CQ + slot * 16, &mut completion)
                .unwrap();
            let field = |at| u16_at(&completion, at).unwrap();
            (field(12), field(14) >> 1)
        })
        .collect();
    assert_eq!(seen, [(2, 0), (0xffff, 0), (2, 0x4281), (2, 0)]);
    let queue = &guest.device.counters().disks[0].queues[1];
    assert_eq!((queue.cqes, queue.cqes_skipped, queue.corrupted), (4, 1, 2));
}

#[test]
fn a_removed_disk_reads_all_ones_and_does_nothing() {
    let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
    let (config, status) = (1 << 20, 0x5a);
    let present = |guest: &mut Guest| guest.read_u32(CFGBAR, status) & 0x40;
    assert_ne!(present(&mut guest), 0);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    let before = guest.messages();
    assert!(guest.device.set_present(0, false) && !guest.device.set_present(1, false));
    assert_eq!(present(&mut guest), 0);
    assert_eq!(guest.read_u32(CFGBAR, config), u32::MAX);
    assert_eq!(guest.disk_read(0x1c), u32::MAX);
    guest.enumerate();
    guest.enable();
    guest.ring_io();
    guest.pass(1000 * US);
    assert_eq!(guest.read_u32(CFGBAR, config + 0x10), u32::MAX);
    let counters = guest.device.counters();
    assert_eq!((counters.io_cqes(), guest.messages()), (0, before));
    assert_eq!(counters.disks[0].queues[1].discarded, 1);
    // A reset of the whole does not bring it back.
    guest
        .device
        .handle(command::DEVICE_RESET, &[], vec![])
        .unwrap();
    assert_eq!(present(&mut guest), 0);

    assert!(guest.device.set_present(0, true));
    guest.admin_tail = 0;
    guest.fill_ram(0);
    let mut guest = guest.boot(true);
    assert_ne!(present(&mut guest), 0);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    guest.pass(80 * US);
    assert_eq!(guest.device.counters().io_cqes(), 1);
}

#[test]
fn a_reduced_link_is_shown_on_both_sides_and_outlives_resets() {
    let mut guest = Guest::ready(true);
    let status = |guest: &mut Guest| {
        [0, 1 << 20].map(|function| guest.read_u32(CFGBAR, function + 0x52) & 0x3ff)
    };
    assert_eq!(status(&mut guest), [0x44; 2]);
    let link = serde_json::from_str(r#"{"speed":"5GT/s","width":"x1"}"#).unwrap();
    assert!(guest.device.set_link(0, link) && !guest.device.set_link(1, link));
    assert_eq!(status(&mut guest), [0x12; 2]);
    guest
        .device
        .handle(command::DEVICE_RESET, &[], vec![])
        .unwrap();
    guest.enumerate();
    assert_eq!(status(&mut guest), [0x12; 2]);
}

#[test]
fn interrupts_are_coalesced_as_the_guest_asks() {
    let mut guest = Guest::ready(true);
    // Three completions or 500 us, but not on vector 2; there is no vector 3.
    assert_eq!(guest.admin(0x09, 0, 0x08, 5 << 8 | 2), 0);
    assert_eq!(guest.admin(0x09, 0, 0x09, 1 << 16 | 2), 0);
    assert_eq!(guest.admin(0x09, 0, 0x09, 1 << 16 | 3), 0x4002);
    assert_eq!(guest.admin(0x0a, 0, 0x09, 3), 0x4002);
    let before = guest.messages();
    for posted in 1..=7 {
        guest.put_io(2, 0, 1, DATA);
        guest.ring_io();
        guest.disk_write(0x100c, posted);
        guest.pass(100 * US);
        assert_eq!(guest.messages(), before + posted as usize / 3);
    }
    // The admin queue's interrupts are not held back, and do not help others.
    assert_eq!(guest.admin(0x06, DATA, 1, 0), 0);
    assert_eq!(guest.messages(), before + 3);
    guest.pass(399 * US);
    assert_eq!(guest.messages(), before + 3);
    guest.pass(US);
    assert_eq!(guest.messages(), before + 4);
    assert_eq!(guest.device.next_due(), None);
    assert_eq!(guest.device.counters().disks[0].held_interrupts, 5);
    // A reset of the controller forgets the settings.
    guest.disk_write(0x14, 0);
    guest.admin_tail = 0;
    guest.fill_ram(0);
    guest.enable();
    guest.make_io_queues();
    let before = guest.messages();
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    assert_eq!(guest.messages(), before + 1);
}

#[test]
fn an_exempt_vector_interrupts_at_once() {
    let mut guest = Guest::ready(true);
    assert_eq!(guest.admin(0x09, 0, 0x08, 5 << 8 | 2), 0);
    assert_eq!(guest.admin(0x09, 0, 0x09, 1 << 16 | 1), 0);
    let before = guest.messages();
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    assert_eq!(guest.messages(), before + 1);
}

#[test]
fn a_stalled_disk_takes_and_completes_nothing_until_it_is_resumed() {
    let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    assert!(guest.device.set_stalled(0, true) && !guest.device.set_stalled(1, true));
    guest.put_io(2, 0, 1, DATA);
    guest.ring_io();
    guest.device.raise_event(0);
    guest.pass(1_000_000 * US);
    let counters = guest.device.counters();
    assert_eq!((counters.io_cqes(), counters.disks[0].in_service), (0, 1));
    assert_eq!(guest.device.next_due(), None);
    assert!(guest.device.set_stalled(0, false));
    assert_eq!(guest.device.counters().io_cqes(), 1);
    guest.pass(80 * US);
    assert_eq!(guest.device.counters().io_cqes(), 2);
    assert_accounted(&guest.device.counters());
}

/// What the commands of a queue, or of all of them, came to.
fn assert_accounted(counters: &Counters) {
    for disk in &counters.disks {
        let of = QueueCounters::taken;
        let io = &disk.queues[1.min(disk.queues.len())..];
        let taken: u64 = io.iter().map(of).sum();
        let ended: u64 = io.iter().map(|queue| queue.cqes + queue.discarded).sum();
        assert_eq!(taken, ended + disk.in_service);
        for queue in &disk.queues {
            assert!(queue.cqes + queue.discarded <= of(queue));
            assert!(queue.cqes_skipped <= queue.cqes);
        }
    }
}

/// Ways to end a queue while it has commands in service.
#[test]
fn a_command_of_a_queue_that_is_gone_never_completes() {
    type End = fn(&mut Guest);
    let ends: [End; 4] = [
        |guest| {
            assert_eq!(guest.admin(0x00, 0, 1, 0), 0);
            assert_eq!(guest.admin(0x04, 0, 1, 0), 0);
        },
        |guest| assert_eq!(guest.admin(0x00, 0, 1, 0), 0),
        |guest| {
            guest.disk_write(0x14, 0);
            guest.admin_tail = 0;
            guest.fill_ram(0);
            guest.enable();
        },
        |guest| {
            guest.write(CFGBAR, (1 << 20) + 0x48, &0x8000_u16.to_le_bytes());
            guest.admin_tail = 0;
            guest.fill_ram(0);
            guest.enumerate();
            guest.enable();
        },
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut guest = Guest::with(fixed(80 * US), SharedService::default()).boot(true);
        for _ in 0..3 {
            guest.put_io(2, 0, 1, DATA);
        }
        guest.ring_io();
        end(&mut guest);
        if index == 1 {
            assert_eq!(guest.admin(0x01, IO_SQ, queue_dword(1), 1 << 16 | 1), 0);
            guest.io_tail = 0;
        } else {
            guest.make_io_queues();
        }
        let before = guest.messages();
        guest.pass(1000 * US);
        let counters = guest.device.counters();
        assert_eq!((counters.io_cqes(), guest.messages()), (0, before));
        assert_eq!(counters.disks[0].queues[1].discarded, 3);
        assert_accounted(&counters);
        // All slots of the completion queue are free again.
        for _ in 0..7 {
            guest.put_io(2, 0, 1, DATA);
        }
        guest.ring_io();
        guest.pass(80 * US);
        assert_eq!(guest.device.counters().io_cqes(), 7, "end {index}");
    }
}

/// Values that are likely to reach interesting places.
fn interesting_u64() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..RAM_PAGES + 4, 0..64_u64).prop_map(|(page, word)| RAM + page * PAGE + word * 8),
        (0..RAM_PAGES + 4).prop_map(|page| RAM + page * PAGE),
        Just(ROM + 2 * PAGE - 8),
        Just(u64::MAX - 511),
        0..4096_u64,
    ]
}

fn interesting_dword() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0..8_u32,
        (0..4_u32, 0..16_u32).prop_map(|(a, b)| b << 16 | a)
    ]
}

/// A command whose fields are mostly plausible.
fn random_command() -> impl Strategy<Value = [u8; 64]> {
    let header = (
        prop_oneof![0..16_u8, any::<u8>()],
        prop_oneof![Just(0_u8), any::<u8>()],
    );
    let namespace = prop_oneof![Just(1_u32), any::<u32>()];
    let dwords = prop::collection::vec(interesting_dword(), 6);
    (
        header,
        namespace,
        interesting_u64(),
        interesting_u64(),
        dwords,
    )
        .prop_map(|((opcode, flags), namespace, prp1, prp2, dwords)| {
            let mut command = entry(opcode, namespace, prp1, &dwords);
            command[1] = flags;
            put(&mut command, 32, &prp2.to_le_bytes());
            command
        })
}

/// Speeds that make commands of one test overlap, wait, and miss each other.
fn any_speed() -> impl Strategy<Value = (Service, SharedService)> {
    let latency = || {
        prop_oneof![
            Just(Latency::Fixed(0)),
            (0..200 * US).prop_map(Latency::Fixed),
            (0..50 * US, 0..500 * US).prop_map(|(low, more)| Latency::Uniform {
                low,
                high: low + more
            }),
            (1..4_u32).prop_map(|one_in| Latency::Tail {
                usual: US,
                rare: 400 * US,
                one_in
            }),
        ]
    };
    let iops = || prop::option::of(1_000..1_000_000_u32);
    let service = (latency(), 1..9_u32, iops()).prop_map(|(latency, parallelism, iops)| Service {
        latency,
        parallelism,
        iops,
    });
    let shared = (latency(), prop::option::of(1..4_u32), iops(), 1..3_u8).prop_map(
        |(latency, parallelism, iops, from_disks)| SharedService {
            latency,
            parallelism,
            iops,
            from_disks,
        },
    );
    (service, shared)
}

#[derive(Clone, Copy, Debug)]
enum AnyFault {
    Msi(Option<u16>, u32, MsiFault),
    Completion(Option<u16>, u32, CompletionFault),
}

fn any_fault() -> impl Strategy<Value = AnyFault> {
    let of = || prop::option::of(0..3_u16);
    let msi = prop_oneof![
        Just(MsiFault::Drop),
        Just(MsiFault::Duplicate),
        (0..500 * US).prop_map(|delay| MsiFault::Delay(Delay(delay))),
    ];
    let completion = prop_oneof![
        Just(CompletionFault::CommandId),
        Just(CompletionFault::Status)
    ];
    prop_oneof![
        (of(), 0..6_u32, msi).prop_map(|(of, nth, fault)| AnyFault::Msi(of, nth, fault)),
        (of(), 0..6_u32, completion)
            .prop_map(|(of, nth, fault)| AnyFault::Completion(of, nth, fault)),
    ]
}

/// A write to the disk's registers, doorbells or MSI-X table, or elsewhere.
fn random_write() -> impl Strategy<Value = (u32, u64, Vec<u8>)> {
    let disk = 1_u64 << 20;
    let offset = prop_oneof![
        (Just(MEMORY), (0..0x40_u64).prop_map(|at| DISK_BAR + at)),
        (
            Just(MEMORY),
            (0..12_u64).prop_map(|at| DISK_BAR + 0x1000 + at * 2)
        ),
        (
            Just(MEMORY),
            (0..0x40_u64).prop_map(|at| DISK_BAR + 0x2000 + at)
        ),
        (
            Just(MEMORY),
            (0x0ff0..0x4010_u64).prop_map(|at| DISK_BAR + at)
        ),
        (Just(CFGBAR), (0..0x100_u64).prop_map(move |at| disk + at)),
        (Just(CFGBAR), 0..0x100_u64),
        (Just(CFGBAR), 0..(32_u64 << 20)),
        (Just(CONFIG), 0..0x100_u64),
        (Just(4), 0..0x3000_u64),
    ];
    let data = prop_oneof![
        interesting_dword().prop_map(|value| value.to_le_bytes().to_vec()),
        interesting_u64().prop_map(|value| value.to_le_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..24),
    ];
    (offset, data).prop_map(|((region, offset), data)| (region, offset, data))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Any content of the queues, and of the memory that it points to: every
    /// command is either completed or waits, and nothing else is touched.
    #[test]
    fn random_queue_contents_do_no_harm(
        admin in prop::collection::vec(random_command(), 7),
        io in prop::collection::vec(random_command(), 7),
        list in prop::collection::vec(interesting_u64(), 64),
        rounds in 1..4_usize,
        (service, shared) in any_speed(),
        pauses in prop::collection::vec(0..100 * US, 8),
        faults in prop::collection::vec(any_fault(), 0..6),
    ) {
        let mut guest = Guest::with(service, shared).boot(true);
        for fault in faults {
            let planned = guest.device.plan(0, |disk| match fault {
                AnyFault::Msi(of, nth, fault) => disk.plan_msi_fault(of, nth, fault),
                AnyFault::Completion(of, nth, fault) => {
                    disk.plan_completion_fault(of, nth, fault)
                }
            });
            prop_assert_eq!(planned, Some(true));
        }
        let list: Vec<u8> = list.iter().flat_map(|word| word.to_le_bytes()).collect();
        for page in 8..RAM_PAGES {
            guest.device.memory.write(RAM + page * PAGE, &list).unwrap();
            guest.device.memory.write(RAM + (page + 1) * PAGE - 512, &list).unwrap();
        }
        for _ in 0..rounds {
            for (slot, command) in (0..).zip(&io) {
                guest.device.memory.write(IO_SQ + slot * 64, command).unwrap();
            }
            for (slot, command) in (0..).zip(&admin) {
                guest.device.memory.write(ADMIN_SQ + slot * 64, command).unwrap();
            }
            for (tail, pause) in (0..8).zip(&pauses) {
                guest.disk_write(0x1008, tail);
                guest.disk_write(0x1000, tail);
                guest.disk_write(0x100c, tail);
                guest.disk_write(0x1004, tail);
                guest.pass(*pause);
            }
            guest.device.raise_event(0);
        }
        assert_accounted(&guest.device.counters());
        // Whatever is in service ends.
        guest.settle();
        prop_assert_eq!(guest.device.next_due(), None);
        let counters = guest.device.counters();
        prop_assert_eq!(counters.disks[0].in_service, 0);
        assert_accounted(&counters);
        let admin = &counters.disks[0].queues[0];
        // An asynchronous event request is taken but may wait.
        prop_assert!(admin.other - admin.cqes - admin.discarded <= 4);
        prop_assert!(counters.msis() <= counters.cqes());
        let disk = &counters.disks[0];
        prop_assert_eq!(
            counters.bypass_msis + counters.undelivered_msis,
            counters.msis() + disk.duplicated_msis - disk.dropped_msis
        );
        guest.assert_rest_untouched();
    }

    /// Any writes and reads of the regions, on a running disk with commands in service.
    #[test]
    fn random_accesses_do_no_harm(
        accesses in prop::collection::vec((random_write(), any::<bool>(), 0..50 * US), 1..60),
        bypass in any::<bool>(),
        (service, shared) in any_speed(),
    ) {
        let mut guest = Guest::with(service, shared).boot(bypass);
        for _ in 0..7 {
            guest.put_io(2, 0, 1, DATA);
        }
        guest.ring_io();
        for ((region, offset, data), is_read, pause) in accesses {
            guest.pass(pause);
            let mut body = write_body(region, offset, &data);
            let code = if is_read {
                body.truncate(16);
                command::REGION_READ
            } else {
                command::REGION_WRITE
            };
            if let Ok(reply) = guest.device.handle(code, &body, vec![]) {
                prop_assert_eq!(reply.len(), if is_read { 16 + data.len() } else { 16 });
            }
        }
        guest.settle();
        prop_assert_eq!(guest.device.next_due(), None);
        assert_accounted(&guest.device.counters());
        guest.assert_rest_untouched();
    }

    /// Any request, with any number of descriptors.
    #[test]
    fn random_requests_do_no_harm(
        requests in prop::collection::vec(
            (0..17_u16, prop::collection::vec(interesting_dword(), 0..20), 0..3_usize),
            1..30,
        ),
    ) {
        let mut guest = Guest::ready(true);
        for (code, words, fds) in requests {
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            // Not the guest's file: a mapping of it elsewhere would be legal to write.
            let fds = (0..fds).map(|_| OwnedFd::from(file(1, 0))).collect();
            let before = guest.device.counters().rejected;
            let served = guest.device.handle(code, &body, fds);
            let rejected = guest.device.counters().rejected - before;
            prop_assert!(served.is_ok() || rejected == 1);
        }
        guest.assert_rest_untouched();
    }
}
