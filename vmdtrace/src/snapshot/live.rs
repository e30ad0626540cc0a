//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::{
    Counters, Detail, Host, Probe, ProbeState, Snapshot,
    groups::Groups,
    owners::Owners,
    probes::HANDLER_COMPLETIONS,
    rare::{ByName, Rare},
    shares::Numbers,
    source::{SnapshotError, SnapshotSource, SourceOptions},
    sums,
};
use crate::{
    helper::Helper,
    host::{self, Roots, activity::Activity, topology::Topology},
    logging, memory,
    probes::{
        Loaded, Tracer, messages,
        msi_messages::{Messages, Ring, Stream},
        shares::NumberedShare,
        threads,
    },
};

/// The running host.
#[derive(Debug)]
pub struct Live {
    loaded: Arc<dyn Loaded>,
    roots: Roots,
    host: Host,
    activity: bool,
    counting_since_ns: Option<u64>,
    known: Arc<Mutex<Known>>,
    /// Why completions are taken in threads, if they are; looked for where devices and
    /// modules come and go.
    in_threads: Mutex<Option<String>>,
    end: Mutex<Option<oneshot::Receiver<String>>>,
}

/// Who owns what.
#[derive(Debug, Default)]
struct Known {
    owners: Owners,
    rare: Rare,
    /// Which lines are summed, by the last reading; none until sums are asked for.
    groups: Option<(Groups, Topology)>,
    numbers: Numbers,
}

/// How much of the topology is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Whole,
    /// Without the lines and queues of disks.
    Outline,
}

/// What is read beside the counters of lines.
struct Others {
    taken_ns: u64,
    counters: Counters,
    shares: Vec<NumberedShare>,
    counted: ByName,
}

impl Live {
    fn new(loaded: Arc<dyn Loaded>, options: &SourceOptions) -> Self {
        let SourceOptions {
            roots, activity, ..
        } = options;
        let kernel = std::fs::read_to_string(roots.procfs.join("sys/kernel/osrelease"));
        let host = Host {
            kernel: kernel.unwrap_or_default().trim().to_owned(),
            possible_cpus: loaded.arrays().facts().sizes.cpus,
        };
        Self {
            loaded,
            roots: roots.clone(),
            host,
            activity: *activity,
            counting_since_ns: now_ns().ok(),
            known: Arc::default(),
            in_threads: Mutex::default(),
            end: Mutex::default(),
        }
    }

    /// Loads and attaches the programs in this process and passes their messages on:
    /// for commands that end soon.
    ///
    /// # Errors
    /// What the tracer or the host's facts say; each message names the remedy.
    pub fn open(options: &SourceOptions) -> anyhow::Result<Self> {
        let tracer = Arc::new(Tracer::load_for(options)?);
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        let live = Self::new(Arc::clone(&tracer) as Arc<dyn Loaded>, options);
        let passed_on = tracer.take_msi_messages().and_then(|ring| {
            Ok(live.pass_on_msi_messages(Ring(ring), |error| {
                tracing::warn!("operations on interrupts are not logged from now on: {error}");
            })?)
        });
        if let Err(error) = passed_on {
            tracing::warn!("operations on interrupts are not logged: {error:#}");
        }
        live.begin();
        Ok(live)
    }

    /// Lets a helper load and attach the programs. This process, which may have one
    /// thread only, has no capability from then on: for the daemon.
    ///
    /// # Errors
    /// If there can be no helper, or what it says.
    pub fn open_apart(options: &SourceOptions, log: logging::Settings) -> anyhow::Result<Self> {
        let (helper, events) = Helper::start(options, log)?;
        let helper = Arc::new(helper);
        let mut live = Self::new(Arc::clone(&helper) as Arc<dyn Loaded>, options);
        let (tell, end) = oneshot::channel();
        let helper = Arc::downgrade(&helper);
        live.pass_on_msi_messages(events, move |error| {
            if let Some(helper) = helper.upgrade() {
                // Nobody waits for it any more when it was us who ended it.
                let _told = tell.send(helper.why_it_ended(&error));
            }
        })?;
        live.end = Mutex::new(Some(end));
        live.begin();
        Ok(live)
    }

    fn begin(&self) {
        self.tell_places();
        self.loaded.attach();
        self.look_for_threads();
    }

    fn look_for_threads(&self) {
        *lock(&self.in_threads) = threads::interrupts_have_threads(&self.roots);
    }

    fn counted_by_name(&self) -> anyhow::Result<ByName> {
        Ok(ByName {
            losses: self.loaded.losses()?,
            outside: self.loaded.outside()?,
            operations: self.loaded.operations()?,
        })
    }

