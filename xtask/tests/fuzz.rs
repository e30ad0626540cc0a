//! The fuzz targets, for a short time each. Where the
//! compiler cannot build them they report "ignored" with the reason; their kept
//! inputs are unit tests beside the code too, which need nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use xtask_setup::{FUZZERS, Setup};

const SECONDS: &str = "20";

fn fuzz(target: &str) -> Result<Completion, Failed> {
    // The same variable as for the tests in the virtual server.
    if std::env::var_os("VMDTRACE_LAB").is_none() {
        return Ok(Completion::ignored_with(
            "builds a fuzzer and runs it for a while: run `cargo xtask test` or `cargo xtask fuzz`",
        ));
    }
    if let Err(reason) = Setup::new().unwrap().can_fuzz() {
        return Ok(Completion::ignored_with(reason.to_string()));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["fuzz", "--seconds", SECONDS, target])
        .output()
        .unwrap();
    if !output.status.success() {
        let said = [output.stderr, output.stdout].concat();
        return Err(String::from_utf8_lossy(&said).into_owned().into());
    }
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Two cores run one fuzzer beside whatever else there is.
    arguments.test_threads = Some(1);
    let trials = FUZZERS
        .map(|target| Trial::ignorable_test(format!("fuzz::{target}"), move || fuzz(target)));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
