//! Every alert is explained, has its page in the runbook, and is tested both ways.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Rule, read, rules};
use serde::Deserialize;

fn alerts() -> BTreeMap<String, Rule> {
    let rules = rules("alerts.yml").into_iter();
    let named: Vec<_> = rules
        .map(|rule| (rule.alert.clone().unwrap(), rule))
        .collect();
    let count = named.len();
    let alerts: BTreeMap<_, _> = named.into_iter().collect();
    assert_eq!(alerts.len(), count, "two alerts have the same name");
    alerts
}

#[test]
fn every_alert_is_explained() {
    for (name, rule) in alerts() {
        let severity = rule.labels["severity"].as_str();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}: {severity}"
        );
        for annotation in ["summary", "description", "runbook"] {
            let text = rule.annotations.get(annotation).map_or("", String::as_str);
            assert!(!text.trim().is_empty(), "{name} has no {annotation}");
        }
        let names: Vec<_> = rule.annotations.keys().map(String::as_str).collect();
        assert_eq!(names, ["description", "runbook", "summary"], "{name}");
    }
}

/// The anchor that Markdown makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars()
        .filter(|it| it.is_alphanumeric() || *it == '-')
        .collect()
}

#[test]
fn every_alert_has_its_page_and_every_page_its_alert() {
    let text = read("docs/alerts.md");
    let pages: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(anchor)
        .collect();
    let linked: BTreeSet<_> = alerts()
        .into_iter()
        .map(|(name, rule)| {
            let runbook = &rule.annotations["runbook"];
            let anchor = runbook.strip_prefix("docs/alerts.md#").unwrap();
            assert_eq!(anchor, name.to_lowercase(), "{name}");
            anchor.to_owned()
        })
        .collect();
    assert_eq!(pages, linked);
}

#[derive(Debug, Deserialize)]
struct File {
    tests: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
}

#[derive(Debug, Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<serde::de::IgnoredAny>,
}

/// promtool runs these; here is seen that none is missing.
#[test]
fn every_alert_is_tested_firing_and_quiet() {
    let file: File = serde_saphyr::from_str(&read("dashboards/rules/rules_test.yml")).unwrap();
    let alerts: BTreeSet<_> = alerts().into_keys().collect();
    let tested = |wanted: &str, fires: bool| -> BTreeSet<String> {
        let cases = file.tests.iter().filter(|it| it.name.contains(wanted));
        cases
            .flat_map(|it| &it.alert_rule_test)
            .filter(|it| it.exp_alerts.is_empty() != fires)
            .map(|it| it.alertname.clone())
            .collect()
    };
    assert_eq!(tested(" fires: ", true), alerts);
    assert_eq!(tested(" stays quiet: ", false), alerts);
    assert_eq!(tested("a healthy server raises no alert", false), alerts);
}

/// `LEVEL:METRIC:OPERATION`, as Prometheus' guide wants it.
#[test]
fn recorded_series_are_named_by_level_metric_and_operation() {
    for rule in rules("recording.yml") {
        let name = rule.record.unwrap();
        let parts: Vec<_> = name.split(':').collect();
        let [level, metric, operation] = parts[..] else {
            panic!("{name}")
        };
        assert!(["instance", "controller"].contains(&level), "{name}");
        assert!(
            metric.starts_with("vmdtrace_") && !metric.ends_with("_total"),
            "{name}"
        );
        assert!(!operation.is_empty(), "{name}");
        let by = crate::common::uses(&rule.expr).labels;
        let of_controllers = by.contains("controller") || rule.expr.contains("controller:");
        assert_eq!(level == "controller", of_controllers, "{name}");
    }
}
