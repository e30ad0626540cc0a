//! Writing a recording.

use std::borrow::Cow;
use std::io::{self, Write};

use super::frame::{self, Kind};
use super::template::{Apart, Template, TooMuch};
use super::{End, Facts, Header, MAGIC, Moment, STREAMS, Stream, VERSION, columns, stream_of};
use crate::host::topology::Topology;
use crate::snapshot::{Detail, Host, Snapshot};

/// With sums, a whole Snapshot is written when this much time has passed since
/// the last one, beside the first and the last.
const WHOLE_EVERY_NS: u64 = 300_000_000_000;

/// Why a Snapshot could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("cannot write a snapshot as JSON")]
    Json(#[from] serde_json::Error),
    #[error("the snapshot does not fit into a recording: {0}")]
    TooMuch(String),
}

impl From<TooMuch> for WriteError {
    fn from(error: TooMuch) -> Self {
        Self::TooMuch(error.to_string())
    }
}

/// Writes Snapshots. What was written is whole after every call: nothing is
/// held back.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    detail: Detail,
    facts: Option<(Host, Topology)>,
    streams: [Option<Stream>; STREAMS],
    whole_at_ns: Option<u64>,
    snapshots: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(mut out: W, header: &Header) -> Result<Self, WriteError> {
        let first = format!("{MAGIC}{VERSION}\n");
        out.write_all(first.as_bytes())?;
        let mut writer = Self {
            out,
            detail: header.detail,
            facts: None,
            streams: [const { None }; STREAMS],
            whole_at_ns: None,
            snapshots: 0,
            bytes: first.len() as u64,
        };
        writer.frame(Kind::Header, &serde_json::to_vec(header)?)?;
        Ok(writer)
    }

    /// Snapshots written so far.
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a Snapshot: whole, or its sums where the recording is of sums and
    /// it is not time for a whole one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, snapshot: &Snapshot) -> Result<(), WriteError> {
        let since = |at: u64| snapshot.taken_ns.saturating_sub(at);
        let whole = self.detail == Detail::Lines
            || self
                .whole_at_ns
                .is_none_or(|at| since(at) >= WHOLE_EVERY_NS);
        if whole {
            self.write_whole(snapshot)
        } else {
            self.put(&snapshot.sums())
        }
    }

    /// Adds a Snapshot with all its lines: the first, and the last before
    /// [`Writer::finish`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_whole(&mut self, snapshot: &Snapshot) -> Result<(), WriteError> {
        self.whole_at_ns = Some(snapshot.taken_ns);
        self.put(snapshot)
    }

    /// Ends the recording and gives the place back that it was written to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self, command_status: Option<i32>) -> Result<W, WriteError> {
        let end = End {
            snapshots: self.snapshots,
            command_status,
        };
        self.frame(Kind::End, &serde_json::to_vec(&end)?)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, snapshot: &Snapshot) -> Result<(), WriteError> {
        let Snapshot { host, topology, .. } = snapshot;
        let same = |(old_host, old_topology): &(Host, Topology)| {
            old_host == host && old_topology == topology
        };
        if !self.facts.as_ref().is_some_and(same) {
            let facts = Facts {
                host: Cow::Borrowed(host),
                topology: Cow::Borrowed(topology),
            };
            let json = serde_json::to_vec(&facts)?;
            self.frame(Kind::Facts, &json)?;
            self.facts = Some((host.clone(), topology.clone()));
        }
        let json = serde_json::to_string(&Moment::of(snapshot))?;
        let (template, numbers) = Template::split(&json, Apart::ByKind)?;
        let number = stream_of(snapshot.detail);
        let mut content = vec![number];
        let slot = &mut self.streams[usize::from(number)];
        // Taken out: after an error nothing is a difference to it.
        let next = match slot.take().filter(|old| old.template == template) {
            Some(mut stream) => {
                columns::encode(
                    &numbers,
                    &mut stream.numbers,
                    &mut stream.past,
                    template.columns(),
                    &mut content,
                );
                self.frame(Kind::Difference, &content)?;
                stream
            }
            None => {
                content.extend_from_slice(json.as_bytes());
                self.frame(Kind::Whole, &content)?;
                Stream::new(template, numbers)
            }
        };
        self.streams[usize::from(number)] = Some(next);
        self.snapshots += 1;
        Ok(())
    }

    fn frame(&mut self, kind: Kind, content: &[u8]) -> Result<(), WriteError> {
        self.bytes += frame::write(&mut self.out, kind, content)?;
        Ok(())
    }
}
