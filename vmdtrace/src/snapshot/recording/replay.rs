//! A recording in the place of a running host.

use std::io::BufRead;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{Ending, ReadError, Reader};
use crate::snapshot::Snapshot;
use crate::snapshot::source::{SnapshotError, SnapshotSource};

/// Plays a recording: whoever asks gets the Snapshot that was taken as long
/// after the first one as now is after the start. After the last one it stays
/// there.
#[derive(Debug)]
pub struct Replay<R> {
    speed: f64,
    state: Mutex<State<R>>,
}

#[derive(Debug)]
struct State<R> {
    reader: Reader<R>,
    started: Option<Instant>,
    first_ns: u64,
    now: Snapshot,
    next: Option<Snapshot>,
}

impl<R: BufRead> Replay<R> {
    /// Plays `speed` times as fast as it was recorded, from the first time
    /// somebody asks.
    ///
    /// # Errors
    /// When there is no Snapshot in it.
    pub fn new(mut reader: Reader<R>, speed: f64) -> Result<Self, ReadError> {
        let now = reader.next_snapshot()?.ok_or(ReadError::Empty)?;
        let next = reader.next_snapshot()?;
        Ok(Self {
            speed,
            state: Mutex::new(State {
                reader,
                started: None,
                first_ns: now.taken_ns,
                now,
                next,
            }),
        })
    }
}

impl<R: BufRead> State<R> {
    /// Moves on to what was the newest so long after the first Snapshot.
    fn advance(&mut self, elapsed_ns: f64) -> Result<(), ReadError> {
        while let Some(next) = self
            .next
            .take_if(|next| next.taken_ns.saturating_sub(self.first_ns) as f64 <= elapsed_ns)
        {
            self.now = next;
            self.next = self.reader.next_snapshot()?;
            if self.next.is_none() {
                match self.reader.ending() {
                    Some(ending @ (Ending::Cut { .. } | Ending::Damaged { .. })) => {
                        tracing::warn!("{ending}");
                    }
                    Some(Ending::Whole(_)) | None => {}
                }
                tracing::info!("the recording has ended; its last snapshot stays");
            }
        }
        Ok(())
    }
}

impl<R: BufRead + Send> SnapshotSource for Replay<R> {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let started = *state.started.get_or_insert_with(Instant::now);
        let elapsed_ns = started.elapsed().as_nanos() as f64 * self.speed;
        state.advance(elapsed_ns).map_err(SnapshotError::new)?;
        Ok(state.now.clone())
    }

    /// A recording has no probes.
    fn attach_pending(&self) {}

    /// A recording holds its topology.
    fn topology_changed(&self) {}

    fn cpus_changed(&self) {}
}

#[cfg(test)]
mod tests {
    use super::super::synthetic::{Server, recorded};
    use super::*;
    use crate::snapshot::Detail;

    #[test]
    fn paced_as_recorded() {
        let mut server = Server::new(1, 2, 0);
        let (bytes, snapshots) = recorded(&mut server, Detail::Lines, 4);
        let replay = Replay::new(Reader::new(&bytes[..]).unwrap(), 1.0).unwrap();
        let mut state = replay.state.lock().unwrap();
        for (second, expected) in [
            (0.0, 0),
            (0.99, 0),
            (1.01, 1),
            (1.5, 1),
            (3.1, 3),
            (99.0, 3),
        ] {
            state.advance(second * 1e9).unwrap();
            assert_eq!(state.now, snapshots[expected], "{second}");
        }
    }

    #[test]
    fn speed_is_a_factor_and_asking_starts_it() {
        let mut server = Server::new(1, 2, 0);
        let (bytes, snapshots) = recorded(&mut server, Detail::Lines, 4);
        let replay = Replay::new(Reader::new(&bytes[..]).unwrap(), 1e-9).unwrap();
        assert_eq!(replay.snapshot().unwrap(), snapshots[0]);
        let replay = Replay::new(Reader::new(&bytes[..]).unwrap(), 1e15).unwrap();
        replay.snapshot().unwrap();
        assert_eq!(replay.snapshot().unwrap(), snapshots[3]);
    }
}
