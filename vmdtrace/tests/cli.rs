//! The command line, as its user meets it.

#![expect(
    clippy::unwrap_used,
    reason = "tests may; clippy's own exemption leaves out their helpers"
)]

mod program;

use program::{text, vmdtrace};

#[test]
fn tells_its_version() {
    let output = vmdtrace(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    let version = concat!("vmdtrace ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(text(&output.stdout), version);
}

#[test]
fn help_documents_the_exit_codes() {
    let output = vmdtrace(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("Exit codes:"));
}

#[test]
fn a_wrong_value_is_one_clear_error() {
    for (argument, parts) in [
        (
            "--web.listen-address=localhost",
            ["--web.listen-address", "no port"],
        ),
        (
            "--web.listen-address=::1:10973",
            ["--web.listen-address", "brackets"],
        ),
        ("--web.max-requests=0", ["--web.max-requests", "1..=256"]),
        ("--level=most", ["--level", "counters"]),
        (
            "--path.sysfs=/nonexistent",
            ["--path.sysfs", "No such file"],
        ),
        (
            "--path.procfs=/proc/version",
            ["--path.procfs", "not a directory"],
        ),
        ("--also-lines=", ["--also-lines", "value is required"]),
        ("--log.level=loud", ["--log.level", "debug"]),
        ("--log.format=xml", ["--log.format", "json"]),
    ] {
        let output = vmdtrace(&["serve", argument]);
        let text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.matches("error:").count(), 1, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    }
}

#[test]
fn the_helper_is_not_started_by_hand() {
    let output = vmdtrace(&["attach-helper"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("by `vmdtrace serve`, not by hand"),
        "{error}"
    );
    let help = vmdtrace(&["--help"]);
    assert!(!text(&help.stdout).contains("attach-helper"));
}
