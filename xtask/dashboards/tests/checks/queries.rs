//! What dashboards and rules ask for exists: metrics, labels, recorded series.

use std::collections::BTreeSet;

use crate::common::{default_families, families, family_of, rules, uses};
use xtask_dashboards::{Query, Switch, all};

/// Labels that Prometheus adds, and that a histogram's buckets have.
const ADDED: [&str; 3] = ["job", "instance", "le"];

fn bound(query: &Query) -> String {
    query.bound_to(".+", ".*", "1m")
}

fn recorded() -> BTreeSet<String> {
    let names = rules("recording.yml")
        .into_iter()
        .filter_map(|rule| rule.record);
    names.collect()
}

/// Of every selector of an expression: the metric is exported, counters are
/// looked at through a rate and nothing else is, and labels are the family's.
fn check(expr: &str, recorded: &BTreeSet<String>, problems: &mut Vec<String>) {
    let families = families();
    let used = uses(expr);
    let mut known: BTreeSet<String> = ADDED.map(str::to_owned).into();
    for selector in &used.selectors {
        let metric = selector.metric.as_str();
        let is_rate = ["rate", "increase"].contains(&selector.function.as_deref().unwrap_or(""));
        let labels = match (metric, family_of(&families, metric)) {
            ("up", _) => BTreeSet::new(),
            (_, Some(family)) => {
                let is_counter = family.kind != "gauge";
                if is_counter != is_rate {
                    problems.push(format!("{metric} in {:?}: {expr}", selector.function));
                }
                family.labels.clone()
            }
            // Its labels are those of the rule that records it.
            (_, None) if recorded.contains(metric) => {
                assert!(!is_rate, "a rate of what is one already: {expr}");
                let rules = rules("recording.yml");
                let rule = rules.iter().find(|it| it.record.as_deref() == Some(metric));
                uses(&rule.unwrap().expr).labels
            }
            (_, None) => {
                problems.push(format!("{metric} is not exported: {expr}"));
                continue;
            }
        };
        for (label, _, _) in &selector.matchers {
            if !labels.contains(label) && !ADDED.contains(&label.as_str()) {
                problems.push(format!("{metric} has no label {label}: {expr}"));
            }
        }
        known.extend(labels);
    }
    for label in &used.labels {
        if !known.contains(label) {
            problems.push(format!("no metric has a label {label}: {expr}"));
        }
    }
}

#[test]
fn panels_ask_for_what_is_exported() {
    let recorded = recorded();
    let mut problems = Vec::new();
    for dashboard in all() {
        for (panel, _) in dashboard.panels() {
            for query in &panel.queries {
                check(&bound(query), &recorded, &mut problems);
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn rules_ask_for_what_is_exported() {
    let recorded = recorded();
    let mut problems = Vec::new();
    for rule in rules("recording.yml")
        .into_iter()
        .chain(rules("alerts.yml"))
    {
        check(&rule.expr, &recorded, &mut problems);
    }
    // The one gauge that is looked at over time: a mode that was there.
    problems.retain(|it| !it.starts_with("vmdtrace_controller_info in Some(\"last_over_time\")"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A check that cannot fail would be worth nothing.
#[test]
fn what_is_not_exported_is_found() {
    for (expr, problem) in [
        ("rate(vmdtrace_completion_total[1m])", "is not exported"),
        ("vmdtrace_completions_total", "in None"),
        ("rate(vmdtrace_controller_vectors[1m])", "in Some(\"rate\")"),
        ("sum by (node) (vmdtrace_controller_info)", "a label node"),
        ("vmdtrace_controller_info{disk=\"x\"}", "no label disk"),
        (
            "sum by (cause) (rate(vmdtrace_completion_latency_seconds_bucket[1m]))",
            "label cause",
        ),
    ] {
        let mut problems = Vec::new();
        check(expr, &recorded(), &mut problems);
        assert!(
            problems.iter().any(|it| it.contains(problem)),
            "{expr}: {problems:?}"
        );
    }
}

/// A row without a switch shows default families only; a row with one, and no
/// other, shows what the switch adds.
#[test]
fn more_series_are_asked_for_only_where_they_are_switched_on() {
    let default = default_families();
    for dashboard in all() {
        for (panel, needs) in dashboard.panels() {
            for query in &panel.queries {
                for selector in uses(&bound(query)).selectors {
                    let metric = selector.metric;
                    let by_default = metric.contains(':') || {
                        let histogram = ["_bucket", "_sum", "_count"]
                            .iter()
                            .filter_map(|suffix| metric.strip_suffix(suffix))
                            .any(|name| default.contains(name));
                        histogram || default.contains(&metric)
                    };
                    let switch = match () {
                        () if by_default => None,
                        () if metric.starts_with("vmdtrace_line_") => Some(Switch::Vectors),
                        () if metric.starts_with("vmdtrace_cpu_controller_") => Some(Switch::Cpus),
                        () => Some(Switch::Disks),
                    };
                    let title = panel.title;
                    assert_eq!(switch, needs, "{}, {title}: {metric}", dashboard.name);
                }
            }
        }
    }
}

/// Its queries must cost the same for many disks as for few.
#[test]
fn the_fleet_is_shown_from_recorded_series_only() {
    let recorded = recorded();
    let fleet = all().pop().unwrap();
    assert_eq!(fleet.name, "fleet");
    let mut shown = BTreeSet::new();
    for (panel, _) in fleet.panels() {
        for query in &panel.queries {
            shown.extend(
                uses(&bound(query))
                    .selectors
                    .into_iter()
                    .map(|it| it.metric),
            );
        }
    }
    // And each is shown: what nobody looks at need not be recorded.
    assert_eq!(shown, recorded);
}
