//! The Grafana dashboards as code: `cargo xtask dashboards` writes the JSON in
//! dashboards/ from this. One module for each dashboard; to change a panel, change
//! its entry there, run the command and look at the difference.

mod bios;
mod disks;
mod fleet;
mod interrupts;
mod json;
mod model;
mod overview;
pub mod preview;

pub use model::{Answers, Dashboard, Kind, Panel, Query, Row, Switch, Variable};

/// All of them, in the order of docs/dashboards.md.
#[must_use]
pub fn all() -> Vec<Dashboard> {
    vec![
        overview::dashboard(),
        disks::dashboard(),
        interrupts::dashboard(),
        bios::dashboard(),
        fleet::dashboard(),
    ]
}
