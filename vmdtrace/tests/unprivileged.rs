//! The real program without a privilege. Root drops its own; where that is not
//! possible the tests report "ignored" with the reason.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use nix::unistd::geteuid;
use vmdtrace::host::{Capability, Roots, capabilities};

/// The user "nobody" of most distributions; any but 0 would do.
const NOBODY: u32 = 65534;

/// Only a failure waits for this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A copy of the program in a folder that every user may enter.
struct Program {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// What the program said.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Program {
    fn copy() -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let path = folder.path().join("vmdtrace");
        fs::copy(env!("CARGO_BIN_EXE_vmdtrace"), &path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        Ok(Self { folder, path })
    }

    /// The command, as a user without privileges.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments).current_dir("/");
        if geteuid().is_root() {
            // The kernel takes all capabilities from a process that stops being
            // root (capabilities(7)), and the standard library its groups.
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs it to its end, its output in files: a full pipe never blocks it.
    fn run(&self, arguments: &[&str]) -> Said {
        let stdout = self.folder.path().join("stdout");
        let stderr = self.folder.path().join("stderr");
        let mut child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&stdout).unwrap())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!(
                    "{arguments:?} did not end: {}",
                    fs::read_to_string(&stderr).unwrap()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Said {
            code: status.code(),
            stdout: fs::read_to_string(stdout).unwrap(),
            stderr: fs::read_to_string(stderr).unwrap(),
        }
    }

    /// Why the program cannot be run without privileges here; None if it can.
    fn obstacle(&self) -> Option<String> {
        if !geteuid().is_root() {
            return match capabilities(&Roots::default()) {
                Ok(ours) => [Capability::Bpf, Capability::Perfmon]
                    .into_iter()
                    .find(|one| ours.missing(&[*one]).is_empty())
                    .map(|one| format!("this user has {}", one.name())),
                Err(error) => Some(error.to_string()),
            };
        }
        let tried = self.command(&["--version"]).output();
        match tried {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!("--version as user {NOBODY}: {}", output.status)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(format!(
                "root may not become user {NOBODY} here, or that user may not run {}: {error}",
                self.path.display()
            )),
            Err(error) => panic!("{}: {error}", self.path.display()),
        }
    }
}

/// Told first, whether or not the program holds its eBPF object.
fn serve_names_what_is_missing(program: &Program) {
    let Said {
        code,
        stdout,
        stderr,
    } = program.run(&["serve", "--web.listen-address=127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert_eq!(stdout, "");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("vmdtrace: error: "), "{stderr}");
    for part in ["CAP_BPF", "CAP_PERFMON", "run as root"] {
        assert!(stderr.contains(part), "{part} is missing: {stderr}");
    }
}

fn topology_needs_no_privilege(program: &Program) {
    let text = program.run(&["topology"]);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert_ne!(text.stdout.trim(), "");
    assert_eq!(text.stderr, "");

    let json = program.run(&["topology", "--output=json"]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let topology: vmdtrace::host::topology::Topology = serde_json::from_str(&json.stdout).unwrap();
    let root_sees = vmdtrace::host::read(&Roots::default());
    assert_eq!(topology.controllers.len(), root_sees.controllers.len());
    assert_eq!(topology.disks.len(), root_sees.disks.len());
}

fn doctor_says_what_it_cannot_see(program: &Program) {
    let json = program.run(&["doctor", "--output=json", "--self-test"]);
    assert_eq!(json.code, Some(2), "{}", json.stderr);
    assert_eq!(json.stderr, "");
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["exit_status"], 2);
    let probes = report["probes"].as_array().unwrap();
    assert!(!probes.is_empty());
    for probe in probes {
        assert_eq!(probe["state"], "blocked", "{probe:#}");
        for part in ["CAP_BPF", "CAP_PERFMON"] {
            assert!(
                probe["remedy"].as_str().unwrap().contains(part),
                "{probe:#}"
            );
        }
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let check = |id: &str| {
        let checks = report["checks"].as_array().unwrap().iter();
        let found = checks.clone().find(|it| it["id"] == id);
        found.unwrap_or_else(|| panic!("no {id}: {report:#}"))
    };
    assert_eq!(check("kernel.release")["found"], release.trim());
    assert_eq!(check("process.capabilities")["state"], "blocking");
    for test in report["self_test"]["checks"].as_array().unwrap() {
        assert_eq!(test["outcome"], "not-measured", "{test:#}");
    }

    let text = program.run(&["doctor"]);
    assert_eq!(text.code, Some(2), "{}", text.stderr);
    for part in ["blocked", "CAP_BPF", "Interrupts are not accounted"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
}

/// Of the check of the kernel's list of symbols, as a user without privileges sees it
/// with this standard input.
fn symbols_seen(program: &Program, stdin: Stdio) -> serde_json::Value {
    let output = program
        .command(&["doctor", "--output=json"])
        .stdin(stdin)
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|it| it["id"] == "kernel.kallsyms");
    check.unwrap_or_else(|| panic!("{report:#}")).clone()
}

/// Addresses are shown by who opened the list.
fn symbols_that_root_opened_are_seen(program: &Program) -> Result<(), String> {
    let hidden = symbols_seen(program, Stdio::null());
    let list = fs::File::open("/proc/kallsyms").map_err(|error| error.to_string())?;
    let shown = symbols_seen(program, list.into());
    if shown == hidden {
        return Err(format!(
            "this kernel shows root and others the same: {}",
            shown["found"]
        ));
    }
    assert_ne!(hidden["state"], "good", "{hidden:#}");
    assert_eq!(shown["state"], "good", "{shown:#}");
    Ok(())
}

fn symbols_trial(program: &Arc<Program>, obstacle: Option<String>) -> Trial {
    let program = Arc::clone(program);
    let obstacle = obstacle.or_else(|| (!geteuid().is_root()).then(|| "needs root".to_owned()));
    Trial::ignorable_test("symbols_that_root_opened_are_seen", move || {
        let result = match obstacle {
            Some(reason) => Err(reason),
            None => symbols_that_root_opened_are_seen(&program),
        };
        Ok(match result {
            Ok(()) => Completion::Completed,
            Err(reason) => Completion::ignored_with(reason),
        })
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The runs share the files of their output.
    arguments.test_threads = Some(1);
    let program = match Program::copy() {
        Ok(program) => Arc::new(program),
        Err(error) => {
            eprintln!("cannot copy the program to a temporary folder: {error}");
            return ExitCode::FAILURE;
        }
    };
    let obstacle = program.obstacle();
    let trial = |name: &str, test: fn(&Program)| {
        let (program, obstacle) = (Arc::clone(&program), obstacle.clone());
        Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
            match obstacle {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    test(&program);
                    Ok(Completion::Completed)
                }
            }
        })
    };
    let trials = vec![
        trial("serve_names_what_is_missing", serve_names_what_is_missing),
        trial("topology_needs_no_privilege", topology_needs_no_privilege),
        trial(
            "doctor_says_what_it_cannot_see",
            doctor_says_what_it_cannot_see,
        ),
    ];
    let trials = trials
        .into_iter()
        .chain([symbols_trial(&program, obstacle)]);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
