//! What can be done in a guest.

use std::time::Duration;

use xtask_lab::{Exit, Guest, GuestCommand, GuestConfig, Signal};

use super::boot;
use crate::server::PATIENCE;

/// One boot for all of it.
pub(super) fn programs_files_and_modules() {
    let config = GuestConfig {
        modules: Vec::new(),
        ..GuestConfig::default()
    };
    let guest = boot(&config);
    programs_end_as_they_end(&guest);
    programs_that_do_not_end_are_killed_with_their_children(&guest);
    programs_run_in_the_background(&guest);
    orphans_are_reaped(&guest);
    files_come_back_as_they_went(&guest);
    modules_are_loaded_when_asked_for(&guest);
    guest.power_off().unwrap();
}

fn programs_end_as_they_end(guest: &Guest) {
    let script = r#"echo "out $VALUE"; echo err >&2; exit 3"#;
    let output = guest
        .run(&GuestCommand::shell(script).env("VALUE", "a b"), PATIENCE)
        .unwrap();
    assert_eq!(output.exit, Exit::Code(3));
    assert_eq!(
        (output.stdout_text(), output.stderr_text()),
        ("out a b\n".into(), "err\n".into())
    );
    let output = guest
        .run(&GuestCommand::shell("kill -9 $$"), PATIENCE)
        .unwrap();
    assert_eq!(output.exit, Exit::Signal(9));
    let error = guest
        .check(&GuestCommand::shell(script), PATIENCE)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("failed (exit status 3)") && error.contains("err"),
        "{error}"
    );
    let error = guest
        .run(&GuestCommand::new("no-such-program"), PATIENCE)
        .unwrap_err();
    assert!(
        error.to_string().contains("cannot start no-such-program"),
        "{error}"
    );
}

fn programs_that_do_not_end_are_killed_with_their_children(guest: &Guest) {
    let script = GuestCommand::shell("echo begun; sleep 6543 & sleep 6543");
    let error = guest
        .run(&script, Duration::from_millis(500))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("did not end within 0.5 s") && error.contains("begun"),
        "{error}"
    );
    let left = guest
        .run(&GuestCommand::new("pidof").args(["sleep"]), PATIENCE)
        .unwrap();
    assert_eq!(left.stdout_text().trim(), "");
}

fn programs_run_in_the_background(guest: &Guest) {
    let script = "trap 'echo stopped; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let background = guest.spawn(&GuestCommand::shell(script)).unwrap();
    // Others can be run meanwhile, several at once.
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let command = GuestCommand::shell(format!("sleep 0.2; echo {number}"));
                let output = guest.check(&command, PATIENCE).unwrap();
                assert_eq!(output.stdout_text(), format!("{number}\n"));
            });
        }
    });
    background.check_running().unwrap();
    assert_eq!(background.output().unwrap().0, b"ready\n");
    let output = background.stop(PATIENCE).unwrap();
    assert_eq!(
        (output.exit, output.stdout_text()),
        (Exit::Code(5), "ready\nstopped\n".into())
    );
    let background = guest
        .spawn(&GuestCommand::new("sleep").args(["6000"]))
        .unwrap();
    background.signal(Signal::SIGINT).unwrap();
    assert_eq!(background.wait(PATIENCE).unwrap().exit, Exit::Signal(2));
}

fn orphans_are_reaped(guest: &Guest) {
    let orphans = GuestCommand::shell("for i in 1 2 3; do (sleep 0.1 &); done; sleep 0.5");
    guest.check(&orphans, PATIENCE).unwrap();
    let zombies = GuestCommand::shell("cat /proc/[0-9]*/stat | grep -c ') Z '");
    let output = guest.run(&zombies, PATIENCE).unwrap();
    assert_eq!(output.stdout_text(), "0\n");
}

fn files_come_back_as_they_went(guest: &Guest) {
    let content: Vec<u8> = (0..3_000_000_u32)
        .map(|it| (it.wrapping_mul(it) >> 7) as u8)
        .collect();
    guest
        .write_file("/data/deep/file", 0o741, content.clone())
        .unwrap();
    assert!(guest.read_file("/data/deep/file").unwrap() == content);
    let mode = GuestCommand::new("stat").args(["-c", "%a", "/data/deep/file"]);
    assert_eq!(guest.check(&mode, PATIENCE).unwrap().stdout_text(), "741\n");
    let release = guest.read_file("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(
        String::from_utf8_lossy(&release).trim(),
        guest.kernel_release()
    );
    let error = guest.read_file("/no/such/file").unwrap_err().to_string();
    assert!(error.contains("/no/such/file"), "{error}");
}

fn modules_are_loaded_when_asked_for(guest: &Guest) {
    let loaded = || {
        guest
            .check(&GuestCommand::new("lsmod"), PATIENCE)
            .unwrap()
            .stdout_text()
    };
    assert!(!loaded().contains("nvme"));
    guest.load_module("nvme", "poll_queues=1").unwrap();
    assert!(loaded().contains("nvme_core"));
    let parameter = guest
        .read_file("/sys/module/nvme/parameters/poll_queues")
        .unwrap();
    assert_eq!(parameter, b"1\n");
    guest.load_module("nvme", "").unwrap();
    let error = guest
        .load_module("no_such_module", "")
        .unwrap_err()
        .to_string();
    assert!(error.contains("no module no_such_module"), "{error}");
}