    fn probes(&self) -> Vec<Probe> {
        let mut probes = self.loaded.probes();
        if let Some(reason) = &*lock(&self.in_threads) {
            let handlers = probes
                .iter_mut()
                .filter(|it| it.name == HANDLER_COMPLETIONS);
            handlers.for_each(|it| {
                (it.state, it.reason) = (ProbeState::NotApplicable, Some(reason.clone()));
            });
        }
        probes
    }

    fn tell_places(&self) {
        let places = host::cpu_places(&self.roots, self.host.possible_cpus);
        self.loaded.arrays().set_places(&places);
    }

    fn pass_on_msi_messages(
        &self,
        stream: impl Stream + Send + 'static,
        ended: impl FnOnce(io::Error) + Send + 'static,
    ) -> io::Result<()> {
        let known = Arc::clone(&self.known);
        let messages = Messages {
            stream,
            totals: self.loaded.arrays().share_msi_totals(),
        };
        let subject = move |name: &_, irq| {
            let known = lock(&known);
            known
                .owners
                .last_reading()
                .map(|topology| Rare::subject(topology, known.owners.names(), name, irq))
                .unwrap_or_default()
        };
        messages.pass_on(subject, ended)
    }

    /// A Snapshot, and how long after our counters the kernel's were read, in
    /// nanoseconds.
    fn take(&self) -> Result<(Snapshot, u64), SnapshotError> {
        let mut others = self.others()?;
        let probes = self.probes();
        let mut known = lock(&self.known);
        let (_, is_new) = self.assign(&mut known, &mut others, Extent::Whole);
        let topology = known.owners.topology();
        if is_new {
            memory::give_back();
        }
        let apart_ns = now_ns()
            .map_err(SnapshotError::new)?
            .saturating_sub(others.taken_ns);
        let activity = self
            .activity
            .then(|| Activity::read(&self.roots, &topology));
        let snapshot = Snapshot {
            taken_ns: others.taken_ns,
            counting_since_ns: self.counting_since_ns,
            detail: Detail::Lines,
            host: self.host.clone(),
            topology,
            counters: others.counters,
            probes,
            activity,
        };
        Ok((snapshot, apart_ns))
    }

    fn others(&self) -> Result<Others, SnapshotError> {
        let arrays = self.loaded.arrays();
        Ok(Others {
            taken_ns: now_ns().map_err(SnapshotError::new)?,
            counters: arrays.counters_without_lines(),
            shares: arrays.shares(),
            counted: self.counted_by_name().map_err(SnapshotError::new)?,
        })
    }

    /// Labels every line with its owner; returns the lines' slots, and whether
    /// sysfs was read for it.
    fn assign(&self, known: &mut Known, others: &mut Others, wanted: Extent) -> (Vec<u32>, bool) {
        let Known {
            owners,
            rare,
            groups,
            numbers,
        } = known;
        let Others {
            taken_ns: _,
            counters,
            shares,
            counted,
        } = others;
        let mut slots = Vec::new();
        let arrays = self.loaded.arrays();
        arrays.each_line(|slot, cell| {
            slots.push(slot);
            counters.lines.push(arrays.line_counts(cell));
        });
        let is_forgotten = wanted == Extent::Whole && owners.is_outline();
        let news = is_forgotten || rare.has_news(counted);
        let is_new = owners.assign(counters, news, || host::read(&self.roots));
        if is_new {
            *groups = None;
            if let Some(topology) = owners.last_reading() {
                rare.hand_over(topology, counted);
                arrays.set_owners(|irq, action| numbers.of_line(owners, irq, action));
            }
        }
        counters.shares = numbers.resolve(std::mem::take(shares));
        rare.assign(counters, counted);
        (slots, is_new)
    }

