//! The VMD itself: its configuration space, its three memory windows, and the
//! PCI domain behind them.
//!
//! Facts follow Linux's drivers/pci/controller/vmd.c (its register names are
//! given) as tried with 5.10 to 7.3.

use vm_memory::mmap::MmapRegionError;

use crate::bytes::read_image;
use crate::config::{Config, DeviceId};
use crate::counters::{DiskCounters, Mode};
use crate::nvme::{Controller, Environment, Identity};
use crate::pci::config_space::touches;
use crate::pci::{
    CAP_MSIX, COMMAND_WRITABLE, ConfigSpace, Link, Message, STATUS_CAPABILITIES, msix, register,
    root_port,
};
use crate::service::{Disk, Nanos, Service, Shared, SharedService, Start};

/// `VMD_CFGBAR`: the configuration space of the domain behind, bus in bits 20
/// and up, device and function in bits 12 to 19.
const CFGBAR_LEN: u64 = 32 << 20;
/// `VMD_MEMBAR1`: memory of the domain.
const MEMBAR1_LEN: u64 = 32 << 20;
/// `VMD_MEMBAR2`: the VMD's MSI-X table, then more memory of the domain.
const MEMBAR2_LEN: u64 = 1 << 20;
const MSIX_TABLE: u32 = 0;
const MSIX_PENDING: u32 = 0x1000;
/// What follows is memory of the domain.
const MSIX_END: u64 = 0x2000;

const MEMBAR1_REGISTER: usize = register::BAR0 + 8;
const MEMBAR2_REGISTER: usize = register::BAR0 + 16;
/// `PCI_REG_VMCAP`: whether `VMCONFIG` says where buses start (`BUS_RESTRICT_CAP`).
const VMCAP: usize = 0x40;
const VMCAP_BUS_RESTRICTIONS: u16 = 1;
/// `PCI_REG_VMCONFIG`, whose bit 1 switches remapping off. Its bits 9:8 are the
/// first bus (`BUS_RESTRICT_CFG`).
const VMCONFIG: usize = 0x44;
const VMCONFIG_BYPASS: u16 = 0x2;
/// `PCI_REG_VMLOCK`, whose bit 1 says that there are shadow registers (`MB2_SHADOW_EN`).
const VMLOCK: usize = 0x70;
const VMLOCK_SHADOW: u16 = 0x2;
/// The shadow registers in MEMBAR2 (`MB2_SHADOW_OFFSET`): where MEMBAR1 and MEMBAR2
/// are for those behind the VMD, a 64-bit address each.
const SHADOW_REGISTERS: std::ops::Range<u64> = 0x2000..0x2010;
/// Addresses that a real machine might have there.
const SHADOW_MEMBAR1: u64 = 0x9000_0000;
const SHADOW_MEMBAR2: u64 = 0x383f_ff00_0000;
const CONFIG_MSIX: usize = 0x80;

/// An id without a driver and without a quirk in QEMU.
const DUMMY_ID: u16 = 0x1fff;

/// A region of the vfio device, by its index in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    CfgBar,
    MemBar1,
    MemBar2,
    Config,
}

/// Number of regions of a vfio PCI device.
pub(crate) const REGIONS: u32 = 9;

impl Region {
    pub(crate) fn from_index(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::CfgBar),
            2 => Some(Self::MemBar1),
            4 => Some(Self::MemBar2),
            7 => Some(Self::Config),
            _ => None,
        }
    }

    pub(crate) fn len(self) -> u64 {
        match self {
            Self::CfgBar => CFGBAR_LEN,
            Self::MemBar1 => MEMBAR1_LEN,
            Self::MemBar2 => MEMBAR2_LEN,
            Self::Config => crate::pci::config_space::SIZE as u64,
        }
    }
}

/// A root port and the disk below it.
#[derive(Debug)]
struct Slot {
    port: ConfigSpace,
    disk: Controller,
    /// Whether the disk is plugged in.
    present: bool,
    link: Link,
}

/// A function behind the VMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Port(usize),
    Disk(usize),
}

/// The VMD endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    id: DeviceId,
    shadow: bool,
    first_bus: u8,
    config: ConfigSpace,
    slots: Vec<Slot>,
    shared: Shared,
}

