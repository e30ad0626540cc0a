//! The windows of a recording.

use std::io::BufRead;

use super::thresholds::Thresholds;
use crate::snapshot::recording::{Ending, ReadError, Reader};
use crate::snapshot::window::{Window, WindowError};
use crate::snapshot::{Detail, Snapshot};

/// A recording as one window, and how its parts differ.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// From its first whole Snapshot to its last; of sums where there are no
    /// two whole ones.
    pub window: Window,
    pub rates: Vec<Rate>,
    /// Set where the file does not end as it should.
    pub ending: Option<Ending>,
}

/// I/Os of all block devices of NVMe disks, from a Snapshot to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// When the later of the two was taken.
    pub until_ns: u64,
    pub per_second: f64,
}

/// Where the rate of a recording changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// When the Snapshot between was taken.
    pub at_ns: u64,
    /// Mean I/Os per second.
    pub before: f64,
    pub after: f64,
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

/// Where the rate changed most, if it did: by more than chance, and by
/// `rate_changed`.
#[must_use]
pub fn turn(rates: &[Rate], thresholds: &Thresholds) -> Option<Turn> {
    /// Fewer on one side say nothing of a spread.
    const LEAST: usize = 3;
    /// In standard errors: beyond what the best of a thousand places has by
    /// chance.
    const ERRORS: f64 = 4.0;
    let total: f64 = rates.iter().map(|it| it.per_second).sum();
    let squares: f64 = rates.iter().map(|it| it.per_second.powi(2)).sum();
    let (mut sum, mut square) = (0.0, 0.0);
    let mut best: Option<(f64, Turn)> = None;
    for (index, rate) in rates.iter().enumerate() {
        sum += rate.per_second;
        square += rate.per_second.powi(2);
        let (left, right) = (index + 1, rates.len() - index - 1);
        if left < LEAST || right < LEAST {
            continue;
        }
        let (left, right) = (left as f64, right as f64);
        let (before, after) = (sum / left, (total - sum) / right);
        // Differences of large sums: never below 0 but for rounding.
        let spread = |squares: f64, mean: f64, count: f64| {
            (squares / count - mean * mean).max(0.0) / (count - 1.0)
        };
        let error = spread(square, before, left) + spread(squares - square, after, right);
        let (low, high) = (before.min(after), before.max(after));
        let is_change = high > low * thresholds.rate_changed
            && high - low > ERRORS * error.sqrt()
            && high.is_finite();
        // The split with most of the spread between its sides.
        let between = left * right * (high - low).powi(2);
        if is_change && best.is_none_or(|(most, _)| between > most) {
            let turn = Turn {
                at_ns: rate.until_ns,
                before,
                after,
            };
            best = Some((between, turn));
        }
    }
    best.map(|(_, turn)| turn)
}

/// The windows of a recording before and after a moment.
///
/// # Errors
/// As [`Recorded::read`]; [`RecordedError::Single`] where the moment is its begin or
/// end.
pub fn parts<R: BufRead>(
    mut reader: Reader<R>,
    at_ns: u64,
) -> Result<(Window, Window), RecordedError> {
    let (mut first, mut middle, mut last) = (None, None, None);
    while let Some(snapshot) = reader.next_snapshot()? {
        // Each moment once, and there the whole Snapshot where it is in both.
        if snapshot.taken_ns > at_ns {
            last = Some(snapshot);
        } else if first.is_none() {
            first = Some(snapshot);
        } else if snapshot.taken_ns == at_ns {
            middle = Some(snapshot);
        }
    }
    let (Some(first), Some(middle), Some(last)) = (first, middle, last) else {
        return Err(RecordedError::Single);
    };
    Ok((
        Window::between(&first, &middle)?,
        Window::between(&middle, &last)?,
    ))
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

fn rate(before: (u64, Option<u64>), now: (u64, Option<u64>)) -> Option<Rate> {
    let seconds = now.0.checked_sub(before.0).filter(|&ns| ns > 0)? as f64 / 1e9;
    Some(Rate {
        until_ns: now.0,
        per_second: now.1?.checked_sub(before.1?)? as f64 / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::super::matrix::supported;
    use super::super::picture::Picture;
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnose::Diagnosis;
    use crate::snapshot::recording::{Header, Writer};

    fn rates(values: &[f64]) -> Vec<Rate> {
        let rate = |(second, &per_second): (usize, &f64)| Rate {
            until_ns: second as u64 + 1,
            per_second,
        };
        values.iter().enumerate().map(rate).collect()
    }

    fn turn_of(values: &[f64]) -> Option<(u64, f64, f64)> {
        let turn = turn(&rates(values), &Thresholds::default())?;
        Some((turn.at_ns, turn.before, turn.after))
    }

    #[test]
    fn turns_are_found() {
        let halved = [10.0, 10.0, 10.0, 10.0, 5.0, 5.0, 5.0];
        assert_eq!(turn_of(&halved), Some((4, 10.0, 5.0)));
        let started = [0.0, 0.0, 0.0, 9.0, 9.0, 9.0];
        assert_eq!(turn_of(&started), Some((3, 0.0, 9.0)));
        // Too few after it.
        assert_eq!(turn_of(&halved[..6]), None);
        // Too little.
        assert_eq!(turn_of(&[10.0, 10.0, 10.0, 8.1, 8.1, 8.1]), None);
        assert_eq!(
            turn_of(&[10.0, 10.0, 10.0, 7.75, 7.75, 7.75]),
            Some((3, 10.0, 7.75))
        );
        // Chance.
        assert_eq!(turn_of(&[10.0, 1.0, 20.0, 2.0, 15.0, 1.0]), None);
        assert_eq!(turn_of(&[]), None);
        assert_eq!(turn_of(&[f64::MAX; 8]), None);
    }

    /// The load halves in the middle: found in the one recording.
    #[test]
    fn a_load_that_halves_while_it_is_recorded() {
        let (begin, _) = Scene::default().snapshots();
        let mut server = begin.clone();
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.write(&server).unwrap();
        for second in 0..12_u64 {
            server.taken_ns += 1_000_000_000;
            let activity = server.activity.as_mut().unwrap();
            for disk in &mut activity.disks {
                let reads = if second < 7 { 250_000 } else { 125_000 };
                disk.reads += reads;
                disk.read_sectors += reads * 8;
                disk.read_ms += reads * 85 / 1000;
            }
            for cpu in &mut activity.cpus {
                cpu.times.idle += if second < 7 { 70 } else { 85 };
            }
            writer.write(&server).unwrap();
        }
        let bytes = writer.finish(None).unwrap();
        let thresholds = Thresholds::default();
        let recorded = Recorded::read(Reader::new(&bytes[..]).unwrap()).unwrap();
        let turn = turn(&recorded.rates, &thresholds).unwrap();
        assert_eq!(turn.at_ns - begin.taken_ns, 7_000_000_000);
        let (before, after) = parts(Reader::new(&bytes[..]).unwrap(), turn.at_ns).unwrap();
        assert_eq!(before.elapsed_ns, 7_000_000_000);
        assert_eq!(after.elapsed_ns, 5_000_000_000);
        let picture = |window| Picture::of(window, &thresholds);
        let diagnosis = Diagnosis::of_two(picture(&before), picture(&after), &thresholds);
        assert_eq!(supported(&diagnosis), ["h0-load"]);
        // At its ends there are no two parts.
        for at_ns in [begin.taken_ns, begin.taken_ns + 12_000_000_000] {
            let parts = parts(Reader::new(&bytes[..]).unwrap(), at_ns);
            assert!(matches!(parts, Err(RecordedError::Single)), "{parts:?}");
        }
    }
}
