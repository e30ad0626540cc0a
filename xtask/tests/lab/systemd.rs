//! The daemon as a service of a Debian with systemd.

use std::path::PathBuf;

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId};
use xtask_lab::{
    Artifacts, Guest, GuestCommand, GuestConfig, GuestFile, Output, Root, VMDTRACE, interrupt,
};
use xtask_setup::Setup;

use crate::server::PATIENCE;
use crate::{artifacts, lab_test};

/// A Debian whose systemd is done starting, with one disk behind a VMD.
pub(crate) fn boot(vmdtrace: Option<PathBuf>, files: Vec<GuestFile>) -> Guest {
    let artifacts = Artifacts {
        debian: Some(Setup::new().unwrap().debian_root().unwrap()),
        vmdtrace,
        ..artifacts().clone()
    };
    let config = GuestConfig {
        root: Root::Debian,
        memory_mib: 2048,
        controllers: vec![Config {
            id: DeviceId::Bypass28c0,
            disks: 1,
            vectors: 2,
            ..Config::default()
        }],
        files,
        ..GuestConfig::default()
    };
    let guest = Guest::boot(&artifacts, &config).unwrap_or_else(|error| panic!("{error}"));
    guest
        .await_disks(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));
    let state = shell(&guest, "systemctl is-system-running --wait");
    assert_eq!(
        state.stdout_text(),
        "running\n",
        "{}\n{}",
        shell(&guest, "systemctl --failed --no-pager").stdout_text(),
        guest.console()
    );
    guest
}

/// Runs a line of shell in the guest, whatever comes of it.
pub(crate) fn shell(guest: &Guest, line: &str) -> Output {
    guest
        .run(&GuestCommand::shell(line), PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn log(guest: &Guest) -> String {
    shell(guest, "journalctl --no-pager --boot -u vmdtrace").stdout_text()
}

/// Returns when the daemon counts interrupts.
pub(crate) fn await_ready(guest: &Guest) {
    interrupt::until("the daemon to be ready", PATIENCE, || {
        Ok(guest
            .http_get("/readyz")
            .is_ok_and(|it| it.status == 200)
            .then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log(guest)));
}

fn a_transient_unit_is_scraped() {
    let guest = boot(artifacts().vmdtrace.clone(), Vec::new());
    let disks = guest.disks().unwrap();
    interrupt::until("the console to ask who is there", PATIENCE, || {
        Ok(guest.console().contains("lab login:").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", guest.console()));

    let run = |line: &str| shell(&guest, line);
    let start = run(&format!(
        "systemd-run --unit=vmdtrace {VMDTRACE} serve --web.listen-address 0.0.0.0:10973"
    ));
    assert!(start.success(), "{}", start.stderr_text());
    await_ready(&guest);
    let scrape = guest.scrape().unwrap();
    let runs = scrape.sum("vmdtrace_handler_runs_total", |sample| {
        sample.label("disk") == disks[0].name
    });
    assert!(runs.is_some(), "no series of {}", disks[0].name);

    assert!(run("systemctl stop vmdtrace").success());
    let stopped = log(&guest);
    assert!(stopped.contains("Deactivated successfully"), "{stopped}");
    guest.power_off().unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![lab_test("systemd::a_transient_unit_is_scraped", || {
        a_transient_unit_is_scraped();
        Ok(())
    })]
}
