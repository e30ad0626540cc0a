//! Programs on the host that must not outlive whoever started them.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::error::{LabError, Log, Result};
use crate::interrupt;
use crate::parent_death;

/// A running program; dropping it kills it and waits for its end.
#[derive(Debug)]
pub(crate) struct Guarded {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Guarded {
    /// Starts a program without standard input; what it says goes to the log.
    pub(crate) fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::create(log).map_err(LabError::path(log))?;
        let copy = file.try_clone().map_err(LabError::path(log))?;
        // A process group of its own: a Ctrl-C in the terminal reaches only us,
        // and we take the machines down in order.
        command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0);
        parent_death::kill_with_parent(&mut command);
        let child = spawn(command).map_err(LabError::io(format!("cannot start {name}")))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Seconds that its threads ran, and that they wanted to and had no CPU; none if
    /// that cannot be told (any more).
    pub(crate) fn pace(&self) -> Option<(f64, f64)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).ok()?;
        let (mut ran, mut waited) = (0.0, 0.0);
        for task in tasks.flatten() {
            // A thread may have ended since.
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let (task_ran, task_waited) = scheduled(&text).unwrap_or_default();
            ran += task_ran;
            waited += task_waited;
        }
        (ran > 0.0).then_some((ran, waited))
    }

    pub(crate) fn log(&self) -> Log {
        Log {
            of: self.name.clone(),
            path: self.log.clone(),
        }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(LabError::io(format!("cannot wait for {}", self.name)))
    }

    /// An error if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(LabError::failed(format!("{} ended ({status})", self.name))
                .with_logs(&[self.log()])),
        }
    }

    /// Waits for it to end by itself.
    pub(crate) fn await_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("waiting for {} to end", self.name);
        interrupt::until(&what, limit, || self.ended())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only if it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first two fields of schedstat, in seconds: time on a CPU, time waiting for
/// one (Documentation/scheduler/sched-stats.rst).
fn scheduled(text: &str) -> Option<(f64, f64)> {
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    let mut seconds = || Some(fields.next()?.ok()? as f64 / 1e9);
    Some((seconds()?, seconds()?))
}

type Job = (Command, Sender<std::io::Result<Child>>);

/// Starts a program from a thread that lives as long as this process does.
///
/// The kernel sends the parent-death signal when the *thread* that forked ends
/// (prctl(2), PR_SET_PDEATHSIG), which may be long before the process does.
fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                // Nobody listens if the caller is gone: then the program ends too.
                if let Err(unheard) = answer.send(command.spawn())
                    && let Ok(mut child) = unheard.0
                {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        });
        sender
    });
    let (sender, answer) = channel();
    let gone = || std::io::Error::other("the thread that starts programs is gone");
    spawner.send((command, sender)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(log: &Path) -> Guarded {
        let mut command = Command::new("sleep");
        command.arg("600");
        Guarded::spawn("sleep", command, log).unwrap()
    }

    fn exists(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn running_and_waiting_are_told_apart() {
        assert_eq!(scheduled("2500000000 500000000 17\n"), Some((2.5, 0.5)));
        assert_eq!(scheduled(""), None);
    }

    #[test]
    fn a_dropped_program_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let guarded = sleeper(&folder.path().join("log"));
        let pid = guarded.child.id();
        assert!(exists(pid));
        drop(guarded);
        assert!(!exists(pid));
    }

    #[test]
    fn a_program_survives_the_thread_that_asked_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut guarded = std::thread::spawn(move || sleeper(&log)).join().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        guarded.check().unwrap();
    }

    #[test]
    fn the_error_about_an_early_end_holds_what_the_program_said() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out of luck >&2; exit 3"]);
        let mut guarded = Guarded::spawn("sh", command, &folder.path().join("log")).unwrap();
        guarded.await_end(Duration::from_secs(10)).unwrap();
        let text = guarded.check().unwrap_err().to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("out of luck"),
            "{text}"
        );
    }
}
