//! `diagnose` and `compare` of recordings, as the user of the program meets
//! them.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

use std::fs;
use std::process::{Command, Output};

fn case(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/tests/recordings/cases/{name}.vmdtrace")
}

fn vmdtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_cause_is_named() {
    let shown = succeeded(&vmdtrace(&["diagnose", "--from", &case("vm-cpu0")]));
    let found: Vec<&str> = shown
        .lines()
        .filter(|line| line.starts_with("supported: "))
        .collect();
    assert_eq!(found.len(), 1, "{shown}");
    assert!(found[0].starts_with("supported: h3-placement: "), "{shown}");
}

#[test]
fn healthy_is_nothing_found() {
    let shown = succeeded(&vmdtrace(&["diagnose", "--from", &case("managed")]));
    assert!(shown.contains("\nnothing found: "), "{shown}");
}

#[test]
fn a_recording_of_the_first_version_of_the_format() {
    let old = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/recordings/version-1.vmdtrace"
    );
    let shown = succeeded(&vmdtrace(&["diagnose", "--from", old]));
    // One full CPU of the made-up server behind it serves its only vector.
    assert_eq!(shown.matches("\nsupported: ").count(), 1, "{shown}");
    assert!(shown.contains("\nsupported: h1-cpu-time: "), "{shown}");
}

#[test]
fn comparison_in_any_order() {
    let (slow, fast) = (case("first-bypass"), case("first-remap"));
    let one = vmdtrace(&["compare", &slow, &fast, "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&succeeded(&one)).unwrap();
    assert_eq!(json["findings"][0]["id"], "h4-device");
    assert_eq!(json["findings"][0]["verdict"], "supported");
    assert_eq!(json["picture"]["groups"][0]["mode"], "bypass");
    assert_eq!(json["faster"]["groups"][0]["mode"], "remap");
    let other = vmdtrace(&["compare", &fast, &slow, "--output", "json"]);
    assert_eq!(one.stdout, other.stdout);
}

#[test]
fn thresholds_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("thresholds");
    let file_name = file.to_str().unwrap();
    let case = case("one-per-interrupt");
    let arguments = ["diagnose", "--from", &case, "--thresholds", file_name];
    fs::write(&file, "cpu_full = 0.999\ncpu_free = 0.5\n").unwrap();
    let shown = succeeded(&vmdtrace(&arguments));
    assert!(shown.contains("\npossible: h1-cpu-time: "), "{shown}");
    fs::write(&file, "# one\n\ncpu_ful = 1\n").unwrap();
    let output = vmdtrace(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("line 3: there is no threshold \"cpu_ful\""),
        "{error}"
    );
    assert!(error.contains(file_name), "{error}");
}

#[test]
fn what_is_no_recording_is_one_error() {
    for arguments in [
        vec!["diagnose", "--from", "/dev/null"],
        vec!["compare", "/dev/null", "/dev/null"],
        vec!["diagnose", "--from", "/nonexistent"],
    ] {
        let output = vmdtrace(&arguments);
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(
            error.starts_with("vmdtrace: error: cannot read /"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn one_recording_has_to_have_a_change_of_rate() {
    let output = vmdtrace(&["compare", &case("managed")]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("does not change by a factor of 1.25"),
        "{error}"
    );
}
