//! Many Snapshots as one OpenMetrics text with time stamps, as `promtool tsdb
//! create-blocks-from openmetrics` reads it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prometheus::proto::MetricType;
use prometheus::{Encoder as _, TextEncoder};

use super::{Detail, families};
use crate::snapshot::Snapshot;

/// Ends the name of every sample of a counter, and is no part of the name of
/// its family.
const TOTAL: &str = "_total";

/// What was wrong with a Snapshot or the place where the text goes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot encode the metrics")]
    Encode(#[from] prometheus::Error),
    #[error("cannot write the metrics")]
    Io(#[from] io::Error),
}

/// Collects the samples of Snapshots: a family's samples have to stand together
/// in the text, so it is written at the end. Holds 16 bytes a sample.
#[derive(Debug, Default)]
pub struct History {
    families: BTreeMap<String, Family>,
}

#[derive(Debug)]
struct Family {
    kind: &'static str,
    help: String,
    /// Time (milliseconds since 1970) and value of each sample, by name and
    /// labels as they are written.
    series: BTreeMap<String, Vec<(u64, f64)>>,
}

impl History {
    /// Adds what `/metrics` would have shown at that time, in milliseconds since
    /// 1970. The process's own metrics are left out: it was another process.
    ///
    /// # Errors
    /// When a family cannot be encoded.
    pub fn add(
        &mut self,
        snapshot: &Snapshot,
        unix_ms: u64,
        detail: Detail,
    ) -> Result<(), prometheus::Error> {
        for family in families(snapshot, detail) {
            let (kind, name) = match family.get_field_type() {
                MetricType::COUNTER => {
                    let name = family.name();
                    ("counter", name.strip_suffix(TOTAL).unwrap_or(name))
                }
                MetricType::HISTOGRAM => ("histogram", family.name()),
                MetricType::SUMMARY => ("summary", family.name()),
                MetricType::GAUGE => ("gauge", family.name()),
                MetricType::UNTYPED => ("unknown", family.name()),
            };
            let mut text = Vec::new();
            TextEncoder::new().encode(std::slice::from_ref(&family), &mut text)?;
            let text = String::from_utf8_lossy(&text);
            let known = self
                .families
                .entry(name.to_owned())
                .or_insert_with(|| Family {
                    kind,
                    help: escaped(family.help()),
                    series: BTreeMap::new(),
                });
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            for (series, value) in samples.filter_map(|line| line.rsplit_once(' ')) {
                let Ok(value) = value.parse() else { continue };
                let sample = (unix_ms, value);
                match known.series.get_mut(series) {
                    Some(samples) => samples.push(sample),
                    None => {
                        known.series.insert(series.to_owned(), vec![sample]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes everything. Returns how many samples there are.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, out: &mut impl Write) -> io::Result<u64> {
        let mut written = 0;
        for (name, Family { kind, help, series }) in &self.families {
            writeln!(out, "# TYPE {name} {kind}")?;
            writeln!(out, "# HELP {name} {help}")?;
            for (series, samples) in series {
                for (unix_ms, value) in samples {
                    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
                    writeln!(out, "{series} {value} {seconds}.{ms:03}")?;
                }
                written += samples.len() as u64;
            }
        }
        writeln!(out, "# EOF")?;
        Ok(written)
    }
}

/// Unlike the older text format, OpenMetrics has quotes escaped in help, too.
fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::recording::synthetic::Server;

    #[test]
    fn samples_of_a_family_stand_together_with_their_times() {
        let mut server = Server::new(2, 2, 2);
        let mut history = History::default();
        let mut completions = Vec::new();
        for step in 0..3 {
            server.run(1);
            let snapshot = server.snapshot();
            let lines = snapshot.counters.lines.iter();
            let of_disk = lines.filter(|line| line.disk.as_deref() == Some("nvme1"));
            completions.push(of_disk.map(|line| line.counts.completions).sum::<u64>());
            history
                .add(
                    &snapshot,
                    1_700_000_000_007 + step * 1000,
                    Detail::default(),
                )
                .unwrap();
        }
        let mut text = Vec::new();
        let written = history.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let at = text.find("# TYPE vmdtrace_completions counter\n").unwrap();
        let family: Vec<&str> = text[at..].lines().skip(1).collect();
        assert!(family[0].starts_with("# HELP vmdtrace_completions "));
        let series = "vmdtrace_completions_total{controller=\"0000:97:00.5\",disk=\"nvme1\",path=\"vmd-remap\"}";
        let at = family.iter().position(|it| it.starts_with(series)).unwrap();
        for (step, completions) in completions.iter().enumerate() {
            let expected = format!("{series} {completions} 170000000{step}.007");
            assert_eq!(family[at + step], expected);
        }
        assert!(text.contains("# TYPE vmdtrace_disk_info gauge\n"));
        assert!(text.ends_with("\n# EOF\n"));
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples as u64, written);
        for family in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            assert_eq!(text.matches(&format!("{family}\n")).count(), 1, "{family}");
        }
    }

    #[test]
    fn help_is_escaped() {
        assert_eq!(escaped("a \"b\"\\\n"), "a \\\"b\\\"\\\\\\n");
    }
}
