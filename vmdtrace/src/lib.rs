//! vmdtrace: what interrupts do behind an Intel VMD.
//!
//! The parts and the one waist between them:
//!
//! ```text
//! probes/  eBPF programs and their maps -> Counters --\
//! host/    /sys and /proc               -> Topology --+-> snapshot/  Snapshot -> metrics/  Prometheus families
//!                                                                             |-> diagnose/ findings, from two Snapshots
//!                                                                             \-> commands/ what a person reads
//! ```
//!
//! `web/` serves the metrics, `uevent/` tells the source of Snapshots when devices
//! and modules come and go. `helper/` is the part of the daemon that keeps its
//! privileges, `config/` reads a file of settings, `service_manager` talks to
//! systemd.
//!
//! Nothing above the [`snapshot::Snapshot`] knows aya, nothing below it knows
//! Prometheus.

pub mod cli;
pub mod commands;
pub mod config;
pub mod diagnose;
pub mod helper;
pub mod host;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod probes;
pub mod service_manager;
pub mod snapshot;
pub mod uevent;
pub mod web;
