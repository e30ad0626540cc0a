//! Tests that load the eBPF programs into the running kernel. Where that is not
//! possible they report "ignored" with the reason.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod disk_line;
mod doctor;
mod fixture;
mod helper;
mod streams;
mod uevents;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use vmdtrace::{
    host::{Roots, possible_cpus},
    probes::{Options, Sizes, Tracer, object, privileges},
    snapshot::source::Level,
};

/// Why no program can be loaded here; None if it can.
fn obstacle() -> Option<String> {
    if object::embedded().is_none() {
        return Some("built without the eBPF object: run `cargo xtask test`".into());
    }
    match privileges::missing(&Roots::default()) {
        Ok(missing) => missing.map(|missing| format!("missing {missing}")),
        Err(error) => Some(error.to_string()),
    }
}

/// A tracer with the programs loaded, all CPUs armed, and nothing attached.
fn tracer(slots: u32, also_lines: &[&str], roots: Roots) -> Tracer {
    tracer_of(options(slots, also_lines, roots))
}

fn options(slots: u32, also_lines: &[&str], roots: Roots) -> Options {
    Options {
        sizes: Sizes {
            cpus: cpus(),
            interrupts: 1024,
            slots,
        },
        level: Level::Timing,
        also_lines: also_lines.iter().map(|glob| (*glob).to_owned()).collect(),
        kprobes: false,
        shares: true,
        roots,
    }
}

fn tracer_of(options: Options) -> Tracer {
    let tracer = Tracer::load(options).unwrap_or_else(|error| panic!("{error}"));
    tracer.arm();
    tracer
}

/// CPUs the programs may run on.
fn cpus() -> u32 {
    possible_cpus(&Roots::default()).unwrap()
}

fn kernel_test(name: &str, test: fn() -> Result<Completion, Failed>) -> Trial {
    Trial::ignorable_test(name, move || match obstacle() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => test(),
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The streams pin threads to CPUs, and counts of the disk's line are read
    // at rest: one test at a time.
    arguments.test_threads = Some(1);
    let trials = vec![
        kernel_test(
            "loaded_programs_equal_the_naive_model",
            streams::loaded_programs_equal_the_model,
        ),
        kernel_test(
            "two_cpus_learn_unknown_lines_at_once",
            streams::two_cpus_learn_at_once,
        ),
        kernel_test(
            "level_counters_reads_no_clock",
            streams::level_counters_reads_no_clock,
        ),
        kernel_test(
            "the_disk_line_agrees_with_the_kernel",
            disk_line::agrees_with_the_kernel,
        ),
        kernel_test(
            "doctor_tells_the_probes_as_they_are",
            doctor::tells_the_probes,
        ),
        kernel_test(
            "a_server_without_capabilities_counts_on",
            helper::a_server_without_capabilities_counts_on,
        ),
        kernel_test(
            "without_kprobes_the_helper_has_less",
            helper::without_kprobes_the_helper_has_less,
        ),
        kernel_test(
            "another_user_with_two_capabilities_serves",
            helper::another_user_with_two_capabilities_serves,
        ),
        kernel_test(
            "a_reload_changes_what_the_helper_logs",
            helper::a_reload_changes_what_the_helper_logs,
        ),
        kernel_test(
            "a_killed_server_takes_its_helper_along",
            helper::a_killed_server_takes_its_helper_along,
        ),
        kernel_test(
            "a_server_whose_helper_is_killed_ends",
            helper::a_server_whose_helper_is_killed_ends,
        ),
        kernel_test("garbage_ends_the_helper", helper::garbage_ends_the_helper),
        Trial::ignorable_test(
            "uevents_of_a_burst_arrive_as_one_change",
            uevents::a_burst_is_one_change,
        ),
        Trial::ignorable_test(
            "lost_uevents_mean_that_everything_changed",
            uevents::an_overflow_means_everything_changed,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
