//! Numbers as differences to what was expected, a few bits each.
//!
//! How a number changes is expected in one of several ways ([`Expect`]), whichever
//! is shortest for its column. What differs from that is written as a Rice code
//! ([`rice`]). A column's way and parameter are written only where they are not
//! those of the Snapshot before. All arithmetic wraps, so every number comes out
//! as it went in.

use std::collections::{BTreeMap, HashMap};

use super::rice;

/// How a number is expected to change. A column has up to [`NEIGHBOURS`]
/// neighbours, the nearest is 0.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// Not at all.
    Nothing,
    /// By its rate: how much it changed the times before, the last one most.
    Steady,
    /// As much as its twin: lines of one vector, which calls all of them.
    Twin,
    /// As much as its like in a neighbour: time with and without what ran
    /// inside.
    Neighbour(usize),
    /// By as much more than its rate as its like in a neighbour: runs, and runs
    /// for nothing.
    SteadyNeighbour(usize),
    /// By as many times its rate as its like in a neighbour: runs, and the time
    /// they take.
    Scaled(usize),
}

const NEIGHBOURS: usize = 4;
const EXPECTATIONS: u16 = 3 + 3 * NEIGHBOURS as u16;

impl Expect {
    /// By its number in the file.
    fn numbered(number: u16) -> Option<Self> {
        let neighbour = usize::from(number.saturating_sub(3) / 3);
        Some(match number {
            EXPECTATIONS.. => return None,
            0 => Self::Nothing,
            1 => Self::Steady,
            2 => Self::Twin,
            _ => match number % 3 {
                0 => Self::Neighbour(neighbour),
                1 => Self::SteadyNeighbour(neighbour),
                _ => Self::Scaled(neighbour),
            },
        })
    }
}

/// How a column is coded: below this the number of an expectation, which held for
/// all its numbers.
const CODED: u16 = 16;
/// From there on: so many times the expectation, and `k`.
const KS: u16 = 40;
const MAX_K: u8 = KS as u8 - 1;
/// What a way that is not that of the Snapshot before costs, in bits.
const CHANGED_WAY: u64 = 16;
/// Of so many Snapshots one looks for a better way of a column.
const SEARCH_EVERY: usize = 16;
/// The first ones all do.
const FIRST_SEARCHES: usize = 4;

/// The expectation of a way, and `k` where not all is as expected.
fn parts(way: u16) -> Option<(Expect, Option<u8>)> {
    match way.checked_sub(CODED) {
        None => Some((Expect::numbered(way)?, None)),
        Some(code) => Some((Expect::numbered(code / KS)?, Some((code % KS) as u8))),
    }
}

/// How the numbers of a stream changed until now.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// How much each changes from one Snapshot to the next, about.
    pub(super) rates: Vec<u64>,
    /// For each, 1 and the row of its column that changed as it did, above it; 0
    /// for none.
    twins: Vec<u32>,
    /// How each column was coded.
    ways: Vec<u16>,
    /// Snapshots that were written.
    written: usize,
}

impl Past {
    pub(super) fn new(columns: &[usize]) -> Self {
        let numbers = columns.iter().sum();
        Self {
            rates: vec![0; numbers],
            twins: vec![0; numbers],
            ways: vec![0; columns.len()],
            written: 0,
        }
    }
}

/// How a column's numbers changed, and their rates before that.
#[derive(Debug, Default)]
struct Changed {
    now: Vec<u64>,
    rates: Vec<u64>,
}

/// The neighbours of a column: the last ones before it that have as many numbers
/// and in which anything changed; the nearest comes last.
#[derive(Debug, Default)]
struct Neighbours(BTreeMap<usize, Vec<Changed>>);

impl Neighbours {
    fn of(&self, size: usize) -> &[Changed] {
        self.0.get(&size).map_or(&[], Vec::as_slice)
    }

    fn pass(&mut self, column: Changed) {
        if column.now.iter().any(|&change| change != 0) {
            let alike = self.0.entry(column.now.len()).or_default();
            if alike.len() == NEIGHBOURS {
                alike.remove(0);
            }
            alike.push(column);
        }
    }
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

/// What is known of a column's numbers before they are.
#[derive(Clone, Copy)]
struct Known<'a> {
    rates: &'a [u64],
    twins: &'a [u32],
    neighbours: &'a [Changed],
}

