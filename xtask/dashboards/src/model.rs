//! What a dashboard is made of, as far as these differ.

/// A dashboard and the file it is written to.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its name in links and, with `.json`, in dashboards/.
    pub name: &'static str,
    pub title: &'static str,
    pub description: &'static str,
    pub variables: Vec<Variable>,
    pub rows: Vec<Row>,
}

/// What can be chosen at the top, beside the data source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub label: &'static str,
    /// A `label_values` query.
    pub query: &'static str,
    /// What "All" stands for.
    pub all: &'static str,
}

/// Panels under one heading.
#[derive(Clone, Debug)]
pub struct Row {
    pub title: &'static str,
    /// The families it shows are there only with this: the row is then closed, and a
    /// closed row asks nothing.
    pub needs: Option<Switch>,
    pub panels: Vec<Panel>,
}

/// Switches of `vmdtrace serve` that export more families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    Vectors,
    Disks,
    Cpus,
}

/// How a panel shows its series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Graph,
    /// A graph whose series add up.
    Stacked,
    /// One number for each series, the latest.
    Stat,
    /// One row for each series, the latest, largest first.
    Table,
    /// One line for each series, its colour the value: 0 to 1.
    Grid,
    /// A histogram over time, from series with `le`.
    Heatmap,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub title: &'static str,
    pub description: &'static str,
    pub kind: Kind,
    /// As Grafana names it, such as `percentunit`.
    pub unit: &'static str,
    /// In 24ths of the page.
    pub width: u32,
    /// In lines of the grid.
    pub height: u32,
    pub queries: Vec<Query>,
}

/// In which of the two modes a query has an answer, on a server that has one
/// controller and is under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Both,
    /// What it shows is there only where a controller remaps.
    Remap,
}

#[derive(Clone, Debug)]
pub struct Query {
    /// PromQL with Grafana's variables.
    pub expr: String,
    /// Grafana's legend format; in a table the name of the column, empty where the
    /// labels are all there is to show.
    pub legend: &'static str,
    /// Of its column, where that is not the panel's.
    pub unit: Option<&'static str>,
    pub answers: Answers,
}

impl Query {
    /// A query in which `@host` stands for the matchers of the chosen servers,
    /// `@controller` for those of the chosen controllers too, and `@rate` for the
    /// range of a rate.
    pub(crate) fn new(expr: &str, legend: &'static str) -> Self {
        const HOST: &str = r#"job=~"$job", instance=~"$instance""#;
        let own = format!(r#"{HOST}, controller=~"$controller""#);
        Self {
            expr: expr
                .replace("@controller", &own)
                .replace("@host", HOST)
                .replace("@rate", "[$__rate_interval]"),
            legend,
            unit: None,
            answers: Answers::Both,
        }
    }

    /// PromQL that Prometheus itself takes: for the servers and controllers that these
    /// expressions match, with rates over `range`.
    #[must_use]
    pub fn bound_to(&self, instance: &str, controller: &str, range: &str) -> String {
        self.expr
            .replace("$__rate_interval", range)
            .replace("$job", ".+")
            .replace("$instance", instance)
            .replace("$controller", controller)
    }

    pub(crate) fn only_in_remap(self) -> Self {
        Self {
            answers: Answers::Remap,
            ..self
        }
    }
}

impl Panel {
    fn new(kind: Kind, title: &'static str, unit: &'static str, description: &'static str) -> Self {
        let width = match kind {
            Kind::Stat => 4,
            Kind::Table => 24,
            Kind::Graph | Kind::Stacked | Kind::Grid | Kind::Heatmap => 12,
        };
        let height = if kind == Kind::Stat { LOW } else { 8 };
        Self {
            title,
            description,
            kind,
            unit,
            width,
            height,
            queries: Vec::new(),
        }
    }

    pub(crate) fn graph(title: &'static str, unit: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Graph, title, unit, text)
    }

    pub(crate) fn stacked(title: &'static str, unit: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Stacked, title, unit, text)
    }

    pub(crate) fn stat(title: &'static str, unit: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Stat, title, unit, text)
    }

    pub(crate) fn table(title: &'static str, unit: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Table, title, unit, text)
    }

