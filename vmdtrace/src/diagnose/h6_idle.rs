//! H6: interrupts have to wake CPUs from deep idle states.

use super::{Case, Explanation, Judgement, Kind, Remedy, Time};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h6-idle",
    title: "interrupts wake CPUs from deep idle states",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[Remedy {
        what: "keep the serving CPUs out of deep states: cpupower idle-set -D 20, or a latency \
               tuned profile",
        price: "power, and less turbo for the other CPUs",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let rate = case
        .serving()
        .and_then(|serving| serving.deep_idle_per_interrupt);
    let Some(rate) = rate else {
        return Judgement::not_measured(
            "entries into idle states are not known for the CPUs that serve interrupts",
            "the kernel's cpuidle statistics, and interrupts counted per CPU",
        );
    };
    let exit = case.serving().and_then(|serving| serving.deep_idle_exit_us);
    let latency = case.group.latency_us;
    let part = exit
        .zip(latency)
        .map(|(exit, latency)| exit / latency.max(1e-9));
    let faster = case.faster.and_then(|(_, group)| {
        Some((
            group.serving.as_ref()?.deep_idle_per_interrupt?,
            group.latency_us?,
        ))
    });
    let text =
        format!("{rate:.2} entries into deep idle per interrupt on the CPUs that serve them");
    let judgement = if case.time() == Time::Out || rate <= thresholds.deep_idle_seldom {
        Judgement::contradicted(text)
    } else if part.is_none_or(|part| part < thresholds.deep_idle_part) {
        match part {
            Some(_) => Judgement::contradicted(format!(
                "{text}, but leaving it takes little of the latency"
            )),
            None => Judgement::possible(
                format!("{text}; the latency is not known"),
                "the kernel's counts of block devices",
            ),
        }
    } else {
        match (faster, exit, latency) {
            (Some((before, fast_latency)), Some(exit), Some(latency))
                if rate >= thresholds.deep_idle_often && before <= thresholds.deep_idle_seldom =>
            {
                let grew = latency - fast_latency;
                // About the exit time: the state's figure is the worst case.
                if grew >= exit * 0.5 && grew <= exit * 2.0 {
                    Judgement::supported(format!(
                        "{text}, {before:.2} in the faster window, and latency differs by {grew:.0} \
                         us, about the {exit:.0} us it takes to leave it"
                    ))
                } else {
                    Judgement::possible(
                        format!(
                            "{text}; latency differs by {grew:.0} us, which is not its exit time"
                        ),
                        "the same load with deep states switched off",
                    )
                }
            }
            _ => Judgement::possible(text, "the same load with deep states switched off"),
        }
    };
    judgement
        .with("entries into deep idle", Some(rate), "per interrupt")
        .with("time to leave it", exit, "us")
        .with("latency", latency, "us")
}
