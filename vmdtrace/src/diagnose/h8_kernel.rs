//! H8: the kernel spends more CPU time on each I/O.

use std::collections::BTreeSet;

use super::picture::{Group, Picture};
use super::{Case, Explanation, Judgement, Kind, Remedy};
use crate::host::topology::BlockSettings;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h8-kernel",
    title: "each I/O costs more CPU time",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "settings of the block device: scheduler none, wbt_lat_usec 0, rq_affinity",
            price: "no fairness between processes; reads wait behind writes",
        },
        Remedy {
            what: "other mitigations (mitigations=)",
            price: "processes can read each other's memory",
        },
    ],
};

const TWO: &str = "a window of the same load on the other kernel or settings: `vmdtrace compare`";

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let Some((picture, group)) = case.faster else {
        return Judgement::not_measured("one window has nothing to compare its costs with", TWO);
    };
    let (Some(ours), Some(faster)) = (case.picture.cpu_ns_per_io, picture.cpu_ns_per_io) else {
        return Judgement::not_measured("the CPU time per I/O is not known", super::NEEDS_CPUS);
    };
    let growth = ours / faster.max(1e-9);
    let differences = differences((case.picture, case.group), (picture, group));
    let batches = case
        .group
        .completions_per_interrupt
        .zip(group.completions_per_interrupt)
        .map(|(ours, faster)| ours / faster.max(1e-9));
    let text = format!("{growth:.2} times the CPU time per I/O");
    let judgement = if growth <= thresholds.cpu_time_same {
        Judgement::contradicted(text)
    } else if growth < thresholds.cpu_time_grew {
        Judgement::possible(format!("{text}, within or beyond what runs differ by"), TWO)
    } else if differences.is_empty() {
        Judgement::possible(
            format!("{text}, and nothing that is known of kernel and settings differs"),
            "what the CPUs do (perf record -a)",
        )
    } else if batches.is_none_or(|batches| batches * thresholds.batching_differs <= 1.0) {
        Judgement::possible(
            format!("{text}, but completions per interrupt differ, too, or are not known"),
            TWO,
        )
    } else {
        Judgement::supported(format!("{text}; what differs: {}", differences.join("; ")))
    };
    judgement
        .with("CPU time, with all that runs", Some(ours), "ns per I/O")
        .with("of the faster window", Some(faster), "ns per I/O")
        .with("completions per interrupt", batches, "times")
}

type Setting = fn(&BlockSettings) -> Option<String>;

/// Settings of a block device that change what an I/O costs.
const SETTINGS: [(&str, Setting); 3] = [
    ("scheduler", |it| it.scheduler.clone()),
    ("wbt_lat_usec", |it| {
        it.wbt_lat_usec.map(|it| it.to_string())
    }),
    ("rq_affinity", |it| it.rq_affinity.map(|it| it.to_string())),
];

/// What is known to make I/O dearer and is not the same.
fn differences(ours: (&Picture, &Group), faster: (&Picture, &Group)) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, ours: &str, faster: &str| {
        if ours != faster {
            differences.push(format!("{what} {ours} against {faster}"));
        }
    };
    differ("kernel", &ours.0.kernel, &faster.0.kernel);
    let mitigations = |picture: &Picture| -> Vec<String> {
        let all = picture.machine.vulnerabilities.iter();
        all.map(|(name, state)| format!("{name}: {state}"))
            .collect()
    };
    let (a, b) = (mitigations(ours.0), mitigations(faster.0));
    let only = |these: &[String], others: &[String]| -> String {
        let only: Vec<&str> = these
            .iter()
            .filter(|it| !others.contains(it))
            .map(String::as_str)
            .collect();
        if only.is_empty() {
            "none".to_owned()
        } else {
            only.join(", ")
        }
    };
    differ("mitigations", &only(&a, &b), &only(&b, &a));
    let setting = |group: &Group, value: Setting| {
        let busy = group.disks.iter().filter(|disk| disk.busy);
        let unknown = || "unknown".to_owned();
        let settings = busy.flat_map(|disk| &disk.settings);
        let values: BTreeSet<String> = settings
            .map(|settings| value(settings).unwrap_or_else(unknown))
            .collect();
        values.into_iter().collect::<Vec<_>>().join("/")
    };
    for (what, value) in SETTINGS {
        differ(what, &setting(ours.1, value), &setting(faster.1, value));
    }
    differences
}