    /// Sums by the last reading. None, and nothing done, where that does not do.
    fn sums_of(&self, known: &Known, others: &mut Others) -> Option<Topology> {
        let Known {
            owners,
            rare,
            groups,
            numbers,
        } = known;
        let Others {
            taken_ns: _,
            counters,
            shares,
            counted,
        } = others;
        let (groups, topology) = groups.as_ref()?;
        let mut sums = groups.empty();
        let arrays = self.loaded.arrays();
        arrays.each_line(|slot, cell| {
            if !groups.add(&mut sums, slot, &arrays.run_counts(cell)) {
                counters.lines.push(arrays.line_counts(cell));
            }
        });
        if rare.has_news(counted) || owners.need_reading(counters) {
            counters.lines.clear();
            return None;
        }
        owners.label(counters);
        counters.lines.append(&mut sums);
        counters.shares = numbers.resolve(std::mem::take(shares));
        rare.assign(counters, counted);
        Some(topology.clone())
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while it was held leaves at worst a topology to be read again.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SnapshotSource for Live {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        if self.activity {
            closest(|| self.take())
        } else {
            self.take().map(|(snapshot, _)| snapshot)
        }
    }

    fn sums(&self) -> Result<Snapshot, SnapshotError> {
        if self.activity {
            return Ok(self.snapshot()?.sums());
        }
        let mut others = self.others()?;
        let probes = self.probes();
        let mut known = lock(&self.known);
        let known_sums = self.sums_of(&known, &mut others);
        let is_new = known_sums.is_none();
        let topology = match known_sums {
            Some(topology) => topology,
            None => {
                let (slots, was_read) = self.assign(&mut known, &mut others, Extent::Outline);
                let owners = &known.owners;
                // What earlier owners had comes behind, without a slot.
                let lines = slots.into_iter().zip(&others.counters.lines);
                let plain = lines.filter(|(_, line)| owners.has_one_owner(line));
                let groups = Groups::new(plain);
                let topology = owners
                    .last_reading()
                    .map(Topology::outline)
                    .unwrap_or_default();
                known.groups = Some((groups, topology.clone()));
                // One that was there before is somebody's who asks for all of it.
                if was_read {
                    known.owners.keep_outline();
                }
                topology
            }
        };
        drop(known);
        let Counters { lines, samples, .. } = &mut others.counters;
        *lines = sums::lines(lines);
        *samples = sums::samples(samples);
        if is_new {
            memory::give_back();
        }
        Ok(Snapshot {
            taken_ns: others.taken_ns,
            counting_since_ns: self.counting_since_ns,
            detail: Detail::Sums,
            host: self.host.clone(),
            topology,
            counters: others.counters,
            probes,
            activity: None,
        })
    }

    fn attach_pending(&self) {
        self.loaded.attach();
        self.look_for_threads();
    }

    fn topology_changed(&self) {
        self.loaded.arrays().raise_generation();
        self.look_for_threads();
        let mut known = lock(&self.known);
        known.owners.changed(|| self.loaded.arrays().counters());
        // Of nobody until the next reading.
        self.loaded.arrays().set_owners(|_, _| 0);
        match self.counted_by_name() {
            Ok(counted) => known.rare.changed(counted),
            Err(error) => tracing::debug!("rare events cannot be read: {error:#}"),
        }
    }

    fn cpus_changed(&self) {
        self.tell_places();
    }

    fn set_log_level(&self, level: logging::Level) -> anyhow::Result<()> {
        self.loaded.set_log_level(level)
    }

    fn close(&self) {
        self.loaded.close();
    }

    fn take_end(&self) -> Option<oneshot::Receiver<String>> {
        lock(&self.end).take()
    }
}

/// Takes again what has our counters and the kernel's of moments too far apart, a
/// few times: the topology was read in between, which takes long on a large host, or
/// the CPU was needed elsewhere. Rates of both are compared with each other.
fn closest<T, E>(mut take: impl FnMut() -> Result<(T, u64), E>) -> Result<T, E> {
    /// A twentieth of the shortest window that is diagnosed.
    const NEAR_NS: u64 = 50_000_000;
    const AGAIN: usize = 3;
    let (mut best, mut apart) = take()?;
    for _ in 0..AGAIN {
        if apart <= NEAR_NS {
            break;
        }
        let (next, next_apart) = take()?;
        if next_apart < apart {
            (best, apart) = (next, next_apart);
        }
    }
    Ok(best)
}

/// `CLOCK_BOOTTIME`, in nanoseconds.
fn now_ns() -> nix::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    Ok(std::time::Duration::from(now).as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the takes is kept, and how many there were.
    fn kept(apart_ms: &[u64]) -> (usize, usize) {
        let mut takes = apart_ms.iter().enumerate();
        let kept = closest(|| {
            let (index, ms) = takes.next().ok_or(())?;
            Ok::<_, ()>((index, ms * 1_000_000))
        });
        (kept.unwrap(), apart_ms.len() - takes.len())
    }

    #[test]
    fn what_is_far_apart_is_taken_again() {
        assert_eq!(kept(&[50, 1]), (0, 1));
        assert_eq!(kept(&[900, 3, 1]), (1, 2));
        // Never near: the best of them.
        assert_eq!(kept(&[900, 300, 700, 400, 1]), (1, 4));
        assert!(closest(|| Err::<((), u64), ()>(())).is_err());
    }
}