impl Endpoint {
    pub(crate) fn new(config: &Config) -> Result<Self, MmapRegionError> {
        let slots = (0..usize::from(config.disks))
            .map(|index| {
                let serial = config.serial(index);
                let identity = Identity {
                    index: index as u16,
                    nqn: format!("nqn.2026-11.lab.vmd:{serial}"),
                    eui64: (1..=config.namespaces)
                        .map(|namespace| eui64(&serial, namespace))
                        .collect(),
                    write_cache: config.write_cache,
                    serial,
                };
                Ok(Slot {
                    port: root_port::config_space(index),
                    disk: Controller::new(identity, config)?,
                    present: true,
                    link: Link::default(),
                })
            })
            .collect::<Result<_, MmapRegionError>>()?;
        Ok(Self {
            id: config.id,
            shadow: config.shadow,
            first_bus: config.first_bus.number(),
            config: config_space(config),
            slots,
            shared: Shared::new(config.shared),
        })
    }

    /// A reset of the device by the client.
    pub(crate) fn reset(&mut self) {
        self.config
            .set(register::DEVICE, &self.id.pci_id().to_le_bytes());
        set_first_bus(&mut self.config, self.first_bus);
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.port = root_port::config_space(index);
            slot.show_link();
            slot.disk.reset();
        }
    }

    /// Pulls a disk out without notice, or plugs it in again; its data stay. False
    /// if there is no such disk.
    pub(crate) fn set_present(&mut self, disk: usize, present: bool) -> bool {
        let Some(slot) = self.slots.get_mut(disk) else {
            return false;
        };
        slot.disk.reset();
        slot.present = present;
        slot.show_link();
        true
    }

    /// Changes the link to a disk; false if there is no such disk.
    pub(crate) fn set_link(&mut self, disk: usize, link: Link) -> bool {
        let Some(slot) = self.slots.get_mut(disk) else {
            return false;
        };
        slot.link = link;
        slot.show_link();
        slot.disk.set_link(link);
        true
    }

    /// Whether children's messages are remapped now.
    pub(crate) fn mode(&self) -> Mode {
        if self.config.u16(VMCONFIG) & VMCONFIG_BYPASS != 0 {
            Mode::Bypass
        } else {
            Mode::Remap
        }
    }

    pub(crate) fn disk_counters(&self) -> Vec<DiskCounters> {
        self.slots.iter().map(|slot| slot.disk.counters()).collect()
    }

    pub(crate) fn disk(&mut self, index: usize) -> Option<&mut Controller> {
        self.slots.get_mut(index).map(|slot| &mut slot.disk)
    }

    /// Lets everything happen that is due by now, and posts together what was
    /// finished.
    pub(crate) fn advance(&mut self, env: &mut Environment<'_>) {
        self.shared.advance(&mut self.slots, env.now, env);
        for slot in &mut self.slots {
            slot.disk.post(env);
        }
    }

    /// When `advance` has to be called next, if the guest does nothing.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let interrupt = |slot: &Slot| slot.disk.next_interrupt();
        let interrupts = self.slots.iter().filter_map(interrupt);
        interrupts.chain(self.shared.next_due(&self.slots)).min()
    }

    pub(crate) fn set_shared_service(&mut self, service: SharedService) {
        self.shared.set_service(service);
    }

    /// Changes the speed of one disk, or of all; false if there is no such disk.
    pub(crate) fn set_service(&mut self, disk: Option<usize>, service: Service) -> bool {
        let mut found = false;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if disk.is_none_or(|disk| disk == index) {
                slot.disk.schedule_mut().set_service(service);
                found = true;
            }
        }
        found
    }

    /// All messages that disks have sent since the last call and that arrive by
    /// now.
    pub(crate) fn take_messages(&mut self, now: Nanos) -> Vec<Message> {
        self.slots
            .iter_mut()
            .flat_map(|slot| slot.disk.take_messages(now))
            .collect()
    }

    /// Reads inside a region; the caller has checked its length.
    pub(crate) fn read(&self, region: Region, offset: u64, out: &mut [u8], env: &Environment<'_>) {
        match region {
            Region::Config => self.config.read(offset as usize, out),
            Region::CfgBar => {
                let register = (offset & 0xfff) as usize;
                match self.function(offset) {
                    None => return out.fill(0xff),
                    Some(Function::Port(index)) => self.slots[index].port.read(register, out),
                    Some(Function::Disk(index)) => {
                        self.slots[index].disk.read_config(register, out);
                    }
                }
                env.diagnostics
                    .detail(format_args!("config read {offset:#x}: {out:02x?}"));
            }
            Region::MemBar1 | Region::MemBar2 => match self.memory_target(region, offset) {
                Some((index, at)) => self.slots[index].disk.read_bar(at, out),
                None if region == Region::MemBar1 => out.fill(0xff),
                // The VMD's MSI-X table is the client's affair; nothing is ever pending.
                None if offset < MSIX_END => out.fill(0),
                None if self.shadow && SHADOW_REGISTERS.contains(&offset) => {
                    let registers = [SHADOW_MEMBAR1, SHADOW_MEMBAR2].map(u64::to_le_bytes);
                    let at = (offset - SHADOW_REGISTERS.start) as usize;
                    read_image(registers.as_flattened(), at, out);
                }
                None => out.fill(0xff),
            },
        }
    }

    /// Writes inside a region; the caller has checked its length.
    pub(crate) fn write(
        &mut self,
        region: Region,
        offset: u64,
        data: &[u8],
        env: &mut Environment<'_>,
    ) {
        match region {
            Region::Config => {
                let before = self.mode();
                self.config.write(offset as usize, data);
                let mode = self.mode();
                if mode != before {
                    env.diagnostics
                        .info(format_args!("the driver switched to {mode:?} mode"));
                }
                env.diagnostics
                    .detail(format_args!("VMD config write {offset:#x}: {data:02x?}"));
            }
            Region::CfgBar => {
                let Some(function) = self.function(offset) else {
                    return;
                };
                env.diagnostics
                    .detail(format_args!("config write {offset:#x}: {data:02x?}"));
                let register = (offset & 0xfff) as usize;
                match function {
                    Function::Port(index) => self.slots[index].write_port(register, data),
                    Function::Disk(index) => self.slots[index].disk.write_config(register, data),
                }
            }
            Region::MemBar1 | Region::MemBar2 => {
                if let Some((index, at)) = self.memory_target(region, offset) {
                    self.slots[index].disk.write_bar(at, data, env);
                }
            }
        }
    }

    /// The function that answers at `offset` of CFGBAR.
    fn function(&self, offset: u64) -> Option<Function> {
        let bus = (offset >> 20) as u8;
        let device = (offset >> 15 & 0x1f) as usize;
        let function = offset >> 12 & 7;
        if function != 0 {
            return None;
        }
        if bus == 0 {
            return (device < self.slots.len()).then_some(Function::Port(device));
        }
        if device != 0 {
            return None;
        }
        // CFGBAR begins with the first bus, whatever its number is (`vmd_cfg_addr`).
        let bus = bus.checked_add(self.first_bus)?;
        let below = |slot: &Slot| slot.present && slot.port.u8(root_port::SECONDARY_BUS) == bus;
        self.slots.iter().position(below).map(Function::Disk)
    }

    /// The disk and the offset in its BAR that answer in a memory window.
    fn memory_target(&self, region: Region, offset: u64) -> Option<(usize, usize)> {
        let base = match region {
            Region::MemBar1 if self.shadow => SHADOW_MEMBAR1,
            Region::MemBar1 => u64::from(self.config.u32(MEMBAR1_REGISTER) & !0xf),
            _ if self.shadow => SHADOW_MEMBAR2,
            _ => self.config.bar64(MEMBAR2_REGISTER),
        };
        let address = base.checked_add(offset)?;
        let at = |slot: &Slot| slot.present.then(|| slot.disk.bar_offset(address))?;
        self.slots
            .iter()
            .enumerate()
            .find_map(|(index, slot)| Some((index, at(slot)?)))
    }
}

