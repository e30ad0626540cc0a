//! One file per command, each thin: what it needs is computed elsewhere.

pub mod serve;
pub mod topology;
