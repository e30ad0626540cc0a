//! The kernel's uevent messages: `ACTION@DEVPATH`, then `KEY=VALUE` strings,
//! each ended by a zero byte (`lib/kobject_uevent.c`).

/// What a uevent means for us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// A device that may have interrupt lines of interest came, went or
    /// changed its driver.
    pub topology: bool,
    /// A kernel module came or went.
    pub modules: bool,
    /// A CPU came or went.
    pub cpus: bool,
}

impl Changes {
    /// Everything may have changed.
    pub const ALL: Self = Self {
        topology: true,
        modules: true,
        cpus: true,
    };

    #[must_use]
    pub fn any(self) -> bool {
        let Self {
            topology,
            modules,
            cpus,
        } = self;
        topology || modules || cpus
    }
}

impl std::ops::BitOrAssign for Changes {
    fn bitor_assign(&mut self, other: Self) {
        let Self {
            topology,
            modules,
            cpus,
        } = other;
        self.topology |= topology;
        self.modules |= modules;
        self.cpus |= cpus;
    }
}

/// Reads one message. What is not a kernel uevent means no change: udev's own
/// messages, which start with `libudev`, among them.
#[must_use]
pub fn changes(message: &[u8]) -> Changes {
    let mut fields = message.split(|byte| *byte == 0);
    if !fields.next().is_some_and(|header| header.contains(&b'@')) {
        return Changes::default();
    }
    let mut subsystem: &[u8] = b"";
    let mut device_name: &[u8] = b"";
    for field in fields {
        if let Some(value) = field.strip_prefix(b"SUBSYSTEM=") {
            subsystem = value;
        } else if let Some(value) = field.strip_prefix(b"DEVNAME=") {
            device_name = value;
        }
    }
    match subsystem {
        // Binding a driver to a device is an event of the device's own
        // subsystem (actions bind and unbind).
        b"pci" | b"nvme" | b"nvme-subsystem" => Changes {
            topology: true,
            ..Changes::default()
        },
        // Namespaces.
        b"block" if device_name.starts_with(b"nvme") => Changes {
            topology: true,
            ..Changes::default()
        },
        b"module" => Changes {
            modules: true,
            ..Changes::default()
        },
        // Events online and offline (drivers/base/core.c, device_online).
        b"cpu" => Changes {
            cpus: true,
            ..Changes::default()
        },
        _ => Changes::default(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOPOLOGY: Changes = Changes {
        topology: true,
        modules: false,
        cpus: false,
    };
    const MODULES: Changes = Changes {
        topology: false,
        modules: true,
        cpus: false,
    };
    const CPUS: Changes = Changes {
        topology: false,
        modules: false,
        cpus: true,
    };
    const NONE: Changes = Changes {
        topology: false,
        modules: false,
        cpus: false,
    };

    #[test]
    fn tells_what_matters() {
        let cases: [(&[u8], Changes); 9] = [
            (
                b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0DEVPATH=/devices/system/cpu/cpu1\0SUBSYSTEM=cpu\0",
                CPUS,
            ),
            (
                b"add@/module/nvme_core\0ACTION=add\0DEVPATH=/module/nvme_core\0SUBSYSTEM=module\0SEQNUM=1\0",
                MODULES,
            ),
            (
                b"bind@/devices/pci10000:00/10000:01:00.0\0ACTION=bind\0DEVPATH=/devices/pci10000:00/10000:01:00.0\0SUBSYSTEM=pci\0DRIVER=nvme\0SEQNUM=2\0",
                TOPOLOGY,
            ),
            (b"remove@/devices/virtual/x/nvme3\0ACTION=remove\0SUBSYSTEM=nvme\0", TOPOLOGY),
            (b"add@/devices/x/nvme0n1\0SUBSYSTEM=block\0DEVNAME=nvme0n1\0DEVTYPE=disk\0", TOPOLOGY),
            (b"add@/devices/x/nvme0n1\0DEVNAME=nvme0n1\0SUBSYSTEM=block\0", TOPOLOGY),
            (b"change@/devices/virtual/block/loop0\0SUBSYSTEM=block\0DEVNAME=loop0\0", NONE),
            (b"add@/devices/virtual/net/pci\0SUBSYSTEM=net\0INTERFACE=pci\0", NONE),
            (b"libudev\0\xfe\xed\xca\xfe\0SUBSYSTEM=pci\0", NONE),
        ];
        for (message, expected) in cases {
            assert_eq!(
                changes(message),
                expected,
                "{}",
                String::from_utf8_lossy(message)
            );
        }
    }

    #[test]
    fn a_cut_off_message_is_read_as_far_as_it_goes() {
        assert_eq!(changes(b""), NONE);
        assert_eq!(changes(b"add@/x"), NONE);
        assert_eq!(changes(b"add@/x\0SUBSYSTEM="), NONE);
        assert_eq!(changes(b"add@/x\0SUBSYSTEM=pci"), TOPOLOGY);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(message in proptest::collection::vec(any::<u8>(), 0..512)) {
            let starts_like_one = message.split(|byte| *byte == 0).next().unwrap().contains(&b'@');
            prop_assert!(starts_like_one || !changes(&message).any());
        }
    }
}
