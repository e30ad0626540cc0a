//! Every query of the dashboards and every rule, asked of a real Prometheus that
//! scraped a server in each mode under load.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use vmd_device::{Latency, Service};
use xtask_dashboards::{Answers, Query};
use xtask_lab::experiment::{Mode, Session, Setting};
use xtask_lab::{CpuList, Prometheus, RawSeries, Rule, unix_seconds};
use xtask_setup::Setup;

use crate::shared::Shared;
use crate::{artifacts, lab_test};

const MODES: [Mode; 2] = [Mode::Remap, Mode::Bypass];
const LOAD: Duration = Duration::from_secs(16);
/// Several scrapes, also of a guest that is slow to answer; shorter than the load.
const RATE: &str = "14s";

/// What Prometheus has seen.
pub(crate) struct Scene {
    prometheus: Prometheus,
    /// When the load of each mode ended.
    ends: Vec<(Mode, f64)>,
}

fn rules(name: &str) -> PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();
    root.join("dashboards/rules").join(name)
}

fn watch_both_modes() -> Scene {
    let program = Setup::new().unwrap().prometheus().unwrap().prometheus;
    let files = [rules("recording.yml"), rules("alerts.yml")];
    let prometheus = Prometheus::start_with_rules(&program, &files).unwrap();
    let ends = MODES.map(|mode| {
        let setting = Setting {
            mode,
            cpus: 2,
            disks: 3,
            vectors: 3,
            service: Service {
                // So that there is a latency to show.
                latency: "100us".parse::<Latency>().unwrap(),
                ..Service::default()
            },
            detailed: true,
            keep_logs: false,
        };
        let session = Session::start(artifacts(), &prometheus, setting).unwrap();
        let [_, all] = session.loads(&CpuList::first(2), LOAD);
        session.guest().check(&all.command(), LOAD * 8).unwrap();
        (mode, unix_seconds().unwrap())
    });
    Scene {
        prometheus,
        ends: ends.into(),
    }
}

fn has_a_number(series: &[RawSeries]) -> bool {
    let mut values = series.iter().flat_map(|it| &it.samples);
    values.any(|(_, value)| value.is_finite())
}

/// What has no number is told all at once.
fn none(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn every_query_is_answered(scene: &Scene) {
    let mut problems = Vec::new();
    let mut asked = 0;
    for (mode, end) in &scene.ends {
        for dashboard in xtask_dashboards::all() {
            for (panel, _) in dashboard.panels() {
                for query in &panel.queries {
                    asked += 1;
                    let expr = query.bound_to(mode.name(), ".*", RATE);
                    let answer = scene.prometheus.at(&expr, *end);
                    let answered = answer.map(|series| has_a_number(&series));
                    let expected = expects_an_answer(query, *mode);
                    if !matches!(&answered, Ok(answered) if *answered == expected) {
                        let (mode, name, title) = (mode.name(), dashboard.name, panel.title);
                        problems.push(format!(
                            "{mode}: {name}, {title}: {answered:?}, not {expected}: {expr}"
                        ));
                    }
                }
            }
        }
    }
    none(&problems);
    assert!(asked > 150, "{asked} queries");
}

/// All rows' switches were given; a controller in bypass has no vectors.
fn expects_an_answer(query: &Query, mode: Mode) -> bool {
    match query.answers {
        Answers::Both => true,
        Answers::Remap => mode == Mode::Remap,
    }
}

fn of_kind(scene: &Scene, kind: &str) -> Vec<Rule> {
    let mut rules = scene.prometheus.rules().unwrap();
    rules.retain(|rule| rule.kind == kind);
    rules
}

fn every_recording_rule_records(scene: &Scene) {
    let rules = of_kind(scene, "recording");
    assert!(rules.len() > 10, "{rules:?}");
    let mut problems = Vec::new();
    for rule in rules {
        for (mode, end) in &scene.ends {
            let name = format!("{}{{instance=\"{}\"}}", rule.name, mode.name());
            let recorded = scene.prometheus.at(&name, *end).unwrap();
            if rule.health != "ok" || !has_a_number(&recorded) {
                problems.push(format!("{} {name}: {recorded:?}", rule.health));
            }
        }
    }
    none(&problems);
}

/// This server is well: no alert may be pending or firing, and that is not for want
/// of the metrics it looks at.
fn no_alert_fires_and_all_could(scene: &Scene) {
    let rules = of_kind(scene, "alerting");
    assert!(rules.len() > 10, "{rules:?}");
    let mut problems = Vec::new();
    for rule in rules {
        let metrics = metrics_of(&rule.query);
        assert!(!metrics.is_empty(), "{}", rule.query);
        for (mode, end) in &scene.ends {
            // After the load of bypass the server of remap is gone.
            let found = scene.prometheus.at(&rule.query, *end).unwrap();
            let own: Vec<_> = found
                .iter()
                .filter(|it| {
                    it.labels
                        .get("instance")
                        .is_some_and(|it| it == mode.name())
                })
                .collect();
            if rule.health != "ok" || !own.is_empty() {
                problems.push(format!("{} {}: {own:?}", rule.name, rule.health));
            }
            for metric in &metrics {
                let selector = format!("{metric}{{instance=\"{}\"}}", mode.name());
                let there = scene.prometheus.at(&selector, *end).unwrap();
                if !has_a_number(&there) {
                    problems.push(format!("{}: there is no {selector}", rule.name));
                }
            }
        }
    }
    none(&problems);
}

/// The metrics that an expression names: outside strings, words of ours and `up`.
fn metrics_of(expr: &str) -> Vec<&str> {
    let outside_strings = expr.split('"').step_by(2);
    outside_strings
        .flat_map(|it| it.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c))))
        .filter(|word| word.contains("vmdtrace_") || *word == "up")
        .collect()
}

/// Each alert firing and not firing, as dashboards/rules/rules_test.yml tells.
fn promtool_finds_the_rules_right() {
    let promtool = Setup::new().unwrap().prometheus().unwrap().promtool;
    let test = rules("rules_test.yml");
    let (recording, alerts) = (rules("recording.yml"), rules("alerts.yml"));
    for arguments in [
        vec![
            "check".as_ref(),
            "rules".as_ref(),
            recording.as_os_str(),
            alerts.as_os_str(),
        ],
        vec!["test".as_ref(), "rules".as_ref(), test.as_os_str()],
    ] {
        let output = Command::new(&promtool).args(&arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(said.contains("SUCCESS"), "{said}");
    }
}

fn shared(
    scene: &Shared<Scene>,
    name: &'static str,
    test: impl Fn(&Scene) + Send + 'static,
) -> Trial {
    let scene = scene.clone();
    lab_test(format!("dashboards::{name}"), move || {
        scene.with(test);
        Ok(())
    })
}

pub(crate) fn trials() -> (Shared<Scene>, Vec<Trial>) {
    let scene = Shared::new(watch_both_modes);
    let trials = vec![
        lab_test("dashboards::promtool_finds_the_rules_right", || {
            promtool_finds_the_rules_right();
            Ok(())
        }),
        shared(&scene, "every_query_is_answered", every_query_is_answered),
        shared(
            &scene,
            "every_recording_rule_records",
            every_recording_rule_records,
        ),
        shared(
            &scene,
            "no_alert_fires_and_all_could",
            no_alert_fires_and_all_could,
        ),
    ];
    (scene, trials)
}
