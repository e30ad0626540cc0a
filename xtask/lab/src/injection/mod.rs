//! Causes of slow or stuck I/O that are made on purpose, and healthy servers
//! beside them: what `vmdtrace diagnose` has to say of each is known.
//!
//! [`ALL`] is the list. The tests and the demo both run what is in it.

mod answer;
mod catalogue;
mod driver;
mod run;
mod server;

pub use answer::{Answer, Found, Verdict, columns, page};
pub use catalogue::ALL;
pub use run::{Observed, Seen, Site, View};
pub use server::Server;

use vmd_device::control::Request;

use crate::error::{LabError, Result};
use crate::fio::Engine;

/// A cause that is made, or a healthy server.
#[derive(Debug)]
pub struct Injection {
    /// For the command line and for tables.
    pub name: &'static str,
    /// What is made, in a few words for people.
    pub what: &'static str,
    pub server: Server,
    /// Loads, each looked at by itself.
    pub windows: &'static [Window],
    /// What the last two windows tell together, where a cause needs both.
    pub compared: Option<Answer>,
}

/// A load, what is done before it, and what is done before it ends.
#[derive(Debug)]
pub struct Window {
    pub before: &'static [Action],
    pub load: InjectedLoad,
    /// Undoes what would disturb the next.
    pub after: &'static [Action],
    pub answer: Answer,
}

/// Reads of 4 KiB at random, until the window is over.
#[derive(Clone, Copy, Debug)]
pub struct InjectedLoad {
    /// Of the controller whose first disks are read.
    pub tag: &'static str,
    pub disks: usize,
    /// As the kernel writes a list.
    pub cpus: &'static str,
    /// Reads in flight on each disk.
    pub depth: u32,
    pub engine: Engine,
}

/// Something done to the guest or to an emulated controller.
#[derive(Debug)]
pub enum Action {
    /// A script of the guest's shell, with the block devices of the load in
    /// `$disks`.
    Shell(&'static str),
    /// Requests to the controller with this tag.
    Device(&'static str, fn() -> Vec<Request>),
}

impl Injection {
    /// The one of this name.
    ///
    /// # Errors
    /// When there is none: the text has all names.
    pub fn named(name: &str) -> Result<&'static Self> {
        ALL.iter().find(|it| it.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|it| it.name).collect();
            LabError::Invalid(format!(
                "there is no injection `{name}`; there are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_unknown_ones_are_refused_with_all() {
        let names: BTreeSet<_> = ALL.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), ALL.len());
        for name in &names {
            assert_eq!(Injection::named(name).unwrap().name, *name);
        }
        let error = Injection::named("list").unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(name)), "{error}");
    }

    #[test]
    fn every_load_fits_its_server() {
        for injection in ALL {
            let config = injection.server.config();
            assert!(!injection.windows.is_empty(), "{}", injection.name);
            assert!(
                injection.compared.is_none() || injection.windows.len() > 1,
                "{}",
                injection.name
            );
            for window in injection.windows {
                let load = &window.load;
                let controller = config.controllers.iter().find(|it| it.tag == load.tag);
                let disks = controller.map(|it| usize::from(it.disks));
                assert!(disks >= Some(load.disks), "{}", injection.name);
                let cpus: crate::fio::CpuList = load.cpus.parse().unwrap();
                assert!(
                    cpus.cpus().iter().all(|cpu| *cpu < config.cpus),
                    "{}",
                    injection.name
                );
                for action in window.before.iter().chain(window.after) {
                    if let Action::Device(tag, requests) = action {
                        assert!(config.controllers.iter().any(|it| it.tag == *tag));
                        assert!(!requests().is_empty());
                    }
                }
            }
        }
    }
}
