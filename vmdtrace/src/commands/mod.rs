//! One file per command, each thin: what it needs is computed elsewhere.

pub mod record;
pub mod replay;
pub mod serve;
pub mod topology;
