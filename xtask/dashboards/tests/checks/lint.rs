//! The rules of Grafana's dashboard linter, on the files themselves, and that these
//! are what the code generates.

use std::collections::BTreeSet;

use crate::common::{read, root, uses};
use serde_json::Value;
use xtask_dashboards::all;

/// Units that Grafana knows (packages/grafana-data, valueFormats/categories.ts).
const UNITS: [&str; 6] = ["none", "iops", "ops", "s", "percentunit", "bytes"];

fn files() -> Vec<(String, Value)> {
    let read_one = |dashboard: xtask_dashboards::Dashboard| {
        let file = format!("dashboards/{}.json", dashboard.name);
        let value = serde_json::from_str(&read(&file)).unwrap();
        (file, value)
    };
    all().into_iter().map(read_one).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// All panels but rows, those in closed rows too.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let all = list(&dashboard["panels"]).iter();
    all.flat_map(|panel| {
        let is_row = panel["type"] == "row";
        let own = (!is_row).then_some(panel);
        own.into_iter().chain(list(&panel["panels"]))
    })
    .collect()
}

#[test]
fn files_are_what_the_code_generates() {
    let mut names = BTreeSet::new();
    for dashboard in all() {
        let file = format!("{}.json", dashboard.name);
        let path = format!("dashboards/{file}");
        assert_eq!(
            read(&path),
            dashboard.to_json().unwrap(),
            "{path}: run `cargo xtask dashboards`"
        );
        names.insert(file);
    }
    let there: BTreeSet<_> = std::fs::read_dir(root().join("dashboards"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    assert_eq!(there, names);
}

#[test]
fn dashboards_have_names_of_their_own_and_are_not_edited_in_grafana() {
    let mut uids = BTreeSet::new();
    for (file, dashboard) in files() {
        let uid = text(&dashboard["uid"]);
        // Grafana's limit.
        assert!(
            (1..=40).contains(&uid.len()) && uids.insert(uid.to_owned()),
            "{file}: {uid}"
        );
        assert_eq!(dashboard["editable"], false, "{file}");
        assert_eq!(
            dashboard["id"],
            Value::Null,
            "{file}: an id is of one Grafana"
        );
        for field in ["title", "description"] {
            assert!(!text(&dashboard[field]).is_empty(), "{file}: {field}");
        }
        assert!(dashboard.get("__inputs").is_none(), "{file}");
    }
}

#[test]
fn the_data_source_and_what_is_looked_at_can_be_chosen() {
    for (file, dashboard) in files() {
        let variables = list(&dashboard["templating"]["list"]);
        let sources: Vec<_> = variables
            .iter()
            .filter(|it| it["type"] == "datasource")
            .collect();
        let [source] = sources[..] else {
            panic!("{file}: {sources:?}")
        };
        assert_eq!(source["name"], "datasource", "{file}");
        assert_eq!(source["label"], "Data Source", "{file}");
        assert_eq!(source["query"], "prometheus", "{file}");
        let mut names: Vec<_> = variables.iter().map(|it| text(&it["name"])).collect();
        assert_eq!(names[..3], ["datasource", "job", "instance"], "{file}");
        // Bios and the fleet are of whole servers.
        names.drain(..3);
        let of_servers = ["dashboards/bios.json", "dashboards/fleet.json"].contains(&file.as_str());
        assert_eq!(
            names,
            if of_servers {
                vec![]
            } else {
                vec!["controller"]
            },
            "{file}"
        );
        for variable in variables.iter().filter(|it| it["type"] == "query") {
            let name = text(&variable["name"]);
            assert_eq!(text(&variable["label"]).to_lowercase(), name, "{file}");
            assert_eq!(variable["multi"], true, "{file}: {name}");
            assert_eq!(variable["includeAll"], true, "{file}: {name}");
            assert_eq!(
                variable["refresh"], 2,
                "{file}: {name}: on a change of time"
            );
            assert_eq!(
                variable["datasource"]["uid"], "${datasource}",
                "{file}: {name}"
            );
            let all = if name == "controller" { ".*" } else { ".+" };
            assert_eq!(variable["allValue"], all, "{file}: {name}");
            let query = text(&variable["query"]["query"]);
            let inside = query
                .strip_prefix("label_values(")
                .and_then(|it| it.strip_suffix(')'));
            let (expr, label) = inside.and_then(|it| it.rsplit_once(", ")).unwrap();
            assert_eq!(label, name, "{file}");
            assert_eq!(
                uses(&expr.replace('$', "")).selectors.len(),
                1,
                "{file}: {query}"
            );
        }
    }
}

#[test]
fn every_panel_says_what_it_shows_and_in_which_unit() {
    for (file, dashboard) in files() {
        let mut titles = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = text(&panel["title"]);
            assert!(!title.is_empty() && titles.insert(title), "{file}: {title}");
            assert!(text(&panel["description"]).len() > 15, "{file}: {title}");
            let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
            assert!(UNITS.contains(&unit), "{file}: {title}: {unit}");
            assert_eq!(
                panel["datasource"]["uid"], "${datasource}",
                "{file}: {title}"
            );
            assert!(!list(&panel["targets"]).is_empty(), "{file}: {title}");
        }
    }
}

#[test]
fn every_query_is_of_the_chosen_servers_and_over_grafanas_interval() {
    for (file, dashboard) in files() {
        for panel in panels(&dashboard) {
            for target in list(&panel["targets"]) {
                let expr = text(&target["expr"]);
                assert_eq!(
                    target["datasource"]["uid"], "${datasource}",
                    "{file}: {expr}"
                );
                // As the linter does: what is not PromQL gets a stand-in.
                let parsed = uses(&expr.replace("$__rate_interval", "5m"));
                for selector in &parsed.selectors {
                    for name in ["job", "instance"] {
                        let wanted = (name.to_owned(), "=~".to_owned(), format!("${name}"));
                        assert!(selector.matchers.contains(&wanted), "{file}: {expr}");
                    }
                }
                let ranges = expr.matches('[').count();
                assert_eq!(
                    ranges,
                    expr.matches("[$__rate_interval]").count(),
                    "{file}: {expr}"
                );
                for function in ["irate(", "delta("] {
                    assert!(!expr.contains(function), "{file}: {expr}");
                }
            }
        }
    }
}

#[test]
fn no_two_panels_share_an_id_or_a_place() {
    for (file, dashboard) in files() {
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        let closed = list(&dashboard["panels"])
            .iter()
            .flat_map(|row| list(&row["panels"]));
        let closed: Vec<_> = closed.collect();
        for panel in list(&dashboard["panels"])
            .iter()
            .chain(closed.iter().copied())
        {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: {panel}");
            if closed.contains(&panel) {
                continue;
            }
            let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{file}: {panel}");
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(taken.insert((x, y)), "{file}: {}", panel["title"]);
                }
            }
        }
    }
}

