//! Tests in the virtual server: real vmd.ko and nvme.ko of an unmodified
//! kernel, real fio, a real Prometheus. `cargo xtask test` sets up what they
//! need; without that they report "ignored" with the reason.
//!
//! What is asserted are counts and relations, never times.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod bio;
mod cpu_shares;
mod dashboards;
mod demo;
mod device;
mod disturb;
mod doctor;
mod exact;
mod guest;
mod inject;
mod late_modules;
mod leftovers;
mod lost;
mod msi;
mod native;
mod package;
mod placement;
mod recordings;
mod server;
mod shared;
mod shell;
mod soak;
mod systemd;

use std::process::ExitCode;
use std::sync::{LazyLock, OnceLock};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use xtask_lab::schedule::{Place, Schedule};
use xtask_lab::{Artifacts, guests_at_once};
use xtask_setup::{DEFAULT_KERNEL, Profile, Setup};

/// The command under test; it also serves the emulated devices.
const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// Made once it is known which tests run.
static SCHEDULE: OnceLock<Schedule> = OnceLock::new();

/// What a test needs of the machine, by the first part of its name.
fn place(name: &str) -> Place {
    match name.split("::").next() {
        // Their tests share a guest that the first one boots and the last one ends.
        Some("remap") => Place::Shared("remap"),
        Some("bypass") => Place::Shared("bypass"),
        Some("dashboards") => Place::Shared("dashboards"),
        // As many CPUs as a guest can have, and Prometheus beside it.
        Some("demo") => Place::SharedAlone("demo"),
        // What other tests do on this machine would be seen as leftovers, or as
        // interrupts, or make the guest's CPUs slower.
        Some("guest" | "inject" | "leftovers" | "native" | "soak") => Place::Alone,
        _ => Place::Beside,
    }
}

/// A test that waits for its turn.
fn scheduled(
    name: impl Into<String>,
    test: impl FnOnce() -> Result<Completion, Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || {
        let _turn = SCHEDULE.get().map(|schedule| schedule.enter(&name));
        test()
    })
}

/// A test that reports "ignored" where nothing was set up.
fn lab_test(
    name: impl Into<String>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    scheduled(name, move || {
        if std::env::var_os("VMDTRACE_LAB").is_none() {
            return Ok(Completion::ignored_with(
                "needs root and a virtual server: run `cargo xtask test`",
            ));
        }
        test()?;
        Ok(Completion::Completed)
    })
}

/// Everything a guest is made of, the daemon included.
fn artifacts() -> &'static Artifacts {
    static ARTIFACTS: LazyLock<Artifacts> = LazyLock::new(|| {
        let setup = Setup::new().unwrap();
        let built = setup.build(Profile::Release).unwrap();
        let vmdtrace = Some(built.vmdtrace);
        Artifacts::prepare(&setup, DEFAULT_KERNEL, vmdtrace, XTASK.into()).unwrap()
    });
    &ARTIFACTS
}

/// As [`lab_test`], for a test that boots this kernel.
fn kernel_test(
    series: &'static str,
    name: impl Into<String>,
    test: impl FnOnce(&Artifacts) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    scheduled(name, move || {
        let kernels = std::env::var("VMDTRACE_LAB_KERNELS").unwrap_or_default();
        if !kernels.split(',').any(|kernel| kernel == series) {
            return Ok(Completion::ignored_with(format!(
                "needs root and a virtual server with kernel {series}: run `cargo xtask test \
                 --kernels {series}`"
            )));
        }
        let kernel = Setup::new().unwrap().kernel(series).unwrap();
        let artifacts = Artifacts {
            kernel,
            ..artifacts().clone()
        };
        test(&artifacts)?;
        Ok(Completion::Completed)
    })
}

/// Fails unless Debian's own linter has nothing to say of the text.
fn check_with_promtool(text: &str) {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let programs = Setup::new().unwrap().prometheus().unwrap();
    let mut promtool = Command::new(programs.promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(String::from_utf8_lossy(&said), "");
    assert!(output.status.success(), "promtool: {}", output.status);
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let (demo, demo_trials) = demo::trials();
    let (servers, server_trials) = server::trials();
    let mut trials = demo_trials;
    trials.extend(guest::trials());
    trials.extend(server_trials);
    let (table, exact_trials) = exact::trials();
    trials.extend(exact_trials);
    let (bios, bio_trials) = bio::trials();
    trials.extend(bio_trials);
    let (diagnoses, inject_trials) = inject::trials();
    trials.extend(inject_trials);
    let (scene, dashboard_trials) = dashboards::trials();
    trials.extend(dashboard_trials);
    trials.extend(device::trials());
    trials.extend(disturb::trials(&table));
    trials.extend(doctor::trials(&table));
    trials.extend(late_modules::trials());
    trials.extend(leftovers::trials());
    trials.extend(lost::trials());
    trials.extend(msi::trials());
    trials.extend(native::trials());
    trials.extend(package::trials());
    trials.extend(placement::trials());
    trials.extend(recordings::trials());
    trials.extend(shell::trials());
    trials.extend(soak::trials());
    trials.extend(systemd::trials());
    let planned = trials
        .iter()
        .filter(|trial| !arguments.is_filtered_out(trial))
        .map(|trial| (trial.name().to_owned(), place(trial.name())));
    let slots = guests_at_once();
    SCHEDULE.get_or_init(|| Schedule::new(slots, planned));
    // A thread for each, since the schedule decides; with room for one guest, one
    // thread does, and tests are named before they begin.
    arguments.test_threads = Some(if slots == 1 { 1 } else { trials.len() });
    let conclusion = libtest_mimic::run(&arguments, trials);
    table.print();
    bios.print();
    diagnoses.print();
    // Ends what is still running.
    drop((demo, servers, scene));
    conclusion.exit_code()
}
