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

    /// Seconds of CPU time that it used; none if that cannot be told any more.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).ok()?;
        let ticks = cpu_ticks(&stat)?;
        Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
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

/// User and system time in /proc/PID/stat (proc_pid_stat(5)): fields 14 and 15.
/// The second field, the name, may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
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
    fn user_and_system_time_are_added() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 250 50 9 9 20 0 1 0 5";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
        let folder = tempfile::tempdir().unwrap();
        assert!(sleeper(&folder.path().join("log")).cpu_seconds().is_some());
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
