//! One module per command.

pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod dashboards;
pub(crate) mod demo;
pub(crate) mod device;
pub(crate) mod fuzz;
pub(crate) mod lab;
pub(crate) mod package;
pub(crate) mod setup;
pub(crate) mod test;
