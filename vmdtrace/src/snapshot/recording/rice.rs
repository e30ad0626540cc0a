//! Natural numbers in a few bits each: Rice codes. The quotient by `2^k` in ones
//! and a zero, then the low `k` bits, the lowest bit of a byte first.

/// As many ones say that the number follows in 64 bits.
const ESCAPE: u64 = 24;

/// 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
pub(super) fn fold(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

pub(super) fn unfold(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// How many bits these numbers take.
pub(super) fn bits(values: &[u64], k: u8) -> u64 {
    let bits = |&value: &u64| {
        let quotient = value >> k;
        if quotient < ESCAPE {
            quotient + 1 + u64::from(k)
        } else {
            ESCAPE + 64
        }
    };
    values.iter().map(bits).sum()
}

/// The best parameter up to `most`, and the bits it takes.
pub(super) fn best_k(values: &[u64], most: u8) -> (u8, u64) {
    // A good one is near the binary logarithm of the mean.
    let sum = values.iter().fold(0_u64, |sum, &it| sum.saturating_add(it));
    let mean = sum / values.len().max(1) as u64;
    let near = (63 - mean.max(1).leading_zeros()) as u8;
    // A few large numbers among small ones make the mean too large.
    let candidates = (0..=most.min(near + 1)).rev().take(12);
    let best = candidates.map(|k| (bits(values, k), k)).min();
    best.map_or((0, 0), |(bits, k)| (k, bits))
}

/// Writes codes one after the other; the last byte is filled up with zeros.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    used: u32,
}

impl Writer {
    fn push(&mut self, bit: bool) {
        if self.used.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let Some(byte) = self.bytes.last_mut() {
            *byte |= u8::from(bit) << (self.used % 8);
        }
        self.used = (self.used + 1) % 8;
    }

    pub(super) fn write(&mut self, value: u64, k: u8) {
        let quotient = value >> k;
        let (ones, width) = if quotient < ESCAPE {
            (quotient, k)
        } else {
            (ESCAPE, 64)
        };
        for _ in 0..ones {
            self.push(true);
        }
        if ones < ESCAPE {
            self.push(false);
        }
        for bit in 0..width {
            self.push(value >> bit & 1 == 1);
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads codes one after the other.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn next(&mut self) -> Option<u64> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Some(bit.into())
    }

    /// The next number; nothing where the bytes end.
    pub(super) fn read(&mut self, k: u8) -> Option<u64> {
        let mut ones = 0;
        while ones < ESCAPE && self.next()? == 1 {
            ones += 1;
        }
        let (mut value, width) = if ones < ESCAPE {
            // Bits shifted out: not what is written, and harmless.
            (ones.wrapping_shl(k.into()), k)
        } else {
            (0, 64)
        };
        for bit in 0..width {
            value |= self.next()? << bit;
        }
        Some(value)
    }

    /// What follows the byte that was read last.
    pub(super) fn rest(self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_comes_back(
            numbers in proptest::collection::vec(
                (prop_oneof![any::<u64>(), 0..9_u64, Just(u64::MAX)], 0_u8..=62),
                0..40,
            ),
        ) {
            let mut writer = Writer::default();
            let mut size = 0;
            for &(number, k) in &numbers {
                prop_assert_eq!(unfold(fold(number)), number);
                writer.write(number, k);
                size += bits(&[number], k);
            }
            let bytes = writer.into_bytes();
            prop_assert_eq!(bytes.len() as u64, size.div_ceil(8));
            let mut reader = Reader::new(&bytes);
            for &(number, k) in &numbers {
                prop_assert_eq!(reader.read(k), Some(number));
            }
            prop_assert!(reader.rest().is_empty());
        }
    }
}
