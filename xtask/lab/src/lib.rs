//! The virtual server: QEMU, an unmodified kernel, emulated VMD controllers with
//! NVMe disks, and a command channel into the guest.

mod artifacts;
mod bpftrace;
mod channel;
mod child;
mod command;
mod controller;
mod diagnosis;
mod disks;
mod error;
pub mod experiment;
mod fio;
mod guest;
mod http;
mod initramfs;
pub mod injection;
pub mod interrupt;
mod interrupts;
mod modules;
mod parent_death;
mod prometheus;
mod qemu;
pub mod schedule;
mod scrape;
mod shell;
pub mod soak;
mod systemd;
mod temporary;
mod terminal;

pub use artifacts::{Artifacts, NULL_BLOCK, VMDTRACE};
pub use bpftrace::{Bpftrace, Map};
pub use command::{Background, GuestCommand, Output};
pub use controller::Controller;
pub use disks::GuestDisk;
pub use error::{LabError, Result};
pub use fio::{Bound, CpuList, Done, Engine, Load, Verified, Verify};
pub use guest::{Guest, GuestConfig, GuestFile, Root, guests_at_once};
pub use http::HttpResponse;
pub use interrupts::{KernelCounts, KernelLine, disk_of_action, is_vmd_action};
pub use lab_agent::Exit;
pub use nix::sys::signal::Signal;
pub use prometheus::{Prometheus, RawSeries, Rule, SCRAPE_SECONDS, Target, unix_seconds};
pub use qemu::{Iommu, native_serial};
pub use scrape::{Sample, Scrape};
pub use temporary::Folder;
pub use terminal::Left;
