//! `vmdtrace record` in this process, with Snapshots from a file in the place of
//! the host. One test only: signals belong to the whole process.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vmdtrace::cli::{Cli, Command};
use vmdtrace::commands::record;
use vmdtrace::snapshot::recording::{End, Ending, Reader, Replay};
use vmdtrace::snapshot::{Detail, Snapshot};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/recordings/version-1.vmdtrace"
);

/// Runs the command line behind `vmdtrace record`.
fn run(arguments: &[&str]) -> anyhow::Result<u8> {
    let line = ["vmdtrace", "record"].iter().chain(arguments);
    let Command::Record(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("not record");
    };
    record::run(args, |options| {
        assert!(options.activity);
        Ok(Arc::new(Replay::new(
            Reader::open(Path::new(SOURCE))?,
            1e9,
        )?))
    })
}

fn read(path: &str) -> (Vec<Snapshot>, End) {
    let mut reader = Reader::open(Path::new(path)).unwrap();
    let mut snapshots = Vec::new();
    while let Some(snapshot) = reader.next_snapshot().unwrap() {
        snapshots.push(snapshot);
    }
    match reader.ending().unwrap() {
        Ending::Whole(end) => {
            assert_eq!(end.snapshots, snapshots.len() as u64);
            (snapshots, end.clone())
        }
        ending => panic!("{ending}"),
    }
}

#[test]
fn records_while_a_command_runs_and_passes_its_status_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();

    let file = path("status");
    assert_eq!(run(&["-o", &file, "--", "sh", "-c", "exit 7"]).unwrap(), 7);
    let (snapshots, end) = read(&file);
    assert_eq!(end.command_status, Some(7));
    // A first and a last one however short it was, both with all lines.
    let details: Vec<Detail> = snapshots.iter().map(|it| it.detail).collect();
    assert_eq!(details, [Detail::Lines; 2]);

    // A file that is there is left alone, unless told otherwise.
    let before = fs::read(&file).unwrap();
    let error = run(&["-o", &file, "--for", "10ms"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("--force"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(run(&["-o", &file, "--for", "10ms", "--force"]).unwrap(), 0);
    assert_eq!(read(&file).1.command_status, None);

    let file = path("signal");
    assert_eq!(
        run(&["-o", &file, "--", "sh", "-c", "kill -9 $$"]).unwrap(),
        137
    );
    assert_eq!(read(&file).1.command_status, Some(137));

    let file = path("not found");
    assert_eq!(run(&["-o", &file, "--", "/no/such/command"]).unwrap(), 127);
    assert_eq!(read(&file).1.command_status, Some(127));
    let file = path("cannot run");
    assert_eq!(run(&["-o", &file, "--", "/dev/null"]).unwrap(), 126);

    // The command outlives what is recorded of it.
    let file = path("for");
    let status = run(&[
        "-o",
        &file,
        "--for",
        "50ms",
        "--",
        "sh",
        "-c",
        "sleep 0.3; exit 3",
    ]);
    assert_eq!(status.unwrap(), 3);
    assert_eq!(read(&file).1.command_status, None);

    let file = path("lines");
    let arguments = [
        "--lines", "--every", "10ms", "--note", "mine", "--", "sleep", "0.3",
    ];
    assert_eq!(run(&[&["-o", &file], &arguments[..]].concat()).unwrap(), 0);
    let (snapshots, _) = read(&file);
    assert!(snapshots.len() >= 3, "{}", snapshots.len());
    assert!(snapshots.iter().all(|it| it.detail == Detail::Lines));
    let header = Reader::open(Path::new(&file)).unwrap().header().clone();
    assert_eq!(header.note.as_deref(), Some("mine"));
    assert_eq!(header.every_ns, 10_000_000);

    // Nothing of the command or this machine's name is in it.
    let secret = path("secret");
    run(&["-o", &secret, "--", "sh", "-c", "exit 0 # password"]).unwrap();
    let json: String = read(&secret)
        .0
        .iter()
        .map(|it| serde_json::to_string(it).unwrap())
        .collect();
    assert!(!json.contains("password"));

    stops_when_asked(&path("stopped"), Signal::SIGINT, &[], 0);
    stops_when_asked(&path("terminated"), Signal::SIGTERM, &[], 0);
    // The command decides what a signal means, and ends the recording.
    let trap = [
        "--",
        "sh",
        "-c",
        "trap 'exit 5' TERM; sleep 0.05; while :; do sleep 0.05; done",
    ];
    stops_when_asked(&path("passed on"), Signal::SIGTERM, &trap, 5);
}

/// Sends the signal once the recording has begun and its handlers are there.
fn stops_when_asked(file: &str, signal: Signal, command: &[&str], status: u8) {
    let watched = file.to_owned();
    let asker = std::thread::spawn(move || {
        // Two Snapshots: signals are caught before the first one.
        let long_enough = |path: &str| {
            Reader::open(Path::new(path)).is_ok_and(|mut reader| {
                (0..8).all(|_| matches!(reader.next_snapshot(), Ok(Some(_))))
            })
        };
        while !long_enough(&watched) {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill(Pid::this(), signal).unwrap();
    });
    let arguments = [&["-o", file, "--every", "20ms"], command].concat();
    assert_eq!(run(&arguments).unwrap(), status);
    asker.join().unwrap();
    assert!(read(file).0.len() >= 8);
}
