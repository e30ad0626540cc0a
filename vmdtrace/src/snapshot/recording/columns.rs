//! Numbers as differences to what was expected, a few bits each.
//!
//! A column is a byte that says how it is coded, and its numbers. How a number
//! changes is expected in one of four ways ([`Expect`]), whichever is shortest
//! for the column. What differs from that is mapped to a natural number (0, -1,
//! 1, -2, ... to 0, 1, 2, 3, ...) and written as a Rice code: the quotient by
//! `2^k` in ones and a zero, then the low `k` bits. All arithmetic wraps, so
//! every number comes out as it went in.

/// How a number is expected to change.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// Not at all.
    Nothing,
    /// By its rate: how much it changed the times before, the last one most.
    Steady,
    /// As much as its like in the column before: time with and without what ran
    /// inside.
    Neighbour,
    /// By as much more than its rate as its like in the column before:
    /// runs, and runs for nothing.
    SteadyNeighbour,
}

/// In the order of their numbers in the file.
const EXPECTATIONS: [Expect; 4] = [
    Expect::Nothing,
    Expect::Steady,
    Expect::Neighbour,
    Expect::SteadyNeighbour,
];
/// From here on, by expectation: everything was as expected.
const AS_EXPECTED: u8 = 0;
/// From here on: `63 * expectation + k` more, which fills a byte.
const CODED: u8 = 4;
const MAX_K: u8 = 62;
/// As many ones say that the number follows in 64 bits.
const ESCAPE: u64 = 24;

/// How a column's numbers changed, and their rates before that.
#[derive(Debug, Default)]
struct Changed {
    now: Vec<u64>,
    rates: Vec<u64>,
}

/// The rate of a number that has just changed by `change`: a quarter of the way
/// there, at least 1, so that it arrives. Noise then counts less than in the
/// last change alone.
pub(super) fn rate_after(rate: u64, change: u64) -> u64 {
    if rate == 0 {
        return change;
    }
    let off = change.wrapping_sub(rate) as i64;
    let step = if off.unsigned_abs() < 4 {
        off.signum()
    } else {
        off / 4
    };
    rate.wrapping_add(step as u64)
}

impl Expect {
    /// The change that is expected of a number with this rate that stands at `row` of its column.
    fn change(self, rate: u64, neighbour: &Changed, row: usize) -> u64 {
        let of = |changes: &[u64]| changes.get(row).copied().unwrap_or_default();
        match self {
            Self::Nothing => 0,
            Self::Steady => rate,
            Self::Neighbour => of(&neighbour.now),
            Self::SteadyNeighbour => rate
                .wrapping_add(of(&neighbour.now))
                .wrapping_sub(of(&neighbour.rates)),
        }
    }
}

/// Writes `numbers`, whose like were `before` and have these `rates`; `columns`
/// are the columns' sizes.
pub(super) fn encode(
    numbers: &[u64],
    before: &[u64],
    rates: &[u64],
    columns: &[usize],
    out: &mut Vec<u8>,
) {
    let mut neighbour = Changed::default();
    let mut start = 0;
    for size in columns {
        let column = start..start + size;
        start += size;
        let column = Changed {
            now: numbers[column.clone()]
                .iter()
                .zip(&before[column.clone()])
                .map(|(now, before)| now.wrapping_sub(*before))
                .collect(),
            rates: rates[column].to_vec(),
        };
        write_column(&column, &neighbour, out);
        neighbour = column;
    }
}

