//! Whether the independent sources of a run agree, to the last unit.

use super::{Mode, Run};

/// Scrapes that Prometheus has to have stored while the load ran.
const SCRAPES: usize = 5;

impl Run {
    /// Every relation that has to hold and does not, in words with both numbers.
    /// Empty: daemon, kernel, device, fio and Prometheus agree exactly.
    #[must_use]
    pub fn disagreements(&self) -> Vec<String> {
        let mut found = Found::default();
        self.check_interrupts(&mut found);
        found.equal(
            "completions the daemon counted, in handlers and outside",
            self.completions + self.completions_outside,
            "completions the device posted, without those the driver skips",
            self.device_cqes - self.device_cqes_skipped.min(self.device_cqes),
        );
        found.equal(
            "completions the device posted on I/O queues",
            self.device_io_cqes,
            "reads by fio",
            self.fio_ios,
        );
        found.equal(
            "completions by Prometheus' samples",
            self.prometheus_completions,
            "fio's reads and the admin commands, without what the driver skips",
            (self.fio_ios + self.device_admin_cqes).saturating_sub(self.device_cqes_skipped),
        );
        found.equal(
            "runs that found no slot",
            self.unassigned_runs,
            "the number allowed",
            0,
        );
        found.equal(
            "runs of probes that the kernel skipped",
            self.probe_missed.unwrap_or_default(),
            "the number allowed",
            0,
        );
        found.equal(
            "scrapes that failed",
            self.prometheus_scrapes_failed as u64,
            "the number allowed",
            0,
        );
        if self.prometheus_scrapes_between < SCRAPES {
            found.0.push(format!(
                "Prometheus stored {} scrapes during the load, fewer than {SCRAPES}",
                self.prometheus_scrapes_between
            ));
        }
        found.0
    }

    fn check_interrupts(&self, found: &mut Found) {
        let (vmd, disks) = (self.kernel_vmd_interrupts, self.kernel_nvme_interrupts);
        let (ours, kernel, others, others_count) = match self.mode {
            Mode::Remap => ("the VMD's lines", vmd, "the disks' lines", disks),
            Mode::Bypass => ("the disks' lines", disks, "the VMD's lines", vmd),
        };
        found.counted(ours, self.hardware_interrupts, self.repeated_runs, kernel);
        let title = format!("interrupts the kernel counted on {others}");
        found.equal(&title, others_count, "the number this mode allows", 0);
        if self.child_runs == 0 {
            found.0.push("no handler of a disk ran".to_owned());
        }
        if self.mode == Mode::Bypass {
            for disk in &self.by_disk {
                let (ours, kernel) = (disk.hardware_interrupts, disk.kernel_interrupts);
                found.counted(&disk.disk, ours, disk.repeated_runs, kernel);
            }
        }
    }
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn equal(&mut self, left: &str, left_count: u64, right: &str, right_count: u64) {
        if left_count != right_count {
            self.0
                .push(format!("{left}: {left_count}, but {right}: {right_count}"));
        }
    }

    /// The daemon's hardware interrupts against the kernel's. Where repeated
    /// runs cannot be told, ours can only be the larger number.
    fn counted(&mut self, lines: &str, ours: u64, repeated: Option<u64>, kernel: u64) {
        let agree = match repeated {
            Some(repeated) => ours.checked_sub(repeated) == Some(kernel),
            None => ours >= kernel,
        };
        if !agree {
            let repeated = repeated.map_or("an unknown number of".to_owned(), |it| it.to_string());
            self.0.push(format!(
                "hardware interrupts on {lines}: {ours} by the daemon ({repeated} repeated runs \
                 among them), but {kernel} by the kernel"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::run;
    use super::*;

    #[test]
    fn a_run_whose_counts_agree_has_nothing_to_say() {
        assert_eq!(run(Mode::Remap).disagreements(), [""; 0]);
        assert_eq!(run(Mode::Bypass).disagreements(), [""; 0]);
    }

    #[test]
    fn each_count_that_is_off_by_one_is_found() {
        type Change = fn(&mut Run);
        let changes: [(&str, Change); 13] = [
            ("hardware interrupts on", |run| run.hardware_interrupts += 1),
            ("hardware interrupts on", |run| run.repeated_runs = Some(1)),
            ("hardware interrupts on", |run| {
                run.kernel_vmd_interrupts += 1;
            }),
            ("the disks' lines: 1", |run| run.kernel_nvme_interrupts += 1),
            ("no handler", |run| run.child_runs = 0),
            ("completions the daemon counted", |run| run.completions += 1),
            ("completions the daemon counted", |run| run.device_cqes += 1),
            ("I/O queues", |run| run.device_io_cqes += 1),
            ("Prometheus' samples", |run| run.prometheus_completions -= 1),
            ("found no slot: 1", |run| run.unassigned_runs += 1),
            ("kernel skipped: 2", |run| run.probe_missed = Some(2)),
            ("scrapes that failed: 1", |run| {
                run.prometheus_scrapes_failed += 1;
            }),
            ("stored 4 scrapes", |run| run.prometheus_scrapes_between = 4),
        ];
        for (expected, change) in changes {
            let mut run = run(Mode::Remap);
            change(&mut run);
            let found = run.disagreements();
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert!(found[0].contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn in_bypass_each_disk_has_to_agree() {
        let mut run = run(Mode::Bypass);
        run.by_disk[0].kernel_interrupts += 1;
        run.by_disk[1].kernel_interrupts -= 1;
        assert_eq!(run.disagreements().len(), 2);
    }

    #[test]
    fn unknown_repeated_runs_allow_more_but_not_less() {
        let mut run = run(Mode::Remap);
        run.repeated_runs = None;
        run.hardware_interrupts += 3;
        assert_eq!(run.disagreements(), [""; 0]);
        run.hardware_interrupts -= 4;
        assert_eq!(run.disagreements().len(), 1);
    }
}
