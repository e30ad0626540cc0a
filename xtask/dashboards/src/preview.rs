//! Pictures of dashboards, drawn from the same queries. They show what the numbers
//! look like, not how Grafana draws them, and say so.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::model::{Dashboard, Kind, Panel, Place};

/// Pixels of a column and of a line of Grafana's grid.
const COLUMN: i32 = 50;
const LINE: i32 = 30;
const HEAD: i32 = 46;
/// Lines of a table, and names below a graph, that are drawn.
const MOST_ROWS: usize = 6;
/// Between the labels of a table's series.
pub const LABELS: &str = "  ";
const MOST_NAMES: usize = 4;

/// A series of one query.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its legend; in a table its labels.
    pub name: String,
    /// The column of a table, and its unit.
    pub column: &'static str,
    pub unit: &'static str,
    /// Seconds since the picture's start, and values.
    pub points: Vec<(f64, f64)>,
}

/// Why a picture could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the preview: {0}")]
pub struct DrawError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

/// A dashboard as SVG. `series` answers a panel: all its queries' series over
/// `seconds`.
///
/// # Errors
/// What the drawing library says.
pub fn draw(
    dashboard: &Dashboard,
    seconds: f64,
    series: impl Fn(&Panel) -> Vec<Series>,
) -> Result<String, DrawError> {
    let rows = || dashboard.rows.iter();
    let lines: i32 = rows().map(|row| row.height() as i32 + 1).sum();
    let size = ((24 * COLUMN) as u32, (HEAD + lines * LINE) as u32);
    let mut text = String::new();
    let failed = |error: &dyn std::fmt::Display| DrawError(error.to_string());
    {
        let page = SVGBackend::with_string(&mut text, size).into_drawing_area();
        page.fill(&WHITE).map_err(|error| failed(&error))?;
        let title = format!("{} - preview, not Grafana", dashboard.title);
        write(&page, &title, (8, 12), 20, BLACK).map_err(|error| failed(&error))?;
        let mut top = HEAD;
        for row in rows() {
            write(&page, row.title, (8, top + 8), 15, BLACK).map_err(|error| failed(&error))?;
            top += LINE;
            for (panel, place) in row.places() {
                let Place { x, y, w, h } = place;
                let corner = (x as i32 * COLUMN, top + y as i32 * LINE);
                let size = (w as i32 * COLUMN - 6, h as i32 * LINE - 6);
                let area = page.clone().shrink(corner, size);
                one_panel(&area, panel, size, seconds, &series(panel))
                    .map_err(|error| failed(&error))?;
            }
            top += row.height() as i32 * LINE;
        }
        page.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, color: RGBColor) -> Drawn {
    let style = ("sans-serif", size).into_font().color(&color);
    area.draw(&Text::new(text.to_owned(), at, style))
}

/// Dark enough for letters on white.
fn color(index: usize) -> RGBColor {
    const COLORS: [RGBColor; 8] = [
        RGBColor(31, 96, 196),
        RGBColor(196, 22, 42),
        RGBColor(55, 135, 45),
        RGBColor(163, 82, 204),
        RGBColor(201, 100, 10),
        RGBColor(0, 128, 140),
        RGBColor(120, 85, 70),
        RGBColor(90, 90, 90),
    ];
    COLORS[index % COLORS.len()]
}

fn one_panel(
    area: &Area<'_>,
    panel: &Panel,
    (width, height): (i32, i32),
    seconds: f64,
    series: &[Series],
) -> Drawn {
    const FRAME: RGBColor = RGBColor(200, 200, 200);
    const QUIET: RGBColor = RGBColor(90, 90, 90);
    area.draw(&Rectangle::new(
        [(0, 0), (width - 1, height - 1)],
        FRAME.stroke_width(1),
    ))?;
    let title = fitting(panel.title, width - 12, 13);
    write(area, &title, (6, 5), 13, BLACK)?;
    if series.is_empty() {
        return write(area, "no data here", (6, 24), 12, QUIET);
    }
    match panel.kind {
        Kind::Stat => {
            for (index, one) in series.iter().take(3).enumerate() {
                let latest = one.points.last().map_or(f64::NAN, |(_, value)| *value);
                let text = format!("{} {}", shown(latest, panel.unit), one.name);
                let text = fitting(&text, width - 12, 18);
                write(area, &text, (6, 28 + 24 * index as i32), 18, color(index))?;
            }
            Ok(())
        }
        Kind::Table => table(area, width, series),
        Kind::Grid => cells(area, (width, height), seconds, series, |value| {
            value.clamp(0.0, 1.0)
        }),
        Kind::Heatmap => {
            let series = buckets(series);
            let values = series
                .iter()
                .flat_map(|it| &it.points)
                .map(|(_, value)| *value);
            let most = values.filter(|it| it.is_finite()).fold(1e-9, f64::max);
            cells(area, (width, height), seconds, &series, |value| {
                (value / most).max(0.0)
            })
        }
        Kind::Graph | Kind::Stacked => {
            let names = series.len().min(MOST_NAMES) as i32;
            let plot = area
                .clone()
                .shrink((4, 22), (width - 12, height - 30 - 14 * names));
            graph(&plot, panel, seconds, series)?;
            for (index, one) in series.iter().take(MOST_NAMES).enumerate() {
                let at = (10, height - 16 - 14 * (names - 1 - index as i32));
                let more = if index + 1 == MOST_NAMES && series.len() > MOST_NAMES {
                    format!(", and {} more", series.len() - MOST_NAMES)
                } else {
                    String::new()
                };
                let text = format!("{}{more}", one.name);
                write(area, &fitting(&text, width - 20, 11), at, 11, color(index))?;
            }
            Ok(())
        }
    }
}

/// One row for each set of labels, one column for each query.
fn table(area: &Area<'_>, width: i32, series: &[Series]) -> Drawn {
    const COLUMN_WIDTH: i32 = 120;
    let mut columns: Vec<&str> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for one in series {
        if !one.column.is_empty() && !columns.contains(&one.column) {
            columns.push(one.column);
        }
        if home(&rows, &one.name).is_none() {
            rows.push(&one.name);
        }
    }
    let left = |column: usize| width - COLUMN_WIDTH * (columns.len() - column) as i32;
    for (index, column) in columns.iter().enumerate() {
        let name = fitting(column, COLUMN_WIDTH - 8, 12);
        write(area, &name, (left(index), 24), 12, BLACK)?;
    }
    for (index, row) in rows.iter().take(MOST_ROWS).enumerate() {
        let y = 46 + 22 * index as i32;
        write(area, &fitting(row, left(0) - 12, 12), (6, y), 12, BLACK)?;
        for one in series
            .iter()
            .filter(|one| home(&rows, &one.name) == Some(index))
        {
            let column = columns.iter().position(|column| *column == one.column);
            let latest = one.points.last().map_or(f64::NAN, |(_, value)| *value);
            if let Some(column) = column {
                let text = shown(latest, one.unit);
                write(area, &text, (left(column), y), 12, BLACK)?;
            }
        }
    }
    if rows.len() > MOST_ROWS {
        let more = format!("and {} more", rows.len() - MOST_ROWS);
        write(area, &more, (6, 46 + 22 * MOST_ROWS as i32), 12, BLACK)?;
    }
    Ok(())
}

/// The row that has all labels of a series; it may have more.
fn home(rows: &[&str], name: &str) -> Option<usize> {
    rows.iter().position(|row| {
        let mut labels = name.split(LABELS);
        labels.all(|label| row.split(LABELS).any(|it| it == label))
    })
}

fn graph(area: &Area<'_>, panel: &Panel, seconds: f64, series: &[Series]) -> Drawn {
    let stacked = if panel.kind == Kind::Stacked {
        stack(series)
    } else {
        series.to_vec()
    };
    let values = stacked
        .iter()
        .flat_map(|it| &it.points)
        .map(|(_, value)| *value);
    let most = values.filter(|it| it.is_finite()).fold(0.0, f64::max);
    let most = if most > 0.0 { most * 1.1 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(18)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..seconds, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(5)
        .y_labels(4)
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|at| format!("{at:.0} s"))
        .y_label_formatter(&|value| shown(*value, panel.unit))
        .label_style(("sans-serif", 11))
        .draw()?;
    for (index, one) in stacked.iter().enumerate() {
        // A gap where there is no number.
        for part in one.points.split(|(_, value)| !value.is_finite()) {
            chart.draw_series(LineSeries::new(part.iter().copied(), color(index)))?;
        }
    }
    Ok(())
}

/// Each series on top of those before it.
fn stack(series: &[Series]) -> Vec<Series> {
    let mut below: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
    let on_top = |one: &Series| {
        let points = one.points.iter().filter(|(_, value)| value.is_finite());
        let points = points.map(|(at, value)| {
            let sum = below.entry(at.to_bits()).or_default();
            *sum += value;
            (*at, *sum)
        });
        Series {
            points: points.collect(),
            ..one.clone()
        }
    };
    series.iter().map(on_top).collect()
}

/// Cumulative buckets, named by their bounds, as what each holds by itself.
fn buckets(series: &[Series]) -> Vec<Series> {
    let bound = |one: &Series| one.name.parse::<f64>().unwrap_or(f64::INFINITY);
    let mut sorted = series.to_vec();
    sorted.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    let mut own = Vec::with_capacity(sorted.len());
    let mut below: Option<&Series> = None;
    for one in &sorted {
        let points = one.points.iter().enumerate().map(|(index, (at, value))| {
            let less = below
                .and_then(|it| it.points.get(index))
                .map_or(0.0, |it| it.1);
            (*at, value - less)
        });
        own.push(Series {
            name: shown(bound(one), "s"),
            points: points.collect(),
            ..one.clone()
        });
        below = Some(one);
    }
    // As in a graph, the largest is at the top.
    own.reverse();
    own
}

fn cells(
    area: &Area<'_>,
    (width, height): (i32, i32),
    seconds: f64,
    series: &[Series],
    share: impl Fn(f64) -> f64,
) -> Drawn {
    const NAMES: i32 = 110;
    let tall = (f64::from(height - 30) / series.len() as f64).min(24.0);
    for (row, one) in series.iter().enumerate() {
        let top = 24 + (row as f64 * tall) as i32;
        let bottom = 24 + ((row + 1) as f64 * tall) as i32 - 1;
        let name = fitting(&one.name, NAMES - 10, 11);
        write(area, &name, (6, (top + bottom) / 2 - 5), 11, BLACK)?;
        let scale = f64::from(width - NAMES - 8) / seconds.max(1.0);
        let wide = one
            .points
            .windows(2)
            .map(|it| it[1].0 - it[0].0)
            .fold(f64::MAX, f64::min);
        let wide = if wide == f64::MAX { 1.0 } else { wide };
        for (at, value) in one.points.iter().filter(|(_, value)| value.is_finite()) {
            let left = NAMES + (at * scale) as i32;
            let right = NAMES + ((at + wide).min(seconds) * scale) as i32;
            let heat = share(*value).clamp(0.0, 1.0);
            let fill = RGBColor(
                (235.0 - 20.0 * heat) as u8,
                (240.0 - 190.0 * heat) as u8,
                (230.0 - 190.0 * heat) as u8,
            );
            let corners = [(left, top), (right, bottom)];
            area.draw(&Rectangle::new(corners, fill.filled()))?;
        }
    }
    Ok(())
}

/// As much of a text as fits, by a guess of what a letter takes.
fn fitting(text: &str, width: i32, size: i32) -> String {
    let letters = (f64::from(width) / (f64::from(size) * 0.55)).max(1.0) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// A value with its unit.
fn shown(value: f64, unit: &str) -> String {
    if value == f64::INFINITY {
        return "more".to_owned();
    }
    if !value.is_finite() {
        return "no number".to_owned();
    }
    let scaled = |steps: &[(f64, &str)], last: &str| {
        let step = steps.iter().find(|(from, _)| value.abs() >= *from);
        let (by, suffix) = step.map_or((1.0, last), |(from, suffix)| (*from, *suffix));
        format!("{}{suffix}", short(value / by))
    };
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "s" if value == 0.0 => "0 s".to_owned(),
        "s" if value.abs() < 1e-6 => format!("{} ns", short(value * 1e9)),
        "s" => scaled(&[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs")], " s"),
        "bytes" => scaled(
            &[
                (1_073_741_824.0, " GiB"),
                (1_048_576.0, " MiB"),
                (1024.0, " KiB"),
            ],
            " B",
        ),
        "iops" | "ops" => format!("{}/s", scaled(&[(1e6, "M"), (1e3, "k")], "")),
        _ => scaled(&[(1e6, "M"), (1e3, "k")], ""),
    }
}

fn short(value: f64) -> String {
    let digits = if value.abs() >= 100.0 || value.fract() == 0.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        let points = (0..).map(f64::from).zip(values.iter().copied());
        Series {
            name: name.to_owned(),
            column: "column",
            unit: "none",
            points: points.collect(),
        }
    }

    #[test]
    fn values_are_shown_with_their_units() {
        for (value, unit, expected) in [
            (0.000_012_5, "s", "12.5 µs"),
            (0.0, "s", "0 s"),
            (2.0, "s", "2 s"),
            (0.953, "percentunit", "95.3 %"),
            (1_171_000.0, "iops", "1.17M/s"),
            (12.0, "none", "12"),
            (3_145_728.0, "bytes", "3 MiB"),
            (f64::NAN, "ops", "no number"),
        ] {
            assert_eq!(shown(value, unit), expected);
        }
    }

    #[test]
    fn buckets_hold_what_is_their_own() {
        let cumulative = [
            series("+Inf", &[5.0, 9.0]),
            series("0.001", &[1.0, 2.0]),
            series("0.002", &[4.0, 4.0]),
        ];
        let own = buckets(&cumulative);
        let names: Vec<_> = own.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["more", "2 ms", "1 ms"]);
        assert_eq!(own[0].points, [(0.0, 1.0), (1.0, 5.0)]);
        assert_eq!(own[1].points, [(0.0, 3.0), (1.0, 2.0)]);
    }

    #[test]
    fn a_table_has_one_row_for_labels_that_do_not_differ() {
        let rows = ["0000:00:03.0  201d  remap", "0000:00:04.0  28c0  bypass"];
        assert_eq!(home(&rows, "0000:00:04.0  bypass"), Some(1));
        assert_eq!(home(&rows, "0000:00:04.0  remap"), None);
        assert_eq!(home(&rows, "0000:00:0"), None);
    }

    #[test]
    fn series_are_stacked_where_they_have_numbers() {
        let stacked = stack(&[series("a", &[1.0, f64::NAN]), series("b", &[2.0, 4.0])]);
        assert_eq!(stacked[0].points, [(0.0, 1.0)]);
        assert_eq!(stacked[1].points, [(0.0, 3.0), (1.0, 4.0)]);
    }

    /// Whatever the series are, every panel has its place and the page its title.
    #[test]
    fn every_panel_is_drawn_whatever_its_series_are() {
        for dashboard in crate::all() {
            for values in [
                &[][..],
                &[1.0],
                &[f64::NAN, f64::INFINITY, -1.0],
                &[0.0, 1e300, 5.0],
            ] {
                let text = draw(&dashboard, 60.0, |_| {
                    vec![series("0.5", values), series("<&>", values)]
                })
                .unwrap();
                let text = text.replace("&#39;", "'").replace("&apos;", "'");
                assert!(text.contains("preview, not Grafana"));
                assert!(!text.contains("<&>"), "a name was not escaped");
                let titles = dashboard.panels().filter(|(panel, _)| {
                    let begin: String = panel.title.chars().take(12).collect();
                    text.contains(&begin)
                });
                assert_eq!(titles.count(), dashboard.panels().count());
            }
        }
    }
}
