//! Differences as version 1 of the format has them: a byte for each column, and
//! the bits of each column up to a whole byte. No longer written.

use super::columns::rate_after;
use super::rice;

/// How a number is expected to change.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Nothing,
    /// By its rate.
    Steady,
    /// As much as its like in the column before.
    Neighbour,
    /// By as much more than its rate as its like in the column before.
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

/// How a column's numbers changed, and their rates before that.
#[derive(Debug, Default)]
struct Changed {
    now: Vec<u64>,
    rates: Vec<u64>,
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

/// Moves `before` and `rates` on to the coded numbers. Nothing where `coded` is
/// not what version 1 has for these columns; both then hold anything.
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
        let mut codes = rice::Reader::new(coded);
        for (row, position) in (start..start + size).enumerate() {
            let differs = match k {
                None => 0,
                Some(k) => rice::unfold(codes.read(k)?),
            };
            let rate = *rates.get(position)?;
            let number = before.get_mut(position)?;
            let change = expect.change(rate, &neighbour, row).wrapping_add(differs);
            *number = number.wrapping_add(change);
            *rates.get_mut(position)? = rate_after(rate, change);
            column.now.push(change);
            column.rates.push(rate);
        }
        neighbour = column;
        start += size;
        coded = codes.rest();
    }
    coded.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two columns of two: the first by 7 each, which is noted as their rate, the
    /// second as much; then both as before.
    #[test]
    fn by_hand() {
        let (mut before, mut rates) = ([1, 2, 30, 40], [0; 4]);
        // 7 is folded to 14; with k = 3 that is a one, a zero, and 6 in three bits.
        let coded = [CODED + 3, 0b0011_1001, 0b0000_0011, AS_EXPECTED + 2];
        decode(&coded, &mut before, &mut rates, &[2, 2]).unwrap();
        assert_eq!(before, [8, 9, 37, 47]);
        assert_eq!(rates, [7; 4]);
        decode(&[1, 1], &mut before, &mut rates, &[2, 2]).unwrap();
        assert_eq!(before, [15, 16, 44, 54]);
        assert_eq!(decode(&[1], &mut before, &mut rates, &[2, 2]), None);
        assert_eq!(decode(&[1, 1, 1], &mut before, &mut rates, &[2, 2]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            coded in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let (mut before, mut changes) = ([1, 2, 3], [0, 5, u64::MAX]);
            let _ = decode(&coded, &mut before, &mut changes, &[2, 1]);
        }
    }
}
