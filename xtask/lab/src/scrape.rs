//! One reading of the daemon's /metrics.

use prometheus_parse::Value;

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

/// All series of one reading. Histograms are not looked at.
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
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        let parsed = prometheus_parse::Scrape::parse(lines).map_err(LabError::io("/metrics"))?;
        let samples = parsed.samples.into_iter().filter_map(|sample| {
            let (Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value)) =
                sample.value
            else {
                return None;
            };
            let labels = sample
                .labels
                .iter()
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            Some(Sample {
                name: sample.metric,
                labels,
                value,
            })
        });
        Ok(Self {
            samples: samples.collect(),
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
}
