//! A function's MSI-X table, pending bits, and the decision whether an event
//! becomes a message (PCI Local Bus Specification 3.0, section 6.8.2).

use crate::bytes::{read_image, u32_at, u64_at};

/// Bytes of one table entry.
const ENTRY_LEN: usize = 16;
/// Offset and bit of an entry's mask.
const VECTOR_CONTROL: usize = 12;
const MASKED: u8 = 1;

/// Bits of the capability's message control register.
const CONTROL_ENABLE: u16 = 0x8000;
const CONTROL_FUNCTION_MASK: u16 = 0x4000;
/// Message control bits that software may write.
pub(crate) const CONTROL_WRITABLE: u16 = CONTROL_ENABLE | CONTROL_FUNCTION_MASK;

/// An MSI: a write of `data` to `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The vector of the function that sends it.
    pub(crate) vector: u16,
    pub(crate) address: u64,
    pub(crate) data: u32,
}

/// Table and pending bits.
#[derive(Debug)]
pub(crate) struct Msix {
    table: Vec<u8>,
    pending: Vec<bool>,
    enabled: bool,
    function_masked: bool,
}

impl Msix {
    /// All vectors masked, MSI-X disabled.
    pub(crate) fn new(vectors: u16) -> Self {
        let mut msix = Self {
            table: vec![0; usize::from(vectors) * ENTRY_LEN],
            pending: vec![false; usize::from(vectors)],
            enabled: false,
            function_masked: false,
        };
        msix.reset();
        msix
    }

    /// The state after a reset of the function.
    pub(crate) fn reset(&mut self) {
        self.enabled = false;
        self.function_masked = false;
        self.pending.fill(false);
        self.table.fill(0);
        for entry in self.table.chunks_exact_mut(ENTRY_LEN) {
            entry[VECTOR_CONTROL] = MASKED;
        }
    }

    /// Number of vectors.
    pub(crate) fn vectors(&self) -> u16 {
        self.pending.len() as u16
    }

    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn read_table(&self, offset: usize, out: &mut [u8]) {
        read_image(&self.table, offset, out);
    }

    /// Software writes the table; unmasking sends what is pending.
    pub(crate) fn write_table(&mut self, offset: usize, data: &[u8]) -> Vec<Message> {
        for (target, source) in self.table.iter_mut().skip(offset).zip(data) {
            *target = *source;
        }
        self.unmasked()
    }

    pub(crate) fn read_pending(&self, offset: usize, out: &mut [u8]) {
        // The array is made of 64-bit words.
        let mut image = vec![0; self.pending.len().div_ceil(64) * 8];
        for (vector, _) in self
            .pending
            .iter()
            .enumerate()
            .filter(|(_, pending)| **pending)
        {
            image[vector / 8] |= 1 << (vector % 8);
        }
        read_image(&image, offset, out);
    }

    /// Software wrote the message control register; unmasking sends what is
    /// pending.
    pub(crate) fn set_control(&mut self, control: u16) -> Vec<Message> {
        self.enabled = control & CONTROL_ENABLE != 0;
        self.function_masked = control & CONTROL_FUNCTION_MASK != 0;
        self.unmasked()
    }

    /// An event on `vector`: a message, or pending while masked, or nothing
    /// while MSI-X is disabled (there are no pin interrupts behind a VMD).
    pub(crate) fn raise(&mut self, vector: u16) -> Option<Message> {
        let index = usize::from(vector);
        if !self.enabled || index >= self.pending.len() {
            return None;
        }
        if self.is_masked(index) {
            self.pending[index] = true;
            return None;
        }
        self.message(index)
    }

    fn unmasked(&mut self) -> Vec<Message> {
        if !self.enabled || self.function_masked {
            return Vec::new();
        }
        let ready: Vec<usize> = (0..self.pending.len())
            .filter(|&vector| self.pending[vector] && !self.is_masked(vector))
            .collect();
        for &vector in &ready {
            self.pending[vector] = false;
        }
        ready
            .into_iter()
            .filter_map(|vector| self.message(vector))
            .collect()
    }

    fn is_masked(&self, vector: usize) -> bool {
        let control = self.table.get(vector * ENTRY_LEN + VECTOR_CONTROL);
        self.function_masked || control.is_none_or(|control| control & MASKED != 0)
    }

    fn message(&self, vector: usize) -> Option<Message> {
        let entry = self.table.get(vector * ENTRY_LEN..)?;
        Some(Message {
            vector: vector as u16,
            address: u64_at(entry, 0)?,
            data: u32_at(entry, 8)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: u64, data: u32, control: u32) -> Vec<u8> {
        [
            &address.to_le_bytes()[..],
            &data.to_le_bytes(),
            &control.to_le_bytes(),
        ]
        .concat()
    }

    #[test]
    fn a_masked_event_is_pending_and_sent_once_when_unmasked() {
        let mut msix = Msix::new(3);
        msix.write_table(16, &entry(0xfee0_0000, 7, 1));
        msix.set_control(CONTROL_ENABLE);
        assert_eq!(msix.raise(1), None);
        assert_eq!(msix.raise(1), None);
        let mut bits = [0; 8];
        msix.read_pending(0, &mut bits);
        assert_eq!(bits[0], 0b10);
        let sent = msix.write_table(16 + VECTOR_CONTROL, &[0]);
        assert_eq!(
            sent,
            [Message {
                vector: 1,
                address: 0xfee0_0000,
                data: 7
            }]
        );
        msix.read_pending(0, &mut bits);
        assert_eq!(bits[0], 0);
        assert!(msix.write_table(16 + VECTOR_CONTROL, &[0]).is_empty());
        assert_eq!(msix.raise(1), Some(sent[0]));
    }

    #[test]
    fn the_function_mask_holds_back_every_vector() {
        let mut msix = Msix::new(2);
        msix.write_table(0, &entry(1, 1, 0));
        msix.set_control(CONTROL_ENABLE | CONTROL_FUNCTION_MASK);
        assert_eq!(msix.raise(0), None);
        assert_eq!(msix.set_control(CONTROL_ENABLE).len(), 1);
    }

    #[test]
    fn nothing_is_sent_or_kept_while_disabled_or_out_of_range() {
        let mut msix = Msix::new(2);
        msix.write_table(0, &entry(1, 1, 0));
        assert_eq!(msix.raise(0), None);
        assert!(msix.set_control(CONTROL_ENABLE).is_empty());
        assert_eq!(msix.raise(2), None);
        msix.write_table(usize::MAX, &[1]);
    }
}
