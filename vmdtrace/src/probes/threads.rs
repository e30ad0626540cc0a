//! Whether the handlers of NVMe queues only wake a thread, in which completions
//! are then taken: nothing is counted per interrupt there.

use std::fs;

use crate::host::Roots;

/// Why they do; None if they do not.
#[must_use]
pub fn interrupts_have_threads(roots: &Roots) -> Option<String> {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    // drivers/nvme/host/pci.c, queue_request_irq; a parameter that never changes.
    let parameter = read(
        roots
            .sysfs
            .join("module/nvme/parameters/use_threaded_interrupts"),
    );
    let cause = if matches!(parameter.trim(), "1" | "Y") {
        "nvme.use_threaded_interrupts=1"
    } else if read(roots.sysfs.join("kernel/realtime")).trim() == "1" {
        "a kernel with PREEMPT_RT"
    } else if read(roots.procfs.join("cmdline"))
        .split_whitespace()
        .any(|word| word == "threadirqs")
    {
        "threadirqs on the kernel's command line"
    } else {
        return None;
    };
    Some(format!(
        "{cause}: completions are taken in threads, outside any handler; figures per interrupt \
         mean nothing"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: folder.path().join("sys"),
            procfs: folder.path().join("proc"),
        };
        let cause = || interrupts_have_threads(&roots);
        fs::create_dir_all(&roots.procfs).unwrap();
        fs::write(roots.procfs.join("cmdline"), "quiet nothreadirqs\n").unwrap();
        assert_eq!(cause(), None);
        fs::write(roots.procfs.join("cmdline"), "quiet threadirqs\n").unwrap();
        assert!(cause().unwrap().starts_with("threadirqs"));
        fs::create_dir_all(roots.sysfs.join("kernel")).unwrap();
        fs::write(roots.sysfs.join("kernel/realtime"), "1\n").unwrap();
        assert!(cause().unwrap().contains("PREEMPT_RT"));
        let parameters = roots.sysfs.join("module/nvme/parameters");
        fs::create_dir_all(&parameters).unwrap();
        fs::write(parameters.join("use_threaded_interrupts"), "1\n").unwrap();
        assert!(cause().unwrap().starts_with("nvme.use"));
    }
}
