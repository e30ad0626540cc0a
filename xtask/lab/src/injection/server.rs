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
    /// each of their interrupts, `B` is bypassed, `F` remaps 8 disks with four
    /// vectors.
    Spread,
    /// Two CPUs, `R` with 4 disks that remaps.
    TwoCpus,
    /// `S`, which could bypass, as a hypervisor passes it on.
    Translated,
    /// The IOMMU translates for `R`.
    Iommu,
    /// One CPU and `N`, whose driver does not enable the interrupts of its
    /// children: what they do is found by time-outs alone.
    NeverEnabled,
    /// `Q`, a client part with an erratum, on the first kernel that works around
    /// it.
    Erratum,
}

impl Server {
    /// All, in the order in which tests boot them.
    pub const ALL: [Self; 6] = [
        Self::Spread,
        Self::TwoCpus,
        Self::Translated,
        Self::Iommu,
        Self::NeverEnabled,
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
            Self::NeverEnabled => "never-enabled",
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
                    // A disk gets no more vectors than the controller has.
                    vmd("F", remap, 8, 5),
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
            Self::NeverEnabled => (1, Iommu::Absent, vec![vmd("N", remap, 1, 3)]),
            Self::Erratum => (2, Iommu::Absent, vec![vmd("Q", DeviceId::Client7d0b, 2, 8)]),
        };
        GuestConfig {
            cpus,
            iommu,
            controllers,
            modules: Vec::new(),
            ..GuestConfig::default()
        }
    }

    /// Its modules in the order of loading, with their parameters.
    #[must_use]
    pub fn modules(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // In seconds. Every command of a disk waits for its time-out.
            Self::NeverEnabled => &[
                ("nvme_core", "admin_timeout=1 io_timeout=1"),
                ("vmd", ""),
                ("nvme", ""),
            ],
            _ => &[("vmd", ""), ("nvme", "")],
        }
    }

    /// Whether its vmd driver is one that does not enable what it should.
    #[must_use]
    pub fn has_faulty_driver(self) -> bool {
        self == Self::NeverEnabled
    }
}
