//! Admin commands (NVM Express Base Specification 1.4, section 5).

use std::collections::{BTreeMap, VecDeque};

use super::coalescing::Coalescing;
use super::command::{Command, Outcome, QueueLife, Status, Taken};
use super::identify::{self, Identity, MAX_EVENT_REQUESTS};
use super::prp;
use super::queue::{CompletionQueue, MAX_ENTRIES, SubmissionQueue};
use super::registers::AdminQueues;
use super::store::Store;
use crate::bytes::put;
use crate::memory::{GuestMemory, PAGE};

const DELETE_SUBMISSION_QUEUE: u8 = 0x00;
const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
const GET_LOG_PAGE: u8 = 0x02;
const DELETE_COMPLETION_QUEUE: u8 = 0x04;
const CREATE_COMPLETION_QUEUE: u8 = 0x05;
const IDENTIFY: u8 = 0x06;
const ABORT: u8 = 0x08;
const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;
pub(crate) const ASYNCHRONOUS_EVENT_REQUEST: u8 = 0x0c;

const FEATURE_NUMBER_OF_QUEUES: u8 = 0x07;
const FEATURE_INTERRUPT_COALESCING: u8 = 0x08;
const FEATURE_INTERRUPT_VECTOR: u8 = 0x09;
/// Features whose value is only kept: arbitration, power, temperature
/// threshold, error recovery, write atomicity, event configuration.
const KEPT_FEATURES: [u8; 6] = [0x01, 0x02, 0x04, 0x05, 0x0a, 0x0b];

const LOG_ERRORS: u8 = 0x01;
const LOG_HEALTH: u8 = 0x02;
const LOG_FIRMWARE: u8 = 0x03;

/// Event type 1 (health), information 1 (temperature), log page 2. Linux
/// traces it, sends a uevent and asks again (`nvme_complete_async_event`).
pub(crate) const TEMPERATURE_EVENT: u32 = 1 | 1 << 8 | (LOG_HEALTH as u32) << 16;

/// Events kept until the guest asks for them.
const MAX_EVENTS: usize = 16;

/// The queues of a controller, by id.
#[derive(Debug)]
pub(crate) struct Queues {
    submission: Vec<Option<SubmissionQueue>>,
    completion: Vec<Option<CompletionQueue>>,
    /// Queues made so far, also before any reset.
    generations: u64,
}

impl Queues {
    /// Room for the admin queues and `io_queues` pairs.
    pub(crate) fn new(io_queues: u16) -> Self {
        let slots = usize::from(io_queues) + 1;
        Self {
            submission: (0..slots).map(|_| None).collect(),
            completion: (0..slots).map(|_| None).collect(),
            generations: 0,
        }
    }

    /// The life of a queue that is about to be made.
    fn new_life(&mut self, id: u16) -> QueueLife {
        self.generations += 1;
        QueueLife {
            id,
            generation: self.generations,
        }
    }

