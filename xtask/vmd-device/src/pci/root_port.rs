//! A PCI Express root port inside the VMD's domain, one per disk.

use super::link::LINK_SPEEDS;
use super::{
    CAP_EXPRESS, CAP_MSI, COMMAND_WRITABLE, ConfigSpace, Link, STATUS_CAPABILITIES, register,
};

/// Secondary bus number, and the bridge control register with its reset bit.
pub(crate) const SECONDARY_BUS: usize = 0x19;
pub(crate) const BRIDGE_CONTROL: usize = 0x3e;
pub(crate) const BRIDGE_CONTROL_RESET: u16 = 0x40;

const BUS_NUMBERS: usize = 0x18;
const MEMORY_WINDOW: usize = 0x20;
const PREFETCHABLE_WINDOW: usize = 0x24;
const EXPRESS: usize = 0x40;
const SLOT_PRESENT: u16 = 0x0040;
const LINK_ACTIVE: u16 = 0x2000;
const MSI: usize = 0x80;

/// Shows the link to the disk, or that there is no disk, in the slot's and the
/// link's status. The port has no hot-plug interrupt, so nobody is told.
pub(crate) fn set_link(space: &mut ConfigSpace, link: Option<Link>) {
    let (slot, link) = match link {
        Some(link) => (SLOT_PRESENT, LINK_ACTIVE | link.bits()),
        None => (0, 0),
    };
    space.set(EXPRESS + 0x12, &link.to_le_bytes());
    space.set(EXPRESS + 0x1a, &slot.to_le_bytes());
}

/// The configuration space of root port `index` after a reset.
pub(crate) fn config_space(index: usize) -> ConfigSpace {
    let mut space = ConfigSpace::new();
    let number = index as u32 + 1;
    space.set(register::VENDOR, &0x8086_u16.to_le_bytes());
    space.set(register::DEVICE, &0x2030_u16.to_le_bytes());
    space.allow(register::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
    space.set(register::STATUS, &STATUS_CAPABILITIES.to_le_bytes());
    // PCI-to-PCI bridge.
    space.set(register::SUBCLASS, &[0x04, 0x06]);
    space.set(register::HEADER_TYPE, &[1]);
    space.allow(register::CACHE_LINE, &[0xff]);
    space.allow(BUS_NUMBERS, &[0xff; 3]);
    space.allow(MEMORY_WINDOW, &0xfff0_fff0_u32.to_le_bytes());
    // The prefetchable window has 64-bit addresses. Linux assigns one to these
    // ports whether the registers are there or not.
    space.set(PREFETCHABLE_WINDOW, &0x0001_0001_u32.to_le_bytes());
    space.allow(PREFETCHABLE_WINDOW, &0xfff0_fff0_u32.to_le_bytes());
    space.allow(PREFETCHABLE_WINDOW + 4, &[0xff; 8]);
    space.set(register::CAPABILITIES, &[EXPRESS as u8]);
    space.allow(register::INTERRUPT_LINE, &[0xff]);
    space.allow(BRIDGE_CONTROL, &[0xff; 2]);

    // PCI Express capability: root port with a slot.
    space.set(EXPRESS, &[CAP_EXPRESS, MSI as u8]);
    space.set(EXPRESS + 0x02, &0x0142_u16.to_le_bytes());
    space.set(EXPRESS + 0x04, &0x8001_u32.to_le_bytes());
    space.allow(EXPRESS + 0x08, &[0xff; 2]);
    let most = u32::from(Link::default().bits());
    space.set(
        EXPRESS + 0x0c,
        &(0x0010_0000 | most | number << 24).to_le_bytes(),
    );
    space.allow(EXPRESS + 0x10, &[0xff; 2]);
    // Slot: number.
    space.set(EXPRESS + 0x14, &(number << 19).to_le_bytes());
    space.allow(EXPRESS + 0x18, &[0xff; 2]);
    space.allow(EXPRESS + 0x1c, &[0xff; 2]);
    space.allow(EXPRESS + 0x28, &[0xff; 2]);
    space.set(EXPRESS + 0x2c, &LINK_SPEEDS.to_le_bytes());
    space.allow(EXPRESS + 0x30, &[0xff; 2]);

    // MSI with a 64-bit address. The port never sends one, but Linux's port
    // services ask for a vector, which a remapping VMD puts on its first one.
    space.set(MSI, &[CAP_MSI, 0]);
    space.set(MSI + 0x02, &0x0080_u16.to_le_bytes());
    space.allow(MSI + 0x02, &0x0071_u16.to_le_bytes());
    space.allow(MSI + 0x04, &[0xff; 10]);
    set_link(&mut space, Some(Link::default()));
    space
}
