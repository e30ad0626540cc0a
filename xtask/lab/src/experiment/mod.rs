//! The experiment the project exists for: the same load on one disk from one
//! CPU and on all disks from all CPUs, behind a VMD that remaps and behind one
//! that is bypassed, counted at once by the daemon, the kernel, the emulated
//! device, fio, and a Prometheus that scrapes the daemon.

mod agreement;
mod readings;
mod run;
mod session;

pub use readings::Readings;
pub use run::{DiskRun, Run, counts_interrupts};
pub use session::{Session, Setting};

use serde::{Deserialize, Serialize};
use vmd_device::DeviceId;

/// How a VMD delivers its children's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Remap,
    Bypass,
}

impl Mode {
    /// The emulated device that the unmodified driver runs in this mode.
    #[must_use]
    pub fn device_id(self) -> DeviceId {
        match self {
            Self::Remap => DeviceId::Remap201d,
            Self::Bypass => DeviceId::Bypass28c0,
        }
    }

    /// As it is written in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Remap => "remap",
            Self::Bypass => "bypass",
        }
    }
}
