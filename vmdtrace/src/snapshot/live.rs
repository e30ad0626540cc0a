//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::time::{ClockId, clock_gettime};

use super::{
    Detail, Host, Snapshot,
    owners::Owners,
    rare::{ByName, Rare},
    shares::Numbers,
    source::{SnapshotError, SnapshotSource, SourceOptions},
};
use crate::{
    host::{self, Roots, activity::Activity},
    probes::{Options, Sizes, Tracer, messages},
};

/// The running host.
#[derive(Debug)]
pub struct Live {
    tracer: Tracer,
    roots: Roots,
    host: Host,
    activity: bool,
    counting_since_ns: Option<u64>,
    known: Arc<Mutex<Known>>,
}

/// Who owns what.
#[derive(Debug, Default)]
struct Known {
    owners: Owners,
    rare: Rare,
    numbers: Numbers,
}

impl Live {
    fn new(tracer: Tracer, roots: Roots, possible_cpus: u32, activity: bool) -> Self {
        let kernel = std::fs::read_to_string(roots.procfs.join("sys/kernel/osrelease"));
        let host = Host {
            kernel: kernel.unwrap_or_default().trim().to_owned(),
            possible_cpus,
        };
        Self {
            tracer,
            roots,
            host,
            activity,
            counting_since_ns: now_ns().ok(),
            known: Arc::default(),
        }
    }

    /// Loads and attaches the programs and passes their messages on.
    ///
    /// # Errors
    /// What the tracer or the host's facts say; each message names the remedy.
    pub fn open(options: &SourceOptions) -> anyhow::Result<Self> {
        let SourceOptions {
            roots,
            also_lines,
            level,
            kprobes,
            shares,
            activity,
        } = options;
        let possible_cpus = host::possible_cpus(roots)?;
        let tracer = Tracer::load(Options {
            sizes: Sizes::for_host(possible_cpus, host::max_irq(roots)?),
            level: *level,
            also_lines: also_lines.clone(),
            kprobes: *kprobes,
            shares: *shares,
            roots: roots.clone(),
        })?;
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        let live = Self::new(tracer, roots.clone(), possible_cpus, *activity);
        live.tell_places();
        live.pass_on_msi_messages();
        live.tracer.attach();
        Ok(live)
    }

    fn counted_by_name(&self) -> anyhow::Result<ByName> {
        Ok(ByName {
            losses: self.tracer.losses()?,
            outside: self.tracer.outside()?,
            operations: self.tracer.operations()?,
        })
    }

    fn tell_places(&self) {
        let places = host::cpu_places(&self.roots, self.host.possible_cpus);
        self.tracer.set_places(&places);
    }

    fn pass_on_msi_messages(&self) {
        let known = Arc::clone(&self.known);
        let passed_on = self.tracer.take_msi_messages().and_then(|messages| {
            Ok(messages.pass_on(move |name, irq| {
                let known = lock(&known);
                known
                    .owners
                    .last_reading()
                    .map(|topology| Rare::subject(topology, name, irq))
                    .unwrap_or_default()
            })?)
        });
        if let Err(error) = passed_on {
            tracing::warn!("operations on interrupts are not logged: {error:#}");
        }
    }

    /// A Snapshot, and how long after our counters the kernel's were read, in
    /// nanoseconds.
    fn take(&self) -> Result<(Snapshot, u64), SnapshotError> {
        let taken_ns = now_ns().map_err(SnapshotError::new)?;
        let mut counters = self.tracer.counters();
        let shares = self.tracer.shares();
        let counted = self.counted_by_name().map_err(SnapshotError::new)?;
        let probes = self.tracer.probes();
        let mut known = lock(&self.known);
        let Known {
            owners,
            rare,
            numbers,
        } = &mut *known;
        let news = rare.has_news(&counted);
        if owners.assign(&mut counters, news, || host::read(&self.roots))
            && let Some(topology) = owners.last_reading()
        {
            rare.hand_over(topology, &counted);
            let owner = |irq, action: &str| numbers.of_line(owners, irq, action);
            self.tracer.set_owners(owner);
        }
        counters.shares = numbers.resolve(shares);
        rare.assign(&mut counters, &counted);
        let topology = owners.topology();
        let apart_ns = now_ns()
            .map_err(SnapshotError::new)?
            .saturating_sub(taken_ns);
        let activity = self
            .activity
            .then(|| Activity::read(&self.roots, &topology));
        let snapshot = Snapshot {
            taken_ns,
            counting_since_ns: self.counting_since_ns,
            detail: Detail::Lines,
            host: self.host.clone(),
            topology,
            counters,
            probes,
            activity,
        };
        Ok((snapshot, apart_ns))
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    // A panic while it was held leaves at worst a topology to be read again.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SnapshotSource for Live {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        if self.activity {
            closest(|| self.take())
        } else {
            self.take().map(|(snapshot, _)| snapshot)
        }
    }

    fn attach_pending(&self) {
        self.tracer.attach();
    }

    fn topology_changed(&self) {
        self.tracer.raise_generation();
        let mut known = lock(&self.known);
        known.owners.changed(|| self.tracer.counters());
        // Of nobody until the next reading.
        self.tracer.set_owners(|_, _| 0);
        match self.counted_by_name() {
            Ok(counted) => known.rare.changed(counted),
            Err(error) => tracing::debug!("rare events cannot be read: {error:#}"),
        }
    }

    fn cpus_changed(&self) {
        self.tell_places();
    }

    fn close(&self) {
        self.tracer.remove_kprobes();
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
