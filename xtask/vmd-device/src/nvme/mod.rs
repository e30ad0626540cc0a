//! An NVMe controller with its namespaces.
//!
//! A command goes through these steps: it is *taken* from its submission queue,
//! which reserves a slot in the completion queue; it is *executed*, which moves
//! its data; an I/O command is *in service* until its time has come; then it is
//! *posted* to the completion queue, together with all others that are due, and
//! one interrupt is raised for each completion queue. The endpoint decides when
//! what happens. The guest's memory is not touched between execution and posting.

mod admin;
mod coalescing;
mod command;
mod identify;
mod io;
mod prp;
mod queue;
mod registers;
mod store;

pub(crate) use identify::Identity;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use identify::MAX_EVENT_REQUESTS;

use std::collections::{BTreeMap, VecDeque};

use vm_memory::mmap::MmapRegionError;

use crate::config::Config;
use crate::counters::DiskCounters;
use crate::diagnostics::Diagnostics;
use crate::faults::{CompletionFault, Delay, MsiFault, Plan};
use crate::memory::GuestMemory;
use crate::pci::config_space::touches;
use crate::pci::link::LINK_SPEEDS;
use crate::pci::{
    CAP_EXPRESS, CAP_MSIX, COMMAND_MEMORY, COMMAND_WRITABLE, ConfigSpace, Link, Message, Msix,
    STATUS_CAPABILITIES, msix, register,
};
use crate::service::{Nanos, Schedule, Start};
use admin::{ASYNCHRONOUS_EVENT_REQUEST, AdminContext, AdminState, Queues, TEMPERATURE_EVENT};
use command::{Completion, Status, Taken};
use queue::{CompletionQueue, InvalidDoorbell};
use registers::{Change, Registers};
use store::Store;

/// Bytes of the controller's BAR.
pub(crate) const BAR_LEN: u64 = 0x4000;
const DOORBELLS: usize = 0x1000;
const MSIX_TABLE: usize = 0x2000;
const MSIX_PENDING: usize = 0x3000;

const CONFIG_EXPRESS: usize = 0x40;
const CONFIG_MSIX: usize = 0x80;
const EXPRESS_DEVICE_CONTROL: usize = CONFIG_EXPRESS + 8;
const FUNCTION_LEVEL_RESET: u16 = 0x8000;

/// Linux has no command with this id: its lower 12 bits are beyond any queue's depth.
const INVALID_COMMAND_ID: u16 = 0xffff;

/// What a controller needs from outside while it handles an access.
#[derive(Debug)]
pub(crate) struct Environment<'a> {
    pub(crate) now: Nanos,
    pub(crate) memory: &'a GuestMemory,
    pub(crate) diagnostics: &'a mut Diagnostics,
}

/// What was posted to the queues of one vector.
#[derive(Debug, Default)]
struct Posted {
    entries: u32,
    is_admin: bool,
}

/// One NVMe controller.
#[derive(Debug)]
pub(crate) struct Controller {
    identity: Identity,
    config: ConfigSpace,
    link: Link,
    msix: Msix,
    registers: Registers,
    queues: Queues,
    admin: AdminState,
    /// The namespaces; the first one has id 1.
    namespaces: Vec<Store>,
    /// I/O commands in service.
    schedule: Schedule<Completion>,
    /// Submission queues that may hold commands, in the order of their turns;
    /// the admin queue is always first.
    rung: VecDeque<u16>,
    /// Finished commands that are not posted yet.
    finished: Vec<Completion>,
    counters: DiskCounters,
    /// Messages raised and not yet collected.
    messages: Vec<Message>,
    /// Messages sent that arrive later than they should.
    delayed: Vec<(Nanos, Message)>,
    msi_faults: Plan<MsiFault>,
    completion_faults: Plan<CompletionFault>,
}

