//! The VMD devices the kernel's driver knows (`vmd_ids` in
//! drivers/pci/controller/vmd.c, 5.10 to 7.3). The driver's flags are not
//! visible from outside, so the one that matters here is repeated.

/// PCI vendor of every VMD.
pub(super) const INTEL: u16 = 0x8086;

/// A kind of VMD controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmdId {
    /// PCI device id.
    pub device: u16,
    /// The platform it is part of.
    pub platform: &'static str,
    /// First vector the driver uses (`VMD_FEAT_OFFSET_FIRST_VECTOR`: 1, else 0).
    pub first_vector: u32,
}

const IDS: [VmdId; 14] = [
    server(0x201d, "Skylake server"),
    server(0x28c0, "Ice Lake and later server"),
    server(0x28c1, "server"),
    client(0x467f, "Alder Lake client"),
    client(0x4c3d, "Rocket Lake client"),
    client(0x9a0b, "Tiger Lake client"),
    client(0xa77f, "Raptor Lake client"),
    client(0x7d0b, "Meteor Lake client"),
    client(0xad0b, "Arrow Lake client"),
    client(0xb60b, "client"),
    client(0xb06f, "client"),
    client(0xb07f, "client"),
    client(0xd70b, "client"),
    client(0xd73b, "client"),
];

const fn server(device: u16, platform: &'static str) -> VmdId {
    VmdId {
        device,
        platform,
        first_vector: 0,
    }
}

const fn client(device: u16, platform: &'static str) -> VmdId {
    VmdId {
        device,
        platform,
        first_vector: 1,
    }
}

/// What is known of a VMD by its PCI device id.
#[must_use]
pub fn vmd_id(device: u16) -> Option<VmdId> {
    IDS.into_iter().find(|id| id.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        for (position, id) in IDS.iter().enumerate() {
            assert!(
                IDS[..position]
                    .iter()
                    .all(|other| other.device != id.device),
                "{:x}",
                id.device
            );
        }
        assert_eq!(vmd_id(0x28c0).map(|id| id.first_vector), Some(0));
        assert_eq!(vmd_id(0x9a0b).map(|id| id.first_vector), Some(1));
        assert_eq!(vmd_id(0x1234), None);
    }
}
