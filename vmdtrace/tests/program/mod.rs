//! The finished program and what it says.

use std::process::{Command, Output};

pub(crate) fn vmdtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args(arguments)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
