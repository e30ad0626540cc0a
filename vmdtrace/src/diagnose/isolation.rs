//! CPUs that the kernel was told to keep free: they get no queues of their own.

use std::collections::BTreeSet;

use crate::host::NumberList;
use crate::host::topology::Machine;

/// Online CPUs, and those of them that are isolated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpus {
    pub(super) online: BTreeSet<u32>,
    pub(super) isolated: BTreeSet<u32>,
}

impl Cpus {
    /// None where the lists are not known, or not understood.
    pub(super) fn of(machine: &Machine) -> Option<Self> {
        let numbers = |list: &str| -> Option<BTreeSet<u32>> {
            Some(NumberList::parse(list).ok()?.numbers().collect())
        };
        let online = numbers(machine.online_cpus.as_deref()?)?;
        // sysfs has those that the scheduler leaves alone, and not those that
        // only interrupts and queues do.
        let mut isolated = numbers(machine.isolated_cpus.as_deref().unwrap_or_default())?;
        for option in &machine.options {
            if let Some(list) = option.strip_prefix("isolcpus=").and_then(kept_from_queues) {
                isolated.extend(numbers(list)?);
            }
        }
        isolated.retain(|cpu| online.contains(cpu));
        Some(Self { online, isolated })
    }

    /// How many queues are made for and interrupts go to.
    pub(super) fn usable(&self) -> Option<u32> {
        let usable = self.online.len().checked_sub(self.isolated.len())?;
        u32::try_from(usable).ok().filter(|&usable| usable > 0)
    }
}

/// The list of an `isolcpus=`, where its flags are of managed interrupts or of
/// queues (`housekeeping_isolcpus_setup` in kernel/sched/isolation.c).
fn kept_from_queues(value: &str) -> Option<&str> {
    let begin = value.find(|c: char| c.is_ascii_digit())?;
    let (flags, list) = value.split_at_checked(begin)?;
    let mut flags = flags.split(',');
    flags
        .any(|flag| matches!(flag, "managed_irq" | "io_queue"))
        .then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolated(
        online: &str,
        by_sysfs: Option<&str>,
        option: &str,
    ) -> Option<(String, Option<u32>)> {
        let machine = Machine {
            online_cpus: Some(online.to_owned()),
            isolated_cpus: by_sysfs.map(str::to_owned),
            options: vec!["threadirqs".to_owned(), option.to_owned()],
            ..Machine::default()
        };
        let cpus = Cpus::of(&machine)?;
        let usable = cpus.usable();
        Some((NumberList::from_numbers(cpus.isolated).to_string(), usable))
    }

    #[test]
    fn by_sysfs_and_by_option() {
        let of = |by_sysfs, option| isolated("0-7", by_sysfs, option).unwrap();
        assert_eq!(of(None, "quiet"), (String::new(), Some(8)));
        assert_eq!(of(Some("4-7"), "isolcpus=4-7"), ("4-7".to_owned(), Some(4)));
        assert_eq!(
            of(None, "isolcpus=managed_irq,2,6-9"),
            ("2,6-7".to_owned(), Some(5))
        );
        assert_eq!(
            of(Some("1"), "isolcpus=io_queue,domain,6"),
            ("1,6".to_owned(), Some(6))
        );
        // Of the scheduler alone, which sysfs would tell.
        assert_eq!(
            of(None, "isolcpus=nohz,domain,4-7"),
            (String::new(), Some(8))
        );
        assert_eq!(of(Some("0-7"), ""), ("0-7".to_owned(), None));
        // Not understood.
        assert_eq!(isolated("0-7", None, "isolcpus=managed_irq,4-N"), None);
        assert_eq!(isolated("x", None, ""), None);
    }
}
