//! Everything that rises: what sums and differences go through.
//!
//! Structs are taken apart without `..`, so that a counter added to one of them
//! cannot be left out of a sum or a difference.

use super::bio::{BioAllocations, BioFrees};
use super::{
    CpuCounts, CpuShare, DiskLosses, DiskSamples, LineCounts, LossCounts, MsiCounts,
    OperationCount, OutsideCompletions, Probe, SampleCounts, ShareCounts,
};
use crate::host::activity::{CpuActivity, CpuTimes, DiskActivity, IdleUsage};

/// Makes a new count out of this one and another's.
pub(super) type Combine<'a> = dyn FnMut(u64, u64) -> u64 + 'a;

/// Something with counters.
pub(super) trait Counts {
    /// Replaces every counter by what `combine` makes of it and its like in
    /// `other`. One that either side does not have is absent afterwards.
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>);
}

fn each<const N: usize>(counts: [(&mut u64, u64); N], combine: &mut Combine<'_>) {
    for (count, other) in counts {
        *count = combine(*count, other);
    }
}

fn optional(count: &mut Option<u64>, other: Option<u64>, combine: &mut Combine<'_>) {
    *count = match (*count, other) {
        (Some(count), Some(other)) => Some(combine(count, other)),
        _ => None,
    };
}

impl Counts for LineCounts {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        self.counts = self.counts.combine(&other.counts, combine);
    }
}

impl Counts for DiskSamples {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        self.counts = self.counts.combine(&other.counts, combine);
    }
}

impl Counts for SampleCounts {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        *self = Self::combine(self, other, combine);
    }
}

impl Counts for BioAllocations {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        Self::combine(self, other, combine);
    }
}

impl Counts for BioFrees {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            destination: _,
            context: _,
            count,
        } = self;
        *count = combine(*count, other.count);
    }
}

impl Counts for LossCounts {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            timeouts,
            lost_interrupts,
        } = self;
        each(
            [
                (timeouts, other.timeouts),
                (lost_interrupts, other.lost_interrupts),
            ],
            combine,
        );
    }
}

impl Counts for DiskLosses {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        self.counts.combine(&other.counts, combine);
    }
}

impl Counts for OutsideCompletions {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        self.count = combine(self.count, other.count);
    }
}

impl Counts for OperationCount {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        self.count = combine(self.count, other.count);
    }
}

impl Counts for MsiCounts {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            // Compared one by one, by controller.
            operations: _,
            unassigned,
            allocation_failures,
            lost_messages,
        } = self;
        each(
            [
                (unassigned, other.unassigned),
                (allocation_failures, other.allocation_failures),
                (lost_messages, other.lost_messages),
            ],
            combine,
        );
    }
}

impl Counts for CpuCounts {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            cpu: _,
            interrupt_ns,
            depth0_runs,
            completions_outside,
            remote_outside,
            unassigned_runs,
            unassigned_completions,
            lost_frames,
            unmatched_exits,
            overflowed_runs,
            unreadable_actions,
            out_of_range_runs,
        } = self;
        each(
            [
                (interrupt_ns, other.interrupt_ns),
                (depth0_runs, other.depth0_runs),
                (completions_outside, other.completions_outside),
                (unassigned_runs, other.unassigned_runs),
                (unassigned_completions, other.unassigned_completions),
                (lost_frames, other.lost_frames),
                (unmatched_exits, other.unmatched_exits),
                (overflowed_runs, other.overflowed_runs),
                (unreadable_actions, other.unreadable_actions),
                (out_of_range_runs, other.out_of_range_runs),
            ],
            combine,
        );
        *remote_outside = remote_outside.combine(&other.remote_outside, combine);
    }
}

impl Counts for CpuShare {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let ShareCounts {
            depth0_runs,
            resent_runs,
            interrupt_ns,
            completions,
        } = &mut self.counts;
        let other = other.counts;
        each(
            [
                (depth0_runs, other.depth0_runs),
                (resent_runs, other.resent_runs),
                (interrupt_ns, other.interrupt_ns),
                (completions, other.completions),
            ],
            combine,
        );
    }
}

impl Counts for Probe {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            name: _,
            state: _,
            mechanism: _,
            reason: _,
            missed_runs,
            runs,
        } = self;
        optional(missed_runs, other.missed_runs, combine);
        optional(runs, other.runs, combine);
    }
}

impl Counts for CpuTimes {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            user,
            nice,
            system,
            idle,
            iowait,
            irq,
            softirq,
            steal,
        } = self;
        each(
            [
                (user, other.user),
                (nice, other.nice),
                (system, other.system),
                (idle, other.idle),
                (iowait, other.iowait),
                (irq, other.irq),
                (softirq, other.softirq),
                (steal, other.steal),
            ],
            combine,
        );
    }
}

impl Counts for IdleUsage {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self { entries, time_us } = self;
        each(
            [(entries, other.entries), (time_us, other.time_us)],
            combine,
        );
    }
}

impl Counts for CpuActivity {
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            cpu: _,
            times,
            block_softirqs,
            idle,
        } = self;
        times.combine(&other.times, combine);
        optional(block_softirqs, other.block_softirqs, combine);
        if idle.len() == other.idle.len() {
            for (usage, other) in idle.iter_mut().zip(&other.idle) {
                usage.combine(other, combine);
            }
        } else {
            // Other states than before: nothing tells which is which.
            idle.clear();
        }
    }
}

impl Counts for DiskActivity {
    /// All but `in_flight`, which is no counter.
    fn combine(&mut self, other: &Self, combine: &mut Combine<'_>) {
        let Self {
            name: _,
            reads,
            reads_merged,
            read_sectors,
            read_ms,
            writes,
            writes_merged,
            written_sectors,
            write_ms,
            in_flight: _,
            busy_ms,
            in_flight_ms,
        } = self;
        each(
            [
                (reads, other.reads),
                (reads_merged, other.reads_merged),
                (read_sectors, other.read_sectors),
                (read_ms, other.read_ms),
                (writes, other.writes),
                (writes_merged, other.writes_merged),
                (written_sectors, other.written_sectors),
                (write_ms, other.write_ms),
                (busy_ms, other.busy_ms),
                (in_flight_ms, other.in_flight_ms),
            ],
            combine,
        );
    }
}
