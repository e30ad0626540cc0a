//! One module per command.

pub(crate) mod build;
pub(crate) mod setup;
