//! Submission queue entries, completions and status codes
//! (NVM Express Base Specification 1.4, sections 4.2, 4.6).

use crate::bytes::{u16_at, u32_at, u64_at};

/// Bytes of a submission queue entry.
pub(crate) const COMMAND_LEN: usize = 64;

/// A command as the guest wrote it, copied once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command(pub(crate) [u8; COMMAND_LEN]);

impl Command {
    pub(crate) fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Fused operation and PRP-or-SGL selection; both must be 0 here.
    pub(crate) fn flags(&self) -> u8 {
        self.0[1]
    }

    pub(crate) fn id(&self) -> u16 {
        u16_at(&self.0, 2).unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> u32 {
        self.dword(1)
    }

    pub(crate) fn prp1(&self) -> u64 {
        u64_at(&self.0, 24).unwrap_or_default()
    }

    pub(crate) fn prp2(&self) -> u64 {
        u64_at(&self.0, 32).unwrap_or_default()
    }

    /// Command dword `index`, 0 to 15.
    pub(crate) fn dword(&self, index: usize) -> u32 {
        u32_at(&self.0, index * 4).unwrap_or_default()
    }

    /// The low half of a dword.
    pub(crate) fn low(&self, index: usize) -> u16 {
        self.dword(index) as u16
    }

    /// The high half of a dword.
    pub(crate) fn high(&self, index: usize) -> u16 {
        (self.dword(index) >> 16) as u16
    }
}

/// A status field: code, type and "do not retry", without the phase bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(u16);

impl Status {
    const DO_NOT_RETRY: u16 = 0x4000;
    const COMMAND_SPECIFIC: u16 = 0x100;
    const MEDIA: u16 = 0x200;

    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const INVALID_OPCODE: Self = Self::generic(0x01);
    pub(crate) const INVALID_FIELD: Self = Self::generic(0x02);
    pub(crate) const DATA_TRANSFER_ERROR: Self = Self::generic(0x04);
    pub(crate) const INVALID_NAMESPACE: Self = Self::generic(0x0b);
    pub(crate) const INVALID_PRP_OFFSET: Self = Self::generic(0x13);
    pub(crate) const LBA_OUT_OF_RANGE: Self = Self::generic(0x80);
    pub(crate) const INVALID_COMPLETION_QUEUE: Self = Self::specific(0x00);
    pub(crate) const INVALID_QUEUE_ID: Self = Self::specific(0x01);
    pub(crate) const INVALID_QUEUE_SIZE: Self = Self::specific(0x02);
    pub(crate) const TOO_MANY_EVENT_REQUESTS: Self = Self::specific(0x05);
    pub(crate) const INVALID_VECTOR: Self = Self::specific(0x08);
    pub(crate) const INVALID_LOG_PAGE: Self = Self::specific(0x09);
    pub(crate) const INVALID_QUEUE_DELETION: Self = Self::specific(0x0c);

    pub(crate) const UNRECOVERED_READ_ERROR: Self = Self::media(0x81);

    const fn generic(code: u16) -> Self {
        Self(code | Self::DO_NOT_RETRY)
    }

    const fn media(code: u16) -> Self {
        Self(code | Self::MEDIA | Self::DO_NOT_RETRY)
    }

    const fn specific(code: u16) -> Self {
        Self(code | Self::COMMAND_SPECIFIC | Self::DO_NOT_RETRY)
    }

    /// The upper half of a completion's last dword.
    pub(crate) fn with_phase(self, phase: bool) -> u16 {
        self.0 << 1 | u16::from(phase)
    }
}

/// What a command produced: the first dword of its completion, or an error.
pub(crate) type Outcome = Result<u32, Status>;

/// One life of a queue: a queue that is made after another was deleted has the
/// same id and another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLife {
    pub(crate) id: u16,
    pub(crate) generation: u64,
}

/// A command taken from a submission queue: everything its completion needs,
/// so that it may be finished later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) command: Command,
    pub(crate) submission: QueueLife,
    pub(crate) completion: QueueLife,
    /// The submission queue's head after the command was taken.
    pub(crate) head: u16,
}

impl Taken {
    pub(crate) fn completed(&self, outcome: Outcome) -> Completion {
        let (result, status) = match outcome {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, status),
        };
        Completion {
            taken: *self,
            command_id: self.command.id(),
            result,
            status,
        }
    }
}

/// A finished command whose entry is not yet in the completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) taken: Taken,
    pub(crate) command_id: u16,
    pub(crate) result: u32,
    pub(crate) status: Status,
}
