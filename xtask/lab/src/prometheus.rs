//! A real Prometheus on the host, on the loopback only, with its data in a
//! temporary folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::child::Guarded;
use crate::error::{LabError, Result};
use crate::guest::free_port;
use crate::temporary::Folder;
use crate::{http, interrupt};

const HTTP_LIMIT: Duration = Duration::from_secs(10);

/// Seconds between two scrapes, and how long one may take. A scrape of a loaded
/// guest was seen to take a quarter of a second; a failed one spoils a window.
pub const SCRAPE_SECONDS: u64 = 2;

/// A target's own label is a better name than a port on the loopback.
const CONFIGURATION: &str = "\
global:
  scrape_interval: 2s
  scrape_timeout: 2s
  evaluation_interval: 2s
scrape_configs:
  - job_name: vmdtrace
    file_sd_configs:
      - files: [targets.json]
    relabel_configs:
      - source_labels: [lab]
        regex: (.+)
        target_label: instance
";

/// Now, in seconds since 1970, as Prometheus takes it.
///
/// # Errors
/// When this machine's clock is before that.
pub fn unix_seconds() -> Result<f64> {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|time| time.as_secs_f64())
        .map_err(|error| LabError::failed(format!("this machine's clock: {error}")))
}

/// A running Prometheus. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Prometheus {
    server: Guarded,
    port: u16,
    folder: Folder,
}

/// What is scraped, with labels that tell it from other targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    targets: [String; 1],
    labels: BTreeMap<String, String>,
}

impl Target {
    /// A target at `host:port` with one label of its own.
    #[must_use]
    pub fn new(address: impl Into<String>, label: &str, value: &str) -> Self {
        Self {
            targets: [address.into()],
            labels: BTreeMap::from([(label.to_owned(), value.to_owned())]),
        }
    }
}

/// A series as it was stored: times in seconds since 1970, and values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawSeries {
    pub labels: BTreeMap<String, String>,
    pub samples: Vec<(f64, f64)>,
}

impl Prometheus {
    /// Starts Prometheus on a free port, without targets.
    ///
    /// # Errors
    /// When it does not start or does not become ready, with its log.
    pub fn start(program: &Path) -> Result<Self> {
        Self::start_with(program, |_| Ok(()))
    }

    /// As [`Prometheus::start`], with these files of rules, which are evaluated as
    /// often as targets are scraped.
    ///
    /// # Errors
    /// As [`Prometheus::start`]; rules that are wrong keep it from starting.
    pub fn start_with_rules(program: &Path, rules: &[PathBuf]) -> Result<Self> {
        let files = serde_json::json!(rules);
        let configuration = format!("{CONFIGURATION}rule_files: {files}\n");
        Self::start_configured(program, &configuration, |_| Ok(()))
    }

    /// As [`Prometheus::start`], with data that `fill` puts into the folder it is
    /// given, however old.
    ///
    /// # Errors
    /// As [`Prometheus::start`], and those of `fill`.
    pub fn start_with(program: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        Self::start_configured(program, CONFIGURATION, fill)
    }

    fn start_configured(
        program: &Path,
        text: &str,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        interrupt::listen()?;
        let folder = Folder::new("prometheus")?;
        let data = folder.path().join("data");
        std::fs::create_dir(&data).map_err(LabError::path(&data))?;
        fill(&data)?;
        let configuration = folder.path().join("prometheus.yml");
        std::fs::write(&configuration, text).map_err(LabError::path(&configuration))?;
        write_targets(folder.path(), &[])?;
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg("--storage.tsdb.retention.time=100y")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let server = Guarded::spawn("Prometheus", command, &folder.path().join("log"))?;
        let mut prometheus = Self {
            server,
            port,
            folder,
        };
        let url = prometheus.url("/-/ready");
        interrupt::until("waiting for Prometheus", Duration::from_secs(60), || {
            prometheus.server.check()?;
            let ready = http::get(&url, &[], HTTP_LIMIT).is_ok_and(|it| it.status == 200);
            Ok(ready.then_some(()))
        })
        .map_err(|error| error.with_logs(&[prometheus.server.log()]))?;
        Ok(prometheus)
    }

    /// Scrapes these targets from now on, and no others.
    ///
    /// # Errors
    /// When its file of targets cannot be replaced.
    pub fn watch(&self, targets: &[Target]) -> Result<()> {
        write_targets(self.folder.path(), targets)
    }

    /// Where its pages are.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// All stored samples of the series that a selector such as `up{job="x"}`
    /// matches, from one time to another (seconds since 1970, both included).
    ///
    /// # Errors
    /// When Prometheus does not answer or refuses the query.
    pub fn raw(&self, selector: &str, from: f64, to: f64) -> Result<Vec<RawSeries>> {
        // The newest versions leave the range's start out, older ones do not.
        let range = (to - from).max(0.0).ceil() as u64 + 1;
        let query = format!("{selector}[{range}s]");
        let time = format!("{to:.3}");
        let pairs = [("query", query.as_str()), ("time", time.as_str())];
        let mut series = parse_matrix(&self.ask("/api/v1/query", &pairs)?)
            .map_err(|error| LabError::failed(format!("asking for {query}: {error}")))?;
        for series in &mut series {
            series.samples.retain(|(at, _)| (from..=to).contains(at));
        }
        series.retain(|series| !series.samples.is_empty());
        Ok(series)
    }

