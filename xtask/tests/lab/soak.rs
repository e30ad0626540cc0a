//! A soak of two boots.

use std::process::Command;

use libtest_mimic::{Failed, Trial};

use crate::{XTASK, lab_test, leftovers};

/// One remapped and one bypassed guest: none fails, and nothing stays behind.
fn two_boots() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let output = Command::new(XTASK)
        .args(["lab", "soak", "--boots", "2"])
        .env("TMPDIR", folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let result = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{result}{said}");
    assert!(
        result.starts_with("2 guests booted") && result.trim_end().ends_with("0 failed"),
        "{result}"
    );
    assert!(
        said.contains(" 201d: ") && said.contains(" 28c0: "),
        "{said}"
    );
    assert_eq!(leftovers::of(folder.path()), Vec::<String>::new());
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![lab_test("soak::two_boots_leave_nothing", two_boots)]
}
