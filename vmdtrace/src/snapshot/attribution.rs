//! Who owns what is counted under a name that the kernel gives to one device
//! after the other.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// `N` counters for each name.
pub(super) type Counts<K, const N: usize> = HashMap<K, [u64; N]>;

/// Names (`K`) and their owners (`O`). A name's counts stay with the owner they
/// were counted for, whoever takes the name later or if nobody does; so no
/// owner's count ever goes back.
#[derive(Debug)]
pub(super) struct Attribution<K, O, const N: usize> {
    tenants: HashMap<K, Tenant<O, N>>,
    /// What earlier tenants had counted.
    past: BTreeMap<Option<O>, [u64; N]>,
    /// All counts when the first change since the last reading was noticed.
    boundary: Option<Counts<K, N>>,
}

/// Who has a name now (None: nobody known), and what it had counted before.
#[derive(Debug)]
struct Tenant<O, const N: usize> {
    owner: Option<O>,
    before: [u64; N],
}

impl<K, O, const N: usize> Default for Attribution<K, O, N> {
    fn default() -> Self {
        Self {
            tenants: HashMap::new(),
            past: BTreeMap::new(),
            boundary: None,
        }
    }
}

impl<K: Clone + Eq + Hash, O: Clone + Ord, const N: usize> Attribution<K, O, N> {
    /// Devices came or went; `counts` is what has been counted until now.
    pub(super) fn changed(&mut self, counts: Counts<K, N>) {
        self.boundary.get_or_insert(counts);
    }

    /// Whether a name is counted that no reading of the devices was asked about.
    pub(super) fn has_news(&self, counts: &Counts<K, N>) -> bool {
        counts.keys().any(|name| !self.tenants.contains_key(name))
    }

    /// Takes note of who has the counted names by a new reading of the devices.
    pub(super) fn hand_over(&mut self, counts: &Counts<K, N>, owner: impl Fn(&K) -> Option<O>) {
        let boundary = self.boundary.take();
        for (name, now) in counts {
            let owner = owner(name);
            let Some(tenant) = self.tenants.get_mut(name) else {
                let before = [0; N];
                self.tenants.insert(name.clone(), Tenant { owner, before });
                continue;
            };
            // A device that is gone keeps what is counted under its name.
            if owner.is_none() || tenant.owner == owner {
                continue;
            }
            let until = match &boundary {
                // What the boundary does not have had no counts there.
                Some(boundary) => boundary.get(name).copied().unwrap_or([0; N]),
                None => *now,
            };
            let served = each(until, tenant.before, u64::saturating_sub);
            let past = self.past.entry(tenant.owner.take()).or_insert([0; N]);
            *past = each(*past, served, u64::saturating_add);
            *tenant = Tenant {
                owner,
                before: until,
            };
        }
    }

    /// The counts by owner; None is what nobody known owned.
    pub(super) fn by_owner(&self, counts: &Counts<K, N>) -> BTreeMap<Option<O>, [u64; N]> {
        let mut owned = self.past.clone();
        for (name, now) in counts {
            let (owner, before) = match self.tenants.get(name) {
                Some(tenant) => (tenant.owner.clone(), tenant.before),
                None => (None, [0; N]),
            };
            let sum = owned.entry(owner).or_insert([0; N]);
            *sum = each(
                *sum,
                each(*now, before, u64::saturating_sub),
                u64::saturating_add,
            );
        }
        owned
    }
}

fn each<const N: usize>(left: [u64; N], right: [u64; N], by: fn(u64, u64) -> u64) -> [u64; N] {
    let mut result = left;
    for (count, other) in result.iter_mut().zip(right) {
        *count = by(*count, other);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    type Disks = Attribution<&'static str, &'static str, 1>;

    fn counts(count: u64) -> Counts<&'static str, 1> {
        HashMap::from([("nvme0", [count])])
    }

    fn by_owner(disks: &Disks, count: u64) -> Vec<(Option<&'static str>, u64)> {
        let owned = disks.by_owner(&counts(count));
        owned
            .into_iter()
            .map(|(owner, [sum])| (owner, sum))
            .collect()
    }

    #[test]
    fn counts_stay_with_the_owner_they_were_counted_for() {
        let mut disks = Disks::default();
        assert!(disks.has_news(&counts(5)));
        disks.hand_over(&counts(5), |_| Some("A"));
        assert!(!disks.has_news(&counts(5)));
        assert_eq!(by_owner(&disks, 5), [(Some("A"), 5)]);
        // Another takes the name: 6 were counted when that was noticed first.
        disks.changed(counts(6));
        disks.changed(counts(7));
        disks.hand_over(&counts(9), |_| Some("B"));
        assert_eq!(by_owner(&disks, 9), [(Some("A"), 6), (Some("B"), 3)]);
        // Gone, and then it is A's again.
        disks.changed(counts(10));
        disks.hand_over(&counts(10), |_| None);
        assert_eq!(by_owner(&disks, 11), [(Some("A"), 6), (Some("B"), 5)]);
        disks.changed(counts(11));
        disks.hand_over(&counts(12), |_| Some("A"));
        assert_eq!(by_owner(&disks, 12), [(Some("A"), 7), (Some("B"), 5)]);
    }

    #[test]
    fn what_nobody_owned_stays_nobodys() {
        let mut disks = Disks::default();
        disks.hand_over(&counts(4), |_| None);
        assert_eq!(by_owner(&disks, 5), [(None, 5)]);
        disks.hand_over(&counts(5), |_| Some("A"));
        assert_eq!(by_owner(&disks, 7), [(None, 5), (Some("A"), 2)]);
    }
}
