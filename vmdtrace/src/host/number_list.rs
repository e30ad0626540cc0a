//! Lists of numbers, mostly of CPUs, as the kernel writes them: `0-3,8`.

use std::fmt;

use super::{HostError, Roots, files};

/// No kernel is built for more (`NR_CPUS` is at most 8192 on x86): a larger
/// number is nonsense.
const MAX_NUMBER: u32 = (1 << 16) - 1;

/// A set of numbers, kept as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberList {
    /// Sorted, disjoint, not adjacent; both ends belong to it.
    ranges: Vec<(u32, u32)>,
}

/// Text that is not such a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} is not a list such as 0-3,8")]
pub struct NumberListError {
    text: String,
}

impl NumberList {
    /// Reads `0-3,8`, and `0, 1, 2` as in blk-mq's `cpu_list`
    /// (`blk_mq_hw_sysfs_cpus_show`). Empty text is the empty set.
    pub fn parse(text: &str) -> Result<Self, NumberListError> {
        let error = || NumberListError {
            text: files::quoted(text),
        };
        let mut ranges = Vec::new();
        if !text.trim().is_empty() {
            for part in text.split(',') {
                ranges.push(parse_range(part.trim()).ok_or_else(error)?);
            }
        }
        Ok(Self::from_ranges(ranges))
    }

    /// The set of these numbers.
    pub fn from_numbers(numbers: impl IntoIterator<Item = u32>) -> Self {
        Self::from_ranges(numbers.into_iter().map(|n| (n, n)).collect())
    }

    /// What is in any of the sets.
    pub fn union(sets: impl IntoIterator<Item = Self>) -> Self {
        Self::from_ranges(sets.into_iter().flat_map(|set| set.ranges).collect())
    }

    /// The lowest number.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.ranges.first().map(|&(first, _)| first)
    }

    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.ranges
            .iter()
            .any(|&(first, last)| (first..=last).contains(&number))
    }

    /// The highest number.
    #[must_use]
    pub fn max(&self) -> Option<u32> {
        self.ranges.last().map(|&(_, last)| last)
    }

    /// The numbers, rising.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// How many numbers are in the set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ranges
            .iter()
            .map(|&(first, last)| u64::from(last - first) + 1)
            .sum()
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Self { ranges: merged }
    }
}

impl fmt::Display for NumberList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

fn parse_range(text: &str) -> Option<(u32, u32)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last <= MAX_NUMBER).then_some((first, last))
}

/// Digits only: `str::parse` would take a sign as well.
pub(super) fn number(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// How many CPUs per-CPU data must have room for: the highest possible CPU
/// plus one (possible CPUs may have gaps).
pub fn possible_cpus(roots: &Roots) -> Result<u32, HostError> {
    let path = roots.sysfs.join("devices/system/cpu/possible");
    let text = match files::read_text(&path) {
        Ok(text) => text,
        Err(source) => return Err(HostError::Unreadable { path, source }),
    };
    let nonsense = |what: String| HostError::Nonsense {
        path: path.clone(),
        what,
    };
    let list = NumberList::parse(&text).map_err(|error| nonsense(error.to_string()))?;
    list.max()
        .map(|max| max + 1)
        .ok_or_else(|| nonsense("lists no CPU".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn kernel_lists() {
        for (text, shown, count) in [
            ("0-3,8\n", "0-3,8", 5),
            ("", "", 0),
            ("0, 1, 2, 5", "0-2,5", 4),
            ("7", "7", 1),
            ("4-5,0-3", "0-5", 6),
            ("0-65535", "0-65535", 65536),
        ] {
            let list = NumberList::parse(text).unwrap();
            assert_eq!(
                (list.to_string().as_str(), list.count()),
                (shown, count),
                "{text:?}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "+1",
            "0-65536",
            "99999999999",
            "0-6:2/3",
            "1 2",
        ] {
            assert!(NumberList::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn possible_counts_gaps() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sysfs: dir.path().into(),
            procfs: dir.path().into(),
        };
        let error = possible_cpus(&roots).unwrap_err().to_string();
        assert!(error.contains("devices/system/cpu/possible"), "{error}");
        let cpu = dir.path().join("devices/system/cpu");
        fs::create_dir_all(&cpu).unwrap();
        fs::write(cpu.join("possible"), "0,2-5\n").unwrap();
        assert_eq!(possible_cpus(&roots).unwrap(), 6);
        fs::write(cpu.join("possible"), "\n").unwrap();
        assert!(
            possible_cpus(&roots)
                .unwrap_err()
                .to_string()
                .ends_with("lists no CPU")
        );
        fs::write(cpu.join("possible"), "x").unwrap();
        assert!(
            possible_cpus(&roots)
                .unwrap_err()
                .to_string()
                .contains("\"x\" is not a list such as 0-3,8")
        );
    }

    proptest! {
        #[test]
        fn equals_a_set(numbers in proptest::collection::vec(0u32..200, 0..60)) {
            let set: BTreeSet<u32> = numbers.iter().copied().collect();
            let list = NumberList::from_numbers(numbers);
            prop_assert_eq!(list.count(), set.len() as u64);
            prop_assert_eq!(list.max(), set.last().copied());
            let spelled: Vec<String> = set.iter().map(u32::to_string).collect();
            prop_assert_eq!(NumberList::parse(&spelled.join(", ")).unwrap(), list.clone());
            prop_assert_eq!(NumberList::parse(&list.to_string()).unwrap(), list);
        }

        #[test]
        fn never_panics(text in "\\PC*|[0-9, -]*") {
            if let Ok(list) = NumberList::parse(&text) {
                prop_assert_eq!(NumberList::parse(&list.to_string()), Ok(list));
            }
        }
    }
}
