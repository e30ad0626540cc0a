//! All counters of a guest at one moment of rest, and differences of them.

use vmd_device::Counters;

use crate::error::{LabError, Result};
use crate::interrupts::KernelCounts;
use crate::scrape::{Sample, Scrape};

/// All counters at one moment.
#[derive(Clone, Debug)]
pub struct Readings {
    /// The daemon's.
    pub daemon: Scrape,
    /// The kernel's.
    pub kernel: KernelCounts,
    /// The emulated device's.
    pub device: Counters,
}

/// Two readings: what the daemon counted between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Between<'a> {
    pub(crate) before: &'a Scrape,
    pub(crate) after: &'a Scrape,
}

impl Between<'_> {
    /// Growth of a counter over the series that are wanted; `None` if the daemon
    /// does not have the metric. Series that came between count from 0.
    pub(crate) fn seconds(
        self,
        metric: &str,
        wanted: impl Fn(&Sample) -> bool + Copy,
    ) -> Result<Option<f64>> {
        let Some(after) = self.after.sum(metric, wanted) else {
            return Ok(None);
        };
        let before = self.before.sum(metric, wanted).unwrap_or_default();
        if after < before {
            return Err(LabError::Invalid(format!(
                "{metric} fell from {before} to {after}"
            )));
        }
        Ok(Some(after - before))
    }

    /// As [`Between::seconds`], of a counter of events.
    pub(crate) fn events(
        self,
        metric: &str,
        wanted: impl Fn(&Sample) -> bool + Copy,
    ) -> Result<Option<u64>> {
        Ok(self.seconds(metric, wanted)?.map(|value| value as u64))
    }

    /// As [`Between::events`], of a counter that has to be there.
    pub(crate) fn required(
        self,
        metric: &str,
        wanted: impl Fn(&Sample) -> bool + Copy,
    ) -> Result<u64> {
        self.events(metric, wanted)?
            .ok_or_else(|| LabError::Invalid(format!("/metrics of the daemon has no {metric}")))
    }
}
