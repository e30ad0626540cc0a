//! A diagnosis as text for people, at most 100 columns wide.

use std::fmt::Write as _;

use crate::diagnose::compare::{Comparison, Difference};
use crate::diagnose::picture::{Group, Picture, Serving};
use crate::diagnose::{Diagnosis, Finding, Kind, Number, Verdict};
use crate::host::{NumberList, printable};

const WIDTH: usize = 100;
/// Where the values of facts begin.
const VALUES: usize = 33;

pub(super) fn render(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    if let Some(faster) = &diagnosis.faster {
        picture(&mut text, "the faster window", faster);
        text.push('\n');
        picture(
            &mut text,
            "the slower window, which is judged",
            &diagnosis.picture,
        );
    } else {
        picture(&mut text, "the window", &diagnosis.picture);
    }
    for comparison in &diagnosis.comparisons {
        self::comparison(&mut text, comparison);
    }
    text.push('\n');
    findings(&mut text, diagnosis);
    text
}

fn picture(text: &mut String, title: &str, picture: &Picture) {
    let Picture {
        seconds,
        kernel,
        usable_cpus,
        groups,
        cpus: _,
        cpu_ns_per_io,
        machine: _,
        rate_error,
        outside_handlers,
        bio,
        allocation_failures,
        unassigned_lost_interrupts,
        notes,
    } = picture;
    let _ = writeln!(
        text,
        "{title}: {seconds:.1} s, kernel {}",
        printable(kernel)
    );
    fact(
        text,
        "CPUs not isolated",
        usable_cpus.map(|it| it.to_string()),
    );
    if let Some(error) = rate_error {
        let error = format!("{:.1} % of the rate", error * 100.0);
        fact(text, "standard error", Some(error));
    }
    fact(
        text,
        "CPU time, whole host",
        cpu_ns_per_io.map(|it| format!("{it:.0} ns per I/O")),
    );
    fact(
        text,
        "completions outside handlers",
        outside_handlers.map(|it| format!("{it:.0} per second")),
    );
    let percent =
        |value: Option<f64>| value.map_or("none".to_owned(), |it| format!("{:.1} %", it * 100.0));
    fact(
        text,
        "bios from the CPU's cache",
        bio.as_ref().map(|bio| {
            format!(
                "{} of those eligible, which are {}",
                percent(bio.hit_share),
                percent(bio.eligible_share)
            )
        }),
    );
    fact(
        text,
        "failed searches for a vector",
        allocation_failures.map(|it| it.to_string()),
    );
    if let Some(lost) = unassigned_lost_interrupts.filter(|&lost| lost > 0) {
        let lost = format!("{lost}, of disks that could not be told");
        fact(text, "lost interrupts", Some(lost));
    }
    if groups.iter().all(|group| group.disks.is_empty()) {
        text.push_str("  no NVMe disk\n");
    }
    for group in groups {
        self::group(text, group);
    }
    for note in notes {
        wrapped(text, "  note: ", 8, &printable(note));
    }
}

fn group(text: &mut String, group: &Group) {
    let Group {
        name,
        device_id: _,
        mode,
        mode_told_by,
        iommu,
        vectors,
        sharing_factor,
        disks,
        busy_disks,
        iops,
        in_flight,
        latency_us,
        completion_us,
        handling_us,
        interrupts,
        completions_per_interrupt,
        runs_per_interrupt,
        nothing_share,
        nothing_per_completion: _,
        interrupt_ns_per_io,
        vector_ns_per_child: _,
        hottest_line,
        remote_share,
        far_share,
        timeouts,
        lost_interrupts,
        children: _,
        known_chips: _,
        plain_chips: _,
        serving,
    } = group;
    match mode {
        Some(mode) => {
            let told = mode_told_by.join("; ");
            let title = format!("VMD {name}: {} ({})", mode.as_str(), printable(&told));
            wrapped(text, "\n  ", 4, &title);
        }
        None => text.push_str("\n  disks behind no VMD\n"),
    }
    let us = |value: &Option<f64>| value.map(|it| format!("{it:.1} us"));
    let percent = |value: &Option<f64>| value.map(|it| format!("{:.1} %", it * 100.0));
    fact(
        text,
        "disks",
        Some(format!("{}, {busy_disks} of them busy", disks.len())),
    );
    if *mode == Some(crate::host::topology::Mode::Remap) {
        fact(text, "vectors for NVMe", vectors.map(|it| it.to_string()));
        fact(
            text,
            "queues per vector",
            sharing_factor.map(|it| format!("{it:.1}")),
        );
        fact(
            text,
            "runs per interrupt",
            runs_per_interrupt.map(|it| format!("{it:.2}")),
        );
        fact(text, "of these for nothing", percent(nothing_share));
    }
    let none = || "none".to_owned();
    fact(
        text,
        "IOMMU domain",
        Some(if iommu.is_empty() {
            none()
        } else {
            iommu.join(", ")
        }),
    );
    fact(text, "IOPS", iops.map(|it| format!("{it:.0}")));
    fact(text, "in flight", in_flight.map(|it| format!("{it:.1}")));
    fact(text, "latency", us(latency_us));
    fact(text, "start to completion", us(completion_us));
    fact(text, "completion to end", us(handling_us));
    fact(
        text,
        "hardware interrupts",
        interrupts.map(|it| format!("{it:.0} per second")),
    );
    fact(
        text,
        "completions per interrupt",
        completions_per_interrupt.map(|it| format!("{it:.2}")),
    );
    fact(
        text,
        "interrupt time",
        interrupt_ns_per_io.map(|it| format!("{it:.0} ns per I/O")),
    );
    fact(
        text,
        "hottest line",
        hottest_line
            .as_ref()
            .map(|(line, share)| format!("{} with {:.1} %", printable(line), share * 100.0)),
    );
    fact(text, "by another CPU", percent(remote_share));
    fact(text, "by one of another cache", percent(far_share));
    fact(
        text,
        "lost interrupts",
        lost_interrupts.map(|lost| match timeouts {
            Some(timeouts) => format!("{lost}, of {timeouts} commands that timed out"),
            None => lost.to_string(),
        }),
    );
    match serving {
        Some(serving) => self::serving(text, serving),
        None => fact(text, "serving CPUs", None),
    }
}