impl Controller {
    /// A controller as configured, whose MSI-X vectors allow one I/O queue pair
    /// less. It has a namespace for each identifier.
    pub(crate) fn new(identity: Identity, config: &Config) -> Result<Self, MmapRegionError> {
        let vectors = config.queue_vectors;
        let namespaces = identity
            .eui64
            .iter()
            .map(|_| Store::new(config.disk_bytes, config.block_size));
        Ok(Self {
            config: config_space(vectors, Link::default()),
            link: Link::default(),
            msix: Msix::new(vectors),
            registers: Registers::default(),
            queues: Queues::new(vectors.saturating_sub(1)),
            admin: AdminState::default(),
            namespaces: namespaces.collect::<Result<_, _>>()?,
            schedule: Schedule::new(config.service),
            rung: VecDeque::new(),
            finished: Vec::new(),
            counters: DiskCounters {
                serial: identity.serial.clone(),
                ..DiskCounters::default()
            },
            messages: Vec::new(),
            delayed: Vec::new(),
            msi_faults: Plan::default(),
            completion_faults: Plan::default(),
            identity,
        })
    }

    pub(crate) fn counters(&self) -> DiskCounters {
        DiskCounters {
            in_service: self.schedule.in_service() as u64,
            ..self.counters.clone()
        }
    }

