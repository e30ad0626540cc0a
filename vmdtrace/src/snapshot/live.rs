//! Snapshots of the running host: what the eBPF programs counted, joined with
//! what sysfs says of the lines' owners.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::time::{ClockId, clock_gettime};

use super::{
    Detail, Host, Snapshot,
    owners::Owners,
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
    owners: Mutex<Owners>,
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
            owners: Mutex::new(Owners::default()),
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
            activity,
        } = options;
        let possible_cpus = host::possible_cpus(roots)?;
        let tracer = Tracer::load(Options {
            sizes: Sizes::for_host(possible_cpus, host::max_irq(roots)?),
            level: *level,
            also_lines: also_lines.clone(),
            roots: roots.clone(),
        })?;
        if let Some(logger) = tracer.take_logger() {
            messages::pass_on(logger)?;
        }
        let live = Self::new(tracer, roots.clone(), possible_cpus, *activity);
        live.tell_places();
        live.tracer.attach();
        Ok(live)
    }

    fn tell_places(&self) {
        let places = host::cpu_places(&self.roots, self.host.possible_cpus);
        self.tracer.set_places(&places);
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        // A panic while it was held leaves at worst a topology to be read again.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotSource for Live {
    fn snapshot(&self) -> Result<Snapshot, SnapshotError> {
        let taken_ns = now_ns().map_err(SnapshotError::new)?;
        let mut counters = self.tracer.counters();
        let probes = self.tracer.probes();
        let mut owners = self.owners();
        owners.assign(&mut counters, || host::read(&self.roots));
        let topology = owners.topology();
        let activity = self
            .activity
            .then(|| Activity::read(&self.roots, &topology));
        Ok(Snapshot {
            taken_ns,
            counting_since_ns: self.counting_since_ns,
            detail: Detail::Lines,
            host: self.host.clone(),
            topology,
            counters,
            probes,
            activity,
        })
    }

    fn attach_pending(&self) {
        self.tracer.attach();
    }

    fn topology_changed(&self) {
        self.tracer.raise_generation();
        self.owners().changed(|| self.tracer.counters());
    }

    fn cpus_changed(&self) {
        self.tell_places();
    }
}

/// `CLOCK_BOOTTIME`, in nanoseconds.
fn now_ns() -> nix::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
    Ok(std::time::Duration::from(now).as_nanos() as u64)
}