fn serving(text: &mut String, serving: &Serving) {
    let list = NumberList::from_numbers(serving.cpus.iter().copied());
    fact(
        text,
        "serving CPUs",
        Some(format!(
            "{list} (effectively {:.1})",
            serving.effective_cpus
        )),
    );
    let percent = |value: Option<f64>| value.map(|it| format!("{:.1} %", it * 100.0));
    fact(
        text,
        "hottest of them",
        Some(format!(
            "CPU {} with {:.1} % of the interrupt time",
            serving.hottest_cpu,
            serving.hottest_share * 100.0
        )),
    );
    fact(text, "they are busy", percent(serving.busy));
    fact(text, "with interrupts", percent(serving.interrupt_part));
    if let Some(others) = serving.others_busy {
        fact(text, "other CPUs are busy", percent(Some(others)));
    }
}

/// A fact; one that was not measured says so.
fn fact(text: &mut String, name: &str, value: Option<String>) {
    let value = value.unwrap_or_else(|| "not measured".to_owned());
    let label = format!("    {name:<width$}", width = VALUES - 4);
    wrapped(text, &label, VALUES, &printable(&value));
}

fn comparison(text: &mut String, comparison: &Comparison) {
    let Comparison {
        of,
        changed,
        same,
        missing,
        stage,
        noise,
        cautions,
    } = comparison;
    let noise = match noise {
        Some(noise) => format!("chance alone is {:.1} %", noise * 100.0),
        None => "what chance does is not known: too few snapshots".to_owned(),
    };
    let _ = writeln!(text, "\nslower against faster, {of} ({noise})");
    for caution in cautions {
        wrapped(text, "  caution: ", 8, caution);
    }
    if let Some(stage) = stage {
        let part = format!(
            "{} ({:.1} of {:.1} us)",
            stage.name, stage.grew_us, stage.both_us
        );
        fact(text, "the stage that grew", Some(part));
    }
    for (title, differences) in [("changed, most first", changed), ("the same", same)] {
        if differences.is_empty() {
            continue;
        }
        let _ = writeln!(text, "  {title}:");
        for difference in differences {
            let Difference {
                name,
                unit,
                slower,
                faster,
            } = difference;
            let digits = |value: f64| if value.abs() < 100.0 { 2 } else { 0 };
            let value = format!(
                "{slower:.*} against {faster:.*} {unit}",
                digits(*slower),
                digits(*faster)
            );
            fact(text, name, Some(value));
        }
    }
    for name in missing {
        wrapped(text, "  in one of them only: ", 8, name);
    }
}

fn findings(text: &mut String, diagnosis: &Diagnosis) {
    let Some(first) = diagnosis.findings.iter().find(|it| it.of != "host") else {
        text.push_str("nothing to judge: there is no NVMe disk\n");
        return;
    };
    if diagnosis.supported().next().is_none() {
        let all = diagnosis.findings.iter();
        let unmeasured = all.filter(|it| it.verdict == Verdict::NotMeasured);
        let summary = format!(
            "nothing found: no explanation is supported by these numbers; {} of {} could not be \
             judged by them",
            unmeasured.count(),
            diagnosis.findings.len()
        );
        wrapped(text, "", 2, &summary);
    }
    let mut of_groups = diagnosis.findings.iter().filter(|it| it.of != "host");
    let many = of_groups.any(|it| it.of != first.of);
    // A fault that is not there needs no more than its name.
    let is_brief =
        |finding: &&Finding| finding.kind == Kind::Fault && finding.verdict > Verdict::Possible;
    for finding in diagnosis.findings.iter().filter(|it| !is_brief(it)) {
        self::finding(text, finding, many);
    }
    for verdict in [Verdict::Contradicted, Verdict::NotMeasured] {
        let brief = diagnosis.findings.iter().filter(is_brief);
        let mut ids: Vec<&str> = brief
            .filter(|it| it.verdict == verdict)
            .map(|it| it.id)
            .collect();
        // Once, whatever the number of controllers.
        ids.sort_unstable();
        ids.dedup();
        if !ids.is_empty() {
            let begin = format!("known faults {}: ", verdict.as_str());
            wrapped(text, &begin, 2, &ids.join(", "));
        }
    }
}

