//! The daemon as a service of a Debian with systemd.

use libtest_mimic::Trial;
use vmd_device::{Config, DeviceId};
use xtask_lab::{Artifacts, Guest, GuestCommand, GuestConfig, Root, VMDTRACE, interrupt};
use xtask_setup::Setup;

use crate::server::PATIENCE;
use crate::{artifacts, lab_test};

fn a_transient_unit_is_scraped() {
    let artifacts = Artifacts {
        debian: Some(Setup::new().unwrap().debian_root().unwrap()),
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
        ..GuestConfig::default()
    };
    let guest = Guest::boot(&artifacts, &config).unwrap_or_else(|error| panic!("{error}"));
    let run = |line: &str| {
        let mut words = line.split(' ');
        let command = GuestCommand::new(words.next().unwrap()).args(words);
        guest
            .run(&command, PATIENCE)
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let disks = guest
        .await_disks(PATIENCE)
        .unwrap_or_else(|error| panic!("{error}"));

    let state = run("systemctl is-system-running --wait");
    assert_eq!(
        state.stdout_text(),
        "running\n",
        "{}\n{}",
        run("systemctl --failed --no-pager").stdout_text(),
        guest.console()
    );
    interrupt::until("the console to ask who is there", PATIENCE, || {
        Ok(guest.console().contains("lab login:").then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", guest.console()));

    let start = run(&format!(
        "systemd-run --unit=vmdtrace {VMDTRACE} serve --web.listen-address 0.0.0.0:10973"
    ));
    assert!(start.success(), "{}", start.stderr_text());
    let log = || run("journalctl --no-pager -u vmdtrace").stdout_text();
    interrupt::until("the daemon to be ready", PATIENCE, || {
        Ok(guest
            .http_get("/readyz")
            .is_ok_and(|it| it.status == 200)
            .then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", log()));
    let scrape = guest.scrape().unwrap();
    let runs = scrape.sum("vmdtrace_handler_runs_total", |sample| {
        sample.label("disk") == disks[0].name
    });
    assert!(runs.is_some(), "no series of {}", disks[0].name);

    assert!(run("systemctl stop vmdtrace").success());
    let stopped = log();
    assert!(stopped.contains("Deactivated successfully"), "{stopped}");
    guest.power_off().unwrap_or_else(|error| panic!("{error}"));
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![lab_test("systemd::a_transient_unit_is_scraped", || {
        a_transient_unit_is_scraped();
        Ok(())
    })]
}
