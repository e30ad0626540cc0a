//! Nothing stays behind: no process, no file.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{XTASK, lab_test};

/// Files in a command's temporary folder, and processes that were started with
/// that folder in their environment.
pub(crate) fn of(temporary: &Path) -> Vec<String> {
    let mut left: Vec<String> = fs::read_dir(temporary)
        .unwrap()
        .map(|entry| format!("file {}", entry.unwrap().path().display()))
        .collect();
    let wanted = [b"TMPDIR=", temporary.as_os_str().as_bytes()].concat();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(environment) = fs::read(process.path().join("environ")) else {
            continue;
        };
        if environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted)
        {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            left.push(format!(
                "process {}: {}",
                process.path().display(),
                String::from_utf8_lossy(&command)
            ));
        }
    }
    left
}

/// A small demo with a temporary folder of its own.
fn small_demo(temporary: &Path) -> Child {
    let arguments = "demo --once --disks 2 --cpus 2 --vectors 3";
    Command::new(XTASK)
        .args(arguments.split(' '))
        .env("TMPDIR", temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Interrupts the demo as soon as it says that it does `at`.
fn interrupted(at: &str, signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = small_demo(folder.path());
    let mut said = Vec::new();
    for line in BufReader::new(demo.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let there = line.contains(at);
        said.push(line);
        if there {
            assert_ne!(
                of(folder.path()),
                Vec::<String>::new(),
                "nothing runs that could stay behind"
            );
            kill(Pid::from_raw(demo.id().try_into().unwrap()), signal).unwrap();
        }
    }
    // Its end of the pipe is closed, so it is ending.
    let status = demo.wait().unwrap();
    let said = said.join("\n");
    assert!(said.contains(at), "never said {at:?}:\n{said}");
    assert!(!status.success(), "interrupted, and yet {status}:\n{said}");
    assert_eq!(of(folder.path()), Vec::<String>::new(), "{said}");
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        lab_test("leftovers::none_after_ctrl_c_while_booting", || {
            interrupted("booting", Signal::SIGINT);
            Ok(())
        }),
        lab_test("leftovers::none_after_sigterm_under_load", || {
            interrupted("reading", Signal::SIGTERM);
            Ok(())
        }),
        lab_test("leftovers::none_after_kill_but_files", || {
            // A killed command cannot remove its files; its children end all the same.
            let folder = tempfile::tempdir().unwrap();
            let mut demo = small_demo(folder.path());
            let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("booting")));
            demo.kill().unwrap();
            demo.wait().unwrap();
            xtask_lab::interrupt::until(
                "the children to end",
                std::time::Duration::from_secs(30),
                || {
                    let processes = of(folder.path())
                        .into_iter()
                        .filter(|left| left.starts_with("process"))
                        .count();
                    Ok((processes == 0).then_some(()))
                },
            )?;
            Ok(())
        }),
    ]
}
