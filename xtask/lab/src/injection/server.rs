//! The servers that causes are made in. Each is one boot, so that what fits
//! together shares one.

use vmd_device::{Config, DeviceId, Service};

use super::catalogue::USUAL;
use crate::guest::GuestConfig;
use crate::qemu::Iommu;

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// Four CPUs, and three controllers: `R` remaps 12 disks with a vector for
    /// each of their interrupts, `B` is bypassed, `F` remaps 4 disks with one
    /// vector.
    Spread,
    /// Two CPUs, `R` with 4 disks that remaps.
    TwoCpus,
    /// `S`, which could bypass, as a hypervisor passes it on.
    Translated,
    /// The IOMMU translates for `R`.
    Iommu,
    /// `Q`, a client part with an erratum, on the first kernel that works around
    /// it.
    Erratum,
}

impl Server {
    /// All, in the order in which tests boot them.
    pub const ALL: [Self; 5] = [
        Self::Spread,
        Self::TwoCpus,
        Self::Translated,
        Self::Iommu,
        Self::Erratum,
    ];

    /// As it is called in the names of tests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::TwoCpus => "two-cpus",
            Self::Translated => "translated",
            Self::Iommu => "iommu",
            Self::Erratum => "erratum",
        }
    }

    /// The series of the kernel it boots.
    #[must_use]
    pub fn kernel(self) -> &'static str {
        match self {
            Self::Erratum => "7.3",
            _ => "6.12",
        }
    }

    /// What it is made of.
    #[must_use]
    pub fn config(self) -> GuestConfig {
        let vmd = |tag: &str, id, disks, vectors| Config {
            id,
            disks,
            vectors,
            tag: tag.to_owned(),
            service: Service {
                latency: USUAL,
                ..Service::default()
            },
            ..Config::default()
        };
        let remap = DeviceId::Remap201d;
        let (cpus, iommu, controllers) = match self {
            Self::Spread => (
                4,
                Iommu::Absent,
                vec![
                    // 12 disks x (4 queues + the admin queue), and the first
                    // vector is for ports.
                    vmd("R", remap, 12, 61),
                    vmd("B", DeviceId::Bypass28c0, 2, 8),
                    vmd("F", remap, 4, 2),
                ],
            ),
            Self::TwoCpus => (2, Iommu::Absent, vec![vmd("R", remap, 4, 16)]),
            Self::Translated => (
                2,
                Iommu::Absent,
                vec![Config {
                    shadow: true,
                    ..vmd("S", DeviceId::Bypass28c0, 2, 8)
                }],
            ),
            Self::Iommu => (2, Iommu::Translating, vec![vmd("R", remap, 2, 8)]),
            Self::Erratum => (2, Iommu::Absent, vec![vmd("Q", DeviceId::Client7d0b, 2, 8)]),
        };
        GuestConfig {
            cpus,
            iommu,
            controllers,
            ..GuestConfig::default()
        }
    }
}
