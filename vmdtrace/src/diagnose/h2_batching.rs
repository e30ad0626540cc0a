//! H2: fewer completions per interrupt.

use super::{Case, Explanation, Judgement, Kind, Remedy, Verdict, h1_cpu_time};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h2-batching",
    title: "few completions per interrupt",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "the disks' interrupt coalescing (NVMe feature 0x08), such as a threshold of 10 \
                   completions or 200 us",
            price: "every synchronous request waits for up to the time that is set",
        },
        Remedy {
            what: "polled I/O",
            price: "the polling CPUs are always busy",
        },
        Remedy {
            what: "the other VMD mode",
            price: "Linux has no switch for it: needs a patched vmd driver",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let Some(batch) = case.group.completions_per_interrupt else {
        return Judgement::not_measured(
            "completions per interrupt are not counted",
            "the probes of interrupts and nvme_sq",
        );
    };
    let cpu = h1_cpu_time::judge(case).verdict;
    let faster = case
        .faster
        .and_then(|(_, group)| group.completions_per_interrupt);
    let judgement = match faster {
        Some(faster) => {
            let text = format!("{batch:.2} completions per interrupt against {faster:.2}");
            if batch * thresholds.batching_differs > faster {
                // More of them in the slower window are not what makes it slow.
                Judgement::contradicted(format!("{text}: no loss"))
            } else {
                with_cpu(cpu, &text)
            }
        }
        None if batch > thresholds.one_per_interrupt => {
            Judgement::contradicted(format!("{batch:.2} completions share an interrupt"))
        }
        None => with_cpu(cpu, &format!("{batch:.2} completions per interrupt")),
    };
    judgement
        .with("completions per interrupt", Some(batch), "completions")
        .with("of the faster window", faster, "completions")
        .with("interrupts", case.group.interrupts, "per second")
        .with(
            "interrupt time",
            case.group.interrupt_ns_per_io,
            "ns per I/O",
        )
}

/// More interrupts are a cause only where CPUs have no time for them.
fn with_cpu(cpu: Verdict, text: &str) -> Judgement {
    match cpu {
        Verdict::Supported => Judgement::supported(format!(
            "{text}, and interrupts take all the time of the CPUs that serve them"
        )),
        Verdict::Contradicted => Judgement::contradicted(format!(
            "{text}, but the CPUs that serve them have time left"
        )),
        Verdict::Possible | Verdict::NotMeasured => Judgement::possible(
            format!("{text}; whether that costs anything hangs on the CPUs (h1-cpu-time)"),
            "how busy the serving CPUs are, and with what",
        ),
    }
}