    pub(crate) fn grid(title: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Grid, title, "percentunit", text)
    }

    pub(crate) fn heatmap(title: &'static str, unit: &'static str, text: &'static str) -> Self {
        Self::new(Kind::Heatmap, title, unit, text)
    }

    pub(crate) fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    /// As high as a number.
    pub(crate) fn low(self) -> Self {
        Self {
            height: LOW,
            ..self
        }
    }

    /// Adds a query; see [`Query::new`].
    pub(crate) fn query(mut self, expr: &str, legend: &'static str) -> Self {
        self.queries.push(Query::new(expr, legend));
        self
    }

    /// Adds a query whose column has a unit of its own.
    pub(crate) fn column(mut self, expr: &str, legend: &'static str, unit: &'static str) -> Self {
        self.queries.push(Query {
            unit: Some(unit),
            ..Query::new(expr, legend)
        });
        self
    }

    /// Adds a query that has an answer in remap only.
    pub(crate) fn remap_query(mut self, expr: &str, legend: &'static str) -> Self {
        self.queries.push(Query::new(expr, legend).only_in_remap());
        self
    }
}

impl Row {
    pub(crate) fn new(title: &'static str, panels: Vec<Panel>) -> Self {
        Self {
            title,
            needs: None,
            panels,
        }
    }

    pub(crate) fn with(self, switch: Switch) -> Self {
        Self {
            needs: Some(switch),
            ..self
        }
    }
}

/// Lines of a panel that shows a number.
const LOW: u32 = 4;

/// Columns of a page.
pub(crate) const PAGE: u32 = 24;

/// Where a panel is: columns and lines of Grafana's grid, from its row's top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) w: u32,
    pub(crate) h: u32,
}

impl Row {
    /// Its panels from left to right, wrapped where the page ends.
    pub(crate) fn places(&self) -> Vec<(&Panel, Place)> {
        let (mut x, mut y, mut tallest) = (0, 0, 0);
        let mut places = Vec::new();
        for panel in &self.panels {
            let (w, h) = (panel.width, panel.height);
            if x + w > PAGE {
                (x, y, tallest) = (0, y + tallest, 0);
            }
            places.push((panel, Place { x, y, w, h }));
            x += w;
            tallest = tallest.max(h);
        }
        places
    }

    /// Lines that its panels take.
    pub(crate) fn height(&self) -> u32 {
        let ends = self
            .places()
            .into_iter()
            .map(|(_, place)| place.y + place.h);
        ends.max().unwrap_or(0)
    }
}

impl Variable {
    pub(crate) const JOB: Self = Self {
        name: "job",
        label: "Job",
        query: "label_values(vmdtrace_build_info, job)",
        all: ".+",
    };
    pub(crate) const INSTANCE: Self = Self {
        name: "instance",
        label: "Instance",
        query: r#"label_values(vmdtrace_build_info{job=~"$job"}, instance)"#,
        all: ".+",
    };
    /// "All" has what is behind no controller, too: it has no such label.
    pub(crate) const CONTROLLER: Self = Self {
        name: "controller",
        label: "Controller",
        query: r#"label_values(vmdtrace_controller_info{job=~"$job", instance=~"$instance"}, controller)"#,
        all: ".*",
    };
    /// From recording rules only.
    pub(crate) const FLEET_JOB: Self = Self {
        query: "label_values(instance:vmdtrace_up:min, job)",
        ..Self::JOB
    };
    pub(crate) const FLEET_INSTANCE: Self = Self {
        query: r#"label_values(instance:vmdtrace_up:min{job=~"$job"}, instance)"#,
        ..Self::INSTANCE
    };

    /// What every dashboard of single servers has.
    pub(crate) fn of_servers() -> Vec<Self> {
        vec![Self::JOB, Self::INSTANCE, Self::CONTROLLER]
    }
}

impl Dashboard {
    /// Every panel, and the switch its row needs.
    pub fn panels(&self) -> impl Iterator<Item = (&Panel, Option<Switch>)> {
        let rows = self.rows.iter();
        rows.flat_map(|row| row.panels.iter().map(|panel| (panel, row.needs)))
    }
}
