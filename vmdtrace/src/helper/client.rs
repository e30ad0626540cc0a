//! The server's side: starts a helper, takes what it loaded, asks it for what only
//! it can do.

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rustix::{
    process::{Pid, PidfdFlags, pidfd_open},
    thread::CapabilitySet,
};

use super::{
    capabilities,
    channel::{Channel, Packet},
    process,
    protocol::{self, MAX_BYTES, Reply, Request, State},
};
use crate::{
    host::Roots,
    logging,
    probes::{
        LoadError, Loaded,
        arrays::{self, Arrays},
        fdinfo,
        loaded::add_statistics,
        losses::{self, DiskName, LossesByName},
        msi::{self, ControllerName, MESSAGE_BYTES, OperationsByName},
        msi_messages::Stream,
        outside::OutsideByName,
    },
    snapshot::{Probe, source::SourceOptions},
};

/// How long an answer may take. Attaching takes well under a second; whoever needs
/// longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long it may take to end, in milliseconds.
const PATIENCE_TO_END: u16 = 10_000;

/// A helper that runs, and what it loaded.
#[derive(Debug)]
pub struct Helper {
    /// Ready when the process has ended.
    ended: OwnedFd,
    child: Mutex<Child>,
    requests: Channel,
    /// Held from a request to its answer.
    asking: Mutex<()>,
    arrays: Arrays,
    programs: HashMap<String, OwnedFd>,
    states: Mutex<Vec<Probe>>,
    losses: Mutex<Kept<HashMap<DiskName, losses::Counts>>>,
    operations: Mutex<Kept<HashMap<ControllerName, msi::Counts>>>,
    outside: Mutex<Kept<OutsideByName>>,
    /// Why nothing more is asked.
    failure: Mutex<Option<String>>,
    /// It is being ended: what fails then fails for that reason.
    closing: AtomicBool,
    roots: Roots,
}

/// What was read of a map, and how often a count in it had risen before that.
#[derive(Debug, Default)]
struct Kept<T> {
    changes: u64,
    rows: T,
}

impl<T: Clone> Kept<T> {
    /// The rows, read again if there was a change.
    fn rows(
        &mut self,
        changes: u64,
        read: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if self.changes != changes {
            self.rows = read()?;
            self.changes = changes;
        }
        Ok(self.rows.clone())
    }
}

