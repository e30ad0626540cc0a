//! H3: interrupts go to the wrong CPUs.

use super::{Case, Explanation, Judgement, Kind, NEEDS_CPUS, Remedy, Time, h1_cpu_time, percent};
use crate::host::topology::Mode;

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "h3-placement",
    title: "interrupts go to few CPUs, or far from the submitters",
    kind: Kind::Hypothesis,
    judge,
    of_idle: false,
    of_host: false,
    remedies: &[
        Remedy {
            what: "in remap: spread the interrupts of the controller's vectors (vmdN) by \
                   /proc/irq/N/smp_affinity_list",
            price: "irqbalance moves them again: ban them there (IRQBALANCE_BANNED_CPUS, --banirq)",
        },
        Remedy {
            what: "let the application run on the CPUs that serve the interrupts, and on more",
            price: "less freedom for the scheduler",
        },
        Remedy {
            what: "rq_affinity 0 or 1 instead of 2",
            price: "completions run where the interrupt comes, whatever is in that CPU's cache",
        },
    ],
};

fn judge(case: &Case<'_>) -> Judgement {
    let thresholds = case.thresholds;
    let group = case.group;
    let Some(serving) = case.serving() else {
        return Judgement::not_measured("which CPUs serve the interrupts is not known", NEEDS_CPUS);
    };
    let remote = group.remote_share;
    let (is_remote, is_local) = (
        remote.is_some_and(|share| share >= thresholds.remote_high),
        remote.is_some_and(|share| share <= thresholds.remote_low),
    );
    let handling = group.handling_us.zip(group.completion_us);
    let handling_part = handling.map(|(after, before)| after / (after + before).max(1e-9));
    let concentration = h1_cpu_time::concentration(case);
    let others_idle = serving
        .others_busy
        .is_some_and(|busy| busy < thresholds.cpu_free);
    let few = concentration.is_some_and(|it| it <= thresholds.concentrated) && others_idle;
    let movable = match group.mode {
        Some(Mode::Remap) => "vectors of the controller can be moved",
        _ => "interrupts of NVMe queues are managed by the kernel and cannot be moved",
    };
    let hottest = format!(
        "{} of the interrupt time is on CPU {} ({movable})",
        percent(serving.hottest_share),
        serving.hottest_cpu
    );
    let is_full = case.time_of(serving.busiest) == Time::Out;
    let by_interrupts = serving
        .interrupt_part
        .is_some_and(|part| part >= thresholds.interrupt_part);
    let takes_time = handling_part.is_some_and(|part| part >= thresholds.handling_part);
    let has_time = case.time_of(serving.busiest) == Time::Left;
    let matters = takes_time || serving.busiest.is_some() && !has_time;
    let judgement = if few && is_local {
        Judgement::contradicted(format!(
            "{hottest}, but that is where the requests come from"
        ))
    } else if few && (is_remote && matters || is_full && by_interrupts) {
        Judgement::supported(format!(
            "{hottest}, while other CPUs have time{}",
            if is_remote {
                ", and most completions are of requests from other CPUs"
            } else {
                ", and interrupts fill it"
            }
        ))
    } else if is_remote && takes_time {
        Judgement::supported(
            "most completions are of requests from other CPUs, and ending them there takes a large \
             part of the latency",
        )
    } else if few {
        Judgement::possible(
            format!("{hottest}, while other CPUs have time"),
            "where completions land, against where requests come from",
        )
    } else if is_remote && handling_part.is_none() {
        Judgement::possible(
            "most completions are of requests from other CPUs",
            "the time from completion to the end of requests",
        )
    } else if is_remote {
        Judgement::contradicted(
            "completions are of requests from other CPUs, but ending them takes little of the \
             latency",
        )
    } else if concentration.is_none() && serving.effective_lines.is_none() {
        Judgement::not_measured("the load of each interrupt line is not known", NEEDS_CPUS)
    } else if serving.others_busy.is_none() && case.time() == Time::Unknown {
        Judgement::not_measured("how busy CPUs are is not known", NEEDS_CPUS)
    } else {
        Judgement::contradicted(if concentration.is_some() {
            "interrupts are spread over the CPUs they can go to, or no CPU has time to spare"
        } else {
            "one interrupt line has nearly all the load: there is nothing to spread"
        })
    };
    judgement
        .with(
            "on the hottest CPU",
            Some(serving.hottest_share),
            "of the interrupt time",
        )
        .with(
            "CPUs that serve, effective",
            Some(serving.effective_cpus),
            "CPUs",
        )
        .with("of what they could be", concentration, "share")
        .with("busy, the busiest of them", serving.busiest, "of wall time")
        .with("busy, other CPUs", serving.others_busy, "of wall time")
        .with("by another CPU", remote, "of completions")
        .with("by one of another cache", group.far_share, "of completions")
        .with("from completion to end", handling_part, "of the latency")
}
