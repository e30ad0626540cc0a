//! A dashboard as Grafana's classic JSON, which file provisioning and import take.

use serde_json::{Value, json};

use crate::model::{Dashboard, Kind, PAGE, Panel, Query, Switch, Variable};

/// Of the schema that Grafana 11 writes; later ones migrate it.
const SCHEMA_VERSION: u32 = 39;

impl Dashboard {
    /// The text of its file.
    ///
    /// # Errors
    /// None that is known; what serde_json says.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string_pretty(&self.value())?;
        text.push('\n');
        Ok(text)
    }

    fn value(&self) -> Value {
        let mut list = vec![json!({
            "name": "datasource",
            "label": "Data Source",
            "type": "datasource",
            "query": "prometheus",
            "hide": 0,
            "multi": false,
            "includeAll": false,
            "refresh": 1,
            "regex": "",
            "options": [],
        })];
        list.extend(self.variables.iter().map(variable));
        json!({
            "uid": format!("vmdtrace-{}", self.name),
            "title": self.title,
            "description": self.description,
            "tags": ["vmdtrace"],
            "editable": false,
            "graphTooltip": 1,
            "refresh": "30s",
            "schemaVersion": SCHEMA_VERSION,
            "time": { "from": "now-1h", "to": "now" },
            "timezone": "",
            "annotations": { "list": [] },
            "links": [{
                "title": "vmdtrace",
                "type": "dashboards",
                "tags": ["vmdtrace"],
                "asDropdown": true,
                "includeVars": true,
                "keepTime": true,
                "targetBlank": false,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }],
            "templating": { "list": list },
            "panels": self.layout(),
        })
    }

    /// Rows from top to bottom, panels from left to right.
    fn layout(&self) -> Vec<Value> {
        let mut panels = Vec::new();
        let (mut id, mut y) = (0, 0);
        let mut next = || {
            id += 1;
            id
        };
        for row in &self.rows {
            let closed = row.needs.is_some();
            let title = match row.needs {
                None => row.title.to_owned(),
                Some(switch) => format!("{} (with {})", row.title, switch.flag()),
            };
            let (row_id, row_y) = (next(), y);
            y += 1;
            let mut inside = Vec::new();
            for (one, place) in row.places() {
                let place = json!({ "x": place.x, "y": y + place.y, "w": place.w, "h": place.h });
                inside.push(panel(one, next(), &place));
            }
            y += row.height();
            let (own, after) = if closed {
                // What is in a closed row takes no place.
                y = row_y + 1;
                (inside, Vec::new())
            } else {
                (Vec::new(), inside)
            };
            panels.push(json!({
                "id": row_id,
                "type": "row",
                "title": title,
                "collapsed": closed,
                "gridPos": { "x": 0, "y": row_y, "w": PAGE, "h": 1 },
                "panels": own,
            }));
            panels.extend(after);
        }
        panels
    }
}

impl Switch {
    /// As it is given to `vmdtrace serve`.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::Vectors => "--metrics.vectors",
            Self::Disks => "--metrics.disks",
            Self::Cpus => "--metrics.cpus",
        }
    }
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn variable(variable: &Variable) -> Value {
    let Variable {
        name,
        label,
        query,
        all,
    } = variable;
    json!({
        "name": name,
        "label": label,
        "type": "query",
        "datasource": datasource(),
        "query": { "query": query, "refId": name },
        "allValue": all,
        "includeAll": true,
        "multi": true,
        "current": { "selected": true, "text": "All", "value": "$__all" },
        "hide": 0,
        // On a change of the time range.
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "options": [],
    })
}

fn panel(panel: &Panel, id: u32, place: &Value) -> Value {
    let Panel {
        title,
        description,
        kind,
        unit,
        width: _,
        height: _,
        queries,
    } = panel;
    let (plugin, options, custom) = looks(*kind);
    let mut defaults = json!({ "unit": unit, "custom": custom, "noValue": "not counted" });
    if *kind == Kind::Grid {
        defaults["min"] = json!(0);
        defaults["max"] = json!(1);
        defaults["color"] = json!({ "mode": "continuous-GrYlRd" });
    } else {
        defaults["color"] = json!({ "mode": "palette-classic" });
    }
    let overrides: Vec<_> = queries
        .iter()
        .filter_map(|query| {
            let properties = [json!({ "id": "unit", "value": query.unit? })];
            let matcher = json!({ "id": "byName", "options": query.legend });
            Some(json!({ "matcher": matcher, "properties": properties }))
        })
        .collect();
    let targets: Vec<_> = queries
        .iter()
        .zip('A'..)
        .map(|(query, letter)| target(query, *kind, letter))
        .collect();
    let mut value = json!({
        "id": id,
        "type": plugin,
        "title": title,
        "description": description,
        "datasource": datasource(),
        "gridPos": place,
        "fieldConfig": { "defaults": defaults, "overrides": overrides },
        "options": options,
        "targets": targets,
    });
    if *kind == Kind::Table {
        value["transformations"] = table_transformations(queries);
    }
    value
}

