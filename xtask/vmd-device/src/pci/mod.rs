//! PCI functions behind the VMD, and the VMD's own configuration space.

pub(crate) mod config_space;
pub(crate) mod link;
pub(crate) mod msix;
pub(crate) mod root_port;

pub(crate) use config_space::ConfigSpace;
pub(crate) use link::Link;
pub(crate) use msix::{Message, Msix};

/// Offsets of the configuration header that this crate uses (PCI Local Bus
/// Specification 3.0, section 6.1).
pub(crate) mod register {
    pub(crate) const VENDOR: usize = 0x00;
    pub(crate) const DEVICE: usize = 0x02;
    pub(crate) const COMMAND: usize = 0x04;
    pub(crate) const STATUS: usize = 0x06;
    pub(crate) const REVISION: usize = 0x08;
    pub(crate) const PROGRAMMING_INTERFACE: usize = 0x09;
    pub(crate) const SUBCLASS: usize = 0x0a;
    pub(crate) const CLASS: usize = 0x0b;
    pub(crate) const CACHE_LINE: usize = 0x0c;
    pub(crate) const HEADER_TYPE: usize = 0x0e;
    pub(crate) const BAR0: usize = 0x10;
    pub(crate) const SUBSYSTEM_VENDOR: usize = 0x2c;
    pub(crate) const SUBSYSTEM: usize = 0x2e;
    pub(crate) const CAPABILITIES: usize = 0x34;
    pub(crate) const INTERRUPT_LINE: usize = 0x3c;
}

/// Status bit: there is a capability list.
pub(crate) const STATUS_CAPABILITIES: u16 = 0x10;
/// Command bits: memory space, bus master, parity, SERR, INTx disable.
pub(crate) const COMMAND_WRITABLE: u16 = 0x0546;
/// Command bit: the function answers memory accesses.
pub(crate) const COMMAND_MEMORY: u16 = 0x0002;

/// Capability identifiers.
pub(crate) const CAP_MSI: u8 = 0x05;
pub(crate) const CAP_EXPRESS: u8 = 0x10;
pub(crate) const CAP_MSIX: u8 = 0x11;
