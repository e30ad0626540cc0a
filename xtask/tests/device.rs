//! `cargo xtask device` as a process.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// No client ever connects: the server must still end when it is asked to, and
/// leave no socket in the way of the next one.
#[test]
fn a_server_that_waits_for_its_client_ends_at_sigterm_and_ctrl_c() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("device")
            .arg("--socket")
            .arg(folder.path().join("socket"))
            .arg("--control")
            .arg(folder.path().join("control"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("waiting on")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        kill(Pid::from_raw(server.id().try_into().unwrap()), signal).unwrap();
        assert_eq!(server.wait().unwrap().signal(), Some(signal as i32));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
