//! Completions that are taken in interrupt threads.

use super::Disturbed;
use super::equations::Rise;
use crate::server::{PATIENCE, completions_of_each_disk, probe};
use xtask_lab::interrupt;

/// The driver's handlers only wake threads: completions are in no handler, and yet
/// each disk's.
pub(super) fn completions_in_threads_are_their_disks(disturbed: &Disturbed) {
    disturbed.shell("rmmod nvme");
    disturbed.load_nvme("use_threaded_interrupts=1");
    let (before, after) = disturbed.is_exact("interrupt threads");
    let rise = Rise::new(&before.daemon, &after.daemon);
    assert_eq!(rise.all("vmdtrace_completions_total"), 0);
    assert!(rise.all("vmdtrace_hardware_interrupts_total") > 20);
    let each = completions_of_each_disk(&before, &after, &disturbed.server.disks());
    for (disk, (device, ours)) in each {
        assert!(device > 0 && device == ours, "{disk}: {device} {ours}");
    }
    interrupt::until("the cause to be told", PATIENCE, || {
        let (state, reason) = probe(&disturbed.guest().scrape()?, "handler_completions");
        let is_told = reason.contains("use_threaded_interrupts");
        Ok((state == "not-applicable" && is_told).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}"));
}
