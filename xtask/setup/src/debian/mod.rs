//! Debian packages, fetched and unpacked without installing anything.

pub(crate) mod apt;
pub(crate) mod control;
mod sources;

pub(crate) use apt::{PrivateApt, Release};
pub(crate) use control::Package;

/// Names a sources list to use in place of the machine's own.
pub const SOURCES_VARIABLE: &str = "VMDTRACE_APT_SOURCES";
