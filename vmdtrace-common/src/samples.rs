//! Times of one completion in [`PERIOD`]: from the start of its request to the
//! completion, and from there to the end of the request.
//!
//! Which completions are sampled is decided by their number on their line: one
//! of each [`PERIOD`], at a place that changes from one to the next. So every
//! queue has its share, a pattern in the load cannot hide from it, and the number
//! of samples follows from the number of completions.

/// Completions of a line for each sample. A power of two.
pub const PERIOD: u64 = 64;

/// Powers of two that are told apart: bucket `n` has the times up to
/// `2^(FIRST_BITS + n)` ns, that one included; the last one all others, too.
pub const BUCKETS: usize = 32;
/// The first bucket ends at 1,024 ns.
pub const FIRST_BITS: u64 = 10;

/// Disks whose samples are told apart: `nvme0` to this less 2. Index 0 of the
/// map has the samples of all others and of completions outside any handler.
pub const DISKS: u32 = 512;

/// Samples whose end is awaited, at once.
pub const PENDING: u32 = 1024;

/// A histogram of times.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub buckets: [u64; BUCKETS],
    pub sum_ns: u64,
}

/// What was sampled of one disk. Several CPUs write it: added to atomically.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSamples {
    /// From the start of the request to the completion.
    pub latency: Times,
    /// From the completion to the end of the request.
    pub handling: Times,
    /// Samples whose request has no start time.
    pub without_start: u64,
    pub reserved: [u64; 5],
}

/// A sampled completion whose end is awaited. Written by one CPU and taken by
/// another without a lock: `check` tells words of two samples from each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// Address of the request; 0: none.
    pub request: u64,
    pub completed_ns: u64,
    /// Index of the disk.
    pub disk: u64,
    pub check: u64,
}

const _: () =
    assert!(PERIOD.is_power_of_two() && PENDING.is_power_of_two() && BUCKETS.is_power_of_two());
const _: () = assert!(size_of::<DiskSamples>() == 576);
const _: () = assert!(size_of::<Pending>() == 32);

/// Whether the completion with this number on its line, from 0, is sampled.
#[inline(always)]
#[must_use]
pub fn is_sampled(number: u64) -> bool {
    number & (PERIOD - 1) == place_in(number / PERIOD)
}

/// Which of a run of [`PERIOD`] completions is sampled: the upper bits of a
/// product, which spread evenly (Knuth, The Art of Computer Programming, 6.4).
#[inline(always)]
fn place_in(run: u64) -> u64 {
    run.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PERIOD.trailing_zeros())
}

/// How many of the first `completions` of a line are sampled.
#[must_use]
pub fn samples_of(completions: u64) -> u64 {
    let run = completions / PERIOD;
    run + u64::from(completions % PERIOD > place_in(run))
}

/// The bucket of a time.
#[inline(always)]
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let mut rest = ns.saturating_sub(1) >> FIRST_BITS;
    let mut bits = 0;
    // The number of significant bits, in steps: no loop for the verifier.
    if rest >= 1 << 16 {
        bits += 16;
        rest >>= 16;
    }
    if rest >= 1 << 8 {
        bits += 8;
        rest >>= 8;
    }
    if rest >= 1 << 4 {
        bits += 4;
        rest >>= 4;
    }
    if rest >= 1 << 2 {
        bits += 2;
        rest >>= 2;
    }
    bits += if rest >= 2 { 2 } else { rest };
    let last = BUCKETS as u64 - 1;
    // The mask is for the verifier.
    (bits.min(last) & last) as usize
}

/// The place of a request among the pending ones. Requests of a queue lie one
/// after the other, at least 64 bytes each.
#[inline(always)]
#[must_use]
pub fn pending_index(request: u64) -> u32 {
    ((request >> 6 ^ request >> 16) & (PENDING as u64 - 1)) as u32
}

