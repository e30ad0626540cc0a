//! Names of irqactions and the automaton that tells which are ours.
//!
//! A glob cannot be matched cheaply by a verified program, a table can: user
//! space compiles all patterns into one deterministic automaton, the program
//! takes one step a byte.

/// Bytes kept of a name; longer ones are cut.
pub const NAME_BYTES: usize = 31;

/// An action's name, zero-filled, as words so that two compare in four steps.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name(pub [u64; 4]);

impl Name {
    /// The first [`NAME_BYTES`] bytes of `bytes`, up to a NUL.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut words = [0u64; 4];
        for (index, byte) in bytes
            .iter()
            .take(NAME_BYTES)
            .take_while(|byte| **byte != 0)
            .enumerate()
        {
            words[index / 8] |= u64::from(*byte) << (index % 8 * 8);
        }
        Self(words)
    }

    /// The byte at `index`; 0 behind the end.
    #[inline(always)]
    #[must_use]
    pub fn byte(&self, index: usize) -> u8 {
        (self.0[(index / 8) & 3] >> (index % 8 * 8)) as u8
    }

    /// The number behind the first four letters, as in `nvme12q3`; at most 999,999.
    #[inline(always)]
    #[must_use]
    pub fn disk_number(&self) -> u32 {
        let mut number = 0;
        let mut index = 4;
        while index < 10 {
            let digit = u32::from(self.byte(index)).wrapping_sub(u32::from(b'0'));
            if digit > 9 {
                break;
            }
            number = number * 10 + digit;
            index += 1;
        }
        number
    }

    /// The bytes before the NUL.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        (0..NAME_BYTES)
            .map(|index| self.byte(index))
            .take_while(|byte| *byte != 0)
    }
}

/// A deterministic automaton over bytes. State 0 is the start, and every state
/// stays where it is on byte 0: the padding behind a name changes nothing, so
/// the program's loop has no branch for the verifier to follow.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTable {
    /// State and byte -> next state.
    pub next: [[u8; 256]; 256],
    /// The kind ([`crate::cells::kind`]) of a name that ends in this state.
    pub kind: [u8; 256],
}

impl NameTable {
    /// The kind of line that a name stands for.
    #[inline(always)]
    #[must_use]
    pub fn classify(&self, name: &Name) -> u32 {
        let mut state = 0u8;
        let mut index = 0;
        while index < NAME_BYTES {
            state = self.next[state as usize][name.byte(index) as usize];
            index += 1;
        }
        u32::from(self.kind[state as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_at_a_nul_and_at_its_length() {
        assert_eq!(Name::new(b"vmd0\0garbage"), Name::new(b"vmd0"));
        assert_eq!(Name::new(b"vmd0").bytes().collect::<Vec<_>>(), b"vmd0");
        let long = Name::new(&[b'x'; 40]);
        assert_eq!(long.bytes().count(), NAME_BYTES);
    }

    #[test]
    fn the_disk_of_a_queue_is_in_its_name() {
        for (name, number) in [
            ("nvme0q0", 0),
            ("nvme12q3", 12),
            ("nvme511q129", 511),
            ("nvme1234567q1", 123_456),
        ] {
            assert_eq!(Name::new(name.as_bytes()).disk_number(), number, "{name}");
        }
    }

    #[test]
    fn the_automaton_takes_one_step_a_byte() {
        let mut table = NameTable {
            next: [[9; 256]; 256],
            kind: [0; 256],
        };
        for state in 0..=u8::MAX {
            table.next[state as usize][0] = state;
        }
        table.next[0][b'a' as usize] = 1;
        table.next[1][b'b' as usize] = 2;
        table.kind[2] = 7;
        assert_eq!(table.classify(&Name::new(b"ab")), 7);
        assert_eq!(table.classify(&Name::new(b"a")), 0);
        assert_eq!(table.classify(&Name::new(b"abc")), 0);
        assert_eq!(table.classify(&Name::new(b"")), 0);
    }
}
