//! Const families: a name, a help and series that cannot be doubled.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use crate::host::printable;
use crate::snapshot::Times;

/// Longest label value, in characters: more than any name the kernel gives
/// out, and a bound for what a device can make us send.
const MAX_LABEL_CHARS: usize = 128;

/// What a counter's integers count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    One,
    /// Exposed in seconds, the base unit.
    Nanoseconds,
}

/// A counter with `N` labels. Integers are summed as integers and converted
/// once, so sums are exact.
#[derive(Debug)]
pub(super) struct CounterFamily<const N: usize> {
    name: &'static str,
    help: &'static str,
    unit: Unit,
    labels: [&'static str; N],
    series: BTreeMap<[String; N], u64>,
}

impl<const N: usize> CounterFamily<N> {
    pub(super) fn new(
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: [&'static str; N],
    ) -> Self {
        Self {
            name,
            help,
            unit,
            labels,
            series: BTreeMap::new(),
        }
    }

    /// Adds to the series with these label values; adding 0 makes it exist.
    pub(super) fn add(&mut self, values: [&str; N], count: u64) {
        let sum = self.series.entry(values.map(label_value)).or_default();
        *sum = sum.saturating_add(count);
    }

    pub(super) fn push_to(self, families: &mut Vec<MetricFamily>) {
        let Self {
            name,
            help,
            unit,
            labels,
            series,
        } = self;
        let metrics = series
            .into_iter()
            .map(|(values, count)| {
                let mut counter = Counter::default();
                counter.set_value(match unit {
                    Unit::One => count as f64,
                    Unit::Nanoseconds => count as f64 / 1e9,
                });
                let mut metric = Metric::from_label(label_pairs(labels, values));
                metric.set_counter(counter);
                metric
            })
            .collect();
        push(name, help, MetricType::COUNTER, metrics, families);
    }
}

/// A histogram of times with `N` labels, in seconds. Its bounds are powers of
/// two of nanoseconds.
#[derive(Debug)]
pub(super) struct HistogramFamily<const N: usize> {
    name: &'static str,
    help: &'static str,
    bounds: &'static [u32],
    labels: [&'static str; N],
    series: BTreeMap<[String; N], Times>,
}

impl<const N: usize> HistogramFamily<N> {
    pub(super) fn new(
        name: &'static str,
        help: &'static str,
        bounds: &'static [u32],
        labels: [&'static str; N],
    ) -> Self {
        Self {
            name,
            help,
            bounds,
            labels,
            series: BTreeMap::new(),
        }
    }

    /// Adds to the series with these label values; adding none makes it exist.
    pub(super) fn add(&mut self, values: [&str; N], times: &Times) {
        let sum = self.series.entry(values.map(label_value)).or_default();
        *sum = sum.combine(times, u64::saturating_add);
    }

    pub(super) fn push_to(self, families: &mut Vec<MetricFamily>) {
        let Self {
            name,
            help,
            bounds,
            labels,
            series,
        } = self;
        let metrics = series
            .into_iter()
            .map(|(values, times)| {
                let mut histogram = Histogram::default();
                histogram.set_sample_count(times.count());
                histogram.set_sample_sum(times.sum_ns as f64 / 1e9);
                let bucket = |bits: &u32| {
                    let mut bucket = Bucket::default();
                    bucket.set_upper_bound((1u64 << bits) as f64 / 1e9);
                    bucket.set_cumulative_count(times.up_to(*bits));
                    bucket
                };
                histogram.set_bucket(bounds.iter().map(bucket).collect());
                let mut metric = Metric::from_label(label_pairs(labels, values));
                metric.set_histogram(histogram);
                metric
            })
            .collect();
        push(name, help, MetricType::HISTOGRAM, metrics, families);
    }
}

/// A gauge with `N` labels.
#[derive(Debug)]
pub(super) struct GaugeFamily<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    series: BTreeMap<[String; N], f64>,
}

impl<const N: usize> GaugeFamily<N> {
    pub(super) fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self {
            name,
            help,
            labels,
            series: BTreeMap::new(),
        }
    }

    pub(super) fn set(&mut self, values: [&str; N], value: f64) {
        self.series.insert(values.map(label_value), value);
    }

    pub(super) fn push_to(self, families: &mut Vec<MetricFamily>) {
        let Self {
            name,
            help,
            labels,
            series,
        } = self;
        let metrics = series
            .into_iter()
            .map(|(values, value)| {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                let mut metric = Metric::from_label(label_pairs(labels, values));
                metric.set_gauge(gauge);
                metric
            })
            .collect();
        push(name, help, MetricType::GAUGE, metrics, families);
    }
}

fn push(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: Vec<Metric>,
    families: &mut Vec<MetricFamily>,
) {
    // The encoder refuses a family without series.
    if metrics.is_empty() {
        return;
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    families.push(family);
}

fn label_pairs<const N: usize>(names: [&'static str; N], values: [String; N]) -> Vec<LabelPair> {
    names
        .into_iter()
        .zip(values)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value);
            pair
        })
        .collect()
}

/// A label value from text we do not control: bounded, and fit for the terminal
/// of whoever reads `/metrics`. Quotes and backslashes are the encoder's to
/// escape.
fn label_value(text: &str) -> String {
    match text.char_indices().nth(MAX_LABEL_CHARS) {
        Some((end, _)) => format!("{}…", printable(&text[..end])),
        None => printable(text).into_owned(),
    }
}