fn finding(text: &mut String, finding: &Finding, many: bool) {
    let Finding {
        id,
        title,
        kind: _,
        of,
        verdict,
        why,
        numbers,
        to_settle,
        remedies,
    } = finding;
    let of = if many {
        format!(" [{of}]")
    } else {
        String::new()
    };
    wrapped(
        text,
        "",
        2,
        &format!("{}: {id}{of}: {title}", verdict.as_str()),
    );
    wrapped(text, "    ", 4, &printable(why));
    if *verdict != Verdict::NotMeasured && !numbers.is_empty() {
        let numbers: Vec<String> = numbers.iter().map(number).collect();
        wrapped(text, "    ", 4, &numbers.join("; "));
    }
    if let Some(to_settle) = to_settle {
        wrapped(text, "    to settle: ", 6, to_settle);
    }
    for remedy in *remedies {
        wrapped(
            text,
            "    remedy: ",
            6,
            &format!("{}. Price: {}", remedy.what, remedy.price),
        );
    }
    if !remedies.is_empty() {
        wrapped(text, "    ", 4, &format!("docs/diagnosis.md#{id}"));
    }
}

fn number(number: &Number) -> String {
    let Number { name, value, unit } = number;
    let digits = if value.abs() < 100.0 { 2 } else { 0 };
    format!("{name} {value:.digits$} {unit}")
}

/// `content` after `begin`, in lines of at most [`WIDTH`].
fn wrapped(text: &mut String, begin: &str, indent: usize, content: &str) {
    text.push_str(begin);
    let mut column = begin.trim_start_matches('\n').chars().count();
    let mut is_first = true;
    for word in content.split_whitespace() {
        let length = word.chars().count();
        if !is_first && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        } else if !is_first {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        is_first = false;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::thresholds::Thresholds;
    use crate::snapshot::recording::Reader;

    fn diagnosis(names: &[&str]) -> Diagnosis {
        let thresholds = Thresholds::default();
        let mut pictures: Vec<Picture> = names
            .iter()
            .map(|name| {
                let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
                let path = root.join(format!("tests/recordings/cases/{name}.vmdtrace"));
                let reader = Reader::open(&path).unwrap();
                let recorded = crate::diagnose::recorded::Recorded::read(reader).unwrap();
                Picture::of(&recorded.window, &thresholds)
            })
            .collect();
        let first = pictures.remove(0);
        match pictures.pop() {
            None => Diagnosis::of(first, &thresholds),
            Some(second) => Diagnosis::of_two(first, second, &thresholds),
        }
    }

    #[test]
    fn healthy_is_said_with_the_numbers() {
        let text = render(&diagnosis(&["managed"]));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words
                .contains(" nothing found: no explanation is supported by these numbers; 6 of 24 "),
            "{text}"
        );
        assert!(
            words.contains(" IOPS 2999962 in flight 255.0 latency 85.0 us "),
            "{text}"
        );
        assert!(
            words.contains(" serving CPUs 0-63 (effectively 64.0) "),
            "{text}"
        );
        assert!(
            text.contains("VMD 0000:97:00.5: bypass (msi_irqs: absent"),
            "{text}"
        );
        assert!(
            text.contains("\nknown faults contradicted: bypass-under-xen, child-never-"),
            "{text}"
        );
        assert!(
            text.contains("\nknown faults not measured: bio-cache-not-eligible, bio-"),
            "{text}"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
    }

    #[test]
    fn found_first_with_remedies_and_page() {
        let text = render(&diagnosis(&["first-bypass", "first-remap"]));
        let found = text.find("\nsupported: h4-device: ").unwrap();
        assert!(found < text.find("\ncontradicted: ").unwrap(), "{text}");
        assert!(text.contains("remedy: VMD off in the BIOS"), "{text}");
        assert!(text.contains("docs/diagnosis.md#h4-device\n"), "{text}");
        assert!(!text.contains("nothing found"), "{text}");
        assert!(
            text.contains("  changed, most first:\n    hardware interrupts"),
            "{text}"
        );
        assert!(text.contains("too few snapshots"), "{text}");
        assert!(text.find("the faster window").unwrap() < text.find("which is judged").unwrap());
    }

    #[test]
    fn nothing_there() {
        let thresholds = Thresholds::default();
        let mut empty = diagnosis(&["managed"]).picture;
        empty.groups.clear();
        let text = render(&Diagnosis::of(empty, &thresholds));
        assert!(text.contains("  no NVMe disk\n"), "{text}");
        assert!(
            text.contains("nothing to judge: there is no NVMe disk"),
            "{text}"
        );
    }
}
