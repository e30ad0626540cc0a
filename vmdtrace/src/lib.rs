//! vmdtrace: what interrupts do behind an Intel VMD.
//!
//! The parts and the one waist between them:
//!
//! ```text
//! probes/  eBPF programs and their maps -> Counters --\
//! host/    /sys and /proc               -> Topology --+-> snapshot/  Snapshot -> metrics/  Prometheus families
//!                                                                             \-> commands/ what a person reads
//! ```
//!
//! Nothing above the [`snapshot::Snapshot`] knows aya, nothing below it knows
//! Prometheus.

pub mod commands;
pub mod host;
pub mod snapshot;