fn write_column(column: &Changed, neighbour: &Changed, out: &mut Vec<u8>) {
    let differences = |expect: Expect| -> Vec<u64> {
        let changes = column.now.iter().zip(&column.rates).enumerate();
        changes
            .map(|(row, (now, rate))| fold(now.wrapping_sub(expect.change(*rate, neighbour, row))))
            .collect()
    };
    let mut best: Option<(u64, u8, u8, Vec<u64>)> = None;
    for (number, expect) in (0_u8..).zip(EXPECTATIONS) {
        let values = differences(expect);
        if values.iter().all(|&value| value == 0) {
            out.push(AS_EXPECTED + number);
            return;
        }
        let (k, bits) = best_k(&values);
        if best.as_ref().is_none_or(|(least, ..)| bits < *least) {
            best = Some((bits, number, k, values));
        }
    }
    if let Some((_, number, k, values)) = best {
        out.push(CODED + (MAX_K + 1) * number + k);
        write_rice(&values, k, out);
    }
}

/// Undoes [`encode`]: moves `before` and `rates` on to the coded numbers.
/// Nothing where `coded` is not what `encode` writes for these columns; both
/// then hold anything.
pub(super) fn decode(
    mut coded: &[u8],
    before: &mut [u64],
    rates: &mut [u64],
    columns: &[usize],
) -> Option<()> {
    let mut neighbour = Changed::default();
    let mut start = 0;
    for size in columns {
        let (&how, rest) = coded.split_first()?;
        coded = rest;
        let (expectation, k) = match how.checked_sub(CODED) {
            None => (how - AS_EXPECTED, None),
            Some(code) => (code / (MAX_K + 1), Some(code % (MAX_K + 1))),
        };
        let expect = *EXPECTATIONS.get(usize::from(expectation))?;
        let mut column = Changed::default();
        let mut bits = Bits::new(coded);
        for (row, position) in (start..start + size).enumerate() {
            let differs = match k {
                None => 0,
                Some(k) => unfold(bits.rice(k)?),
            };
            let rate = rates[position];
            let change = expect.change(rate, &neighbour, row).wrapping_add(differs);
            before[position] = before[position].wrapping_add(change);
            rates[position] = rate_after(rate, change);
            column.now.push(change);
            column.rates.push(rate);
        }
        neighbour = column;
        start += size;
        coded = bits.rest();
    }
    coded.is_empty().then_some(())
}

