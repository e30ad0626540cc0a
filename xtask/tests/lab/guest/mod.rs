//! The virtual server itself: that what the other tests rest on holds.

mod boots;
mod commands;

use libtest_mimic::Trial;
use xtask_lab::{Guest, GuestConfig};

use crate::{artifacts, lab_test};

fn boot(config: &GuestConfig) -> Guest {
    Guest::boot(artifacts(), config).unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn trials() -> Vec<Trial> {
    let tests: [(&str, fn()); 5] = [
        (
            "programs_files_and_modules",
            commands::programs_files_and_modules,
        ),
        (
            "a_failed_boot_shows_the_console",
            boots::a_failed_boot_shows_the_console,
        ),
        ("a_slow_boot_is_given_up", boots::a_slow_boot_is_given_up),
        (
            "a_boot_that_hangs_shows_the_console",
            boots::a_boot_that_hangs_shows_the_console,
        ),
        (
            "a_guest_that_dies_is_an_error",
            boots::a_guest_that_dies_is_an_error,
        ),
    ];
    tests
        .into_iter()
        .map(|(name, test)| {
            lab_test(format!("guest::{name}"), move || {
                test();
                Ok(())
            })
        })
        .collect()
}
