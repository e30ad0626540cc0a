//! `vmdtrace doctor` on this machine: it says of each probe what the tracer says,
//! and finds by itself what is known of this kernel from elsewhere.

use std::fs;
use std::process::Command;

use libtest_mimic::{Completion, Failed};
use serde_json::Value;
use vmdtrace::{
    host::Roots,
    probes::{Loaded as _, Options},
    snapshot::ProbeState,
};

pub(crate) fn tells_the_probes() -> Result<Completion, Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_vmdtrace"))
        .args(["doctor", "--output=json", "--self-test", "--for=1"])
        .output()?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        output.status.code(),
        Some(report["exit_status"].as_i64().unwrap() as i32)
    );

    let tracer = super::tracer_of(Options {
        kprobes: true,
        shares: false,
        ..super::options(64, &[], Roots::default())
    });
    tracer.attach();
    let probes = tracer.probes();
    let told = report["probes"].as_array().unwrap();
    assert_eq!(told.len(), probes.len());
    for (told, probe) in told.iter().zip(&probes) {
        assert_eq!(told["name"], probe.name.as_str());
        assert_eq!(told["state"], probe.state.as_str());
        assert_eq!(told["mechanism"], probe.mechanism.as_str());
        assert_eq!(told["reason"].as_str(), probe.reason.as_deref());
        let has_remedy = told["remedy"].is_string();
        match probe.state {
            ProbeState::Attached => assert!(!has_remedy, "{told:#}"),
            ProbeState::NotApplicable => {}
            ProbeState::Unsupported | ProbeState::Blocked | ProbeState::Broken => {
                assert!(has_remedy, "{told:#}");
            }
        }
    }
    let hurt = probes
        .iter()
        .any(|it| matches!(it.state, ProbeState::Blocked | ProbeState::Broken));
    if !hurt {
        let tests = report["self_test"]["checks"].as_array().unwrap();
        assert_eq!(tests.len(), 3);
        assert!(
            tests.iter().all(|it| it["outcome"] != "failed"),
            "{tests:#?}"
        );
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks[0]["id"], "kernel.release");
    assert_eq!(checks[0]["found"], release.trim());
    Ok(Completion::Completed)
}
