//! What is made of a recording, as the user of the program meets it.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/recordings/version-1.vmdtrace"
);

fn vmdtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_topology_of_a_recording() {
    let output = vmdtrace(&["topology", "--from", RECORDING, "--output", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["disks"].as_array().unwrap().len(), 2);
    assert_eq!(json["controllers"][0]["mode"], "remap");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_cut_recording_is_used_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut");
    let bytes = fs::read(RECORDING).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 5]).unwrap();
    let output = vmdtrace(&["topology", "--from", cut.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("nvme1"));
    assert!(
        text(&output.stderr).contains("was cut off at byte"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn what_cannot_be_read_is_one_error() {
    for (arguments, part) in [
        (&["topology", "--from", "/dev/null"][..], "no recording"),
        (&["topology", "--from", "/no/such/file"], "No such file"),
        (&["replay", "/no/such/file"], "No such file"),
        (&["replay", env!("CARGO_BIN_EXE_vmdtrace")], "no recording"),
        (
            &["replay", RECORDING, "--metrics.lines"],
            "record with --lines",
        ),
    ] {
        let output = vmdtrace(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(part), "{said}");
    }
    for arguments in [
        &["replay", RECORDING, "--speed", "0"][..],
        &["replay", RECORDING, "--speed", "NaN"],
        &["replay", RECORDING, "--speed", "2", "--openmetrics", "x"],
        &["topology", "--from", RECORDING, "--path.sysfs", "/sys"],
        &["record"],
        &["record", "-o", "x", "--every", "1ns"],
        &["record", "-o", "x", "--for", "soon"],
    ] {
        assert_eq!(vmdtrace(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn openmetrics_has_every_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let output = vmdtrace(&["replay", RECORDING, "--openmetrics", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let metrics = fs::read_to_string(out).unwrap();
    assert!(metrics.ends_with("# EOF\n"));
    let samples = metrics.lines().filter(|line| {
        line.starts_with("vmdtrace_completions_total{") && line.contains("disk=\"nvme0\"")
    });
    assert_eq!(samples.count(), 5);
}

#[test]
fn serves_the_recording_until_sigterm() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args(["replay", RECORDING, "--speed", "1e9"])
        .args(["--web.listen-address", "127.0.0.1:0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    let address = log
        .by_ref()
        .find_map(|line| {
            said.push(line.unwrap());
            let (_, rest) = said.last()?.split_once("http://")?;
            Some(rest.trim_end_matches("/metrics").to_owned())
        })
        .unwrap();
    let metrics = || {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // So fast that the last Snapshot is reached at once.
    let completions = |answer: &str| -> u64 {
        let values = answer
            .lines()
            .filter(|line| line.starts_with("vmdtrace_completions_total{"))
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
        values.sum()
    };
    metrics();
    let answer = metrics();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(completions(&answer), 4_001_682);
    kill(
        Pid::from_raw(program.id().try_into().unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    said.extend(log.map(Result::unwrap));
    let ended = said
        .iter()
        .any(|line| line.contains("the recording has ended"));
    assert!(ended, "{said:?}");
    assert!(program.wait().unwrap().success());
}
