//! nvme_core and vmd come after the daemon.

use libtest_mimic::Trial;
use vmd_device::DeviceId;
use xtask_lab::{KernelCounts, interrupt, is_vmd_action};

use crate::lab_test;
use crate::server::{PATIENCE, Server, completions};

fn counts_from_the_first_completion() {
    let server = Server::boot(DeviceId::Remap201d, &[]);
    let probe = |state: &str| {
        let scrape = server.guest.scrape()?;
        let found = scrape
            .series("vmdtrace_probe_info")
            .any(|sample| sample.label("probe") == "nvme_sq" && sample.label("state") == state);
        Ok(found.then_some(()))
    };
    interrupt::until("nvme_sq to wait for its module", PATIENCE, || {
        probe("not-applicable")
    })
    .unwrap_or_else(|error| panic!("{error}"));
    server
        .guest
        .load_module("nvme_core", "")
        .unwrap_or_else(|error| panic!("{error}"));
    interrupt::until("nvme_sq to be attached", PATIENCE, || probe("attached"))
        .unwrap_or_else(|error| panic!("{error}"));
    for module in ["nvme", "vmd"] {
        server
            .guest
            .load_module(module, "")
            .unwrap_or_else(|error| panic!("{error}"));
    }
    let disks = server.disks();
    let reads = server.read_all_disks(200);
    let readings = server.at_rest();
    assert_eq!(reads, 200 * disks.len() as u64);
    // Not differences: everything since the devices were found.
    let posted = readings.device().cqes() - readings.device().cqes_skipped();
    assert_eq!(completions(&readings.daemon), posted);
    assert!(readings.device().admin_cqes() > 0);
    let kernel = readings
        .kernel
        .since(&KernelCounts::default(), is_vmd_action);
    let total = |metric: &str| readings.daemon.sum(metric, |_| true).unwrap() as u64;
    assert_eq!(
        total("vmdtrace_hardware_interrupts_total") - total("vmdtrace_handler_repeated_total"),
        kernel
    );
    for disk in &disks {
        let found = readings
            .daemon
            .series("vmdtrace_disk_info")
            .any(|sample| sample.label("disk") == disk.name);
        assert!(found, "{} has no vmdtrace_disk_info", disk.name);
    }
    server.end();
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![lab_test(
        "late_modules::counts_from_the_first_completion",
        || {
            counts_from_the_first_completion();
            Ok(())
        },
    )]
}
