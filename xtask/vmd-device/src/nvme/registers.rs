//! A controller's registers below the doorbells
//! (NVM Express Base Specification 1.4, section 3.1).

use super::queue::MAX_ENTRIES;
use crate::bytes::{put, read_image};

/// Maximum entries, contiguous queues, 10 s to become ready, NVM command set,
/// pages of 4 KiB only.
const CAPABILITIES: u64 = (MAX_ENTRIES as u64 - 1) | 1 << 16 | 20 << 24 | 1 << 37;
/// Version 1.4.0.
pub(crate) const VERSION: u32 = 0x0001_0400;

const MASK_SET: usize = 0x0c;
const MASK_CLEAR: usize = 0x10;
const CONFIGURATION: usize = 0x14;
const STATUS: usize = 0x1c;
const ADMIN_QUEUE_ATTRIBUTES: usize = 0x24;
const ADMIN_SUBMISSION_BASE: usize = 0x28;
const ADMIN_COMPLETION_BASE: usize = 0x30;
const END: usize = 0x38;

const CC_ENABLE: u32 = 1;
const CC_SHUTDOWN: u32 = 0xc000;
const CSTS_READY: u32 = 1;
const CSTS_FATAL: u32 = 2;
const CSTS_SHUTDOWN: u32 = 0xc;
const CSTS_SHUTDOWN_COMPLETE: u32 = 8;

/// What a register write asks of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    Enable,
    Disable,
}

/// Where the admin queues are, as the guest set them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminQueues {
    pub(crate) submission_base: u64,
    pub(crate) submission_entries: u32,
    pub(crate) completion_base: u64,
    pub(crate) completion_entries: u32,
}

/// The registers' values.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    configuration: u32,
    status: u32,
    interrupt_mask: u32,
    admin_attributes: u32,
    admin_submission: u64,
    admin_completion: u64,
}

