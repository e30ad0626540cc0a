//! The kernel's own count of interrupts, as the guest's sysfs shows it.

use std::collections::BTreeMap;

use crate::error::{LabError, Result};

/// A shell script that prints what [`KernelCounts::parse`] reads.
pub(crate) const SCRIPT: &str =
    r#"cd /sys/kernel/irq && grep "" */actions */chip_name */per_cpu_count"#;

/// One interrupt line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelLine {
    /// Names of its actions, separated by commas; empty if nobody listens.
    pub actions: String,
    pub chip_name: String,
    /// By possible CPU; the kernel counts in 32 bits.
    pub per_cpu: Vec<u32>,
}

/// All interrupt lines, by interrupt number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub lines: BTreeMap<u32, KernelLine>,
}

impl KernelCounts {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad =
            |line: &str| LabError::Invalid(format!("/sys/kernel/irq: not understood: {line}"));
        let mut lines: BTreeMap<u32, KernelLine> = BTreeMap::new();
        for line in text.lines() {
            let (path, value) = line.split_once(':').ok_or_else(|| bad(line))?;
            let (irq, field) = path.split_once('/').ok_or_else(|| bad(line))?;
            let entry = lines
                .entry(irq.parse().map_err(|_| bad(line))?)
                .or_default();
            match field {
                "actions" => entry.actions = value.to_owned(),
                "chip_name" => entry.chip_name = value.to_owned(),
                "per_cpu_count" => {
                    let counts: std::result::Result<_, _> =
                        value.split(',').map(str::parse).collect();
                    entry.per_cpu = counts.map_err(|_| bad(line))?;
                }
                _ => return Err(bad(line)),
            }
        }
        if lines.values().any(|line| line.per_cpu.is_empty()) {
            return Err(LabError::Invalid(
                "/sys/kernel/irq: a line has no counts".to_owned(),
            ));
        }
        Ok(Self { lines })
    }

    /// Interrupts since `earlier` on the lines whose actions `wanted` accepts.
    /// A line that is new since then is counted from 0.
    #[must_use]
    pub fn since(&self, earlier: &Self, mut wanted: impl FnMut(&str) -> bool) -> u64 {
        let mut sum = 0;
        for (irq, line) in &self.lines {
            if !wanted(&line.actions) {
                continue;
            }
            let before = earlier
                .lines
                .get(irq)
                .filter(|before| before.actions == line.actions);
            for (cpu, count) in line.per_cpu.iter().enumerate() {
                let before = before.and_then(|before| before.per_cpu.get(cpu)).copied();
                sum += u64::from(count.wrapping_sub(before.unwrap_or_default()));
            }
        }
        sum
    }
}

/// Whether this is the action of a VMD's own vector: `vmd0`, or `vmd` on 5.10.
#[must_use]
pub fn is_vmd_action(action: &str) -> bool {
    action
        .strip_prefix("vmd")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The disk that an NVMe queue's action belongs to: `nvme3` for `nvme3q2`.
#[must_use]
pub fn disk_of_action(action: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (disk, queue) = action.split_once('q')?;
    (digits(disk.strip_prefix("nvme")?) && digits(queue)).then_some(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
24/actions:vmd0
25/actions:nvme0q1
26/actions:
24/chip_name:PCI-MSIX-0000:00:05.0
25/chip_name:VMD-MSI
26/chip_name:
24/per_cpu_count:4294967290,7
25/per_cpu_count:0,0
26/per_cpu_count:0,0
";

    #[test]
    fn differences_survive_the_32_bit_overflow() {
        let before = KernelCounts::parse(BEFORE).unwrap();
        let after = BEFORE
            .replace("4294967290,7", "4,10")
            .replace("25/per_cpu_count:0,0", "25/per_cpu_count:0,2");
        let after = KernelCounts::parse(&after).unwrap();
        assert_eq!(after.since(&before, is_vmd_action), 10 + 3);
        assert_eq!(
            after.since(&before, |action| disk_of_action(action).is_some()),
            2
        );
        assert_eq!(after.since(&before, |_| true), 15);
        assert_eq!(after.lines[&25].chip_name, "VMD-MSI");
    }

    #[test]
    fn a_number_that_is_used_anew_counts_from_nothing() {
        let before = KernelCounts::parse(BEFORE).unwrap();
        let after =
            KernelCounts::parse(&BEFORE.replace("24/actions:vmd0", "24/actions:vmd1")).unwrap();
        assert_eq!(
            after.since(&before, |action| action == "vmd1"),
            4_294_967_297
        );
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            "x",
            "24/actions",
            "a/actions:vmd0",
            "24/per_cpu_count:1,x",
            "24/type:edge",
            "24/actions:vmd0",
        ] {
            assert!(KernelCounts::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn actions_are_told_apart() {
        for (action, vmd, disk) in [
            ("vmd0", true, None),
            ("vmd", true, None),
            ("vmdfoo", false, None),
            ("nvme12q0", false, Some("nvme12")),
            ("nvmeq0", false, None),
            ("nvme1", false, None),
            ("aerdrv", false, None),
        ] {
            assert_eq!(is_vmd_action(action), vmd, "{action}");
            assert_eq!(disk_of_action(action), disk, "{action}");
        }
    }
}
