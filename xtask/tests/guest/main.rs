//! Tests of the virtual server itself: that what the other tests rest on holds.
//! They boot guests, so they run only under `cargo xtask test`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod boots;
mod commands;
mod disks;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use xtask_lab::{Artifacts, Guest, GuestConfig};
use xtask_setup::{DEFAULT_KERNEL, Setup};

/// Set by `cargo xtask test` once everything that is booted is set up.
const LAB_VARIABLE: &str = "VMDTRACE_LAB";
/// For what takes a second or two on an idle host.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parts of all guests, without a daemon.
fn artifacts() -> &'static Artifacts {
    static ARTIFACTS: OnceLock<Artifacts> = OnceLock::new();
    ARTIFACTS.get_or_init(|| {
        let setup = Setup::new().unwrap();
        let device_server = env!("CARGO_BIN_EXE_xtask").into();
        Artifacts::prepare(&setup, DEFAULT_KERNEL, None, device_server).unwrap()
    })
}

fn boot(config: &GuestConfig) -> Guest {
    Guest::boot(artifacts(), config).unwrap()
}

fn guest_test(name: &str, test: fn()) -> Trial {
    let possible = std::env::var_os(LAB_VARIABLE).is_some();
    Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
        if !possible {
            return Ok(Completion::ignored_with(
                "boots a virtual server: run `cargo xtask test`",
            ));
        }
        test();
        Ok(Completion::Completed)
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Six CPUs are emulated on what the host has: one guest at a time.
    arguments.test_threads = Some(1);
    let tests = vec![
        guest_test(
            "programs_files_and_modules",
            commands::programs_files_and_modules,
        ),
        guest_test(
            "a_failed_boot_shows_the_console",
            boots::a_failed_boot_shows_the_console,
        ),
        guest_test("a_slow_boot_is_given_up", boots::a_slow_boot_is_given_up),
        guest_test(
            "a_guest_that_dies_is_an_error",
            boots::a_guest_that_dies_is_an_error,
        ),
        guest_test(
            "two_controllers_in_one_guest",
            disks::two_controllers_in_one_guest,
        ),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}
