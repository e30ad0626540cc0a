//! What the device did, counted exactly. Counts rise from the start of the
//! server; no reset of the device lowers them.

use serde::{Deserialize, Serialize};

/// How the VMD handles its children's MSIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A child's MSI raises one of the VMD's own vectors.
    #[default]
    Remap,
    /// A child's MSI goes to the CPU's interrupt controller unchanged.
    Bypass,
}

/// One submission queue and the completions of its commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    /// Commands taken from the queue, by kind. All admin commands are `other`.
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub write_zeroes: u64,
    pub other: u64,
    /// Completion queue entries posted.
    pub cqes: u64,
    /// Of these, completions that Linux's nvme driver handles before its
    /// `nvme_sq` tracepoint (`nvme_handle_cqe` in drivers/nvme/host/pci.c): those of
    /// asynchronous event requests, and those with an invalid command id.
    pub cqes_skipped: u64,
    /// Of the entries posted, those that were told to be wrong.
    pub corrupted: u64,
    /// Commands taken that never complete, because their queue was deleted or
    /// the controller was reset or failed.
    pub discarded: u64,
}

impl QueueCounters {
    /// Commands taken, of any kind.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.write_zeroes + self.other
    }
}

/// One disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskCounters {
    /// The serial number the disk reports.
    pub serial: String,
    /// By queue id, up to the highest queue that was ever created; 0 is the
    /// admin queue.
    pub queues: Vec<QueueCounters>,
    /// MSIs sent, by the disk's own MSI-X vector, up to the highest one used. Those
    /// of a disk arrive once each but for the faults below.
    pub child_vector_msis: Vec<u64>,
    /// MSIs sent that were lost, arrived twice, or later, as told.
    pub dropped_msis: u64,
    pub duplicated_msis: u64,
    pub delayed_msis: u64,
    /// Times that completions were posted without an interrupt, which came later,
    /// because of interrupt coalescing.
    pub held_interrupts: u64,
    /// I/O commands taken and not completed at the time of reading.
    pub in_service: u64,
}

impl DiskCounters {
    /// The counters of queue `id`.
    pub(crate) fn queue(&mut self, id: u16) -> &mut QueueCounters {
        element(&mut self.queues, usize::from(id))
    }

    pub(crate) fn count_msi(&mut self, vector: u16) {
        *element(&mut self.child_vector_msis, usize::from(vector)) += 1;
    }

    /// Completions posted on I/O queues.
    #[must_use]
    pub fn io_cqes(&self) -> u64 {
        self.queues.iter().skip(1).map(|queue| queue.cqes).sum()
    }

    /// Completions posted on the admin queue.
    #[must_use]
    pub fn admin_cqes(&self) -> u64 {
        self.queues.first().map_or(0, |queue| queue.cqes)
    }

    /// All completions posted.
    #[must_use]
    pub fn cqes(&self) -> u64 {
        self.io_cqes() + self.admin_cqes()
    }

    /// Completions that the driver's tracepoint does not see.
    #[must_use]
    pub fn cqes_skipped(&self) -> u64 {
        self.queues.iter().map(|queue| queue.cqes_skipped).sum()
    }

    /// MSIs sent by this disk.
    #[must_use]
    pub fn msis(&self) -> u64 {
        self.child_vector_msis.iter().sum()
    }
}

/// Everything one device counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The mode at the time of reading.
    pub mode: Mode,
    /// By disk index.
    pub disks: Vec<DiskCounters>,
    /// MSIs raised by the VMD itself on behalf of its children, by its own
    /// vector (remapping).
    pub vmd_vector_msis: Vec<u64>,
    /// Of the children's MSIs that one of these vectors was to be raised for, those
    /// that were lost, raised it twice, or later, as told. Those that are raised are
    /// counted above when that happens.
    pub vmd_dropped_msis: u64,
    pub vmd_duplicated_msis: u64,
    pub vmd_delayed_msis: u64,
    /// MSIs of children passed on unchanged (bypass).
    pub bypass_msis: u64,
    /// MSIs of children that could not be delivered and are in neither of the
    /// two above: the VMD's vector does not exist or nobody listens to it (any
    /// more), the address is not the interrupt controller's, or the client has gone.
    pub undelivered_msis: u64,
    /// Requests of the client or the guest that were refused as malformed.
    pub rejected: u64,
}

impl Counters {
    /// Completions posted on I/O queues, all disks.
    #[must_use]
    pub fn io_cqes(&self) -> u64 {
        self.disks.iter().map(DiskCounters::io_cqes).sum()
    }

    /// Completions posted on admin queues, all disks.
    #[must_use]
    pub fn admin_cqes(&self) -> u64 {
        self.disks.iter().map(DiskCounters::admin_cqes).sum()
    }

    /// All completions posted.
    #[must_use]
    pub fn cqes(&self) -> u64 {
        self.io_cqes() + self.admin_cqes()
    }

    /// Completions that the driver's tracepoint does not see.
    #[must_use]
    pub fn cqes_skipped(&self) -> u64 {
        self.disks.iter().map(DiskCounters::cqes_skipped).sum()
    }

    /// MSIs sent by the disks. An upper bound of the interrupts that a CPU
    /// takes: its interrupt controller merges what it has not taken yet.
    #[must_use]
    pub fn msis(&self) -> u64 {
        self.disks.iter().map(DiskCounters::msis).sum()
    }
}

fn element<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_of_their_parts_and_survive_json() {
        let mut disk = DiskCounters::default();
        disk.queue(0).cqes = 5;
        disk.queue(0).cqes_skipped = 2;
        disk.queue(3).cqes = 7;
        disk.count_msi(4);
        disk.count_msi(4);
        let counters = Counters {
            disks: vec![disk.clone(), disk],
            ..Counters::default()
        };
        assert_eq!(counters.admin_cqes(), 10);
        assert_eq!(counters.io_cqes(), 14);
        assert_eq!(counters.cqes(), 24);
        assert_eq!(counters.cqes_skipped(), 4);
        assert_eq!(counters.msis(), 4);
        let text = serde_json::to_string(&counters).unwrap();
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }
}
