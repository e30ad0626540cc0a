//! One reading of the daemon's /metrics, in the text format 0.0.4.
//!
//! Counts are compared to the last unit, so a line that is not understood is an
//! error: a parser that leaves such lines out would hide a missing count.

use crate::error::{LabError, Result};

/// One series and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    /// The value of a label; empty if the series does not have it, as in
    /// Prometheus.
    #[must_use]
    pub fn label(&self, name: &str) -> &str {
        self.labels
            .iter()
            .find(|(label, _)| label == name)
            .map_or("", |(_, value)| value.as_str())
    }
}

/// All series of one reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    pub samples: Vec<Sample>,
}

impl Scrape {
    /// Reads the text format.
    ///
    /// # Errors
    /// When a line is not understood.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sample = |line| {
            parse_sample(line)
                .ok_or_else(|| LabError::Invalid(format!("/metrics: not understood: {line}")))
        };
        Ok(Self {
            samples: lines.map(sample).collect::<Result<_>>()?,
        })
    }

    /// The series of one metric.
    pub fn series<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == metric)
    }

    /// The sum of a metric over the series that are wanted; `None` if the metric
    /// is not there at all.
    pub fn sum(&self, metric: &str, wanted: impl Fn(&Sample) -> bool) -> Option<f64> {
        let mut series = self.series(metric).peekable();
        series.peek()?;
        Some(
            series
                .filter(|sample| wanted(sample))
                .map(|sample| sample.value)
                .sum(),
        )
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = parse_labels(inside, &mut labels)?;
    }
    let mut fields = rest.split_whitespace();
    let value = fields.next()?.parse().ok()?;
    // A time stamp may follow.
    let stamp: Option<i64> = fields.next().map(str::parse).transpose().ok()?;
    let done = fields.next().is_none() && stamp.is_none_or(|stamp| stamp >= 0);
    (done && !name.is_empty()).then(|| Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Reads labels up to the closing brace and returns what follows it.
fn parse_labels<'a>(mut rest: &'a str, labels: &mut Vec<(String, String)>) -> Option<&'a str> {
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, after) = rest.split_once('=')?;
        let quoted = after.trim_start().strip_prefix('"')?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    escaped => escaped,
                }),
                (_, character) => value.push(character),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = quoted[end + 1..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP runs_total Handler runs.
# TYPE runs_total counter
runs_total{controller=\"0000:00:05.0\",disk=\"nvme0\"} 9007199254740991
runs_total{controller=\"0000:00:05.0\",disk=\"\"} 2
# HELP ratio A gauge.
# TYPE ratio gauge
ratio 1.5
";

    #[test]
    fn sums_are_exact_and_absence_is_told_from_zero() {
        let scrape = Scrape::parse(TEXT).unwrap();
        assert_eq!(
            scrape.sum("runs_total", |s| s.label("disk") == "nvme0"),
            Some(9_007_199_254_740_991.0)
        );
        assert_eq!(
            scrape.sum("runs_total", |s| s.label("disk").is_empty()),
            Some(2.0)
        );
        assert_eq!(
            scrape.sum("runs_total", |s| s.label("disk") == "nvme9"),
            Some(0.0)
        );
        assert_eq!(scrape.sum("other_total", |_| true), None);
        assert_eq!(scrape.sum("ratio", |_| true), Some(1.5));
    }

    #[test]
    fn label_values_may_hold_anything() {
        let scrape = Scrape::parse(r#"x{a="b\\c\"d}\ne, =",f="",} 1 1700000000000"#).unwrap();
        let sample = &scrape.samples[0];
        assert_eq!(sample.label("a"), "b\\c\"d}\ne, =");
        assert_eq!((sample.label("f"), sample.labels.len()), ("", 2));
        assert_eq!(
            Scrape::parse("x{} +Inf").unwrap().samples[0].value,
            f64::INFINITY
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for line in [
            "x",
            "x one",
            "x{a} 1",
            "x{a=\"b} 1",
            "{} 1",
            "x 1 2 3",
            "x{a=\"b\"",
            "<html>",
        ] {
            let error = Scrape::parse(line).unwrap_err().to_string();
            assert!(error.ends_with(line), "{error}");
        }
    }
}
