//! What each CPU does for each controller: the arrays behind it, where it is asked
//! for.

use vmdtrace_common::shares::{self, OWNERS, Share};

use super::{
    Sizes,
    mapped::{MappedArray, Writable},
};
use crate::snapshot::ShareCounts;

/// Name of the array of lines' owners.
pub const LINE_OWNERS: &str = "LINE_OWNERS";
/// Name of the array of shares.
pub const SHARES: &str = "SHARES";

/// A CPU's share of an owner, by the number that was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedShare {
    pub cpu: u32,
    pub owner: u32,
    pub counts: ShareCounts,
}

/// Elements of the two arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub owners: u32,
    pub shares: u32,
}

/// Of one each where shares are not counted.
#[must_use]
pub fn lengths(sizes: Sizes, counted: bool) -> Lengths {
    if counted {
        Lengths {
            owners: shares::words(sizes.slots),
            shares: sizes.cpus.saturating_mul(OWNERS),
        }
    } else {
        Lengths {
            owners: 1,
            shares: 1,
        }
    }
}

/// The arrays.
#[derive(Debug)]
pub struct Shares {
    owners: MappedArray<u64, Writable>,
    shares: MappedArray<Share>,
}

impl Shares {
    /// Both of the [`lengths`] for shares that are counted.
    #[must_use]
    pub fn new(owners: MappedArray<u64, Writable>, shares: MappedArray<Share>) -> Self {
        Self { owners, shares }
    }

    /// Tells whose a slot's line is from now on.
    pub fn set_owner(&self, slot: u32, owner: u8) {
        let index = shares::word_of(slot);
        if let Some(word) = self.owners.get(index) {
            self.owners
                .set(index, shares::with_owner(word, slot, owner));
        }
    }

    /// Those that have something.
    pub fn read(&self) -> impl Iterator<Item = NumberedShare> + '_ {
        let numbered = (0..).zip(self.shares.iter());
        numbered.filter_map(|(index, share)| {
            let Share {
                depth0_runs,
                resent_runs,
                interrupt_ns,
                completions,
            } = share;
            (share != Share::default()).then_some(NumberedShare {
                cpu: index / OWNERS,
                owner: index % OWNERS,
                counts: ShareCounts {
                    depth0_runs,
                    resent_runs,
                    interrupt_ns,
                    completions,
                },
            })
        })
    }
}