/// A closed row asks nothing until it is opened.
#[test]
fn rows_that_need_a_switch_are_closed_and_say_so() {
    let mut closed = 0;
    for (file, dashboard) in files() {
        for row in list(&dashboard["panels"])
            .iter()
            .filter(|it| it["type"] == "row")
        {
            let needs = text(&row["title"]).contains("(with --metrics.");
            assert_eq!(row["collapsed"], needs, "{file}: {}", row["title"]);
            assert_eq!(list(&row["panels"]).is_empty(), !needs, "{file}");
            closed += u32::from(needs);
        }
    }
    assert_eq!(closed, 3);
}

/// A unit that names no column would be ignored without a word.
#[test]
fn columns_of_tables_have_names_of_their_own_and_units_name_columns() {
    let mut tables = 0;
    for (file, dashboard) in files() {
        for panel in panels(&dashboard) {
            let title = text(&panel["title"]);
            let mut columns = BTreeSet::new();
            let mut hidden = 0;
            for step in list(&panel["transformations"]) {
                let names = step["options"]["renameByName"].as_object();
                for name in names.into_iter().flatten().map(|(_, name)| text(name)) {
                    assert!(columns.insert(name.to_owned()), "{file}: {title}: {name}");
                }
                let values = step["options"]["excludeByName"].as_object();
                let keys = values.into_iter().flatten().map(|(key, _)| key);
                hidden += keys.filter(|key| key.starts_with("Value")).count();
            }
            if panel["type"] == "table" {
                let queries = list(&panel["targets"]).len();
                assert_eq!(columns.len() + hidden, queries, "{file}: {title}");
                tables += 1;
            }
            for unit in list(&panel["fieldConfig"]["overrides"]) {
                let name = text(&unit["matcher"]["options"]);
                assert!(columns.contains(name), "{file}: {title}: {name}");
                let value = text(&unit["properties"][0]["value"]);
                assert!(UNITS.contains(&value), "{file}: {title}: {value}");
            }
        }
    }
    assert!(tables >= 8, "{tables} tables");
}
