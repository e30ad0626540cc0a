//! Where a completion landed, seen from the CPU that made the request.

/// Where a CPU is, in one word, so that it is read and written whole: which
/// last-level cache it has in the lower half, which NUMA node in the upper, each
/// as number + 1. 0 is "not known".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(pub u64);

impl Place {
    /// A cache is named by the lowest number among the CPUs that share it.
    #[must_use]
    pub fn new(cache: Option<u32>, node: Option<u32>) -> Self {
        let half = |number: Option<u32>| number.map_or(0, |number| u64::from(number) + 1);
        Self(half(cache) & 0xffff_ffff | half(node) << 32)
    }

    #[inline(always)]
    fn cache(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    #[inline(always)]
    fn node(self) -> u64 {
        self.0 >> 32
    }
}

/// Distances between the CPU that a request was made on and the one that took
/// its completion. Numbers as wide as a register.
pub mod distance {
    /// The same CPU.
    pub const LOCAL: u64 = 0;
    /// Another CPU with the same last-level cache.
    pub const SAME_CACHE: u64 = 1;
    /// Another cache of the same NUMA node.
    pub const OTHER_CACHE: u64 = 2;
    /// Another cache of another NUMA node.
    pub const OTHER_NODE: u64 = 3;
    /// One of the two CPUs, or where it is, is not known.
    pub const UNKNOWN: u64 = 4;
}

/// Counts for each distance but [`distance::LOCAL`], in their order from 1: what
/// is none of these is local, and is not counted twice.
pub type RemoteCounts<T> = [T; 4];

/// Distance between two different CPUs.
#[inline(always)]
#[must_use]
pub fn between(one: Place, other: Place) -> u64 {
    let caches_known = one.cache() != 0 && other.cache() != 0;
    if caches_known && one.cache() == other.cache() {
        return distance::SAME_CACHE;
    }
    if one.node() == 0 || other.node() == 0 {
        return distance::UNKNOWN;
    }
    if one.node() != other.node() {
        // Where a cache spans nodes, two that are not known may be one.
        return if caches_known {
            distance::OTHER_NODE
        } else {
            distance::UNKNOWN
        };
    }
    if caches_known {
        distance::OTHER_CACHE
    } else {
        distance::UNKNOWN
    }
}

/// Distance of this CPU from the one that made a request.
#[inline(always)]
#[must_use]
pub fn from_here(here: u32, submitter: Option<u32>, place: impl Fn(u32) -> Option<Place>) -> u64 {
    match submitter {
        None => distance::UNKNOWN,
        Some(there) if there == here => distance::LOCAL,
        Some(there) => match (place(here), place(there)) {
            (Some(one), Some(other)) => between(one, other),
            _ => distance::UNKNOWN,
        },
    }
}

/// Index of a distance other than local in [`RemoteCounts`].
#[inline(always)]
#[must_use]
pub fn index_of(distance: u64) -> usize {
    (distance.wrapping_sub(1) & 3) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_never_guessed() {
        let place = |cache, node| Place::new(cache, node);
        let here = place(Some(0), Some(0));
        for (there, expected) in [
            (place(Some(0), Some(0)), distance::SAME_CACHE),
            (place(Some(4), Some(0)), distance::OTHER_CACHE),
            (place(Some(4), Some(1)), distance::OTHER_NODE),
            // A cache that spans two nodes is the same cache.
            (place(Some(0), Some(1)), distance::SAME_CACHE),
            (place(Some(0), None), distance::SAME_CACHE),
            (place(Some(4), None), distance::UNKNOWN),
            (place(None, Some(0)), distance::UNKNOWN),
            (place(None, Some(1)), distance::UNKNOWN),
            (Place::default(), distance::UNKNOWN),
        ] {
            assert_eq!(between(here, there), expected, "{there:?}");
            assert_eq!(between(there, here), expected, "{there:?}");
        }
        assert_eq!(
            between(Place::default(), Place::default()),
            distance::UNKNOWN
        );
    }

    #[test]
    fn each_distance_has_its_count() {
        let indices = [
            distance::SAME_CACHE,
            distance::OTHER_CACHE,
            distance::OTHER_NODE,
            distance::UNKNOWN,
        ]
        .map(index_of);
        assert_eq!(indices, [0, 1, 2, 3]);
    }
}
