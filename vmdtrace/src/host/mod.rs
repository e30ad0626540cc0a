//! What the host says of itself in `/sys` and `/proc`. Every reader takes its
//! root directory as an argument, so tests run on captured trees.
//!
//! Nothing here needs a privilege, and nothing here reads `/proc/interrupts`:
//! with many disks and CPUs it is over a hundred megabytes a read.

mod action;
pub mod activity;
mod block_settings;
mod capabilities;
mod containment;
mod controllers;
mod counts;
mod disks;
mod files;
#[cfg(test)]
pub(crate) mod fixture;
mod index;
mod irqs;
mod link;
mod machine;
mod mode;
mod number_list;
mod pci;
mod places;
mod printable;
mod security;
mod settings;
#[cfg(test)]
mod tests;
pub mod topology;
mod tracing_files;
mod vmd_driver;
mod vmd_ids;

use std::path::PathBuf;

pub use action::Action;
pub use capabilities::{Capabilities, Capability, capabilities};
pub use containment::Containment;
pub use counts::{PossibleCpus, line_count};
pub use index::{LineOwner, TopologyIndex};
pub use irqs::max_irq;
pub use number_list::{NumberList, NumberListError, possible_cpus};
pub use places::cpu_places;
pub use printable::printable;
pub use security::{Lockdown, Security};
pub use settings::Settings;
pub use tracing_files::TracingFiles;
pub use vmd_ids::{VmdId, vmd_id};

use files::Files;
use topology::Topology;

/// Where `/sys` and `/proc` are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    pub sysfs: PathBuf,
    pub procfs: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
        }
    }
}

/// Why a single fact of the host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The file or directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// It was read, but not understood.
    #[error("{}: {what}", path.display())]
    Nonsense { path: PathBuf, what: String },
}

/// What one file says: none where there is no such file.
pub type Fact<T> = Result<Option<T>, HostError>;

/// What the file says as `parse` understands it; `wanted` names what it should be.
fn fact<T>(path: PathBuf, wanted: &str, parse: impl FnOnce(&str) -> Option<T>) -> Fact<T> {
    match files::read_text(&path) {
        Ok(text) => match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(HostError::Nonsense {
                path,
                what: format!("{} is not {wanted}", files::quoted(&text)),
            }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(HostError::Unreadable { path, source }),
    }
}

/// Reads all VMD controllers and NVMe disks.
///
/// A file that is missing leaves its field absent. One that cannot be read, or
/// holds what it should not, is listed in [`Topology::problems`].
#[must_use]
pub fn read(roots: &Roots) -> Topology {
    let mut files = Files::default();
    let devices = pci::read(&mut files, roots);
    let found = disks::find(&mut files, roots, &devices);
    let mut controllers = controllers::read(&mut files, roots, &devices, &found);
    let disks = disks::read(&mut files, roots, &devices, found, &mut controllers);
    let controllers = controllers.into_controllers();
    irqs::check_directories(&mut files, roots, &controllers, &disks);
    let machine = machine::read(&mut files, roots);
    Topology {
        controllers,
        disks,
        machine,
        problems: files.into_problems(),
    }
}
