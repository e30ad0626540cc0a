//! Where the CPUs are: which last-level cache and which NUMA node each has.

use std::path::Path;

use vmdtrace_common::Place;

use super::{NumberList, Roots, files, number_list::number};

/// The place of each CPU below `cpus`. What cannot be read, or is not there, as
/// for a CPU that is offline, is not known.
#[must_use]
pub fn cpu_places(roots: &Roots, cpus: u32) -> Vec<Place> {
    let devices = roots.sysfs.join("devices/system");
    let online = list(&devices.join("cpu/online")).unwrap_or_default();
    // A kernel without CONFIG_NUMA has no such directory, and one node.
    let only_node = (!devices.join("node").exists()).then_some(0);
    (0..cpus)
        .map(|cpu| {
            if !online.contains(cpu) {
                return Place::default();
            }
            let folder = devices.join(format!("cpu/cpu{cpu}"));
            Place::new(last_level_cache(&folder), node(&folder).or(only_node))
        })
        .collect()
}

/// The lowest number among the CPUs that share this one's last-level cache. The
/// file `id` is not enough: it names caches of one level, and not on every
/// machine.
fn last_level_cache(cpu: &Path) -> Option<u32> {
    let folder = cpu.join("cache");
    let mut last: Option<(u32, u32)> = None;
    for name in files::read_names(&folder).ok()? {
        if name.strip_prefix("index").and_then(number).is_none() {
            continue;
        }
        let index = folder.join(name);
        if files::read_text(&index.join("type")).is_ok_and(|kind| kind == "Instruction") {
            continue;
        }
        let level = number(&files::read_text(&index.join("level")).ok()?)?;
        let first = list(&index.join("shared_cpu_list"))?.first()?;
        if last.is_none_or(|(highest, _)| level > highest) {
            last = Some((level, first));
        }
    }
    last.map(|(_, first)| first)
}

/// The NUMA node, by its link in the CPU's directory.
fn node(cpu: &Path) -> Option<u32> {
    let names = files::read_names(cpu).ok()?;
    names
        .iter()
        .find_map(|name| name.strip_prefix("node").and_then(number))
}

fn list(path: &Path) -> Option<NumberList> {
    NumberList::parse(&files::read_text(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join("devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// CPUs 0 and 1 share a cache, 2 has another on the same node, 3 is on
    /// another node, 4 tells nothing of its caches, 5 is offline.
    fn tree() -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, "cpu/online", "0-4\n");
        for (cpu, node) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)] {
            fs::create_dir_all(root.join(format!("devices/system/cpu/cpu{cpu}/node{node}")))
                .unwrap();
        }
        fs::create_dir_all(root.join("devices/system/node/node0")).unwrap();
        for (cpu, shared) in [(0, "0-1"), (1, "0-1"), (2, "2"), (3, "3"), (5, "5")] {
            let index = |index: u32, level: u32, kind: &str, shared: &str| {
                let folder = format!("cpu/cpu{cpu}/cache/index{index}");
                write(root, &format!("{folder}/level"), &format!("{level}\n"));
                write(root, &format!("{folder}/type"), &format!("{kind}\n"));
                write(
                    root,
                    &format!("{folder}/shared_cpu_list"),
                    &format!("{shared}\n"),
                );
                // The same for all: not to be relied on.
                write(root, &format!("{folder}/id"), "0\n");
            };
            index(0, 1, "Data", &cpu.to_string());
            index(1, 1, "Instruction", &cpu.to_string());
            index(2, 2, "Unified", &cpu.to_string());
            index(3, 3, "Unified", shared);
            write(root, &format!("cpu/cpu{cpu}/cache/uevent"), "");
        }
        let roots = Roots {
            sysfs: root.to_owned(),
            ..Roots::default()
        };
        (folder, roots)
    }

    #[test]
    fn caches_and_nodes_are_told_and_what_is_missing_is_unknown() {
        let (_folder, roots) = tree();
        assert_eq!(
            cpu_places(&roots, 7),
            [
                Place::new(Some(0), Some(0)),
                Place::new(Some(0), Some(0)),
                Place::new(Some(2), Some(0)),
                Place::new(Some(3), Some(1)),
                Place::new(None, Some(1)),
                Place::default(),
                Place::default(),
            ]
        );
    }

    #[test]
    fn nonsense_is_not_known() {
        let (folder, roots) = tree();
        write(folder.path(), "cpu/cpu2/cache/index3/shared_cpu_list", "x");
        write(folder.path(), "cpu/cpu3/cache/index3/level", "-1");
        let places = cpu_places(&roots, 4);
        assert_eq!(places[2], Place::new(None, Some(0)));
        assert_eq!(places[3], Place::new(None, Some(1)));
    }

    #[test]
    fn a_kernel_without_nodes_has_one() {
        let (folder, roots) = tree();
        fs::remove_dir_all(folder.path().join("devices/system/node")).unwrap();
        fs::remove_dir(folder.path().join("devices/system/cpu/cpu0/node0")).unwrap();
        assert_eq!(cpu_places(&roots, 1), [Place::new(Some(0), Some(0))]);
    }

    #[test]
    fn this_machine_is_read_without_privilege() {
        let roots = Roots::default();
        let cpus = super::super::possible_cpus(&roots).unwrap();
        assert_eq!(cpu_places(&roots, cpus).len(), cpus as usize);
    }
}
