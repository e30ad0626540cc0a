//! Elements of the maps -> the counters of a Snapshot.

use vmdtrace_common::{
    CpuBank, LineCell,
    cells::kind,
    placement::RemoteCounts,
    samples::{self, DiskSamples},
};

use crate::snapshot::{CpuCounts, LineCounts, LineKind, Remote, RunCounts, SampleCounts, Times};

/// A line's counters. Its owner is not known here.
#[must_use]
pub fn line_counts(cell: &LineCell, cells: &[LineCell], repeats_known: bool) -> LineCounts {
    let LineCell {
        depth0_runs,
        nested_runs,
        unhandled_runs,
        repeated_runs,
        inclusive_ns,
        self_ns,
        completions,
        child_runs,
        remote: far,
        child_unhandled_runs,
        child_completions,
        last_irqs_sum: _,
        last_action: _,
        last_cpu: _,
        parent,
        irq,
        kind,
        next: _,
        ready: _,
        name,
        disk: _,
        reserved: _,
    } = *cell;
    let parent = parent
        .checked_sub(1)
        .and_then(|slot| cells.get(slot as usize));
    LineCounts {
        irq,
        action: String::from_utf8_lossy(&name.bytes().collect::<Vec<_>>()).into_owned(),
        kind: match kind {
            kind::VMD_VECTOR => LineKind::VmdVector,
            kind::NVME => LineKind::Nvme,
            kind::OTHER_CHILD => LineKind::OtherChild,
            _ => LineKind::Watched,
        },
        controller: None,
        disk: None,
        path: None,
        parent_irq: parent.map(|parent| parent.irq),
        counts: RunCounts {
            depth0_runs,
            nested_runs,
            unhandled_runs,
            repeated_runs: repeats_known.then_some(repeated_runs),
            inclusive_ns,
            self_ns,
            completions,
            remote: remote(far),
            child_runs,
            child_unhandled_runs,
            child_completions,
        },
    }
}

/// A CPU's counters.
#[must_use]
pub fn cpu_counts(cpu: u32, bank: &CpuBank) -> CpuCounts {
    let CpuBank {
        depth: _,
        generation: _,
        interrupt_ns,
        depth0_runs,
        completions_outside,
        unassigned_runs,
        unassigned_completions,
        lost_frames,
        unmatched_exits,
        overflowed_runs,
        unreadable_actions,
        out_of_range_runs,
        remote_outside,
        armed: _,
        frames: _,
    } = *bank;
    CpuCounts {
        cpu,
        interrupt_ns,
        depth0_runs,
        completions_outside,
        remote_outside: remote(remote_outside),
        unassigned_runs,
        unassigned_completions,
        lost_frames,
        unmatched_exits,
        overflowed_runs,
        unreadable_actions,
        out_of_range_runs,
    }
}

fn remote([same_cache, other_cache, other_node, unknown]: RemoteCounts<u64>) -> Remote {
    Remote {
        same_cache,
        other_cache,
        other_node,
        unknown,
    }
}

/// A disk's samples.
#[must_use]
pub fn sample_counts(of_disk: &DiskSamples) -> SampleCounts {
    let DiskSamples {
        latency,
        handling,
        without_start,
        reserved: _,
    } = of_disk;
    SampleCounts {
        latency: times(latency),
        handling: times(handling),
        without_start: *without_start,
    }
}

fn times(&samples::Times { buckets, sum_ns }: &samples::Times) -> Times {
    Times { buckets, sum_ns }
}
