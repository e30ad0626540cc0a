//! What the kernel tells of programs and maps through `/proc/self/fdinfo`: no BPF call
//! and so no capability is needed (kernel/bpf/syscall.c, bpf_prog_show_fdinfo).

use std::{collections::BTreeMap, fs, os::fd::RawFd, path::Path, sync::OnceLock};

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

/// Of the maps of this process, or of its helper. They are made and sized at the
/// start, so that the answer stays: asking takes 300 system calls.
static MAP_MEMORY: OnceLock<u64> = OnceLock::new();

/// Kernel memory of our maps, in bytes. None where there are none, or a helper that
/// has them could not tell.
#[must_use]
pub fn our_map_memory() -> Option<u64> {
    let known = MAP_MEMORY.get().copied();
    known.or_else(|| {
        let bytes = map_memory(Path::new("/proc/self"))?;
        Some(*MAP_MEMORY.get_or_init(|| bytes))
    })
}

/// Tells what the maps take that a helper loaded; the first one's, where there is a
/// second.
pub fn tell_map_memory(bytes: u64) {
    let _bytes = MAP_MEMORY.get_or_init(|| bytes);
}

/// What the kernel says that our maps take (`memlock`, bpf_map_show_fdinfo in
/// kernel/bpf/syscall.c), each map once however many descriptors it has.
#[must_use]
pub fn map_memory(process: &Path) -> Option<u64> {
    let mut by_map = BTreeMap::new();
    for descriptor in fs::read_dir(process.join("fd")).ok()?.flatten() {
        let is_map = fs::read_link(descriptor.path())
            .is_ok_and(|target| target == Path::new("anon_inode:bpf-map"));
        if !is_map {
            continue;
        }
        let path = process.join("fdinfo").join(descriptor.file_name());
        let text = fs::read_to_string(path).ok()?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value?.trim().parse::<u64>().ok()
        };
        by_map.insert(field("map_id:")?, field("memlock:")?);
    }
    (!by_map.is_empty()).then(|| by_map.values().sum())
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
    fn each_map_is_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path();
        for name in ["fd", "fdinfo"] {
            fs::create_dir(process.join(name)).unwrap();
        }
        let add = |descriptor: &str, target: &str, info: &str| {
            std::os::unix::fs::symlink(target, process.join("fd").join(descriptor)).unwrap();
            fs::write(process.join("fdinfo").join(descriptor), info).unwrap();
        };
        add("0", "/dev/null", "pos:\t0\n");
        add("5", "anon_inode:bpf-prog", "memlock:\t4096\nprog_id:\t1\n");
        assert_eq!(map_memory(process), None);
        let map = |id: u32, bytes: u32| format!("map_type:\t2\nmemlock:\t{bytes}\nmap_id:\t{id}\n");
        add("6", "anon_inode:bpf-map", &map(1, 8192));
        add("7", "anon_inode:bpf-map", &map(2, 4096));
        add("8", "anon_inode:bpf-map", &map(1, 8192));
        assert_eq!(map_memory(process), Some(12288));
        // A sum that leaves one out would be too small.
        add("9", "anon_inode:bpf-map", "map_type:\t2\n");
        assert_eq!(map_memory(process), None);
        assert_eq!(map_memory(&process.join("gone")), None);
    }

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