impl Known<'_> {
    /// Whether nearly always nothing differs from what is expected of the row: it
    /// stands still, or has a twin. It is written with a `k` of 0.
    fn is_settled(&self, expect: Expect, row: usize) -> bool {
        let twin = || self.twins.get(row).is_some_and(|&twin| twin != 0);
        self.rates.get(row) == Some(&0) || matches!(expect, Expect::Twin) && twin()
    }

    /// The parameter of a row where `k` is that of the column.
    fn k(&self, expect: Expect, row: usize, k: u8) -> u8 {
        if self.is_settled(expect, row) { 0 } else { k }
    }

    /// The best parameter of the column, and the bits that all of it takes.
    fn best_k(&self, expect: Expect, values: &[u64]) -> (u8, u64) {
        let rows = values.iter().copied().enumerate();
        let (settled, others): (Vec<_>, Vec<_>) =
            rows.partition(|(row, _)| self.is_settled(expect, *row));
        let values = |rows: Vec<(usize, u64)>| -> Vec<u64> {
            rows.into_iter().map(|(_, value)| value).collect()
        };
        let (k, bits) = rice::best_k(&values(others), MAX_K);
        (k, bits + rice::bits(&values(settled), 0))
    }

    fn bits(&self, expect: Expect, values: &[u64], k: u8) -> u64 {
        let rows = values.iter().enumerate();
        rows.map(|(row, value)| rice::bits(&[*value], self.k(expect, row, k)))
            .sum()
    }

    /// The change of the number at `row` that is expected; `above` are the changes
    /// of the rows above it.
    fn expected(&self, expect: Expect, row: usize, above: &[u64]) -> u64 {
        let rate = self.rates.get(row).copied().unwrap_or_default();
        // How its like changed, and the rate of that.
        let like = |neighbour: usize| {
            let neighbour = self.neighbours.iter().rev().nth(neighbour)?;
            neighbour
                .now
                .get(row)
                .copied()
                .zip(neighbour.rates.get(row).copied())
        };
        match expect {
            Expect::Nothing => 0,
            Expect::Steady => rate,
            Expect::Twin => {
                let twin = self.twins.get(row).and_then(|twin| twin.checked_sub(1));
                let change = twin.and_then(|twin| above.get(twin as usize));
                change.copied().unwrap_or(rate)
            }
            Expect::Neighbour(it) => like(it).map_or(0, |(change, _)| change),
            Expect::SteadyNeighbour(it) => like(it).map_or(rate, |(change, its_rate)| {
                rate.wrapping_add(change).wrapping_sub(its_rate)
            }),
            Expect::Scaled(it) => {
                like(it).map_or(rate, |(change, its_rate)| scaled(rate, change, its_rate))
            }
        }
    }
}

/// `rate * change / its_rate`, rounded towards 0; all are signed.
fn scaled(rate: u64, change: u64, its_rate: u64) -> u64 {
    let signed = |it: u64| i128::from(it as i64);
    match signed(its_rate) {
        0 => rate,
        its_rate => (signed(rate) * signed(change) / its_rate) as u64,
    }
}

/// Takes note of how a column changed.
fn learn(column: &Changed, rates: &mut [u64], twins: &mut [u32]) {
    let mut first: HashMap<u64, u32> = HashMap::new();
    for (row, ((&change, rate), twin)) in column.now.iter().zip(rates).zip(twins).enumerate() {
        *rate = rate_after(*rate, change);
        // What stands still is like everything else that does.
        if change == 0 {
            continue;
        }
        let row = row as u32 + 1;
        let like = *first.entry(change).or_insert(row);
        // A twin stays: others may change alike by chance.
        let of_twin = twin
            .checked_sub(1)
            .and_then(|it| column.now.get(it as usize));
        if of_twin != Some(&change) {
            *twin = if like == row { 0 } else { like };
        }
    }
}

