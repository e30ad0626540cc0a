//! A function's 4 KiB of configuration space, with a mask of writable bits.

use std::fmt;

use crate::bytes::{put, u16_at, u32_at};

/// Bytes of a PCI Express configuration space.
pub(crate) const SIZE: usize = 4096;

/// Registers and which of their bits software may change.
pub(crate) struct ConfigSpace {
    bytes: Box<[u8]>,
    writable: Box<[u8]>,
}

impl ConfigSpace {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![0; SIZE].into(),
            writable: vec![0; SIZE].into(),
        }
    }

    /// Sets a register, whatever its mask.
    pub(crate) fn set(&mut self, offset: usize, value: &[u8]) {
        put(&mut self.bytes, offset, value);
    }

    /// Makes the bits set in `mask` writable.
    pub(crate) fn allow(&mut self, offset: usize, mask: &[u8]) {
        put(&mut self.writable, offset, mask);
    }

    pub(crate) fn u8(&self, offset: usize) -> u8 {
        self.bytes.get(offset).copied().unwrap_or(0xff)
    }

    pub(crate) fn u16(&self, offset: usize) -> u16 {
        u16_at(&self.bytes, offset).unwrap_or(u16::MAX)
    }

    pub(crate) fn u32(&self, offset: usize) -> u32 {
        u32_at(&self.bytes, offset).unwrap_or(u32::MAX)
    }

    /// The address in a 64-bit memory BAR, without its type bits.
    pub(crate) fn bar64(&self, offset: usize) -> u64 {
        u64::from(self.u32(offset) & !0xf) | u64::from(self.u32(offset + 4)) << 32
    }

    /// Software reads; all ones beyond the end.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        out.fill(0xff);
        let tail = self.bytes.get(offset..).unwrap_or_default();
        for (target, source) in out.iter_mut().zip(tail) {
            *target = *source;
        }
    }

    /// Software writes; bits that are not writable keep their value.
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        let registers = self.bytes.iter_mut().zip(&self.writable).skip(offset);
        for ((register, mask), value) in registers.zip(data) {
            *register = (*register & !mask) | (value & mask);
        }
    }
}

impl fmt::Debug for ConfigSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigSpace({:04x}:{:04x})", self.u16(0), self.u16(2))
    }
}

/// Whether a write of `length` bytes at `offset` touches any of `register`'s bytes.
pub(crate) fn touches(offset: usize, length: usize, register: std::ops::Range<usize>) -> bool {
    offset < register.end && offset.saturating_add(length) > register.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_bits_change() {
        let mut space = ConfigSpace::new();
        space.set(0x10, &[0x0c, 0, 0, 0]);
        space.allow(0x10, &0xfe00_0000_u32.to_le_bytes());
        space.write(0x10, &[0xff; 4]);
        assert_eq!(space.u32(0x10), 0xfe00_000c);
        space.write(SIZE - 2, &[1, 2, 3, 4]);
        space.write(usize::MAX, &[1]);
        let mut out = [0; 4];
        space.read(SIZE - 2, &mut out);
        assert_eq!(out, [0, 0, 0xff, 0xff]);
    }
}
