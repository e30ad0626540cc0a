//! Reading a recording, whatever is in the file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use super::frame::{self, FrameError, Kind};
use super::template::{Apart, Template};
use super::{End, Facts, Header, MAGIC, Moment, STREAMS, Stream, VERSION, columns, version_1};
use crate::host::topology::Topology;
use crate::snapshot::{Host, Snapshot};

/// Longest first line: the magic and a number.
const MAX_FIRST_LINE: u64 = 40;

/// Why a file is no recording that can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(
        "this is no recording of vmdtrace: it does not begin with \"vmdtrace recording\"; make \
         one with `vmdtrace record`"
    )]
    NotARecording,
    #[error(
        "the recording has version {0} of the format and this vmdtrace knows up to {VERSION}: \
         read it with a newer vmdtrace"
    )]
    Newer(u32),
    #[error("the recording ends before its first snapshot")]
    Empty,
    #[error("cannot read the recording")]
    Io(#[from] io::Error),
}

/// How a recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was ended on purpose.
    Whole(End),
    /// The file stops at this byte without an end: the recorder did not get to
    /// it, or still runs.
    Cut { at: u64 },
    /// What follows this byte makes no sense.
    Damaged { at: u64, what: String },
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(_) => f.write_str("the recording is whole"),
            Self::Cut { at } => write!(
                f,
                "the recording was cut off at byte {at}: what comes before is used"
            ),
            Self::Damaged { at, what } => write!(
                f,
                "the recording is damaged at byte {at} ({what}): what comes before is used"
            ),
        }
    }
}

/// Reads Snapshots one after the other; holds one at a time.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    /// Of the format.
    version: u32,
    header: Header,
    /// Bytes read and understood.
    at: u64,
    facts: Option<(Host, Topology)>,
    streams: [Option<Stream>; STREAMS],
    ending: Option<Ending>,
}

impl Reader<BufReader<File>> {
    /// Opens a file.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::new(BufReader::new(File::open(path)?))
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the beginning.
    ///
    /// # Errors
    /// When it is no recording, one of a newer format, or ends too early.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let (version, mut at) = first_line(&mut input)?;
        let header = match frame::read(&mut input, &mut at) {
            Ok(Some((Kind::Header, content))) => {
                serde_json::from_slice(&content).map_err(|_| ReadError::NotARecording)?
            }
            Ok(None) | Err(FrameError::Cut) => return Err(ReadError::Empty),
            Ok(Some(_)) | Err(FrameError::Damaged(_)) => return Err(ReadError::NotARecording),
            Err(FrameError::Io(error)) => return Err(error.into()),
        };
        Ok(Self {
            input,
            version,
            header,
            at,
            facts: None,
            streams: [const { None }; STREAMS],
            ending: None,
        })
    }

    /// What holds for all of it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How it ends; known once there is no next Snapshot.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The next Snapshot; nothing at the end, whatever the end is like.
    ///
    /// # Errors
    /// When the file cannot be read. Damage is no error, but an [`Ending`].
    pub fn next_snapshot(&mut self) -> Result<Option<Snapshot>, ReadError> {
        while self.ending.is_none() {
            let before = self.at;
            let frame = match frame::read(&mut self.input, &mut self.at) {
                Ok(Some(frame)) => frame,
                Ok(None) | Err(FrameError::Cut) => {
                    self.ending = Some(Ending::Cut { at: before });
                    break;
                }
                Err(FrameError::Damaged(what)) => {
                    self.damaged(before, what);
                    break;
                }
                Err(FrameError::Io(error)) => return Err(error.into()),
            };
            match self.understand(frame) {
                Ok(None) => {}
                Ok(Some(snapshot)) => return Ok(Some(snapshot)),
                Err(what) => self.damaged(before, what),
            }
        }
        Ok(None)
    }

    fn damaged(&mut self, at: u64, what: impl Into<String>) {
        let what = what.into();
        self.ending = Some(Ending::Damaged { at, what });
    }

    fn understand(&mut self, (kind, content): (Kind, Vec<u8>)) -> Result<Option<Snapshot>, String> {
        let json_error = |error: serde_json::Error| format!("JSON that is not understood: {error}");
        match kind {
            Kind::Header => Err("a second header".to_owned()),
            Kind::Unknown => Ok(None),
            Kind::Facts => {
                let Facts { host, topology } =
                    serde_json::from_slice(&content).map_err(json_error)?;
                self.facts = Some((host.into_owned(), topology.into_owned()));
                Ok(None)
            }
            Kind::End => {
                let end = serde_json::from_slice(&content).map_err(json_error)?;
                self.ending = Some(Ending::Whole(end));
                Ok(None)
            }
            Kind::Whole => {
                let (stream, json) = stream_and_rest(&content)?;
                let json = std::str::from_utf8(json).map_err(|error| error.to_string())?;
                let snapshot = self.snapshot(json)?;
                let (template, numbers) = Template::split(json, apart(self.version))
                    .map_err(|error| error.to_string())?;
                self.streams[stream] = Some(Stream::new(template, numbers));
                Ok(Some(snapshot))
            }
            Kind::Difference => {
                let (stream, coded) = stream_and_rest(&content)?;
                let stream = self.streams[stream]
                    .as_mut()
                    .ok_or("a difference to nothing")?;
                let Stream {
                    template,
                    numbers,
                    past,
                } = &mut *stream;
                let columns = template.columns();
                match self.version {
                    1 => version_1::decode(coded, numbers, &mut past.rates, columns),
                    _ => columns::decode(coded, numbers, past, columns),
                }
                .ok_or("differences that are not understood")?;
                let json = stream.template.fill(&stream.numbers);
                self.snapshot(&json).map(Some)
            }
        }
    }

    fn snapshot(&self, json: &str) -> Result<Snapshot, String> {
        let moment: Moment<'_> = serde_json::from_str(json)
            .map_err(|error| format!("JSON that is not understood: {error}"))?;
        let (host, topology) = self.facts.clone().ok_or("a snapshot without facts")?;
        Ok(moment.with(host, topology))
    }
}

fn apart(version: u32) -> Apart {
    match version {
        1 => Apart::Not,
        _ => Apart::ByKind,
    }
}

/// The stream that a frame belongs to, and the rest of its content.
fn stream_and_rest(content: &[u8]) -> Result<(usize, &[u8]), &'static str> {
    let (&stream, rest) = content.split_first().ok_or("an empty frame")?;
    let stream = usize::from(stream);
    if stream < STREAMS {
        Ok((stream, rest))
    } else {
        Err("a stream that there is none of")
    }
}

/// Checks the first line: the version of the format, and how many bytes it has.
fn first_line(input: &mut impl BufRead) -> Result<(u32, u64), ReadError> {
    let mut line = Vec::new();
    input
        .by_ref()
        .take(MAX_FIRST_LINE)
        .read_until(b'\n', &mut line)?;
    let text = String::from_utf8_lossy(&line);
    let version = text
        .strip_prefix(MAGIC)
        .and_then(|rest| rest.strip_suffix('\n'))
        .and_then(|version| version.parse::<u32>().ok());
    match version {
        Some(version @ 1..=VERSION) => Ok((version, line.len() as u64)),
        Some(0) | None => Err(ReadError::NotARecording),
        Some(newer) => Err(ReadError::Newer(newer)),
    }
}