impl Disk for Slot {
    type Environment<'a> = Environment<'a>;

    fn has_waiting(&self) -> bool {
        self.disk.is_rung()
    }

    fn take(&mut self, start: Start<'_>, env: &mut Environment<'_>) -> bool {
        self.disk.start_next(start, env)
    }

    fn in_service(&self) -> usize {
        self.disk.schedule().in_service()
    }

    fn next_due(&self) -> Option<Nanos> {
        self.disk.schedule().next_due()
    }

    fn finish(&mut self, at: Nanos) {
        self.disk.finish(at);
    }
}

impl Slot {
    fn show_link(&mut self) {
        root_port::set_link(&mut self.port, self.present.then_some(self.link));
    }

    fn write_port(&mut self, register: usize, data: &[u8]) {
        self.port.write(register, data);
        let control = root_port::BRIDGE_CONTROL..root_port::BRIDGE_CONTROL + 2;
        if touches(register, data.len(), control)
            && self.port.u16(root_port::BRIDGE_CONTROL) & root_port::BRIDGE_CONTROL_RESET != 0
        {
            self.disk.reset();
        }
    }
}

/// The VMD's own configuration space.
fn config_space(config: &Config) -> ConfigSpace {
    let mut space = ConfigSpace::new();
    let id = if config.id.has_qemu_quirk() {
        DUMMY_ID
    } else {
        config.id.pci_id()
    };
    space.set(register::VENDOR, &0x8086_u16.to_le_bytes());
    space.set(register::DEVICE, &id.to_le_bytes());
    space.allow(register::COMMAND, &COMMAND_WRITABLE.to_le_bytes());
    space.set(register::STATUS, &STATUS_CAPABILITIES.to_le_bytes());
    space.set(register::REVISION, &[4]);
    // RAID controller, as the real one.
    space.set(register::SUBCLASS, &[0x04, 0x01]);
    space.set(register::SUBSYSTEM_VENDOR, &0x8086_u16.to_le_bytes());
    space.set(register::CAPABILITIES, &[CONFIG_MSIX as u8]);
    // CFGBAR is 64-bit prefetchable, MEMBAR1 32-bit, MEMBAR2 64-bit.
    for (offset, kind, length, is_64_bit) in [
        (register::BAR0, 0xc_u32, CFGBAR_LEN, true),
        (MEMBAR1_REGISTER, 0, MEMBAR1_LEN, false),
        (MEMBAR2_REGISTER, 4, MEMBAR2_LEN, true),
    ] {
        space.set(offset, &kind.to_le_bytes());
        space.allow(offset, &(!(length as u32 - 1)).to_le_bytes());
        if is_64_bit {
            space.allow(offset + 4, &[0xff; 4]);
        }
    }
    if config.id.has_bus_restrictions() {
        space.set(VMCAP, &VMCAP_BUS_RESTRICTIONS.to_le_bytes());
    }
    set_first_bus(&mut space, config.first_bus.number());
    if config.shadow {
        space.set(VMLOCK, &VMLOCK_SHADOW.to_le_bytes());
    }
    if config.id.can_bypass() {
        space.allow(VMCONFIG, &VMCONFIG_BYPASS.to_le_bytes());
    }
    // MSI-X: table and pending bits in MEMBAR2, which is BAR 4.
    space.set(CONFIG_MSIX, &[CAP_MSIX, 0]);
    space.set(
        CONFIG_MSIX + 2,
        &(config.vectors.saturating_sub(1)).to_le_bytes(),
    );
    space.allow(CONFIG_MSIX + 2, &msix::CONTROL_WRITABLE.to_le_bytes());
    space.set(CONFIG_MSIX + 4, &(MSIX_TABLE | 4).to_le_bytes());
    space.set(CONFIG_MSIX + 8, &(MSIX_PENDING | 4).to_le_bytes());
    space
}

/// Sets VMCONFIG to remapping, with the code of the first bus.
fn set_first_bus(space: &mut ConfigSpace, first_bus: u8) {
    let code: u16 = match first_bus {
        0 => 0,
        128 => 1,
        _ => 2,
    };
    space.set(VMCONFIG, &(code << 8).to_le_bytes());
}

/// An identifier derived from the serial number and the namespace's (FNV-1a), so
/// that it is the same in every run and differs between namespaces.
fn eui64(serial: &str, namespace: u8) -> u64 {
    serial
        .bytes()
        .chain([namespace])
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}
