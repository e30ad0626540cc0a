//! The speed of the disks: how long a command takes, how many are served at once
//! and how many complete in a second, by each disk and by all together.
//!
//! All of it is arithmetic on times that are passed in.

mod latency;
mod schedule;
mod shared;

pub use latency::Latency;
pub(crate) use latency::{Nanos, parse_time, time_text};
pub(crate) use schedule::Schedule;
pub(crate) use shared::{Disk, Shared, Start};

use serde::{Deserialize, Serialize};

/// Most commands that one disk serves at once; this bounds the memory they need.
pub const MAX_PARALLELISM: u32 = 4096;

const SECOND: Nanos = 1_000_000_000;

/// The speed of one disk. What a request leaves out has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[group(skip)]
pub struct Service {
    /// Time that each I/O command takes, as 80us, uniform:60us:100us or
    /// tail:80us:5ms:1000 (one in 1,000 takes 5 ms). 0: completed at once, inside the doorbell write.
    #[arg(long, default_value = "0")]
    pub latency: Latency,
    /// I/O commands that a disk serves at once; more wait in their queues.
    #[arg(long, default_value_t = MAX_PARALLELISM, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PARALLELISM)))]
    pub parallelism: u32,
    /// I/O commands that a disk completes in a second at most [default: no limit]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub iops: Option<u32>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            latency: Latency::default(),
            parallelism: MAX_PARALLELISM,
            iops: None,
        }
    }
}

/// The speed of what all disks share, such as the port above them. What a request
/// leaves out has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
#[group(skip)]
pub struct SharedService {
    /// Time that each I/O command takes in addition to its disk's latency.
    #[arg(long = "shared-latency", id = "shared_latency", default_value = "0")]
    pub latency: Latency,
    /// I/O commands that all disks together serve at once [default: no limit]
    #[arg(long = "shared-parallelism", id = "shared_parallelism", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub parallelism: Option<u32>,
    /// I/O commands that all disks together complete in a second at most [default: no limit]
    #[arg(long = "shared-iops", id = "shared_iops", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub iops: Option<u32>,
    /// The shared limits hold only while at least this many disks serve commands.
    #[arg(long = "shared-from-disks", id = "shared_from_disks", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub from_disks: u8,
}

impl Default for SharedService {
    fn default() -> Self {
        Self {
            latency: Latency::default(),
            parallelism: None,
            iops: None,
            from_disks: 1,
        }
    }
}

impl Service {
    /// What a request over the control socket may not ask for.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MAX_PARALLELISM).contains(&self.parallelism) {
            return Err(format!("parallelism must be from 1 to {MAX_PARALLELISM}"));
        }
        positive("iops", self.iops)
    }
}

impl SharedService {
    /// What a request over the control socket may not ask for.
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("parallelism", self.parallelism)?;
        positive("iops", self.iops)?;
        positive("from_disks", Some(self.from_disks.into()))
    }
}

fn positive(name: &str, limit: Option<u32>) -> Result<(), String> {
    if limit == Some(0) {
        return Err(format!("{name} must be at least 1"));
    }
    Ok(())
}

/// Keeps completions apart: so many in a second at most.
#[derive(Clone, Copy, Debug, Default)]
struct Pacer {
    interval: Nanos,
    last: Option<Nanos>,
}

impl Pacer {
    fn new(iops: Option<u32>) -> Self {
        Self {
            interval: iops.map_or(0, |iops| SECOND.div_ceil(u64::from(iops.max(1)))),
            last: None,
        }
    }

    /// Changes the limit; what has completed still counts.
    fn set(&mut self, iops: Option<u32>) {
        self.interval = Self::new(iops).interval;
    }

    fn earliest(&self, at: Nanos) -> Nanos {
        self.last
            .map_or(at, |last| at.max(last.saturating_add(self.interval)))
    }

    fn pass(&mut self, at: Nanos) {
        self.last = Some(at);
    }
}
