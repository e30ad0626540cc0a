//! What the kernel tells of a program through `/proc/self/fdinfo`: no BPF call
//! and so no capability is needed (kernel/bpf/syscall.c, bpf_prog_show_fdinfo).

use std::{fs, os::fd::RawFd, path::Path};

/// Statistics of one program. A field is None where this kernel has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStatistics {
    /// Runs that were skipped because the program was running on that CPU already.
    pub recursion_misses: Option<u64>,
    /// Counted only while the kernel's BPF statistics are on.
    pub run_count: Option<u64>,
}

/// Whether the kernel's BPF statistics are on.
#[must_use]
pub fn counts_runs(procfs: &Path) -> bool {
    let enabled = fs::read_to_string(procfs.join("sys/kernel/bpf_stats_enabled"));
    enabled.is_ok_and(|text| text.trim() == "1")
}

/// Reads the statistics of the program behind a descriptor of this process;
/// `counts_runs` is what [`counts_runs`] says.
#[must_use]
pub fn read(procfs: &Path, descriptor: RawFd, counts_runs: bool) -> ProgramStatistics {
    let path = procfs.join(format!("self/fdinfo/{descriptor}"));
    let mut statistics =
        fs::read_to_string(path).map_or_else(|_| ProgramStatistics::default(), |text| parse(&text));
    if !counts_runs {
        statistics.run_count = None;
    }
    statistics
}

fn parse(text: &str) -> ProgramStatistics {
    let field = |name: &str| {
        text.lines().find_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .parse()
                .ok()
        })
    };
    ProgramStatistics {
        recursion_misses: field("recursion_misses"),
        run_count: field("run_cnt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_absent_ones_stay_absent() {
        let text = "pos:\t0\nflags:\t02000002\nprog_type:\t17\nrun_time_ns:\t5\nrun_cnt:\t7\nrecursion_misses:\t3\n";
        assert_eq!(
            parse(text),
            ProgramStatistics {
                recursion_misses: Some(3),
                run_count: Some(7)
            }
        );
        assert_eq!(parse("pos:\t0\nrun_cnt: x\n"), ProgramStatistics::default());
    }
}