/// Writes `numbers`, whose like were `before`, and takes note of them; `columns`
/// are the columns' sizes.
pub(super) fn encode(
    numbers: &[u64],
    before: &mut [u64],
    past: &mut Past,
    columns: &[usize],
    out: &mut Vec<u8>,
) {
    let mut neighbours = Neighbours::default();
    let mut marks = vec![0_u8; columns.len().div_ceil(8)];
    let mut ways = Vec::new();
    let mut codes = rice::Writer::default();
    let mut start = 0;
    for (index, size) in columns.iter().enumerate() {
        let column = start..start + size;
        start += size;
        let rates = &mut past.rates[column.clone()];
        let twins = &mut past.twins[column.clone()];
        let changed = Changed {
            now: numbers[column.clone()]
                .iter()
                .zip(&before[column])
                .map(|(now, before)| now.wrapping_sub(*before))
                .collect(),
            rates: rates.to_vec(),
        };
        let known = Known {
            rates,
            twins,
            neighbours: neighbours.of(*size),
        };
        let way = &mut past.ways[index];
        let search =
            past.written < FIRST_SEARCHES || (past.written + index).is_multiple_of(SEARCH_EVERY);
        let (best, values) = best_way(&changed.now, known, *way, search);
        if best != *way {
            *way = best;
            marks[index / 8] |= 1 << (index % 8);
            ways.extend(best.to_le_bytes());
        }
        if let Some((expect, Some(k))) = parts(best) {
            for (row, value) in values.into_iter().enumerate() {
                codes.write(value, known.k(expect, row, k));
            }
        }
        learn(&changed, rates, twins);
        neighbours.pass(changed);
    }
    out.extend(marks);
    out.extend(ways);
    out.extend(codes.into_bytes());
    before.copy_from_slice(numbers);
    past.written = past.written.wrapping_add(1);
}

/// The way that takes fewest bits, and the values it writes. Without a search
/// only the last way's expectation is looked at.
fn best_way(changes: &[u64], known: Known<'_>, last: u16, search: bool) -> (u16, Vec<u64>) {
    let (expected, last_k) = match last.checked_sub(CODED) {
        None => (last, None),
        Some(code) => (code / KS, Some((code % KS) as u8)),
    };
    let mut best: Option<(u64, u16, Vec<u64>)> = None;
    // What is cheapest to look at comes first; of equal ones it stays.
    for number in std::iter::once(expected).chain(0..EXPECTATIONS) {
        // No search is needed where nothing is to be written.
        if best.as_ref().is_some_and(|(bits, ..)| *bits == 0) {
            break;
        }
        let Some(expect) = Expect::numbered(number) else {
            continue;
        };
        let differs = |(row, change): (usize, &u64)| {
            let above = changes.get(..row).unwrap_or_default();
            rice::fold(change.wrapping_sub(known.expected(expect, row, above)))
        };
        let values: Vec<u64> = changes.iter().enumerate().map(differs).collect();
        let cost = |way: u16| if way == last { 0 } else { CHANGED_WAY };
        let (bits, way) = if values.iter().all(|&value| value == 0) {
            (cost(number), number)
        } else {
            let (k, bits) = known.best_k(expect, &values);
            let way = CODED + KS * number + u16::from(k);
            let as_last = last_k.filter(|_| number == expected);
            let as_last = as_last.map(|k| (known.bits(expect, &values, k), last));
            let found = (bits + cost(way), way);
            as_last.map_or(found, |as_last| found.min(as_last))
        };
        if best.as_ref().is_none_or(|(least, ..)| bits < *least) {
            best = Some((bits, way, values));
        }
        // Where all was as expected and now is not, that says nothing of how it
        // goes on.
        if !search && (last_k.is_some() || way == last) {
            break;
        }
    }
    best.map_or((0, Vec::new()), |(_, way, values)| (way, values))
}

