//! What a VMD's driver does to the interrupts of its children, and what becomes
//! of the controllers' own vectors: layout of the counts and of the messages.

/// Entries of the map of operations.
pub const MAX_OPERATIONS: usize = 1024;

/// Bytes of the ring of messages.
pub const RING_BYTES: usize = 16 * 1024;

/// Messages of an operation in one period; the rest is left out.
pub const MESSAGES: u64 = 5;

/// A period of messages.
pub const PERIOD_NS: u64 = 10_000_000_000;

/// How a domain of interrupts is called that a VMD made for its children: this,
/// and the number of their PCI domain.
pub const DOMAIN_PREFIX: [u8; 8] = *b"VMD-MSI-";

/// What was done to a controller's interrupts or to those of its children; the index
/// of its counts.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Operation {
    /// A child's vector was put on the list of a controller's vector.
    Enable = 0,
    /// It was taken off.
    Disable = 1,
    Startup = 2,
    Shutdown = 3,
    /// The message was made that a child is to send.
    Compose = 4,
    Allocate = 5,
    Free = 6,
    /// Remapping was switched on for the whole controller.
    RemapOn = 7,
    RemapOff = 8,
    /// A controller's vector went to another CPU.
    Move = 9,
}

impl Operation {
    pub const ALL: [Self; 10] = [
        Self::Enable,
        Self::Disable,
        Self::Startup,
        Self::Shutdown,
        Self::Compose,
        Self::Allocate,
        Self::Free,
        Self::RemapOn,
        Self::RemapOff,
        Self::Move,
    ];

    /// The operation in one word, the same everywhere it is shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Startup => "startup",
            Self::Shutdown => "shutdown",
            Self::Compose => "compose",
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::RemapOn => "remap-on",
            Self::RemapOff => "remap-off",
            Self::Move => "move",
        }
    }

    /// The operation of an index.
    #[must_use]
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(index as usize).copied()
    }
}

/// What is counted: an operation, and what tells the controller.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OperationKey {
    pub operation: u32,
    /// The interrupt number of a controller's vector; 0 where `name` tells.
    pub irq: u32,
    /// Name of the domain of interrupts, or PCI address of the controller, padded
    /// with zeros.
    pub name: [u8; 32],
}

/// One operation, as a message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub key: OperationKey,
    /// The interrupt it was about; 0 if none.
    pub irq: u32,
    pub cpu: u32,
    /// Of [`Operation::Move`]: the CPU it went to.
    pub to_cpu: u32,
}

/// How many messages of an operation there were.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The period, counted from the start of the machine.
    pub period: u64,
    pub sent: u64,
    pub left_out: u64,
}

/// Totals beside the map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsiTotals {
    pub allocation_failures: u64,
    /// Operations that found no room in the map.
    pub unassigned: u64,
    /// Messages that found no room in the ring.
    pub lost_messages: u64,
    /// How often a count in the map rose; added to after that. Who has read the map
    /// since this was at some number has all that was counted until then.
    pub changes: u64,
    pub buckets: [Bucket; 10],
}

impl Bucket {
    /// Whether one more may be sent now. Two CPUs at once may both be let.
    #[inline(always)]
    pub fn take(&mut self, now_ns: u64) -> bool {
        let period = now_ns / PERIOD_NS;
        if self.period != period {
            self.period = period;
            self.sent = 0;
        }
        self.sent += 1;
        self.sent <= MESSAGES
    }
}

const _: () = assert!(size_of::<OperationKey>() == 40);
const _: () = assert!(size_of::<Message>() == 52);
const _: () = assert!(size_of::<MsiTotals>() == 32 + 10 * 24);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_so_many_messages_and_no_more() {
        let mut bucket = Bucket::default();
        for period in [1, 2, 9] {
            let start = period * PERIOD_NS;
            let let_through = (0..100).filter(|at| bucket.take(start + at)).count();
            assert_eq!(let_through as u64, MESSAGES);
        }
    }

    #[test]
    fn an_index_is_the_operation_of_that_index() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_index(operation as u32), Some(operation));
        }
        assert_eq!(Operation::from_index(10), None);
    }
}