    /// What an expression is at a time (seconds since 1970): for each series one
    /// sample.
    ///
    /// # Errors
    /// When Prometheus does not answer or refuses the expression.
    pub fn at(&self, expr: &str, time: f64) -> Result<Vec<RawSeries>> {
        self.range(expr, time, time, 1)
    }

    /// What an expression is from one time to another, every so many seconds.
    ///
    /// # Errors
    /// When Prometheus does not answer or refuses the expression.
    pub fn range(&self, expr: &str, from: f64, to: f64, step: u32) -> Result<Vec<RawSeries>> {
        let (start, end) = (format!("{from:.3}"), format!("{to:.3}"));
        let step = step.to_string();
        let pairs = [
            ("query", expr),
            ("start", &start),
            ("end", &end),
            ("step", &step),
        ];
        parse_matrix(&self.ask("/api/v1/query_range", &pairs)?)
            .map_err(|error| LabError::failed(format!("asking for {expr}: {error}")))
    }

    /// The rules that it evaluates.
    ///
    /// # Errors
    /// When Prometheus does not answer.
    pub fn rules(&self) -> Result<Vec<Rule>> {
        parse_rules(&self.ask("/api/v1/rules", &[])?)
            .map_err(|error| LabError::failed(format!("asking Prometheus for its rules: {error}")))
    }

    fn ask(&self, path: &str, pairs: &[(&str, &str)]) -> Result<String> {
        let what = format!("asking Prometheus for {path} {pairs:?}");
        http::get(&self.url(path), pairs, HTTP_LIMIT)
            .map_err(|error| {
                LabError::failed(format!("{what}: {error}")).with_logs(&[self.server.log()])
            })?
            .ok(&what)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }
}

/// A rule as Prometheus knows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Rule {
    pub name: String,
    /// Its expression.
    pub query: String,
    /// `recording` or `alerting`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `ok` where the latest evaluation was.
    pub health: String,
}

fn parse_rules(body: &str) -> std::result::Result<Vec<Rule>, String> {
    #[derive(Deserialize)]
    struct Response {
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        groups: Vec<Group>,
    }
    #[derive(Deserialize)]
    struct Group {
        rules: Vec<Rule>,
    }
    let response: Response = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let groups = response.data.groups.into_iter();
    Ok(groups.flat_map(|group| group.rules).collect())
}

/// Prometheus looks for a file that was renamed into place.
fn write_targets(folder: &Path, targets: &[Target]) -> Result<()> {
    let path = folder.join("targets.json");
    let temporary = folder.join("targets.new");
    let text = serde_json::json!(targets).to_string();
    std::fs::write(&temporary, text).map_err(LabError::path(&temporary))?;
    std::fs::rename(&temporary, &path).map_err(LabError::path(&path))
}

fn parse_matrix(body: &str) -> std::result::Result<Vec<RawSeries>, String> {
    #[derive(Deserialize)]
    struct Response {
        data: Data,
    }
    #[derive(Deserialize)]
    struct Data {
        result: Vec<Series>,
    }
    #[derive(Deserialize)]
    struct Series {
        metric: BTreeMap<String, String>,
        values: Vec<(f64, String)>,
    }
    let response: Response = serde_json::from_str(body).map_err(|error| error.to_string())?;
    response
        .data
        .result
        .into_iter()
        .map(|Series { metric, values }| {
            let samples = values.into_iter().map(|(at, value)| {
                value
                    .parse()
                    .map(|value| (at, value))
                    .map_err(|_| format!("not a number: {value}"))
            });
            Ok(RawSeries {
                labels: metric,
                samples: samples.collect::<std::result::Result<_, _>>()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_samples_are_read_exactly() {
        let body = r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"x_total","disk":"nvme0"},
             "values":[[1700000000.123,"9007199254740991"],[1700000001.123,"NaN"]]}]}}"#;
        let series = parse_matrix(body).unwrap();
        assert_eq!(series.len(), 1);
        assert_eq!(series[0].labels["disk"], "nvme0");
        assert_eq!(
            series[0].samples[0],
            (1_700_000_000.123, 9_007_199_254_740_991.0)
        );
        assert!(series[0].samples[1].1.is_nan());
    }

    #[test]
    fn rules_are_read() {
        let body = r#"{"status":"success","data":{"groups":[{"name":"g","rules":[
            {"name":"a:b","query":"sum(up)","health":"ok","type":"recording"}]}]}}"#;
        let rule = Rule {
            name: "a:b".to_owned(),
            query: "sum(up)".to_owned(),
            kind: "recording".to_owned(),
            health: "ok".to_owned(),
        };
        assert_eq!(parse_rules(body).unwrap(), [rule]);
        assert!(parse_rules("{}").is_err());
    }

    #[test]
    fn what_is_no_matrix_is_an_error() {
        let scalar = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"2"]}]}}"#;
        for body in ["", "{}", scalar] {
            assert!(parse_matrix(body).is_err(), "{body}");
        }
    }

    #[test]
    fn targets_are_written_as_file_discovery_wants_them() {
        let folder = tempfile::tempdir().unwrap();
        write_targets(folder.path(), &[Target::new("127.0.0.1:1", "lab", "remap")]).unwrap();
        let text = std::fs::read_to_string(folder.path().join("targets.json")).unwrap();
        assert_eq!(
            text,
            r#"[{"labels":{"lab":"remap"},"targets":["127.0.0.1:1"]}]"#
        );
    }
}
