//! Recordings: Snapshots in a file. docs/recordings.md describes the format.
//!
//! ```text
//! "vmdtrace recording 2\n"   frame   frame   ...   frame (end)
//! ```
//!
//! A frame is written at once and has a checksum, so a file that was cut off or
//! damaged reads up to the last frame before that. Snapshots are JSON by field
//! name; what follows a first one holds only the numbers, as differences.

mod columns;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod read;
mod replay;
mod rice;
#[cfg(test)]
pub(crate) mod synthetic;
mod template;
#[cfg(test)]
mod tests;
mod version_1;
mod write;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{Counters, Detail, Host, Probe, Snapshot};
use crate::host::activity::Activity;
use crate::host::topology::Topology;

pub use read::{Ending, ReadError, Reader};
pub use replay::Replay;
pub use write::{WriteError, Writer};

/// Version of the format. It rises when an older reader would misread a file;
/// a field or a kind of frame more is no reason.
const VERSION: u32 = 2;
/// What a file begins with; the version and a line feed follow.
const MAGIC: &str = "vmdtrace recording ";
/// Most bytes of a frame's content, packed or not. The largest host planned for
/// (8 VMDs of 24 disks, 257 lines each) needs 20 million.
const MAX_FRAME_BYTES: usize = 32 << 20;

/// What holds for a whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The program and its version.
    pub created_by: String,
    /// What the clock of `taken_ns` has to be added to for nanoseconds since
    /// 1970.
    pub boot_unix_ns: u64,
    /// Time between two Snapshots that was asked for.
    pub every_ns: u64,
    /// How much of each Snapshot is kept.
    pub detail: Detail,
    /// What the user wanted to have noted.
    pub note: Option<String>,
}

/// The last frame of a recording that was ended, not cut off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// Snapshots in the file.
    pub snapshots: u64,
    /// Exit status of the command that ran; 128 and the number of the signal
    /// that ended it.
    pub command_status: Option<i32>,
}

/// What seldom changes: written when it does.
#[derive(Debug, Serialize, Deserialize)]
struct Facts<'a> {
    host: Cow<'a, Host>,
    topology: Cow<'a, Topology>,
}

/// What is new in each Snapshot.
#[derive(Debug, Serialize, Deserialize)]
struct Moment<'a> {
    taken_ns: u64,
    #[serde(default)]
    counting_since_ns: Option<u64>,
    #[serde(default)]
    detail: Detail,
    counters: Cow<'a, Counters>,
    probes: Cow<'a, [Probe]>,
    #[serde(default)]
    activity: Cow<'a, Option<Activity>>,
}

impl<'a> Moment<'a> {
    /// The part of a Snapshot that is not [`Facts`].
    fn of(snapshot: &'a Snapshot) -> Self {
        let Snapshot {
            taken_ns,
            counting_since_ns,
            detail,
            host: _,
            topology: _,
            counters,
            probes,
            activity,
        } = snapshot;
        Self {
            taken_ns: *taken_ns,
            counting_since_ns: *counting_since_ns,
            detail: *detail,
            counters: Cow::Borrowed(counters),
            probes: Cow::Borrowed(probes),
            activity: Cow::Borrowed(activity),
        }
    }

    fn with(self, host: Host, topology: Topology) -> Snapshot {
        let Self {
            taken_ns,
            counting_since_ns,
            detail,
            counters,
            probes,
            activity,
        } = self;
        Snapshot {
            taken_ns,
            counting_since_ns,
            detail,
            host,
            topology,
            counters: counters.into_owned(),
            probes: probes.into_owned(),
            activity: activity.into_owned(),
        }
    }
}

/// The two series of Snapshots in a file, each a series of differences of its
/// own: whole ones, and sums.
const STREAMS: usize = 2;

fn stream_of(detail: Detail) -> u8 {
    match detail {
        Detail::Lines => 0,
        Detail::Sums => 1,
    }
}

/// What the next Snapshot of a stream is a difference to.
#[derive(Debug, Default)]
struct Stream {
    template: template::Template,
    /// The numbers of the Snapshot before, by column.
    numbers: Vec<u64>,
    past: columns::Past,
}

impl Stream {
    fn new(template: template::Template, numbers: Vec<u64>) -> Self {
        Self {
            past: columns::Past::new(template.columns()),
            template,
            numbers,
        }
    }
}