/// What sampling needs of its surroundings.
pub trait SampleWorld {
    /// Time in nanoseconds, of the clock that requests are stamped with.
    fn now(&mut self) -> u64;
    /// When the request began; 0 if that is not known.
    fn start_of(&mut self, request: u64) -> u64;
    fn disk(&mut self, index: u32) -> Option<&mut DiskSamples>;
    /// The element at [`pending_index`].
    fn pending(&mut self, request: u64) -> Option<&mut Pending>;
    /// Adds so that nothing is lost to another CPU.
    fn add(counter: &mut u64, count: u64);
}

/// A sampled completion: its latency is counted, and its end awaited.
#[inline(always)]
pub fn completed<W: SampleWorld>(world: &mut W, request: u64, disk: u32) {
    let now = world.now();
    let start = world.start_of(request);
    if let Some(samples) = world.disk(disk) {
        if start == 0 || start > now {
            W::add(&mut samples.without_start, 1);
        } else {
            count::<W>(&mut samples.latency, now - start);
        }
    }
    if let Some(pending) = world.pending(request) {
        *pending = Pending::new(request, now, u64::from(disk));
    }
}

/// A request ended. Most were not sampled.
#[inline(always)]
pub fn ended<W: SampleWorld>(world: &mut W, request: u64) {
    let Some(pending) = world.pending(request) else {
        return;
    };
    if pending.request != request {
        return;
    }
    let sample = *pending;
    pending.request = 0;
    if !sample.is_whole() {
        return;
    }
    let took = world.now().saturating_sub(sample.completed_ns);
    if let Some(samples) = world.disk(sample.disk as u32) {
        count::<W>(&mut samples.handling, took);
    }
}

#[inline(always)]
fn count<W: SampleWorld>(times: &mut Times, ns: u64) {
    W::add(&mut times.buckets[bucket_of(ns)], 1);
    W::add(&mut times.sum_ns, ns);
}

impl Pending {
    #[inline(always)]
    #[must_use]
    pub fn new(request: u64, completed_ns: u64, disk: u64) -> Self {
        Self {
            request,
            completed_ns,
            disk,
            check: Self::check_of(request, completed_ns, disk),
        }
    }

    #[inline(always)]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.check == Self::check_of(self.request, self.completed_ns, self.disk)
    }

    #[inline(always)]
    fn check_of(request: u64, completed_ns: u64, disk: u64) -> u64 {
        request ^ completed_ns.rotate_left(17) ^ disk.rotate_left(41) ^ 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_run_of_a_period_has_one_sample_and_not_at_the_same_place() {
        let mut places = std::collections::BTreeSet::new();
        for run in 0..1000 {
            let sampled: Vec<u64> = (run * PERIOD..(run + 1) * PERIOD)
                .filter(|number| is_sampled(*number))
                .collect();
            assert_eq!(sampled.len(), 1, "run {run}");
            places.insert(sampled[0] % PERIOD);
        }
        assert_eq!(places.len() as u64, PERIOD);
    }

    #[test]
    fn the_number_of_samples_follows_from_the_number_of_completions() {
        let mut samples = 0;
        for number in 0..10_000 {
            assert_eq!(samples_of(number), samples);
            samples += u64::from(is_sampled(number));
        }
    }

    proptest! {
        #[test]
        fn a_bucket_is_a_power_of_two(ns: u64, shift in 0..64u32) {
            let ns = ns >> shift;
            let bucket = bucket_of(ns);
            prop_assert!(bucket < BUCKETS);
            let upper = 1u64 << (FIRST_BITS + bucket as u64);
            prop_assert!(ns <= upper || bucket == BUCKETS - 1);
            prop_assert!(bucket == 0 || ns > upper / 2);
        }

        #[test]
        fn words_of_two_samples_are_no_sample(one in any::<(u64, u64, u64)>(), other in any::<(u64, u64, u64)>()) {
            let (whole, second) = (
                Pending::new(one.0, one.1, one.2),
                Pending::new(other.0, other.1, other.2),
            );
            prop_assert!(whole.is_whole());
            prop_assume!(one.1 != other.1);
            let torn = Pending { completed_ns: second.completed_ns, ..whole };
            prop_assert!(!torn.is_whole());
        }
    }
}