fn target(query: &Query, kind: Kind, letter: char) -> Value {
    let now = matches!(kind, Kind::Table | Kind::Stat);
    let format = match kind {
        Kind::Table => "table",
        Kind::Heatmap => "heatmap",
        Kind::Graph | Kind::Stacked | Kind::Stat | Kind::Grid => "time_series",
    };
    let legend = if kind == Kind::Table {
        ""
    } else {
        query.legend
    };
    json!({
        "refId": letter.to_string(),
        "datasource": datasource(),
        "expr": query.expr,
        "legendFormat": legend,
        "format": format,
        "instant": now,
        "range": !now,
    })
}

/// The queries side by side, one row for each set of labels.
fn table_transformations(queries: &[Query]) -> Value {
    let mut names = serde_json::Map::new();
    let mut hidden =
        serde_json::Map::from_iter(["Time", "__name__"].map(|name| (name.to_owned(), json!(true))));
    for (query, letter) in queries.iter().zip('A'..) {
        // With one query there is no letter.
        let value = if queries.len() == 1 {
            "Value".to_owned()
        } else {
            format!("Value #{letter}")
        };
        if query.legend.is_empty() {
            hidden.insert(value, json!(true));
        } else {
            names.insert(value, json!(query.legend));
        }
    }
    let mut steps = vec![
        json!({ "id": "merge", "options": {} }),
        json!({ "id": "organize", "options": {
            "excludeByName": hidden, "indexByName": {}, "renameByName": names,
        } }),
    ];
    if let Some(Query { legend, .. }) = queries.first().filter(|it| !it.legend.is_empty()) {
        let by = json!([{ "field": legend, "desc": true }]);
        steps.push(json!({ "id": "sortBy", "options": { "fields": {}, "sort": by } }));
    }
    json!(steps)
}

/// The plugin of a kind, its options and those of its fields.
fn looks(kind: Kind) -> (&'static str, Value, Value) {
    let legend = json!({
        "displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["lastNotNull", "max"],
    });
    let graph = |fill: u32, stack: &str| {
        json!({
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "never",
            "stacking": { "mode": stack, "group": "A" },
        })
    };
    match kind {
        Kind::Graph => (
            "timeseries",
            json!({ "legend": legend, "tooltip": { "mode": "multi", "sort": "desc" } }),
            graph(0, "none"),
        ),
        Kind::Stacked => (
            "timeseries",
            json!({ "legend": legend, "tooltip": { "mode": "multi", "sort": "desc" } }),
            graph(40, "normal"),
        ),
        Kind::Stat => (
            "stat",
            json!({
                "reduceOptions": { "calcs": ["lastNotNull"], "fields": "", "values": false },
                "colorMode": "none", "graphMode": "none", "justifyMode": "auto",
                "orientation": "auto", "textMode": "value_and_name",
            }),
            json!({}),
        ),
        Kind::Table => (
            "table",
            json!({ "showHeader": true, "cellHeight": "sm" }),
            json!({ "filterable": true }),
        ),
        Kind::Grid => (
            "status-history",
            json!({
                "rowHeight": 0.9, "colWidth": 1, "showValue": "never",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false, "calcs": [] },
                "tooltip": { "mode": "single", "sort": "none" },
            }),
            json!({ "fillOpacity": 80, "lineWidth": 0 }),
        ),
        Kind::Heatmap => (
            "heatmap",
            json!({
                "calculate": false,
                "color": { "mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "scale": "exponential", "reverse": false, "fill": "dark-orange" },
                "cellGap": 1, "cellValues": {}, "filterValues": { "le": 1e-9 },
                "legend": { "show": true }, "rowsFrame": { "layout": "auto" },
                "tooltip": { "mode": "single", "yHistogram": false },
                "yAxis": { "axisPlacement": "left", "unit": "s" },
                "exemplars": { "color": "red" }, "showValue": "never",
            }),
            json!({}),
        ),
    }
}
