//! The windows of a recording.

use std::io::BufRead;

use crate::snapshot::recording::{Ending, ReadError, Reader};
use crate::snapshot::window::{Window, WindowError};
use crate::snapshot::{Detail, Snapshot};

/// A recording as one window, and how its parts differ.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// From its first whole Snapshot to its last; of sums where there are no
    /// two whole ones.
    pub window: Window,
    /// I/Os per second of all block devices of NVMe disks, from each Snapshot to
    /// the next.
    pub rates: Vec<f64>,
    /// Set where the file does not end as it should.
    pub ending: Option<Ending>,
}

/// Why a recording says nothing.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("it has a single snapshot: a diagnosis needs two")]
    Single,
    #[error(transparent)]
    Window(#[from] WindowError),
}

impl Recorded {
    /// Reads all of it; holds a few Snapshots at a time.
    ///
    /// # Errors
    /// When the file is none, has less than two Snapshots, or they are not of
    /// one run.
    pub fn read<R: BufRead>(mut reader: Reader<R>) -> Result<Self, RecordedError> {
        let (mut whole, mut sums) = (Ends::default(), Ends::default());
        let mut rates = Vec::new();
        let mut before: Option<(u64, Option<u64>)> = None;
        while let Some(snapshot) = reader.next_snapshot()? {
            let now = (snapshot.taken_ns, ios(&snapshot));
            if let Some(before) = before {
                rates.extend(rate(before, now));
            }
            before = Some(now);
            match snapshot.detail {
                Detail::Lines => whole.add(snapshot),
                Detail::Sums => sums.add(snapshot),
            }
        }
        let (first, last) = match (whole, sums) {
            (
                Ends {
                    first: Some(first),
                    last: Some(last),
                },
                _,
            ) => (first, last),
            (whole, sums) => {
                let mut all: Vec<Snapshot> = [whole.first, sums.first, sums.last]
                    .into_iter()
                    .flatten()
                    .collect();
                all.sort_by_key(|snapshot| snapshot.taken_ns);
                let last = all.pop().ok_or(ReadError::Empty)?;
                let first = all.into_iter().next().ok_or(RecordedError::Single)?;
                (first, last)
            }
        };
        Ok(Self {
            window: Window::between(&first, &last)?,
            rates,
            ending: match reader.ending() {
                Some(ending @ (Ending::Cut { .. } | Ending::Damaged { .. })) => {
                    Some(ending.clone())
                }
                Some(Ending::Whole(_)) | None => None,
            },
        })
    }
}

/// The first Snapshot and the last.
#[derive(Default)]
struct Ends {
    first: Option<Snapshot>,
    last: Option<Snapshot>,
}

impl Ends {
    fn add(&mut self, snapshot: Snapshot) {
        if self.first.is_none() {
            self.first = Some(snapshot);
        } else {
            self.last = Some(snapshot);
        }
    }
}

fn ios(snapshot: &Snapshot) -> Option<u64> {
    let disks = snapshot.activity.as_ref()?.disks.iter();
    Some(disks.fold(0, |sum: u64, disk| {
        sum.saturating_add(disk.reads).saturating_add(disk.writes)
    }))
}

fn rate(before: (u64, Option<u64>), now: (u64, Option<u64>)) -> Option<f64> {
    let seconds = now.0.checked_sub(before.0).filter(|&ns| ns > 0)? as f64 / 1e9;
    Some(now.1?.checked_sub(before.1?)? as f64 / seconds)
}