/// Undoes [`encode`]: moves `before` and `past` on to the coded numbers.
/// Nothing where `coded` is not what `encode` writes for these columns; both
/// then hold anything.
pub(super) fn decode(
    coded: &[u8],
    before: &mut [u64],
    past: &mut Past,
    columns: &[usize],
) -> Option<()> {
    let (marks, mut coded) = coded.split_at_checked(columns.len().div_ceil(8))?;
    for (index, way) in past.ways.iter_mut().enumerate() {
        if marks.get(index / 8)? >> (index % 8) & 1 == 1 {
            let (new, rest) = coded.split_first_chunk()?;
            (*way, coded) = (u16::from_le_bytes(*new), rest);
        }
    }
    let mut codes = rice::Reader::new(coded);
    let mut neighbours = Neighbours::default();
    let mut start = 0;
    for (size, &way) in columns.iter().zip(&past.ways) {
        let (expect, k) = parts(way)?;
        let column = start..start + size;
        start += size;
        let rates = past.rates.get_mut(column.clone())?;
        let twins = past.twins.get_mut(column.clone())?;
        let mut changed = Changed {
            now: Vec::with_capacity(*size),
            rates: rates.to_vec(),
        };
        let known = Known {
            rates,
            twins,
            neighbours: neighbours.of(*size),
        };
        for (row, number) in before.get_mut(column)?.iter_mut().enumerate() {
            let differs = match k {
                None => 0,
                Some(k) => rice::unfold(codes.read(known.k(expect, row, k))?),
            };
            let expected = known.expected(expect, row, &changed.now);
            let change = expected.wrapping_add(differs);
            *number = number.wrapping_add(change);
            changed.now.push(change);
        }
        learn(&changed, rates, twins);
        neighbours.pass(changed);
    }
    codes.rest().is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(rows: &[Vec<u64>], columns: &[usize]) -> Vec<usize> {
        let mut sizes = Vec::new();
        let (mut before, mut past) = (rows[0].clone(), Past::new(columns));
        let (mut read_before, mut read_past) = (before.clone(), Past::new(columns));
        for row in &rows[1..] {
            let mut out = Vec::new();
            encode(row, &mut before, &mut past, columns, &mut out);
            assert_eq!(&before, row);
            decode(&out, &mut read_before, &mut read_past, columns).unwrap();
            assert_eq!(&read_before, row);
            assert_eq!(read_past.rates, past.rates);
            assert_eq!(read_past.twins, past.twins);
            assert_eq!(read_past.ways, past.ways);
            sizes.push(out.len());
        }
        sizes
    }

    #[test]
    fn what_is_steady_takes_a_bit_a_column() {
        let row = |n: u64| (0..100).map(|line| 7 + line * n * 1000).collect();
        let rows: Vec<Vec<u64>> = (0..6).map(row).collect();
        let sizes = there_and_back(&rows, &[50, 50]);
        assert!(sizes[0] > 200, "{sizes:?}");
        // The marks, and in the first of them the ways.
        assert_eq!(sizes[1..], [5, 1, 1, 1]);
        let twice = |n: u64| [n * n * 977, 5, n * n * 977, 9].to_vec();
        let rows: Vec<Vec<u64>> = (0..4).map(twice).collect();
        let sizes = there_and_back(&rows, &[2, 2]);
        // What stood still is written in full, once.
        assert!(sizes[0] < 20, "{sizes:?}");
        assert!(sizes[1..].iter().all(|&size| size < 9), "{sizes:?}");
        let same = vec![vec![u64::MAX; 3]; 3];
        assert_eq!(there_and_back(&same, &[1, 1, 1]), [1, 1]);
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

    fn noise() -> impl Iterator<Item = u64> {
        (0_u64..).map(|n| ((n * 2_654_435_761) >> 7) % 31)
    }

    #[test]
    fn small_noise_takes_few_bits() {
        // Changes of 1000 and up to 15 more or less: five bits each at best.
        let mut noise = noise();
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

    /// Numbers that change alike take the bits of one: in a column, eight times as
    /// much in the next, and with a column between that stands still.
    #[test]
    fn what_is_alike_is_written_once() {
        let mut noise = noise();
        let mut one = 0;
        let mut rows = Vec::new();
        for _ in 0..9 {
            one += 985 + noise.next().unwrap();
            let mut row = vec![one; 100];
            row.extend([3; 100]);
            row.extend([one * 8; 100]);
            rows.push(row);
        }
        let sizes = there_and_back(&rows, &[100, 100, 100]);
        // A bit for each twin, and a few for rounding.
        assert!(sizes[7] < 90, "{sizes:?}");
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
            there_and_back(&rows, &[width / 2, width / 2, width % 2]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            coded in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let (mut before, mut past) = ([1, 2, 3, 4], Past::new(&[2, 2]));
            past.rates = vec![0, 5, u64::MAX, 1 << 63];
            past.twins = vec![u32::MAX, 1, 2, 9];
            let _ = decode(&coded, &mut before, &mut past, &[2, 2]);
            let _ = decode(&coded, &mut before, &mut past, &[2, 2]);
        }
    }
}
