//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::time::{ClockId, clock_gettime};

use super::{
    Counters, Detail, Host, Snapshot,
    groups::Groups,
    owners::Owners,
    rare::{ByName, Rare},
    source::{SnapshotError, SnapshotSource, SourceOptions},
    sums,
};
use crate::{
    host::{self, Roots, activity::Activity, topology::Topology},
    memory,
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
    /// Which lines are summed, by the last reading; none until sums are asked for.
    groups: Option<(Groups, Topology)>,
}

/// What is read beside the counters of lines.
struct Others {
    taken_ns: u64,
    counters: Counters,
    counted: ByName,
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
            activity,
        } = options;
        let possible_cpus = host::possible_cpus(roots)?;
        let tracer = Tracer::load(Options {
            sizes: Sizes::for_host(possible_cpus, host::max_irq(roots)?),
            level: *level,
            also_lines: also_lines.clone(),
            kprobes: *kprobes,
            roots: roots.clone(),
        })?;
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        let live = Self::new(tracer, roots.clone(), possible_cpus, *activity);
        live.tell_places();
        live.pass_on_msi_messages();
        live.tracer.attach();
        // The kernel's types were read for it.
        memory::give_back();
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
        let mut others = self.others()?;
        let probes = self.tracer.probes();
        let mut known = lock(&self.known);
        let (_, is_new) = self.assign(&mut known, &mut others);
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
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    // A panic while it was held leaves at worst a topology to be read again.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    fn others(&self) -> Result<Others, SnapshotError> {
        Ok(Others {
            taken_ns: now_ns().map_err(SnapshotError::new)?,
            counters: self.tracer.counters_without_lines(),
            counted: self.counted_by_name().map_err(SnapshotError::new)?,
        })
    }

    /// Labels every line with its owner; returns the lines' slots, and whether
    /// sysfs was read for it.
    fn assign(&self, known: &mut Known, others: &mut Others) -> (Vec<u32>, bool) {
        let Known {
            owners,
            rare,
            groups,
        } = known;
        let Others {
            taken_ns: _,
            counters,
            counted,
        } = others;
        let mut slots = Vec::new();
        self.tracer.each_line(|slot, cell| {
            slots.push(slot);
            counters.lines.push(self.tracer.line_counts(cell));
        });
        let news = rare.has_news(counted);
        let is_new = owners.assign(counters, news, || host::read(&self.roots));
        if is_new {
            *groups = None;
            if let Some(topology) = owners.last_reading() {
                rare.hand_over(topology, counted);
            }
        }
        rare.assign(counters, counted);
        (slots, is_new)
    }

    /// Sums by the last reading. None, and nothing done, where that does not do.
    fn sums_of(&self, known: &Known, others: &mut Others) -> Option<Topology> {
        let Known {
            owners,
            rare,
            groups,
        } = known;
        let Others {
            taken_ns: _,
            counters,
            counted,
        } = others;
        let (groups, topology) = groups.as_ref()?;
        let mut sums = groups.empty();
        self.tracer.each_line(|slot, cell| {
            if !groups.add(&mut sums, slot, &self.tracer.run_counts(cell)) {
                counters.lines.push(self.tracer.line_counts(cell));
            }
        });
        if rare.has_news(counted) || owners.need_reading(counters) {
            counters.lines.clear();
            return None;
        }
        owners.label(counters);
        counters.lines.append(&mut sums);
        rare.assign(counters, counted);
        Some(topology.clone())
    }
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
        let probes = self.tracer.probes();
        let mut known = lock(&self.known);
        let known_sums = self.sums_of(&known, &mut others);
        let is_new = known_sums.is_none();
        let topology = match known_sums {
            Some(topology) => topology,
            None => {
                let (slots, _whether_read) = self.assign(&mut known, &mut others);
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
        self.tracer.attach();
    }

    fn topology_changed(&self) {
        self.tracer.raise_generation();
        let mut known = lock(&self.known);
        known.owners.changed(|| self.tracer.counters());
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
