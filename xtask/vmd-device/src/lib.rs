//! An emulated Intel VMD with NVMe disks, served to QEMU's `vfio-user-pci` over
//! a UNIX socket.
//!
//! The client's messages (`connection`, `protocol`) go to the device (`device`),
//! which is a VMD endpoint (`endpoint`) with root ports (`pci`) and NVMe
//! controllers (`nvme`) behind it. Data move to and from guest memory
//! (`memory`), when they are due (`service`, `scheduler`); interrupts leave through the VMD's own vectors or past them
//! (`interrupts`). Everything is counted (`counters`) and can be read while the
//! guest runs (`control`).
//!
//! Nothing the guest or the client sends is trusted: it is served, or refused
//! and counted.
//!
//! QEMU must share the guest's memory with this process, by a
//! `memory-backend-memfd` with `share=on`; each controller of a guest is a
//! process of its own.
//!
//! Disk `i` has the serial number [`Config::serial`]`(i)` and sits in slot `i`.

mod bytes;
mod clock;
mod config;
mod connection;
pub mod control;
mod counters;
mod device;
mod diagnostics;
mod endpoint;
mod faults;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod interrupts;
mod memory;
mod nvme;
mod pci;
mod protocol;
mod scheduler;
mod server;
mod service;

pub use config::{
    Args, BlockSize, Config, ConfigError, DeviceId, FirstBus, MAX_DISKS, MAX_NAMESPACES,
};
pub use counters::{Counters, DiskCounters, Mode, QueueCounters};
pub use faults::{CompletionFault, Delay, MsiFault};
pub use pci::link::{Link, LinkSpeed, LinkWidth};
pub use server::run;
pub use service::{Latency, MAX_PARALLELISM, Service, SharedService};
