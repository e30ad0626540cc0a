//! Embeds the eBPF object that `cargo xtask build` made and names in
//! VMDTRACE_EBPF_OBJECT. Without it (a plain `cargo check`, clippy,
//! rust-analyzer) the library still compiles; the program then says at start
//! how to build it whole.

use std::{env, fs, path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    println!("cargo::rerun-if-env-changed=VMDTRACE_EBPF_OBJECT");
    // Told by the metric vmdtrace_build_info.
    println!("cargo::rerun-if-env-changed=VMDTRACE_REVISION");
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    let Some(object) = env::var_os("VMDTRACE_EBPF_OBJECT").filter(|path| !path.is_empty()) else {
        return ExitCode::SUCCESS;
    };
    let object = PathBuf::from(object);
    println!("cargo::rerun-if-changed={}", object.display());
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else {
        println!("cargo::error=OUT_DIR is not set: run through cargo");
        return ExitCode::FAILURE;
    };
    if let Err(error) = fs::copy(&object, out.join("vmdtrace-ebpf.o")) {
        println!(
            "cargo::error=VMDTRACE_EBPF_OBJECT={}: {error}; `cargo xtask build` makes it",
            object.display()
        );
        return ExitCode::FAILURE;
    }
    println!("cargo::rustc-cfg=ebpf_object");
    ExitCode::SUCCESS
}