impl Registers {
    /// Reads any bytes of the register block.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        read_image(&self.image(), offset, out);
    }

    fn image(&self) -> [u8; END] {
        let mut image = [0; END];
        put(&mut image, 0x00, &CAPABILITIES.to_le_bytes());
        put(&mut image, 0x08, &VERSION.to_le_bytes());
        put(&mut image, MASK_SET, &self.interrupt_mask.to_le_bytes());
        put(&mut image, MASK_CLEAR, &self.interrupt_mask.to_le_bytes());
        put(&mut image, CONFIGURATION, &self.configuration.to_le_bytes());
        put(&mut image, STATUS, &self.status.to_le_bytes());
        put(
            &mut image,
            ADMIN_QUEUE_ATTRIBUTES,
            &self.admin_attributes.to_le_bytes(),
        );
        put(
            &mut image,
            ADMIN_SUBMISSION_BASE,
            &self.admin_submission.to_le_bytes(),
        );
        put(
            &mut image,
            ADMIN_COMPLETION_BASE,
            &self.admin_completion.to_le_bytes(),
        );
        image
    }

    /// Writes the bytes of one register, `offset` aligned to it. Writes to
    /// read-only registers change nothing. The interrupt mask is kept but has
    /// no effect: with MSI-X, the only kind there is, the table masks.
    pub(crate) fn write_dword(&mut self, offset: usize, value: u32) -> Change {
        let low = |register: u64| register & !0xffff_ffff | u64::from(value);
        let high = |register: u64| register & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            MASK_SET => self.interrupt_mask |= value,
            MASK_CLEAR => self.interrupt_mask &= !value,
            CONFIGURATION => return self.configure(value),
            ADMIN_QUEUE_ATTRIBUTES => self.admin_attributes = value & 0x0fff_0fff,
            ADMIN_SUBMISSION_BASE => self.admin_submission = low(self.admin_submission),
            0x2c => self.admin_submission = high(self.admin_submission),
            ADMIN_COMPLETION_BASE => self.admin_completion = low(self.admin_completion),
            0x34 => self.admin_completion = high(self.admin_completion),
            _ => {}
        }
        Change::Nothing
    }

    fn configure(&mut self, value: u32) -> Change {
        let was_enabled = self.configuration & CC_ENABLE != 0;
        let is_enabled = value & CC_ENABLE != 0;
        self.configuration = value;
        let change = match (was_enabled, is_enabled) {
            (false, true) => Change::Enable,
            (true, false) => {
                self.status = 0;
                Change::Disable
            }
            _ => Change::Nothing,
        };
        if value & CC_SHUTDOWN != 0 {
            self.status = self.status & !CSTS_SHUTDOWN | CSTS_SHUTDOWN_COMPLETE;
        }
        change
    }

    /// The admin queues, or what is wrong with the configuration.
    pub(crate) fn admin_queues(&self) -> Result<AdminQueues, &'static str> {
        let submission_entries = (self.admin_attributes & 0xfff) + 1;
        let completion_entries = (self.admin_attributes >> 16 & 0xfff) + 1;
        if self.configuration >> 4 & 7 != 0 {
            return Err("command set is not NVM");
        }
        if self.configuration >> 7 & 0xf != 0 {
            return Err("memory page size is not 4 KiB");
        }
        if submission_entries < 2 || completion_entries < 2 {
            return Err("admin queue has fewer than two entries");
        }
        if !self.admin_submission.is_multiple_of(4096)
            || !self.admin_completion.is_multiple_of(4096)
        {
            return Err("admin queue is not page-aligned");
        }
        Ok(AdminQueues {
            submission_base: self.admin_submission,
            submission_entries,
            completion_base: self.admin_completion,
            completion_entries,
        })
    }

    pub(crate) fn set_ready(&mut self) {
        self.status |= CSTS_READY;
    }

    /// The controller met something it cannot report in a completion; it stops
    /// until it is reset.
    pub(crate) fn set_fatal(&mut self) {
        self.status |= CSTS_FATAL;
    }

    /// Ready and not failed.
    pub(crate) fn is_running(&self) -> bool {
        self.status & (CSTS_READY | CSTS_FATAL) == CSTS_READY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(registers: &Registers, offset: usize) -> u32 {
        let mut out = [0; 4];
        registers.read(offset, &mut out);
        u32::from_le_bytes(out)
    }

    #[test]
    fn enabling_and_disabling_are_edges() {
        let mut registers = Registers::default();
        assert_eq!(registers.write_dword(CONFIGURATION, 1), Change::Enable);
        registers.set_ready();
        assert_eq!(registers.write_dword(CONFIGURATION, 1), Change::Nothing);
        registers.set_fatal();
        assert_eq!(read(&registers, STATUS), 3);
        assert!(!registers.is_running());
        assert_eq!(registers.write_dword(CONFIGURATION, 0), Change::Disable);
        assert_eq!(read(&registers, STATUS), 0);
    }

    #[test]
    fn shutdown_completes_at_once() {
        let mut registers = Registers::default();
        registers.write_dword(CONFIGURATION, 1);
        registers.set_ready();
        assert_eq!(
            registers.write_dword(CONFIGURATION, 0x4001),
            Change::Nothing
        );
        assert_eq!(read(&registers, STATUS), 9);
    }

    #[test]
    fn queue_bases_are_written_in_halves_and_read_unaligned() {
        let mut registers = Registers::default();
        registers.write_dword(ADMIN_QUEUE_ATTRIBUTES, 0x001f_001f);
        registers.write_dword(0x28, 0x3000);
        registers.write_dword(0x2c, 1);
        registers.write_dword(0x30, 0x5000);
        let queues = registers.admin_queues().unwrap();
        assert_eq!(queues.submission_base, 0x1_0000_3000);
        assert_eq!(
            (queues.submission_entries, queues.completion_entries),
            (32, 32)
        );
        assert_eq!(read(&registers, 0x29), 0x0100_0030);
        registers.write_dword(0x30, 0x5008);
        assert!(registers.admin_queues().is_err());
    }

    #[test]
    fn interrupt_masks_set_and_clear() {
        let mut registers = Registers::default();
        registers.write_dword(MASK_SET, 0b1100);
        registers.write_dword(MASK_CLEAR, 0b0100);
        assert_eq!(read(&registers, MASK_SET), 0b1000);
        assert_eq!(read(&registers, MASK_CLEAR), 0b1000);
    }
}