/// 0, -1, 1, -2, ... to 0, 1, 2, 3, ...
fn fold(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unfold(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

fn rice_bits(value: u64, k: u8) -> u64 {
    let quotient = value >> k;
    if quotient < ESCAPE {
        quotient + 1 + u64::from(k)
    } else {
        ESCAPE + 64
    }
}

/// The best parameter, and the bits it takes.
fn best_k(values: &[u64]) -> (u8, u64) {
    let bits = |k: u8| values.iter().map(|&value| rice_bits(value, k)).sum::<u64>();
    // A good one is near the binary logarithm of the mean.
    let sum = values.iter().fold(0_u64, |sum, &it| sum.saturating_add(it));
    let mean = sum / values.len().max(1) as u64;
    let near = (63 - mean.max(1).leading_zeros()) as u8;
    // A few large numbers among small ones make the mean too large.
    let candidates = (0..=MAX_K.min(near + 1)).rev().take(12);
    let best = candidates.map(|k| (bits(k), k)).min();
    best.map_or((0, 0), |(bits, k)| (k, bits))
}

fn write_rice(values: &[u64], k: u8, out: &mut Vec<u8>) {
    let mut byte = 0_u8;
    let mut used = 0;
    let mut push = |bit: bool| {
        byte |= u8::from(bit) << used;
        used += 1;
        if used == 8 {
            out.push(byte);
            (byte, used) = (0, 0);
        }
    };
    for &value in values {
        let quotient = value >> k;
        let (ones, width) = if quotient < ESCAPE {
            (quotient, k)
        } else {
            (ESCAPE, 64)
        };
        for _ in 0..ones {
            push(true);
        }
        if ones < ESCAPE {
            push(false);
        }
        for bit in 0..width {
            push(value >> bit & 1 == 1);
        }
    }
    // A column ends at a whole byte: two with the same content look the same.
    if used > 0 {
        out.push(byte);
    }
}

/// Reads bits, lowest first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn next(&mut self) -> Option<u64> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Some(bit.into())
    }

    fn rice(&mut self, k: u8) -> Option<u64> {
        let mut ones = 0;
        while ones < ESCAPE && self.next()? == 1 {
            ones += 1;
        }
        let (mut value, width) = if ones < ESCAPE {
            // Bits shifted out: not what `encode` writes, and harmless.
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
    fn rest(self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(rows: &[Vec<u64>], columns: &[usize]) -> Vec<usize> {
        let mut sizes = Vec::new();
        let (mut before, mut changes) = (rows[0].clone(), vec![0; rows[0].len()]);
        let (mut read_before, mut read_changes) = (before.clone(), changes.clone());
        for row in &rows[1..] {
            let mut out = Vec::new();
            encode(row, &before, &changes, columns, &mut out);
            decode(&out, &mut read_before, &mut read_changes, columns).unwrap();
            assert_eq!(&read_before, row);
            for ((rate, now), before) in changes.iter_mut().zip(row).zip(&before) {
                *rate = rate_after(*rate, now.wrapping_sub(*before));
            }
            before.clone_from(row);
            assert_eq!(read_changes, changes);
            sizes.push(out.len());
        }
        sizes
    }

    #[test]
    fn what_is_steady_takes_a_byte_a_column() {
        let row = |n: u64| (0..100).map(|line| 7 + line * n * 1000).collect();
        let rows: Vec<Vec<u64>> = (0..4).map(row).collect();
        let sizes = there_and_back(&rows, &[50, 50]);
        assert!(sizes[0] > 200, "{sizes:?}");
        assert_eq!(sizes[1..], [2, 2]);
        let twice = |n: u64| [n * n * 977, 5, n * n * 977, 9].to_vec();
        let rows: Vec<Vec<u64>> = (0..4).map(twice).collect();
        let sizes = there_and_back(&rows, &[2, 2]);
        assert!(sizes.iter().all(|&size| size < 9), "{sizes:?}");
        let same = vec![vec![u64::MAX; 3]; 3];
        assert_eq!(there_and_back(&same, &[1, 1, 1]), [3, 3]);
    }

    #[test]
    fn a_rate_arrives() {
        for (mut rate, change) in [(0, 7), (1, 0), (100, 3), (5, u64::MAX), (u64::MAX, 1 << 62)] {
            let steps = (0..300).take_while(|_| {
                let arrived = rate == change;
                rate = rate_after(rate, change);
                !arrived
            });
            assert!(steps.count() < 300, "{change}");
        }
    }

    #[test]
    fn small_noise_takes_few_bits() {
        // Changes of 1000 and up to 15 more or less: five bits each at best.
        let mut noise = (0_u64..).map(|n| ((n * 2_654_435_761) >> 7) % 31);
        let mut value = vec![0_u64; 800];
        let mut rows = vec![value.clone()];
        for _ in 0..3 {
            for value in &mut value {
                *value += 985 + noise.next().unwrap();
            }
            rows.push(value.clone());
        }
        let sizes = there_and_back(&rows, &[800]);
        assert!(sizes[2] < 800 * 7 / 8, "{sizes:?}");
    }

    proptest! {
        #[test]
        fn every_number_comes_back(
            rows in (0_usize..9).prop_flat_map(|width| {
                let number = prop_oneof![any::<u64>(), 0..9_u64, Just(u64::MAX), Just(1 << 63)];
                proptest::collection::vec(proptest::collection::vec(number, width), 1..5)
            }),
            cut in 0_usize..9,
        ) {
            let width = rows[0].len();
            let cut = cut.min(width);
            there_and_back(&rows, &[cut, width - cut]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            coded in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let (mut before, mut changes) = ([1, 2, 3], [0, 5, u64::MAX]);
            let _ = decode(&coded, &mut before, &mut changes, &[2, 1]);
        }
    }
}
