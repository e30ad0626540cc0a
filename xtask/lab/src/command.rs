//! Programs run in the guest.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_agent::{Answer, Exit, Request};
use nix::sys::signal::Signal;

use crate::channel::{Answered, Channel};
use crate::error::{LabError, Log, Result};

/// How long the guest may take to answer something that it can do at once.
/// Generous: under load, six emulated CPUs share what the host has.
pub(crate) const PROMPT: Duration = Duration::from_secs(60);
/// One turn of waiting for a job, so that a wait can be broken off.
const TURN: Duration = Duration::from_secs(1);

/// A program to be run in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestCommand {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl GuestCommand {
    /// A program by its name or its path in the guest.
    #[must_use]
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// A script for the guest's shell.
    #[must_use]
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new("sh").args(["-c".to_owned(), script.into()])
    }

    #[must_use]
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Appends another program and its arguments, for one that runs what it is given.
    #[must_use]
    pub fn running(self, other: &Self) -> Self {
        self.args([other.program.clone()])
            .args(other.arguments.iter().cloned())
    }

    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }
}

impl fmt::Display for GuestCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.program)?;
        for argument in &self.arguments {
            write!(formatter, " {argument}")?;
        }
        Ok(())
    }
}

/// What a program of the guest did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Output {
    /// Whether it ended with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.exit == Exit::Code(0)
    }

    #[must_use]
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[must_use]
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// An error about the program that shows the end of what it wrote.
    pub(crate) fn error(&self, command: &GuestCommand, problem: &str) -> LabError {
        let mut text = format!("`{command}` {problem}");
        for (title, stream) in [
            ("stdout", self.stdout_text()),
            ("stderr", self.stderr_text()),
        ] {
            let shown = stream.trim();
            if !shown.is_empty() {
                let tail = shown
                    .char_indices()
                    .rev()
                    .nth(TAIL - 1)
                    .map_or(0, |(start, _)| start);
                text.push_str(&format!("\n--- {title}:\n{}", &shown[tail..]));
            }
        }
        LabError::failed(text)
    }
}

/// A program that runs in the guest's background. Dropping it does not end it:
/// it ends with the guest.
#[derive(Debug)]
pub struct Background {
    channel: Arc<Channel>,
    command: GuestCommand,
    job: u64,
    logs: Vec<Log>,
}

impl Background {
    pub(crate) fn start(
        channel: &Arc<Channel>,
        logs: &[Log],
        command: &GuestCommand,
    ) -> Result<Self> {
        let what = format!("starting `{command}` in the guest");
        let GuestCommand {
            program,
            arguments,
            environment,
        } = command.clone();
        let request = Request::Spawn {
            program,
            arguments,
            environment,
        };
        let (answer, _) = channel
            .request(&what, request, Vec::new(), PROMPT)
            .map_err(|error| error.with_logs(logs))?;
        let Answer::Started { job } = answer else {
            return Err(unexpected(&what, &answer));
        };
        Ok(Self {
            channel: Arc::clone(channel),
            command: command.clone(),
            job,
            logs: logs.into(),
        })
    }

    /// Standard output and standard error so far.
    ///
    /// # Errors
    /// When it was waited for before, or the guest does not answer.
    pub fn output(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let what = format!("output of `{}`", self.command);
        let (answer, bytes) = self.request(&what, Request::Output { job: self.job })?;
        let Answer::Output { stdout_length } = answer else {
            return Err(unexpected(&what, &answer));
        };
        Ok(split(bytes, stdout_length))
    }

    /// Sends a signal to it and to the processes it started.
    ///
    /// # Errors
    /// When it was waited for before, or the guest does not answer.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let what = format!("{signal} to `{}`", self.command);
        self.request(
            &what,
            Request::Signal {
                job: self.job,
                signal: signal as i32,
            },
        )
        .map(drop)
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// With its output, when it has ended; or when the guest does not answer.
    pub fn check_running(&self) -> Result<()> {
        match self.poll(Duration::ZERO)? {
            None => Ok(()),
            Some(output) => Err(self.failed(&format!("ended ({})", output.exit), &output)),
        }
    }

    /// Waits for its end. One that does not end in time is killed.
    ///
    /// # Errors
    /// When it does not end in time, with what it wrote; or when the guest does
    /// not answer.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if let Some(output) = self.poll(left.min(TURN))? {
                return Ok(output);
            }
            if left.is_zero() {
                break;
            }
        }
        self.signal(Signal::SIGKILL)?;
        let problem = format!("did not end within {} s", limit.as_secs_f32());
        Err(match self.poll(PROMPT)? {
            Some(output) => self.failed(&problem, &output),
            None => LabError::failed(format!("`{}` {problem}, nor when killed", self.command))
                .with_logs(&self.logs),
        })
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// As [`Background::wait`].
    pub fn stop(self, limit: Duration) -> Result<Output> {
        self.signal(Signal::SIGTERM)?;
        self.wait(limit)
    }

    fn poll(&self, turn: Duration) -> Result<Option<Output>> {
        let what = format!("waiting for `{}`", self.command);
        let request = Request::Wait {
            job: self.job,
            timeout_ms: turn.as_millis() as u64,
        };
        let (answer, bytes) = self.request(&what, request)?;
        match answer {
            Answer::Running => Ok(None),
            Answer::Ended {
                exit,
                stdout_length,
            } => {
                let (stdout, stderr) = split(bytes, stdout_length);
                Ok(Some(Output {
                    exit,
                    stdout,
                    stderr,
                }))
            }
            other => Err(unexpected(&what, &other)),
        }
    }

    fn request(&self, what: &str, request: Request) -> Result<Answered> {
        self.channel
            .request(what, request, Vec::new(), PROMPT)
            .map_err(|error| error.with_logs(&self.logs))
    }

    fn failed(&self, problem: &str, output: &Output) -> LabError {
        output.error(&self.command, problem).with_logs(&self.logs)
    }
}

/// Characters of a program's output that an error shows.
const TAIL: usize = 4000;

fn split(mut bytes: Vec<u8>, stdout_length: u64) -> (Vec<u8>, Vec<u8>) {
    let stderr = bytes.split_off(bytes.len().min(stdout_length as usize));
    (bytes, stderr)
}

pub(crate) fn unexpected(what: &str, answer: &Answer) -> LabError {
    LabError::failed(format!("{what}: the guest's agent answered {answer:?}"))
}
