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

#[test]
fn a_file_of_settings_is_checked_without_privileges() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("settings.yaml");
    let path = file.to_str().unwrap();
    let check = |content: &str| {
        std::fs::write(&file, content).unwrap();
        vmdtrace(&["serve", "--config.file", path, "--config.check"])
    };
    let right = check(
        "# all of them\nweb.listen-address: [':1', '[::1]:2']\nweb.max-requests: 9\nmetrics.lines: true\nmetrics.disks: true\nmetrics.cpus: true\nalso-lines: eth0-*\nlevel: counters\nno-kprobes: false\npath.sysfs: /sys\npath.procfs: /proc\nlog.level: debug\nlog.format: json\n",
    );
    assert_eq!(text(&right.stderr), "");
    assert_eq!(
        text(&right.stdout),
        format!("{path}: all settings are right\n")
    );
    assert_eq!(right.status.code(), Some(0));

    for (content, problem) in [
        (
            "level: timing\nweb.listen-adress: ':1'\n",
            "{file}:2: there is no setting \"web.listen-adress\": do you mean web.listen-address?",
        ),
        (
            "web.listen-address: ['1']\n",
            "{file}:1: web.listen-address cannot be \"1\": no port: write HOST:PORT, or :PORT for all addresses",
        ),
        (
            "\n\nlevel: most\n",
            "{file}:3: level cannot be \"most\": it must be one of: counters, timing",
        ),
        (
            "path.sysfs: /nonexistent\n",
            "{file}:1: path.sysfs cannot be \"/nonexistent\": No such file or directory (os error 2)",
        ),
        (
            "also-lines: ''\n",
            "{file}:1: also-lines cannot be \"\": a value is required",
        ),
        ("also-lines: 'a['\n", "--also-lines \"a[\" is no glob"),
        (
            "config.check: true\n",
            "{file}:1: there is no setting \"config.check\", only web.listen-address, ",
        ),
    ] {
        let output = check(content);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let expected = format!("vmdtrace: error: {}", problem.replace("{file}", path));
        assert!(stderr.starts_with(&expected), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    let alone = vmdtrace(&["serve", "--config.check"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(text(&alone.stderr).contains("--config.file"));
}

/// The file that the package installs: each flag once, commented out, with a value
/// that is right.
#[test]
fn the_packaged_settings_name_every_flag() {
    let packaged = include_str!("../../xtask/package/vmdtrace.yaml");
    let settings: String = packaged
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()))
        .map(|line| format!("{line}\n"))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("all", settings.as_str()), ("as it is", packaged)] {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        let file = file.to_str().unwrap();
        let output = vmdtrace(&["serve", "--config.check", "--config.file", file]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    let mut named: Vec<&str> = settings
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    named.sort_unstable();
    let help = text(&vmdtrace(&["serve", "--help"]).stdout);
    let mut flags: Vec<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .filter_map(|line| line.split([' ', '[', '=']).next())
        .filter(|name| !name.starts_with("config."))
        .collect();
    flags.sort_unstable();
    assert_eq!(named, flags);
}

#[test]
fn manual_pages_and_completions_name_every_command_and_flag() {
    let folder = tempfile::tempdir().unwrap();
    let output = vmdtrace(&["generate", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for command in [
        "serve", "topology", "doctor", "record", "replay", "diagnose", "compare",
    ] {
        assert!(
            read("vmdtrace.1").contains(&format!("vmdtrace\\-{command}(1)")),
            "{command}"
        );
        let page = read(&format!("vmdtrace-{command}.1"));
        assert!(page.starts_with(".ie"), "{page}");
        for shell in ["vmdtrace.bash", "_vmdtrace", "vmdtrace.fish"] {
            assert!(read(shell).contains(command), "{shell} {command}");
        }
    }
    let page = read("vmdtrace-serve.1");
    for flag in ["config.file", "web.listen\\-address", "no\\-kprobes"] {
        assert!(page.contains(flag), "{flag}: {page}");
    }
    // Those that nobody starts by hand have none.
    for hidden in ["generate", "attach-helper"] {
        let page = format!("vmdtrace-{hidden}.1");
        assert!(!folder.path().join(&page).exists(), "{page}");
    }
}
