//! The programs the host has started.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lab_agent::Exit;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::machine::PATH;

/// Output is kept here, in memory: never on a disk under test.
const OUTPUT_FOLDER: &str = "/run/lab";

/// All jobs the host has not yet heard the end of.
#[derive(Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    jobs: HashMap<u64, Arc<Job>>,
}

struct Job {
    /// Also the id of its process group.
    pid: Pid,
    stdout: PathBuf,
    stderr: PathBuf,
    exit: Mutex<Option<Exit>>,
    ended: Condvar,
}

/// What a program wrote.
pub(crate) struct Output {
    pub(crate) bytes: Vec<u8>,
    pub(crate) stdout_length: u64,
}

impl Jobs {
    pub(crate) fn spawn(
        &self,
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Result<u64, String> {
        let number = {
            let mut table = lock(&self.table);
            table.next += 1;
            table.next
        };
        let folder = PathBuf::from(OUTPUT_FOLDER);
        fs::create_dir_all(&folder).map_err(|error| format!("{OUTPUT_FOLDER}: {error}"))?;
        let stdout = folder.join(format!("{number}.out"));
        let stderr = folder.join(format!("{number}.err"));
        let create = |path: &PathBuf| {
            File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/")
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?)
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        let job = Arc::new(Job {
            pid: Pid::from_raw(child.id() as i32),
            stdout,
            stderr,
            exit: Mutex::default(),
            ended: Condvar::new(),
        });
        let waiting = Arc::clone(&job);
        std::thread::Builder::new()
            .spawn(move || waiting.await_end(child))
            .map_err(|error| format!("cannot start a thread to wait for {program}: {error}"))?;
        lock(&self.table).jobs.insert(number, job);
        Ok(number)
    }

    /// The end of a job, which is then forgotten; `None` if it still runs after
    /// the time given.
    pub(crate) fn wait(
        &self,
        number: u64,
        timeout: Duration,
    ) -> Result<Option<(Exit, Output)>, String> {
        let job = self.find(number)?;
        let guard = lock(&job.exit);
        let (guard, _) = job
            .ended
            .wait_timeout_while(guard, timeout, |exit| exit.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let Some(exit) = *guard else { return Ok(None) };
        drop(guard);
        let output = job.output()?;
        lock(&self.table).jobs.remove(&number);
        for path in [&job.stdout, &job.stderr] {
            if let Err(error) = fs::remove_file(path) {
                eprintln!("lab-agent: {}: {error}", path.display());
            }
        }
        Ok(Some((exit, output)))
    }

    pub(crate) fn output(&self, number: u64) -> Result<Output, String> {
        self.find(number)?.output()
    }

    pub(crate) fn signal(&self, number: u64, signal: i32) -> Result<(), String> {
        let signal = Signal::try_from(signal).map_err(|error| format!("{signal}: {error}"))?;
        let job = self.find(number)?;
        // The leader is reaped under this lock only, so its number is still its own.
        let exit = lock(&job.exit);
        if exit.is_some() {
            return Ok(());
        }
        killpg(job.pid, signal).map_err(|error| format!("{signal} to {}: {error}", job.pid))
    }

    fn find(&self, number: u64) -> Result<Arc<Job>, String> {
        lock(&self.table)
            .jobs
            .get(&number)
            .cloned()
            .ok_or_else(|| format!("no job {number}"))
    }
}

impl Job {
    fn await_end(&self, mut child: Child) {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(self.pid), flags) == Err(nix::errno::Errno::EINTR) {}
        let mut exit = lock(&self.exit);
        *exit = Some(match child.wait() {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, signal) => Exit::Signal(signal.unwrap_or_default()),
            },
            Err(error) => {
                eprintln!("lab-agent: wait for {}: {error}", self.pid);
                Exit::Signal(0)
            }
        });
        self.ended.notify_all();
    }

    fn output(&self) -> Result<Output, String> {
        let read =
            |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
        let mut bytes = read(&self.stdout)?;
        let stdout_length = bytes.len() as u64;
        bytes.append(&mut read(&self.stderr)?);
        Ok(Output {
            bytes,
            stdout_length,
        })
    }
}

/// A thread that panicked while it held the lock left plain values behind it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
