//! The host's end of the command channel.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lab_agent::{Answer, Envelope, Frame, Hello, Request, Response};

use crate::error::{LabError, Result};
use crate::interrupt;

/// An answer and the bytes that belong to it.
pub(crate) type Answered = (Answer, Vec<u8>);
/// How often a wait looks for an interruption.
const POLL: Duration = Duration::from_millis(50);

/// A channel to one guest, for any number of threads.
#[derive(Debug)]
pub(crate) struct Channel {
    writer: Mutex<UnixStream>,
    shared: Arc<Shared>,
    hello: Mutex<Receiver<Hello>>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    waiting: HashMap<u64, Sender<Frame<Response>>>,
    /// Why no answer will come any more.
    closed: Option<String>,
}

impl Channel {
    /// Connects to the socket that QEMU listens on.
    pub(crate) fn connect(socket: &Path) -> std::io::Result<Self> {
        let writer = UnixStream::connect(socket)?;
        let reader = writer.try_clone()?;
        let shared = Arc::new(Shared::default());
        let (sender, hello) = channel();
        let for_reader = Arc::clone(&shared);
        std::thread::Builder::new().spawn(move || for_reader.read(reader, &sender))?;
        Ok(Self {
            writer: Mutex::new(writer),
            shared,
            hello: Mutex::new(hello),
        })
    }

    /// Waits for the guest's first words.
    pub(crate) fn hello(&self, what: &str, limit: Duration) -> Result<Hello> {
        self.receive(&lock(&self.hello), what, limit)
    }

    /// Sends a request and waits for its answer. The limit is for the guest as a
    /// whole: it is busy or hangs.
    pub(crate) fn request(
        &self,
        what: &str,
        request: Request,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Answered> {
        let (sender, answer) = channel();
        let id = {
            let mut pending = lock(&self.shared.pending);
            pending.next += 1;
            let id = pending.next;
            pending.waiting.insert(id, sender);
            id
        };
        let frame = Frame {
            message: Envelope { id, body: request },
            payload,
        };
        let result = {
            let mut writer = lock(&self.writer);
            frame
                .write_to(&mut *writer)
                .map_err(|error| LabError::failed(format!("{what}: {error}")))
        }
        .and_then(|()| self.receive(&answer, what, limit));
        lock(&self.shared.pending).waiting.remove(&id);
        let Frame { message, payload } = result?;
        let answer = message
            .body
            .map_err(|error| LabError::failed(format!("{what}: the guest: {error}")))?;
        Ok((answer, payload))
    }

    fn receive<T>(&self, receiver: &Receiver<T>, what: &str, limit: Duration) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            interrupt::check()?;
            match receiver.recv_timeout(POLL) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {
                    // An answer that came before the end is still in the queue.
                    if lock(&self.shared.pending).closed.is_none() {
                        continue;
                    }
                    return receiver.try_recv().map_err(|_| self.closed(what));
                }
                Err(RecvTimeoutError::Timeout) => return Err(LabError::timed_out(what, limit)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.closed(what)),
            }
        }
    }

    fn closed(&self, what: &str) -> LabError {
        let pending = lock(&self.shared.pending);
        let why = pending
            .closed
            .as_deref()
            .unwrap_or("the channel to the guest is closed");
        LabError::failed(format!("{what}: {why}"))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Ends the thread that reads; fails only if the other end is gone already.
        let _ = lock(&self.writer).shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn read(&self, mut reader: UnixStream, hello: &Sender<Hello>) {
        // The guest speaks first, and once without being asked.
        let reason = match Frame::<Hello>::read_from(&mut reader) {
            Ok(frame) => {
                // Nobody listens if the boot was given up.
                let _ = hello.send(frame.message);
                self.dispatch(&mut reader)
            }
            Err(error) => error.to_string(),
        };
        let mut pending = lock(&self.pending);
        pending.closed = Some(format!("the channel to the guest is closed: {reason}"));
        pending.waiting.clear();
    }

    /// Hands answers to those who wait for them; returns why it ended.
    fn dispatch(&self, reader: &mut UnixStream) -> String {
        loop {
            match Frame::<Response>::read_from(reader) {
                Ok(frame) => {
                    let waiting = lock(&self.pending).waiting.remove(&frame.message.id);
                    // Whoever asked may have given up.
                    if let Some(sender) = waiting {
                        let _ = sender.send(frame);
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn power_off(channel: &Channel) -> Result<Answered> {
        channel.request("switch off", Request::PowerOff, Vec::new(), LIMIT)
    }

    /// A channel and the guest's end of it, which has said hello.
    fn pair(folder: &Path) -> (Channel, UnixStream) {
        let socket = folder.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let channel = Channel::connect(&socket).unwrap();
        let (mut guest, _) = listener.accept().unwrap();
        let hello = Hello {
            kernel_release: "6.12".to_owned(),
        };
        Frame::from(hello).write_to(&mut guest).unwrap();
        assert_eq!(channel.hello("boot", LIMIT).unwrap().kernel_release, "6.12");
        (channel, guest)
    }

    #[test]
    fn answers_find_their_requests_in_any_order() {
        let folder = tempfile::tempdir().unwrap();
        let (channel, mut guest) = pair(folder.path());
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| power_off(&channel)))
                .collect();
            let mut requests: Vec<_> = (0..2)
                .map(|_| {
                    Frame::<Envelope<Request>>::read_from(&mut guest)
                        .unwrap()
                        .message
                        .id
                })
                .collect();
            requests.sort_unstable_by(|a, b| b.cmp(a));
            for id in requests {
                let message = Envelope {
                    id,
                    body: lab_agent::Reply::Ok(Answer::Done),
                };
                Frame {
                    message,
                    payload: vec![id as u8],
                }
                .write_to(&mut guest)
                .unwrap();
            }
            let mut payloads: Vec<_> = asked
                .into_iter()
                .map(|asked| asked.join().unwrap().unwrap().1)
                .collect();
            payloads.sort();
            assert_eq!(payloads, [vec![1], vec![2]]);
        });
    }

    #[test]
    fn a_guest_that_goes_away_is_an_error_at_once_and_ever_after() {
        let folder = tempfile::tempdir().unwrap();
        let (channel, guest) = pair(folder.path());
        drop(guest);
        for _ in 0..2 {
            let text = power_off(&channel).unwrap_err().to_string();
            assert!(text.starts_with("switch off: "), "{text}");
            assert!(!text.contains("no result after"), "{text}");
        }
    }

    #[test]
    fn a_guest_that_is_silent_is_timed_out() {
        let folder = tempfile::tempdir().unwrap();
        let (channel, _guest) = pair(folder.path());
        let limit = Duration::from_millis(120);
        let error = channel
            .request("wait", Request::PowerOff, Vec::new(), limit)
            .unwrap_err();
        assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    }
}
