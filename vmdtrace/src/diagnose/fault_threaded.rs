//! Interrupt handlers run in threads.

use super::{Case, Explanation, Judgement, Kind, Remedy};

pub(super) const EXPLANATION: Explanation = Explanation {
    id: "threaded-interrupts",
    title: "interrupts are handled in threads",
    kind: Kind::Fault,
    judge,
    of_idle: true,
    of_host: true,
    remedies: &[Remedy {
        what: "boot without threadirqs, and without nvme.use_threaded_interrupts",
        price: "long interrupts delay everything else on their CPU",
    }],
};

fn judge(case: &Case<'_>) -> Judgement {
    let on = |value: &str| matches!(value.trim(), "1" | "Y" | "y");
    let options = &case.picture.machine.options;
    let given = options.iter().find(|option| match option.split_once('=') {
        None => option.as_str() == "threadirqs",
        Some((name, value)) => name == "nvme.use_threaded_interrupts" && on(value),
    });
    let judgement = match given {
        Some(option) => Judgement::supported(format!(
            "{option}: completions are found in threads, so each costs a switch to one, and what \
             is told of handlers has none of it"
        )),
        None if options.is_empty() => Judgement::not_measured(
            "the options of kernel and driver are not known",
            "/proc/cmdline, and the module nvme in sysfs",
        ),
        None => Judgement::contradicted("neither kernel nor driver was told to use threads"),
    };
    judgement.with(
        "completions outside handlers",
        case.picture.outside_handlers,
        "per second",
    )
}
