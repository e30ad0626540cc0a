//! Submission and completion queues in guest memory: their rings, the checks on
//! doorbell values, and posting of completions.

use super::command::{COMMAND_LEN, Command, Completion, QueueLife, Taken};
use crate::memory::{GuestMemory, Unmapped};

/// Most entries of a queue; CAP.MQES is one less.
pub(crate) const MAX_ENTRIES: u32 = 1024;
const COMPLETION_LEN: u64 = 16;

/// A doorbell value that the queue cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidDoorbell;

/// A ring from which the guest's commands are taken.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) life: QueueLife,
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    /// Where its completions go; that queue outlives this one.
    pub(crate) completion: QueueLife,
}

impl SubmissionQueue {
    /// `entries` must be 2 to `MAX_ENTRIES`.
    pub(crate) fn new(life: QueueLife, base: u64, entries: u32, completion: QueueLife) -> Self {
        Self {
            life,
            base,
            entries,
            head: 0,
            tail: 0,
            completion,
        }
    }

    /// The guest announces commands up to `tail`.
    pub(crate) fn ring(&mut self, tail: u32) -> Result<(), InvalidDoorbell> {
        if tail >= self.entries {
            return Err(InvalidDoorbell);
        }
        self.tail = tail;
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Takes the next command, if there is one.
    pub(crate) fn take(&mut self, memory: &GuestMemory) -> Result<Option<Taken>, Unmapped> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut bytes = [0; COMMAND_LEN];
        let address = self
            .base
            .saturating_add(u64::from(self.head) * COMMAND_LEN as u64);
        memory.read(address, &mut bytes)?;
        self.head = (self.head + 1) % self.entries;
        Ok(Some(Taken {
            command: Command(bytes),
            submission: self.life,
            completion: self.completion,
            head: self.head as u16,
        }))
    }
}

/// A ring to which completions are posted. A slot is reserved before a command
/// is taken, so that its completion always finds room.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) life: QueueLife,
    base: u64,
    entries: u32,
    head: u32,
    tail: u32,
    reserved: u32,
    phase: bool,
    /// The vector to raise, if interrupts are enabled.
    pub(crate) vector: Option<u16>,
}

impl CompletionQueue {
    /// `entries` must be 2 to `MAX_ENTRIES`.
    pub(crate) fn new(life: QueueLife, base: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            life,
            base,
            entries,
            head: 0,
            tail: 0,
            reserved: 0,
            phase: true,
            vector,
        }
    }

    /// Entries posted and not yet consumed by the guest.
    fn used(&self) -> u32 {
        (self.tail + self.entries - self.head) % self.entries
    }

    /// The guest has consumed entries up to `head`, which cannot be beyond what
    /// was posted.
    pub(crate) fn ring(&mut self, head: u32) -> Result<(), InvalidDoorbell> {
        if head >= self.entries {
            return Err(InvalidDoorbell);
        }
        let consumed = (head + self.entries - self.head) % self.entries;
        if consumed > self.used() {
            return Err(InvalidDoorbell);
        }
        self.head = head;
        Ok(())
    }

    /// Reserves a slot; false if the queue is full.
    pub(crate) fn reserve(&mut self) -> bool {
        let free = self.entries - 1 - self.used();
        if self.reserved < free {
            self.reserved += 1;
            true
        } else {
            false
        }
    }

    /// Gives a reserved slot back.
    pub(crate) fn release(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Posts to a reserved slot. The word with the phase bit is written last.
    pub(crate) fn post(
        &mut self,
        completion: &Completion,
        memory: &GuestMemory,
    ) -> Result<(), Unmapped> {
        let Completion {
            taken,
            command_id,
            result,
            status,
        } = completion;
        let address = self
            .base
            .saturating_add(u64::from(self.tail) * COMPLETION_LEN);
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&result.to_le_bytes());
        bytes[8..10].copy_from_slice(&taken.head.to_le_bytes());
        bytes[10..].copy_from_slice(&taken.submission.id.to_le_bytes());
        memory.write(address, &bytes)?;
        let last = u32::from(*command_id) | u32::from(status.with_phase(self.phase)) << 16;
        memory.publish_u32(address.saturating_add(12), last)?;
        self.release();
        self.tail += 1;
        if self.tail == self.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::u32_at;
    use crate::memory::PAGE;
    use crate::memory::tests::file;

    fn life(id: u16) -> QueueLife {
        QueueLife { id, generation: 9 }
    }

    fn completion(id: u16) -> Completion {
        let mut command = [0; COMMAND_LEN];
        command[2..4].copy_from_slice(&id.to_le_bytes());
        let taken = Taken {
            command: Command(command),
            submission: life(3),
            completion: life(3),
            head: 1,
        };
        taken.completed(Ok(0))
    }

    #[test]
    fn a_queue_of_n_entries_holds_n_minus_one_and_the_phase_turns() {
        let mut memory = GuestMemory::default();
        memory.map(file(1, 0), 0, 0, PAGE, true).unwrap();
        let mut queue = CompletionQueue::new(life(3), 0, 4, None);
        let mut phases = vec![];
        for round in 0..5_u16 {
            for id in 0..3 {
                assert!(queue.reserve());
                let slot = queue.tail;
                queue.post(&completion(round * 3 + id), &memory).unwrap();
                let mut entry = [0; 16];
                memory.read(u64::from(slot) * 16, &mut entry).unwrap();
                let last = u32_at(&entry, 12).unwrap();
                assert_eq!(last as u16, round * 3 + id);
                phases.push(last >> 16 & 1);
            }
            assert!(!queue.reserve());
            queue.ring(queue.tail).unwrap();
        }
        assert_eq!(phases, [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0]);
    }

    #[test]
    fn reservations_count_as_full() {
        let mut queue = CompletionQueue::new(life(3), 0, 3, None);
        assert!(queue.reserve() && queue.reserve() && !queue.reserve());
        queue.release();
        assert!(queue.reserve());
    }

    #[test]
    fn impossible_doorbell_values_are_refused() {
        let mut queue = CompletionQueue::new(life(3), 0, 4, None);
        assert_eq!(queue.ring(4), Err(InvalidDoorbell));
        assert_eq!(queue.ring(1), Err(InvalidDoorbell));
        assert_eq!(queue.ring(0), Ok(()));
        let mut queue = SubmissionQueue::new(life(5), 0, 4, life(0));
        assert_eq!(queue.ring(4), Err(InvalidDoorbell));
        assert_eq!(queue.ring(u32::MAX), Err(InvalidDoorbell));
        assert_eq!(queue.ring(3), Ok(()));
    }

    #[test]
    fn commands_are_taken_around_the_end_of_the_ring() {
        let mut memory = GuestMemory::default();
        memory.map(file(1, 0), 0, 0, PAGE, true).unwrap();
        let mut queue = SubmissionQueue::new(life(5), 0, 3, life(7));
        let mut heads = vec![];
        for tail in [2, 1, 0] {
            queue.ring(tail).unwrap();
            while let Some(taken) = queue.take(&memory).unwrap() {
                assert_eq!((taken.submission, taken.completion), (life(5), life(7)));
                heads.push(taken.head);
            }
        }
        assert_eq!(heads, [1, 2, 0, 1, 2, 0]);
        let mut outside = SubmissionQueue::new(life(5), PAGE, 3, life(7));
        outside.ring(1).unwrap();
        assert!(outside.take(&memory).is_err());
    }
}
