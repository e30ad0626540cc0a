//! The pictures of the dashboards: the demo's experiment in both modes, asked for
//! by the dashboards' own queries.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use vmd_device::Service;
use xtask_dashboards::preview::{LABELS, Series, draw};
use xtask_dashboards::{Kind, Panel, Query};
use xtask_lab::experiment::{Mode, Session, Setting};
use xtask_lab::{Artifacts, CpuList, Prometheus};
use xtask_setup::{DEFAULT_KERNEL, Profile, Setup};

/// Of each of the two loads in each mode.
const LOAD: Duration = Duration::from_secs(20);
/// Four scrapes, as Grafana's $__rate_interval.
const RATE: &str = "8s";
const STEP_SECONDS: u32 = 2;

pub(super) fn draw_all(folder: &Path) -> anyhow::Result<()> {
    let setup = Setup::new()?;
    let built = setup.build(Profile::Release)?;
    let server = std::env::current_exe().context("cannot tell where this program is")?;
    let artifacts = Artifacts::prepare(&setup, DEFAULT_KERNEL, Some(built.vmdtrace), server)?;
    let rules = super::root().join("dashboards/rules/recording.yml");
    let prometheus = Prometheus::start_with_rules(&setup.prometheus()?.prometheus, &[rules])?;
    let begin = xtask_lab::unix_seconds()?;
    for mode in [Mode::Remap, Mode::Bypass] {
        eprintln!(
            "{}: booting, then two loads of {} s",
            mode.name(),
            LOAD.as_secs()
        );
        let setting = Setting {
            mode,
            cpus: 4,
            disks: 8,
            vectors: 5,
            service: Service::default(),
            detailed: true,
            keep_logs: false,
        };
        let session = Session::start(&artifacts, &prometheus, setting)?;
        for load in session.loads(&CpuList::first(4), LOAD) {
            session.guest().check(&load.command(), LOAD * 6)?;
        }
    }
    let end = xtask_lab::unix_seconds()?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for dashboard in xtask_dashboards::all() {
        let mut answers = BTreeMap::new();
        for (panel, _) in dashboard.panels() {
            let series = answer(&prometheus, panel, begin, end)?;
            answers.insert(panel.title, series);
        }
        let text = draw(&dashboard, end - begin, |panel| {
            answers.get(panel.title).cloned().unwrap_or_default()
        })?;
        let path = folder.join(format!("{}.svg", dashboard.name));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Everything a panel shows from `begin` to `end`.
fn answer(
    prometheus: &Prometheus,
    panel: &Panel,
    begin: f64,
    end: f64,
) -> anyhow::Result<Vec<Series>> {
    let mut all = Vec::new();
    for query in &panel.queries {
        let expr = query.bound_to(".+", ".+", RATE);
        for series in prometheus.range(&expr, begin, end, STEP_SECONDS)? {
            let points = series
                .samples
                .iter()
                .map(|(at, value)| (at - begin, *value));
            all.push(Series {
                name: name(panel, query, &series.labels),
                column: query.legend,
                unit: query.unit.unwrap_or(panel.unit),
                points: points.collect(),
            });
        }
    }
    Ok(all)
}

/// The legend with the values of its labels; in a table, which has none, all labels.
fn name(panel: &Panel, query: &Query, labels: &BTreeMap<String, String>) -> String {
    if panel.kind == Kind::Table {
        let own = labels.iter().filter(|(key, value)| {
            !value.is_empty() && !matches!(key.as_str(), "__name__" | "job" | "lab")
        });
        let values: Vec<_> = own.map(|(_, value)| value.as_str()).collect();
        return values.join(LABELS);
    }
    let mut name = query.legend.to_owned();
    for (key, value) in labels {
        name = name.replace(&format!("{{{{{key}}}}}"), value);
    }
    // A label that Prometheus does not keep since it is empty.
    while let Some((before, rest)) = name.split_once("{{") {
        let after = rest.split_once("}}").map_or("", |(_, after)| after);
        name = format!("{before}{after}");
    }
    name.trim().to_owned()
}