    pub(crate) fn schedule(&self) -> &Schedule<Completion> {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule<Completion> {
        &mut self.schedule
    }

    /// Messages sent since the last call, and those that were delayed until now.
    pub(crate) fn take_messages(&mut self, now: Nanos) -> Vec<Message> {
        let mut arriving: Vec<Message> = self
            .delayed
            .extract_if(.., |(due, _)| *due <= now)
            .map(|(_, message)| message)
            .collect();
        for message in std::mem::take(&mut self.messages) {
            self.counters.count_msi(message.vector);
            match self.msi_faults.next(message.vector) {
                None => arriving.push(message),
                Some(MsiFault::Drop) => self.counters.dropped_msis += 1,
                Some(MsiFault::Duplicate) => {
                    self.counters.duplicated_msis += 1;
                    arriving.extend([message; 2]);
                }
                Some(MsiFault::Delay(Delay(delay))) => {
                    self.counters.delayed_msis += 1;
                    self.delayed.push((now.saturating_add(delay), message));
                }
            }
        }
        arriving
    }

    /// Lets the `nth` MSI from now on, of one vector or any, go wrong. False if
    /// too many faults wait.
    pub(crate) fn plan_msi_fault(
        &mut self,
        vector: Option<u16>,
        nth: u32,
        fault: MsiFault,
    ) -> bool {
        self.msi_faults.add(vector, nth, fault)
    }

    /// Lets the `nth` completion from now on, of one submission queue or any, go
    /// wrong. False if too many faults wait.
    pub(crate) fn plan_completion_fault(
        &mut self,
        queue: Option<u16>,
        nth: u32,
        fault: CompletionFault,
    ) -> bool {
        self.completion_faults.add(queue, nth, fault)
    }

    /// Changes the link that the disk shows; that its speed changes with it is not
    /// a matter of this register.
    pub(crate) fn set_link(&mut self, link: Link) {
        self.link = link;
        self.config
            .set(CONFIG_EXPRESS + 0x12, &link.bits().to_le_bytes());
    }

    /// The function's state after a reset by its bus. The data stay.
    pub(crate) fn reset(&mut self) {
        self.config = config_space(self.msix.vectors(), self.link);
        self.msix.reset();
        self.registers = Registers::default();
        self.stop();
    }

    fn stop(&mut self) {
        self.queues.clear();
        self.rung.clear();
        let parked = self.admin.parked() as u64;
        if parked > 0 {
            self.counters.queue(0).discarded += parked;
        }
        self.admin = AdminState::default();
        self.discard_orphans();
    }

    /// Gives up commands in service whose queue is gone. A host takes the deletion
    /// of a queue for the end of its commands (NVM Express Base Specification 1.4,
    /// section 5.6: "implicitly completed").
    fn discard_orphans(&mut self) {
        let queues = &self.queues;
        let living = |it: &Completion| queues.is_living_submission(it.taken.submission);
        for orphan in self.schedule.retain(living) {
            self.discard(&orphan.taken);
        }
    }

    /// Counts a command that will not be completed, and gives its slot back.
    fn discard(&mut self, taken: &Taken) {
        self.counters.queue(taken.submission.id).discarded += 1;
        if let Some(queue) = self.queues.living_completion(taken.completion) {
            queue.release();
            for feeding in self.queues.feeding(taken.completion.id) {
                self.ring(feeding);
            }
        }
    }

    /// Gives a submission queue its turn if it holds commands.
    fn ring(&mut self, id: u16) {
        let holds = self.queues.submission(id).is_some_and(|it| !it.is_empty());
        if !holds || self.rung.contains(&id) {
            return;
        }
        if id == 0 {
            self.rung.push_front(id);
        } else {
            self.rung.push_back(id);
        }
    }

    /// Whether `address` of the VMD's domain is in this controller's BAR, and where.
    pub(crate) fn bar_offset(&self, address: u64) -> Option<usize> {
        if self.config.u16(register::COMMAND) & COMMAND_MEMORY == 0 {
            return None;
        }
        let offset = address.checked_sub(self.config.bar64(register::BAR0))?;
        (offset < BAR_LEN).then_some(offset as usize)
    }

    pub(crate) fn read_config(&self, offset: usize, out: &mut [u8]) {
        self.config.read(offset, out);
    }

    pub(crate) fn write_config(&mut self, offset: usize, data: &[u8]) {
        self.config.write(offset, data);
        if touches(
            offset,
            data.len(),
            EXPRESS_DEVICE_CONTROL..EXPRESS_DEVICE_CONTROL + 2,
        ) && self.config.u16(EXPRESS_DEVICE_CONTROL) & FUNCTION_LEVEL_RESET != 0
        {
            self.reset();
            return;
        }
        let sent = self.msix.set_control(self.config.u16(CONFIG_MSIX + 2));
        self.messages.extend(sent);
    }

    pub(crate) fn read_bar(&self, offset: usize, out: &mut [u8]) {
        match offset {
            // Doorbells are write-only and read as zero, beyond the registers.
            0..MSIX_TABLE => self.registers.read(offset, out),
            MSIX_TABLE..MSIX_PENDING => self.msix.read_table(offset - MSIX_TABLE, out),
            _ => self.msix.read_pending(offset - MSIX_PENDING, out),
        }
    }

    pub(crate) fn write_bar(&mut self, offset: usize, data: &[u8], env: &mut Environment<'_>) {
        match offset {
            0..DOORBELLS => self.write_registers(offset, data, env),
            DOORBELLS..MSIX_TABLE => self.write_doorbell(offset - DOORBELLS, data, env),
            MSIX_TABLE..MSIX_PENDING if offset - MSIX_TABLE < self.msix.table_len() => {
                let sent = self.msix.write_table(offset - MSIX_TABLE, data);
                self.messages.extend(sent);
            }
            _ => {}
        }
    }

    /// Splits a write of any size into registers of 32 bits. Bytes that the
    /// write does not cover keep their value; for the mask registers, where
    /// writing ones has an effect, they count as zero.
    fn write_registers(&mut self, offset: usize, data: &[u8], env: &mut Environment<'_>) {
        let end = offset.saturating_add(data.len()).min(DOORBELLS);
        let mut register = offset & !3;
        while register < end {
            let mut bytes = [0; 4];
            if register != 0x0c && register != 0x10 {
                self.registers.read(register, &mut bytes);
            }
            for (position, byte) in bytes.iter_mut().enumerate() {
                let value = (register + position)
                    .checked_sub(offset)
                    .and_then(|at| data.get(at));
                *byte = value.copied().unwrap_or(*byte);
            }
            match self
                .registers
                .write_dword(register, u32::from_le_bytes(bytes))
            {
                Change::Nothing => {}
                Change::Disable => self.stop(),
                Change::Enable => self.enable(env),
            }
            register += 4;
        }
    }

    fn enable(&mut self, env: &mut Environment<'_>) {
        match self.registers.admin_queues() {
            Ok(admin) => {
                self.stop();
                self.queues.make_admin(admin);
                // The counters of the admin queue exist from here on.
                self.counters.queue(0);
                self.registers.set_ready();
            }
            Err(reason) => self.fail(format_args!("cannot be enabled: {reason}"), env),
        }
    }

    /// Reports an error that no completion can carry.
    fn fail(&mut self, what: std::fmt::Arguments<'_>, env: &mut Environment<'_>) {
        self.registers.set_fatal();
        for completion in self.schedule.retain(|_| false) {
            self.discard(&completion.taken);
        }
        self.rung.clear();
        self.reject(what, env);
    }

    fn reject(&self, what: std::fmt::Arguments<'_>, env: &mut Environment<'_>) {
        env.diagnostics
            .reject(format_args!("disk {}: {what}", self.identity.serial));
    }

    fn write_doorbell(&mut self, offset: usize, data: &[u8], env: &mut Environment<'_>) {
        let (Some(value), true) = (data.first_chunk(), offset.is_multiple_of(4)) else {
            return self.reject(
                format_args!("doorbell write is not an aligned 32-bit word"),
                env,
            );
        };
        // The upper half is reserved.
        let value = u32::from(u32::from_le_bytes(*value) as u16);
        let queue = (offset / 8) as u16;
        if !self.registers.is_running() {
            return self.reject(
                format_args!("doorbell of queue {queue} while not running"),
                env,
            );
        }
        let is_submission = offset.is_multiple_of(8);
        let rung = if is_submission {
            self.queues.submission(queue).map(|ring| ring.ring(value))
        } else {
            self.queues.completion(queue).map(|ring| ring.ring(value))
        };
        let kind = if is_submission {
            "submission"
        } else {
            "completion"
        };
        match rung {
            Some(Ok(())) if is_submission => self.ring(queue),
            // There may be room now for commands that had to wait.
            Some(Ok(())) => {
                for feeding in self.queues.feeding(queue) {
                    self.ring(feeding);
                }
            }
            Some(Err(InvalidDoorbell)) => {
                self.reject(
                    format_args!("{kind} queue {queue} cannot be at {value}"),
                    env,
                );
            }
            None => self.reject(format_args!("doorbell of no {kind} queue {queue}"), env),
        }
    }

    /// Whether a queue waits for its turn.
    pub(crate) fn is_rung(&self) -> bool {
        !self.rung.is_empty()
    }

    /// Takes and executes one command, whose service starts; false if there is none
    /// that may be taken.
    /// Admin commands are finished at once and do not count for any limit.
    pub(crate) fn start_next(&mut self, start: Start<'_>, env: &mut Environment<'_>) -> bool {
        if self.schedule.is_stalled() {
            return false;
        }
        while let Some(&id) = self.rung.front() {
            if id != 0 && !(start.room && self.schedule.has_room()) {
                return false;
            }
            self.rung.pop_front();
            let Some(taken) = self.take(id, env) else {
                continue;
            };
            self.ring(id);
            if let Some(completion) = self.execute(&taken, env) {
                if id == 0 {
                    self.finished.push(completion);
                } else {
                    self.schedule.start(completion, start);
                }
            }
            return true;
        }
        false
    }

    /// Ends the service of the command that is due next.
    pub(crate) fn finish(&mut self, at: Nanos) {
        self.finished.extend(self.schedule.finish(at));
    }

    /// Posts what is finished, and events.
    pub(crate) fn post(&mut self, env: &mut Environment<'_>) {
        if self.schedule.is_stalled() {
            return;
        }
        let mut completions = std::mem::take(&mut self.finished);
        self.match_events(&mut completions);
        self.complete(&completions, env);
    }

    /// Takes one command, if there is one and room for its completion.
    fn take(&mut self, id: u16, env: &mut Environment<'_>) -> Option<Taken> {
        if !self.registers.is_running() {
            return None;
        }
        let queue = self.queues.submission(id)?;
        let completion = queue.completion;
        if queue.is_empty() || !self.queues.living_completion(completion)?.reserve() {
            return None;
        }
        match self.queues.submission(id)?.take(env.memory) {
            Ok(taken) => taken,
            Err(error) => {
                self.fail(
                    format_args!("cannot fetch from submission queue {id}: {error}"),
                    env,
                );
                None
            }
        }
    }

    /// Executes a command; `None` if it waits for an event.
    fn execute(&mut self, taken: &Taken, env: &mut Environment<'_>) -> Option<Completion> {
        let command = &taken.command;
        let counters = self.counters.queue(taken.submission.id);
        let outcome = if taken.submission.id != 0 {
            io::count(command, counters);
            io::execute(command, &self.namespaces, env.memory)
        } else {
            counters.other += 1;
            if command.opcode() == ASYNCHRONOUS_EVENT_REQUEST {
                match self.admin.park(*taken) {
                    Ok(()) => {
                        if let Some(queue) = self.queues.living_completion(taken.completion) {
                            queue.release();
                        }
                        return None;
                    }
                    Err(status) => Err(status),
                }
            } else {
                let outcome = AdminContext {
                    identity: &self.identity,
                    namespaces: &self.namespaces,
                    queues: &mut self.queues,
                    state: &mut self.admin,
                    memory: env.memory,
                    vectors: self.msix.vectors(),
                }
                .execute(command);
                // It may have deleted a queue.
                self.discard_orphans();
                outcome
            }
        };
        if let Err(status) = outcome
            && status == Status::DATA_TRANSFER_ERROR
        {
            let opcode = command.opcode();
            self.reject(
                format_args!("command {opcode:#x} points to memory that is not mapped"),
                env,
            );
        }
        Some(taken.completed(outcome))
    }

    /// Completes event requests for which there are events and room.
    fn match_events(&mut self, completions: &mut Vec<Completion>) {
        while self.admin.has_match()
            && self
                .queues
                .completion(0)
                .is_some_and(CompletionQueue::reserve)
        {
            let matched = self.admin.take_match();
            completions.extend(matched.map(|(request, event)| request.completed(Ok(event))));
        }
    }

    /// Posts completions, then raises one interrupt for each vector whose queues
    /// got any, unless coalescing holds it back. The admin queue's is never held.
    /// A completion whose submission queue is gone is dropped: it must not get
    /// into another queue that has the same id by now.
    fn complete(&mut self, completions: &[Completion], env: &mut Environment<'_>) {
        let mut posted: BTreeMap<u16, Posted> = BTreeMap::new();
        for completion in completions {
            let mut completion = *completion;
            let taken = completion.taken;
            let is_wanted =
                self.registers.is_running() && self.queues.is_living_submission(taken.submission);
            let queue = self
                .queues
                .living_completion(taken.completion)
                .filter(|_| is_wanted);
            let Some(queue) = queue else {
                self.discard(&taken);
                continue;
            };
            let fault = self.completion_faults.next(taken.submission.id);
            match fault {
                Some(CompletionFault::CommandId) => completion.command_id = INVALID_COMMAND_ID,
                Some(CompletionFault::Status) => completion.status = Status::UNRECOVERED_READ_ERROR,
                None => {}
            }
            if let Err(error) = queue.post(&completion, env.memory) {
                let id = taken.completion.id;
                self.discard(&taken);
                self.fail(
                    format_args!("cannot post to completion queue {id}: {error}"),
                    env,
                );
                continue;
            }
            if let Some(vector) = queue.vector {
                let posted = posted.entry(vector).or_default();
                posted.entries += 1;
                posted.is_admin |= taken.submission.id == 0;
            }
            let counters = self.counters.queue(taken.submission.id);
            counters.cqes += 1;
            let is_event_request =
                taken.submission.id == 0 && taken.command.opcode() == ASYNCHRONOUS_EVENT_REQUEST;
            let is_skipped = is_event_request || fault == Some(CompletionFault::CommandId);
            counters.cqes_skipped += u64::from(is_skipped);
            counters.corrupted += u64::from(fault.is_some());
        }
        let coalescing = &mut self.admin.coalescing;
        for (vector, Posted { entries, is_admin }) in posted {
            let is_now = coalescing.posted(vector, entries, env.now) || is_admin;
            if is_now {
                coalescing.interrupted(vector);
                self.messages.extend(self.msix.raise(vector));
            } else {
                self.counters.held_interrupts += 1;
            }
        }
        for vector in coalescing.expired(env.now) {
            self.messages.extend(self.msix.raise(vector));
        }
    }

    /// When an interrupt that coalescing holds back is raised at the latest, or
    /// one that was delayed arrives.
    pub(crate) fn next_interrupt(&self) -> Option<Nanos> {
        let held = self.admin.coalescing.next_due();
        let held = held.filter(|_| !self.schedule.is_stalled());
        let delayed = self.delayed.iter().map(|(due, _)| *due);
        delayed.chain(held).min()
    }

    /// Raises a temperature event. It is sent when the guest next has an event
    /// request outstanding; unlike a real controller's it is not held back until
    /// the guest has read the health log. False if too many events wait or the
    /// controller is not running.
    pub(crate) fn raise_event(&mut self) -> bool {
        self.registers.is_running() && self.admin.add_event(TEMPERATURE_EVENT)
    }
}

/// The configuration space after a reset.
fn config_space(vectors: u16, link: Link) -> ConfigSpace {
    let mut space = ConfigSpace::new();
    space.set(register::VENDOR, &0x1b36_u16.to_le_bytes());
    // Not QEMU's own 0010, for which Linux ignores the namespace identifiers.
    space.set(register::DEVICE, &0x00ff_u16.to_le_bytes());
    space.allow(register::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
    space.set(register::STATUS, &STATUS_CAPABILITIES.to_le_bytes());
    space.set(register::REVISION, &[2]);
    // NVM Express: non-volatile memory controller.
    space.set(register::PROGRAMMING_INTERFACE, &[0x02]);
    space.set(register::SUBCLASS, &[0x08]);
    space.set(register::CLASS, &[0x01]);
    space.allow(register::CACHE_LINE, &[0xff]);
    // A 64-bit memory BAR.
    space.set(register::BAR0, &4_u32.to_le_bytes());
    space.allow(register::BAR0, &(!(BAR_LEN as u32 - 1)).to_le_bytes());
    space.allow(register::BAR0 + 4, &[0xff; 4]);
    space.set(register::SUBSYSTEM_VENDOR, &0x1af4_u16.to_le_bytes());
    space.set(register::SUBSYSTEM, &0x1100_u16.to_le_bytes());
    space.set(register::CAPABILITIES, &[CONFIG_EXPRESS as u8]);
    space.allow(register::INTERRUPT_LINE, &[0xff]);

    // PCI Express capability: endpoint that can be reset.
    space.set(CONFIG_EXPRESS, &[CAP_EXPRESS, CONFIG_MSIX as u8]);
    space.set(CONFIG_EXPRESS + 0x02, &0x0002_u16.to_le_bytes());
    space.set(CONFIG_EXPRESS + 0x04, &0x1000_8001_u32.to_le_bytes());
    space.allow(EXPRESS_DEVICE_CONTROL, &[0xff; 2]);
    let most = u32::from(Link::default().bits());
    space.set(CONFIG_EXPRESS + 0x0c, &most.to_le_bytes());
    space.allow(CONFIG_EXPRESS + 0x10, &[0xff; 2]);
    space.set(CONFIG_EXPRESS + 0x12, &link.bits().to_le_bytes());
    space.allow(CONFIG_EXPRESS + 0x28, &[0xff; 2]);
    space.set(CONFIG_EXPRESS + 0x2c, &LINK_SPEEDS.to_le_bytes());
    space.allow(CONFIG_EXPRESS + 0x30, &[0xff; 2]);

    // MSI-X: table and pending bits in BAR 0.
    space.set(CONFIG_MSIX, &[CAP_MSIX, 0]);
    space.set(CONFIG_MSIX + 2, &(vectors.saturating_sub(1)).to_le_bytes());
    space.allow(CONFIG_MSIX + 2, &msix::CONTROL_WRITABLE.to_le_bytes());
    space.set(CONFIG_MSIX + 4, &(MSIX_TABLE as u32).to_le_bytes());
    space.set(CONFIG_MSIX + 8, &(MSIX_PENDING as u32).to_le_bytes());
    space
}
