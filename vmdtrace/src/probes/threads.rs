//! Whether the handlers of NVMe queues only wake a thread, in which completions
//! are then taken: nothing is counted per interrupt there.

use std::{fs, io};

use crate::host::Roots;

/// Why they do; None if they do not.
#[must_use]
pub fn interrupts_have_threads(roots: &Roots) -> Option<String> {
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    // drivers/nvme/host/pci.c, queue_request_irq; a parameter that never changes.
    let module = roots.sysfs.join("module/nvme");
    let parameter = fs::read_to_string(module.join("parameters/use_threaded_interrupts"));
    let cause = if matches!(parameter.as_deref().map(str::trim), Ok("1" | "Y")) {
        "nvme.use_threaded_interrupts=1"
    } else if read(roots.sysfs.join("kernel/realtime")).trim() == "1" {
        "a kernel with PREEMPT_RT"
    } else if read(roots.procfs.join("cmdline"))
        .split_whitespace()
        .any(|word| word == "threadirqs")
    {
        "threadirqs on the kernel's command line"
    } else if parameter.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        && module.exists()
        && a_queue_has_a_thread(roots)
    {
        "nvme.use_threaded_interrupts=1, as the threads of its queues show"
    } else {
        return None;
    };
    Some(format!(
        "{cause}: completions are taken in threads, outside any handler; figures per interrupt \
         mean nothing"
    ))
}

/// Whether there is a kernel thread of an NVMe queue, named `irq/<N>-nvme<N>q<N>`
/// (kernel/irq/manage.c, setup_irq_thread): 5.10 does not show the parameter. One small
/// file for each process, so not to be asked at each scrape.
fn a_queue_has_a_thread(roots: &Roots) -> bool {
    let Ok(processes) = fs::read_dir(&roots.procfs) else {
        return false;
    };
    processes.flatten().any(|process| {
        let is_process = process
            .file_name()
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        is_process
            && fs::read_to_string(process.path().join("comm"))
                .is_ok_and(|name| is_of_queue(name.trim()))
    })
}

fn is_of_queue(thread: &str) -> bool {
    let action = thread
        .strip_prefix("irq/")
        .and_then(|it| it.split_once('-'));
    action.is_some_and(|(irq, action)| {
        irq.bytes().all(|byte| byte.is_ascii_digit()) && action.starts_with("nvme")
    })
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
        // A module that does not show its parameter, and whose queues have threads.
        let thread = roots.procfs.join("71/comm");
        fs::create_dir_all(thread.parent().unwrap()).unwrap();
        fs::write(&thread, "irq/31-nvme0q1\n").unwrap();
        assert_eq!(cause(), None);
        let parameters = roots.sysfs.join("module/nvme/parameters");
        fs::create_dir_all(&parameters).unwrap();
        assert!(cause().unwrap().contains("threads of its queues"));
        for other in ["irq/9-acpi\n", "nvme-wq\n", "irq/x-nvme0q1\n"] {
            fs::write(&thread, other).unwrap();
            assert_eq!(cause(), None, "{other}");
        }
        fs::write(roots.procfs.join("cmdline"), "quiet threadirqs\n").unwrap();
        assert!(cause().unwrap().starts_with("threadirqs"));
        fs::create_dir_all(roots.sysfs.join("kernel")).unwrap();
        fs::write(roots.sysfs.join("kernel/realtime"), "1\n").unwrap();
        assert!(cause().unwrap().contains("PREEMPT_RT"));
        fs::write(parameters.join("use_threaded_interrupts"), "1\n").unwrap();
        assert!(cause().unwrap().starts_with("nvme.use"));
    }
}
