//! What the tests know of metrics, rules and PromQL.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr, LabelModifier};
use serde::Deserialize;

pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap().parent().unwrap().to_owned()
}

pub(crate) fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A family as docs/metrics.md describes it; a test of vmdtrace compares that file
/// with what is served.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) labels: BTreeSet<String>,
}

pub(crate) fn families() -> BTreeMap<String, Family> {
    let text = read("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let families: BTreeMap<_, _> = rows
        .map(|row| {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let labels = cells[4].split(", ").filter(|label| *label != "none");
            let family = Family {
                kind: cells[2].to_owned(),
                labels: labels.map(|it| it.trim_matches('`').to_owned()).collect(),
            };
            (cells[1].trim_matches('`').to_owned(), family)
        })
        .collect();
    assert!(families.len() > 50, "{families:?}");
    families
}

/// The families that are served without any switch, by their golden texts.
pub(crate) fn default_families() -> BTreeSet<String> {
    let mut families: BTreeSet<_> = read("vmdtrace/src/metrics/golden.txt")
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect();
    assert!(families.len() > 40, "{families:?}");
    // Of the process, not of a Snapshot.
    let own = self::families().into_keys().filter(|name| {
        name.starts_with("process_")
            || [
                "vmdtrace_build_info",
                "vmdtrace_map_memory_bytes",
                "vmdtrace_scrape_duration_seconds",
            ]
            .contains(&name.as_str())
    });
    families.extend(own);
    families
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Rule {
    pub(crate) record: Option<String>,
    pub(crate) alert: Option<String>,
    pub(crate) expr: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// All rules of a file of dashboards/rules.
pub(crate) fn rules(file: &str) -> Vec<Rule> {
    let text = read(&format!("dashboards/rules/{file}"));
    let Groups { groups } = serde_saphyr::from_str(&text).unwrap();
    groups.into_iter().flat_map(|group| group.rules).collect()
}

/// What an expression takes from where.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Metric, its matchers as label, operator and value, and the function that it
    /// is inside of directly, such as `rate`.
    pub(crate) selectors: Vec<Selector>,
    /// Labels in `by`, `on`, `ignoring` and their like.
    pub(crate) labels: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<(String, String, String)>,
    pub(crate) function: Option<String>,
}

/// Parses an expression that Prometheus itself takes.
pub(crate) fn uses(expr: &str) -> Uses {
    let parsed = parser::parse(expr).unwrap_or_else(|error| panic!("{expr}: {error}"));
    let mut uses = Uses::default();
    walk(&parsed, None, &mut uses);
    uses
}

fn walk(expr: &Expr, function: Option<&str>, uses: &mut Uses) {
    let mut modified = |modifier: &Option<LabelModifier>| match modifier {
        None => {}
        Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) => {
            uses.labels.extend(labels.labels.iter().cloned());
        }
    };
    match expr {
        Expr::Aggregate(it) => {
            modified(&it.modifier);
            walk(&it.expr, None, uses);
            if let Some(parameter) = &it.param {
                walk(parameter, None, uses);
            }
        }
        Expr::Binary(it) => {
            if let Some(modifier) = &it.modifier {
                modified(&modifier.matching);
            }
            walk(&it.lhs, None, uses);
            walk(&it.rhs, None, uses);
        }
        Expr::Unary(it) => walk(&it.expr, None, uses),
        Expr::Paren(it) => walk(&it.expr, function, uses),
        Expr::Call(it) => {
            for argument in &it.args.args {
                walk(argument, Some(it.func.name), uses);
            }
        }
        Expr::VectorSelector(it) => selector(it, function, uses),
        Expr::MatrixSelector(it) => selector(&it.vs, function, uses),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        other => panic!("a kind of expression that is not looked at: {other:?}"),
    }
}

fn selector(it: &parser::VectorSelector, function: Option<&str>, uses: &mut Uses) {
    let matchers = it.matchers.matchers.iter().map(|it| {
        let operator = match &it.op {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Re(_) => "=~",
            MatchOp::NotRe(_) => "!~",
        };
        (it.name.clone(), operator.to_owned(), it.value.clone())
    });
    uses.selectors.push(Selector {
        metric: it.name.clone().unwrap_or_default(),
        matchers: matchers.collect(),
        function: function.map(str::to_owned),
    });
}

/// The family of a sample's name: without what a histogram adds.
pub(crate) fn family_of<'a>(
    families: &'a BTreeMap<String, Family>,
    sample: &str,
) -> Option<&'a Family> {
    if let Some(family) = families.get(sample) {
        return Some(family);
    }
    let name = ["_bucket", "_sum", "_count"]
        .into_iter()
        .find_map(|suffix| sample.strip_suffix(suffix))?;
    families
        .get(name)
        .filter(|family| family.kind == "histogram")
}