/// The programs' messages as the helper hands them on; ends with the helper.
#[derive(Debug)]
pub struct Events(Channel);

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Events {
    fn drain(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut any = false;
        loop {
            match self.0.receive_now(MESSAGE_BYTES) {
                Ok(Some(Packet { bytes, descriptors }))
                    if bytes.len() == MESSAGE_BYTES && descriptors.is_empty() =>
                {
                    any = true;
                    take(&bytes);
                }
                Ok(Some(_)) => return Err(io::Error::other("it sent what is no message")),
                Ok(None) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Helper {
    /// Starts a helper, gives up all capabilities of this process, which has one
    /// thread as yet, and waits until the helper has loaded everything. Nothing is
    /// attached yet.
    ///
    /// # Errors
    /// If it cannot be started, or what it says: why nothing could be loaded.
    pub fn start(
        options: &SourceOptions,
        log: logging::Settings,
    ) -> anyhow::Result<(Self, Events)> {
        let (requests, for_requests) = Channel::pair().context("cannot make a socket")?;
        let (events, for_events) = Channel::pair().context("cannot make a socket")?;
        // This very program, even if its file was replaced.
        let child = Command::new("/proc/self/exe")
            .arg0("vmdtrace")
            .args(process::arguments(options, log))
            .stdin(Stdio::from(OwnedFd::from(for_requests)))
            .stdout(Stdio::from(OwnedFd::from(for_events)))
            .spawn()
            .context("cannot start a helper by /proc/self/exe")?;
        let mut starting = Starting(Some(child));
        capabilities::keep_only(CapabilitySet::empty()).context("cannot give up capabilities")?;
        let received = requests
            .receive(MAX_BYTES)
            .context("the helper's first message")?;
        let Some(Packet { bytes, descriptors }) = received else {
            anyhow::bail!("{}", starting.how_it_ended());
        };
        let reply = Reply::decode(&bytes).context("the helper's first message")?;
        let (facts, map_memory, programs, states) = match reply {
            Reply::Loaded {
                facts,
                map_memory,
                programs,
                states,
            } => (facts, map_memory, programs, states),
            Reply::NotLoaded(reason) => {
                starting.how_it_ended();
                anyhow::bail!("{reason}");
            }
            _ => anyhow::bail!("the helper answered what nobody asked"),
        };
        let expected = arrays::NAMES.len() + programs.len();
        if descriptors.len() != expected {
            anyhow::bail!(
                "the helper sent {} descriptors instead of {expected}",
                descriptors.len()
            );
        }
        let mut descriptors = descriptors.into_iter();
        let of_arrays: HashMap<_, _> = arrays::NAMES.into_iter().zip(&mut descriptors).collect();
        let arrays = Arrays::map(facts, |map| {
            of_arrays.get(map).ok_or_else(|| LoadError::Map {
                map,
                source: anyhow::anyhow!("has no descriptor"),
            })
        })?;
        // Whoever has only what is mapped can write no more than what is mapped so.
        drop(of_arrays);
        requests.set_patience(PATIENCE)?;
        if let Some(bytes) = map_memory {
            fdinfo::tell_map_memory(bytes);
        }
        let (ended, child) = starting.done()?;
        let helper = Self {
            ended,
            child: Mutex::new(child),
            requests,
            asking: Mutex::default(),
            arrays,
            programs: programs.into_iter().zip(descriptors).collect(),
            states: Mutex::new(probes(states)),
            losses: Mutex::default(),
            operations: Mutex::default(),
            outside: Mutex::default(),
            failure: Mutex::default(),
            closing: AtomicBool::new(false),
            roots: options.roots.clone(),
        };
        Ok((helper, Events(events)))
    }

    fn ask(&self, request: Request) -> anyhow::Result<Reply> {
        let _asking = lock(&self.asking);
        if let Some(failure) = &*lock(&self.failure) {
            anyhow::bail!("{failure}");
        }
        exchange(&self.requests, request).map_err(|error| {
            let reason = format!("the helper cannot be asked any more: {error:#}");
            // Then the next answer could be to this request.
            self.requests.shut_down();
            lock(&self.failure).get_or_insert(reason.clone());
            anyhow::anyhow!("{reason}")
        })
    }

    fn try_attach(&self) -> anyhow::Result<()> {
        match self.ask(Request::Attach)? {
            Reply::Attached(states) => {
                *lock(&self.states) = probes(states);
                Ok(())
            }
            other => self.wrong(&other),
        }
    }

    /// What to make of an answer that is not to the question.
    fn wrong<T>(&self, reply: &Reply) -> anyhow::Result<T> {
        if let Reply::Failed(reason) = reply {
            anyhow::bail!("{reason}");
        }
        let reason = "the helper answered what nobody asked".to_owned();
        self.requests.shut_down();
        lock(&self.failure).get_or_insert(reason.clone());
        anyhow::bail!("{reason}")
    }

    /// Why it ended, when it did: in words for the log.
    #[must_use]
    pub fn why_it_ended(&self, error: &io::Error) -> String {
        self.requests.shut_down();
        let how = match self.await_end() {
            Ok(Some(status)) => format!("ended ({status})"),
            Ok(None) => "does not end".to_owned(),
            Err(error) => format!("cannot be waited for ({error})"),
        };
        let mut reason = format!("the helper that holds the probes {how}");
        if let Some(failure) = &*lock(&self.failure) {
            reason = format!("{reason}; {failure}");
        } else if error.kind() != ErrorKind::UnexpectedEof {
            reason = format!("{reason}; its messages: {error}");
        }
        reason + ": nothing is counted any more; start vmdtrace again"
    }

    /// Waits a while for the process to end.
    fn await_end(&self) -> io::Result<Option<std::process::ExitStatus>> {
        let mut waiting = [PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut waiting, PollTimeout::from(PATIENCE_TO_END)) {
                Ok(_) => return lock(&self.child).try_wait(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Loaded for Helper {
    fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    fn attach(&self) {
        match self.try_attach() {
            Err(error) if !self.closing.load(Ordering::Relaxed) => tracing::error!("{error:#}"),
            _ => {}
        }
    }

    /// Asks only when one was counted since it asked last.
    fn losses(&self) -> anyhow::Result<LossesByName> {
        let totals = self.arrays.loss_totals();
        let read = || match self.ask(Request::Losses)? {
            Reply::Losses(disks) => Ok(disks.into_iter().collect()),
            other => self.wrong(&other),
        };
        let disks = lock(&self.losses).rows(totals.changes, read)?;
        Ok(LossesByName::new(disks, &totals))
    }

    /// Asks only when one was counted since it asked last.
    fn operations(&self) -> anyhow::Result<OperationsByName> {
        let totals = self.arrays.msi_totals();
        let read = || match self.ask(Request::Operations)? {
            Reply::Operations(rows) => Ok(protocol::operations_by_name(rows)),
            other => self.wrong(&other),
        };
        let controllers = lock(&self.operations).rows(totals.changes, read)?;
        Ok(OperationsByName::new(controllers, &totals))
    }

    /// Asks only when one was counted since it asked last.
    fn outside(&self) -> anyhow::Result<OutsideByName> {
        let read = || match self.ask(Request::Outside)? {
            Reply::Outside(rows) => {
                let rows = rows.into_iter();
                Ok(rows.map(|(disk, count)| (disk, [count])).collect())
            }
            other => self.wrong(&other),
        };
        let changes = self.arrays.completions_outside();
        lock(&self.outside).rows(changes, read)
    }

    fn set_log_level(&self, level: logging::Level) -> anyhow::Result<()> {
        match self.ask(Request::LogLevel(level))? {
            Reply::Done => Ok(()),
            other => self.wrong(&other),
        }
    }

    fn probes(&self) -> Vec<Probe> {
        let mut probes = lock(&self.states).clone();
        add_statistics(&mut probes, &self.roots, |name| {
            self.programs.get(name).map(AsRawFd::as_raw_fd)
        });
        probes
    }

    /// Ends the helper, which takes away what it made, and waits for that.
    fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.requests.shut_down();
        match self.await_end() {
            Ok(Some(_)) => {}
            Ok(None) => tracing::warn!(
                "the helper does not end: entries of the kernel's list of kprobe events may stay, \
                 until vmdtrace is started again"
            ),
            Err(error) => tracing::warn!("the helper cannot be waited for: {error}"),
        }
    }
}

impl Drop for Helper {
    /// A second time there is nothing to wait for.
    fn drop(&mut self) {
        self.close();
    }
}

/// One request and its answer.
fn exchange(requests: &Channel, request: Request) -> anyhow::Result<Reply> {
    requests.send(&request.encode()?, &[])?;
    let packet = requests
        .receive(MAX_BYTES)
        .map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs())
            }
            _ => error.into(),
        })?
        .context("it has closed the connection")?;
    if !packet.descriptors.is_empty() {
        anyhow::bail!("it sent descriptors");
    }
    Ok(Reply::decode(&packet.bytes)?)
}

/// A helper that has not said yet whether it could load. It is not left alone when
/// something goes wrong.
struct Starting(Option<Child>);

impl Starting {
    /// Waits for its end, which is near: in words.
    fn how_it_ended(&mut self) -> String {
        match self.0.take().map(|mut child| child.wait()) {
            Some(Ok(status)) => format!("the helper ended while it loaded ({status})"),
            Some(Err(error)) => format!("the helper cannot be waited for: {error}"),
            None => "the helper ended while it loaded".to_owned(),
        }
    }

    fn done(mut self) -> anyhow::Result<(OwnedFd, Child)> {
        let child = self.0.take().context("the helper has ended")?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(ended) => Ok((ended, child)),
            Err(error) => {
                self.0 = Some(child);
                Err(error).context("cannot watch the helper")
            }
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It has ended by itself where this fails.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

fn probes(states: Vec<State>) -> Vec<Probe> {
    states.into_iter().map(Probe::from).collect()
}

/// A panic while it was held leaves a whole value.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn rows_are_read_again_only_after_a_change() {
        let mut kept = Kept::<u32>::default();
        let unread = || anyhow::bail!("read for nothing");
        assert_eq!(kept.rows(0, unread).unwrap(), 0);
        assert_eq!(kept.rows(3, || Ok(7)).unwrap(), 7);
        assert_eq!(kept.rows(3, unread).unwrap(), 7);
        // What could not be read is tried again.
        assert!(kept.rows(4, unread).is_err());
        assert_eq!(kept.rows(4, || Ok(8)).unwrap(), 8);
    }

    fn answered(helper: impl FnOnce(&Channel) + Send + 'static) -> anyhow::Result<Reply> {
        let (server, other) = Channel::pair().unwrap();
        server.set_patience(Duration::from_secs(60)).unwrap();
        let answering = thread::spawn(move || {
            assert_eq!(other.receive(16).unwrap().unwrap().bytes, [1]);
            helper(&other);
        });
        let reply = exchange(&server, Request::Losses);
        answering.join().unwrap();
        reply
    }

    #[test]
    fn an_answer_is_taken_and_garbage_is_not() {
        let losses = Reply::Losses(vec![(DiskName::Number(0), [1, 2])]);
        let bytes = losses.encode().unwrap();
        let whole = bytes.clone();
        let reply = answered(move |helper| helper.send(&whole, &[]).unwrap());
        assert_eq!(reply.unwrap(), losses);
        let cut = bytes[..3].to_vec();
        assert!(answered(move |helper| helper.send(&cut, &[]).unwrap()).is_err());
        let file = tempfile::tempfile().unwrap();
        let with_file = answered(move |helper| helper.send(&bytes, &[file.as_fd()]).unwrap());
        assert!(with_file.is_err());
        let long = vec![0; MAX_BYTES + 1];
        assert!(answered(move |helper| helper.send(&long, &[]).unwrap()).is_err());
        assert!(answered(|_| {}).is_err(), "nobody answered");
    }

    #[test]
    fn what_is_no_message_ends_the_messages() {
        let (helper, server) = Channel::pair().unwrap();
        let mut events = Events(server);
        let mut count = 0;
        let mut drain = |events: &mut Events| events.drain(&mut |_| count += 1);
        assert!(!drain(&mut events).unwrap());
        helper.send(&[0; MESSAGE_BYTES], &[]).unwrap();
        helper.send(&[0; MESSAGE_BYTES], &[]).unwrap();
        assert!(drain(&mut events).unwrap());
        for length in [MESSAGE_BYTES - 1, MESSAGE_BYTES + 1] {
            helper.send(&vec![0; length], &[]).unwrap();
            assert!(drain(&mut events).is_err());
        }
        drop(helper);
        let error = drain(&mut events).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(count, 2);
    }
}