    /// Makes the admin queues, whose interrupts use vector 0.
    pub(crate) fn make_admin(&mut self, at: AdminQueues) {
        let (submission, completion) = (self.new_life(0), self.new_life(0));
        if let (Some(submissions), Some(completions)) =
            (self.submission.first_mut(), self.completion.first_mut())
        {
            *submissions = Some(SubmissionQueue::new(
                submission,
                at.submission_base,
                at.submission_entries,
                completion,
            ));
            *completions = Some(CompletionQueue::new(
                completion,
                at.completion_base,
                at.completion_entries,
                Some(0),
            ));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.submission.fill_with(|| None);
        self.completion.fill_with(|| None);
    }

    pub(crate) fn submission(&mut self, id: u16) -> Option<&mut SubmissionQueue> {
        self.submission.get_mut(usize::from(id))?.as_mut()
    }

    pub(crate) fn completion(&mut self, id: u16) -> Option<&mut CompletionQueue> {
        self.completion.get_mut(usize::from(id))?.as_mut()
    }

    /// The completion queue of this life, if that has not ended.
    pub(crate) fn living_completion(&mut self, life: QueueLife) -> Option<&mut CompletionQueue> {
        self.completion(life.id).filter(|queue| queue.life == life)
    }

    /// Whether the submission queue of this life still exists.
    pub(crate) fn is_living_submission(&self, life: QueueLife) -> bool {
        let slot = self.submission.get(usize::from(life.id));
        slot.and_then(Option::as_ref)
            .is_some_and(|queue| queue.life == life)
    }

    /// Submission queues whose completions go to queue `id`.
    pub(crate) fn feeding(&self, id: u16) -> Vec<u16> {
        (0..)
            .zip(&self.submission)
            .filter(|(_, queue)| {
                queue
                    .as_ref()
                    .is_some_and(|queue| queue.completion.id == id)
            })
            .map(|(submission, _)| submission)
            .collect()
    }

    /// The slot for a new I/O queue.
    fn vacant<T>(slots: &mut [Option<T>], id: u16) -> Result<&mut Option<T>, Status> {
        match slots.get_mut(usize::from(id)) {
            Some(slot) if id != 0 && slot.is_none() => Ok(slot),
            _ => Err(Status::INVALID_QUEUE_ID),
        }
    }

    /// The slot of an I/O queue that exists.
    fn occupied<T>(slots: &mut [Option<T>], id: u16) -> Result<&mut Option<T>, Status> {
        match slots.get_mut(usize::from(id)) {
            Some(slot) if id != 0 && slot.is_some() => Ok(slot),
            _ => Err(Status::INVALID_QUEUE_ID),
        }
    }
}

/// Admin state beside the queues.
#[derive(Debug, Default)]
pub(crate) struct AdminState {
    pub(crate) coalescing: Coalescing,
    features: BTreeMap<u8, u32>,
    /// Event requests that wait for an event.
    requests: VecDeque<Taken>,
    /// Events that wait for a request.
    events: VecDeque<u32>,
}

impl AdminState {
    /// Keeps an event request until there is an event.
    /// Event requests that wait for an event.
    pub(crate) fn parked(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn park(&mut self, request: Taken) -> Result<(), Status> {
        if self.requests.len() >= MAX_EVENT_REQUESTS {
            return Err(Status::TOO_MANY_EVENT_REQUESTS);
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// Adds an event; false if too many wait already.
    pub(crate) fn add_event(&mut self, event: u32) -> bool {
        if self.events.len() >= MAX_EVENTS {
            return false;
        }
        self.events.push_back(event);
        true
    }

    /// Whether an event and a request wait for each other.
    pub(crate) fn has_match(&self) -> bool {
        !self.events.is_empty() && !self.requests.is_empty()
    }

    pub(crate) fn take_match(&mut self) -> Option<(Taken, u32)> {
        if !self.has_match() {
            return None;
        }
        Some((self.requests.pop_front()?, self.events.pop_front()?))
    }
}

/// What admin commands work on.
pub(crate) struct AdminContext<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) namespaces: &'a [Store],
    pub(crate) queues: &'a mut Queues,
    pub(crate) state: &'a mut AdminState,
    pub(crate) memory: &'a GuestMemory,
    /// MSI-X vectors of the disk.
    pub(crate) vectors: u16,
}

impl AdminContext<'_> {
    /// Executes an admin command other than an event request.
    pub(crate) fn execute(&mut self, command: &Command) -> Outcome {
        if command.flags() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        match command.opcode() {
            DELETE_SUBMISSION_QUEUE => self.delete_submission_queue(command),
            CREATE_SUBMISSION_QUEUE => self.create_submission_queue(command),
            GET_LOG_PAGE => self.get_log_page(command),
            DELETE_COMPLETION_QUEUE => self.delete_completion_queue(command),
            CREATE_COMPLETION_QUEUE => self.create_completion_queue(command),
            IDENTIFY => self.identify(command),
            // The command is already completed, or is an event request: not aborted.
            ABORT => Ok(1),
            SET_FEATURES => self.set_features(command),
            GET_FEATURES => self.get_features(command),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Base address and number of entries of a queue to create.
    fn ring(command: &Command) -> Result<(u64, u32), Status> {
        const CONTIGUOUS: u32 = 1;
        let entries = u32::from(command.high(10)) + 1;
        if !(2..=MAX_ENTRIES).contains(&entries) {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        if command.dword(11) & CONTIGUOUS == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if !command.prp1().is_multiple_of(PAGE) {
            return Err(Status::INVALID_PRP_OFFSET);
        }
        Ok((command.prp1(), entries))
    }

    fn create_completion_queue(&mut self, command: &Command) -> Outcome {
        const INTERRUPTS_ENABLED: u32 = 2;
        let id = command.low(10);
        let life = self.queues.new_life(id);
        let slot = Queues::vacant(&mut self.queues.completion, id)?;
        let (base, entries) = Self::ring(command)?;
        let vector = command.high(11);
        if vector >= self.vectors {
            return Err(Status::INVALID_VECTOR);
        }
        let vector = (command.dword(11) & INTERRUPTS_ENABLED != 0).then_some(vector);
        *slot = Some(CompletionQueue::new(life, base, entries, vector));
        Ok(0)
    }

    fn create_submission_queue(&mut self, command: &Command) -> Outcome {
        let completion_queue = command.high(11);
        if completion_queue == 0 {
            return Err(Status::INVALID_QUEUE_ID);
        }
        let Some(completion) = self.queues.completion(completion_queue).map(|it| it.life) else {
            return Err(Status::INVALID_COMPLETION_QUEUE);
        };
        let id = command.low(10);
        let life = self.queues.new_life(id);
        let slot = Queues::vacant(&mut self.queues.submission, id)?;
        let (base, entries) = Self::ring(command)?;
        *slot = Some(SubmissionQueue::new(life, base, entries, completion));
        Ok(0)
    }

    fn delete_submission_queue(&mut self, command: &Command) -> Outcome {
        *Queues::occupied(&mut self.queues.submission, command.low(10))? = None;
        Ok(0)
    }

    fn delete_completion_queue(&mut self, command: &Command) -> Outcome {
        let id = command.low(10);
        let in_use = !self.queues.feeding(id).is_empty();
        let slot = Queues::occupied(&mut self.queues.completion, id)?;
        if in_use {
            return Err(Status::INVALID_QUEUE_DELETION);
        }
        *slot = None;
        Ok(0)
    }

    fn identify(&mut self, command: &Command) -> Outcome {
        const BROADCAST: u32 = 0xffff_fffe;
        const NVM_COMMAND_SET: u32 = 0;
        let namespace = command.namespace();
        let store = (namespace as usize)
            .checked_sub(1)
            .and_then(|index| self.namespaces.get(index))
            .ok_or(Status::INVALID_NAMESPACE);
        let data = match command.dword(10) & 0xff {
            2 if namespace >= BROADCAST => return Err(Status::INVALID_NAMESPACE),
            0 => identify::namespace(self.identity, namespace, store?),
            1 => identify::controller(self.identity),
            2 => identify::active_namespaces(self.identity, namespace),
            3 => store.map(|_| identify::namespace_descriptors(self.identity, namespace))?,
            6 if command.dword(11) >> 24 == NVM_COMMAND_SET => identify::command_set_limits(),
            _ => return Err(Status::INVALID_FIELD),
        };
        prp::write(command, &data, self.memory)?;
        Ok(0)
    }

    fn get_log_page(&mut self, command: &Command) -> Outcome {
        let dwords = u64::from(command.high(10)) | u64::from(command.low(11)) << 16;
        let length = (dwords + 1) * 4;
        if length > prp::MAX_TRANSFER as u64 {
            return Err(Status::INVALID_FIELD);
        }
        let mut log = vec![0; 512];
        match command.dword(10) as u8 {
            LOG_ERRORS | LOG_FIRMWARE => {}
            LOG_HEALTH => {
                // Temperature in kelvin; spare left and its threshold, per cent.
                put(&mut log, 1, &300_u16.to_le_bytes());
                put(&mut log, 3, &[100, 10]);
            }
            _ => return Err(Status::INVALID_LOG_PAGE),
        }
        let offset = u64::from(command.dword(12)) | u64::from(command.dword(13)) << 32;
        if offset % 4 != 0 || offset > log.len() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        let mut data = vec![0; length as usize];
        crate::bytes::read_image(&log, offset as usize, &mut data);
        prp::write(command, &data, self.memory)?;
        Ok(0)
    }

    fn set_features(&mut self, command: &Command) -> Outcome {
        let value = command.dword(11);
        match command.dword(10) as u8 {
            FEATURE_NUMBER_OF_QUEUES => {
                // Both numbers are one less than meant; all ones is not allowed.
                let (submission, completion) = (command.low(11), command.high(11));
                if submission == u16::MAX || completion == u16::MAX {
                    return Err(Status::INVALID_FIELD);
                }
                let most = self.vectors.saturating_sub(2);
                let granted =
                    u32::from(submission.min(most)) | u32::from(completion.min(most)) << 16;
                self.state
                    .features
                    .insert(FEATURE_NUMBER_OF_QUEUES, granted);
                Ok(granted)
            }
            FEATURE_INTERRUPT_COALESCING => {
                self.state.coalescing.set(value);
                Ok(0)
            }
            FEATURE_INTERRUPT_VECTOR => {
                self.vector(command)?;
                self.state.coalescing.configure(value);
                Ok(0)
            }
            feature if KEPT_FEATURES.contains(&feature) => {
                self.state.features.insert(feature, value);
                Ok(0)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The vector that a feature is about.
    fn vector(&self, command: &Command) -> Result<u16, Status> {
        let vector = command.low(11);
        if vector < self.vectors {
            Ok(vector)
        } else {
            Err(Status::INVALID_FIELD)
        }
    }

    fn get_features(&mut self, command: &Command) -> Outcome {
        let feature = command.dword(10) as u8;
        if let Some(value) = self.state.features.get(&feature) {
            return Ok(*value);
        }
        let most = u32::from(self.vectors.saturating_sub(2));
        match feature {
            FEATURE_NUMBER_OF_QUEUES => Ok(most | most << 16),
            FEATURE_INTERRUPT_COALESCING => Ok(self.state.coalescing.get()),
            FEATURE_INTERRUPT_VECTOR => {
                let vector = self.vector(command)?;
                Ok(self.state.coalescing.configuration(vector))
            }
            feature if KEPT_FEATURES.contains(&feature) => Ok(0),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}
