//! What a diagnosis says, what it has to say, and the table of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;

use super::{ALL, Injection};
use crate::error::{LabError, Result};

/// As `vmdtrace diagnose --output json` has it. The first is the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Supported,
    Possible,
    Contradicted,
    NotMeasured,
}

impl Verdict {
    /// As docs/diagnosis.md has it in its tables.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Supported => 'S',
            Self::Possible => 'p',
            Self::Contradicted => '-',
            Self::NotMeasured => '?',
        }
    }
}

/// What has to be said of a window, or of two. It is about verdicts alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Findings that have to be supported. No other may be.
    pub supported: &'static [&'static str],
    /// Findings that have to be possible. Others may be, too.
    pub possible: &'static [&'static str],
    /// Findings that may be supported: their cause is made as well, and how much it
    /// weighs is a matter of the emulation's speed.
    pub made_as_well: &'static [&'static str],
}

impl Answer {
    /// Nothing is supported.
    pub const NOTHING: Self = Self {
        supported: &[],
        possible: &[],
        made_as_well: &[],
    };

    /// This alone is supported.
    #[must_use]
    pub const fn supports(supported: &'static [&'static str]) -> Self {
        Self {
            supported,
            ..Self::NOTHING
        }
    }

    /// Nothing is supported; this is possible.
    #[must_use]
    pub const fn allows(possible: &'static [&'static str]) -> Self {
        Self {
            possible,
            ..Self::NOTHING
        }
    }
}

/// Findings of one diagnosis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found(Vec<(String, Verdict, String)>);

#[derive(Deserialize)]
struct Diagnosis {
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    id: String,
    of: String,
    verdict: Verdict,
    why: String,
}

impl Found {
    /// Reads the JSON of `vmdtrace diagnose` or `vmdtrace compare`.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(json: &str) -> Result<Self> {
        let diagnosis: Diagnosis = serde_json::from_str(json)
            .map_err(|error| LabError::Invalid(format!("a diagnosis as JSON: {error}")))?;
        let findings = diagnosis.findings.into_iter();
        Ok(Self(
            findings
                .map(|it| (it.id, it.verdict, format!("{}: {}", it.of, it.why)))
                .collect(),
        ))
    }

    /// The strongest verdict of each finding, of whichever controller.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<&str, Verdict> {
        let mut verdicts = BTreeMap::new();
        for (id, verdict, _) in &self.0 {
            let best: &mut Verdict = verdicts.entry(id.as_str()).or_insert(*verdict);
            *best = verdict.min(best).to_owned();
        }
        verdicts
    }

    /// What is supported, or possible, by name.
    #[must_use]
    pub fn with(&self, wanted: Verdict) -> BTreeSet<&str> {
        let verdicts = self.verdicts().into_iter();
        verdicts
            .filter(|(_, verdict)| *verdict == wanted)
            .map(|(id, _)| id)
            .collect()
    }

    /// In which way this is not the answer; empty if it is.
    #[must_use]
    pub fn differences(&self, answer: &Answer) -> Vec<String> {
        let supported = self.with(Verdict::Supported);
        let possible = self.with(Verdict::Possible);
        let mut wrong = Vec::new();
        let mut tell = |what: &str, id: &str| {
            wrong.push(format!("{id} {what}{}", self.reasons(id)));
        };
        for id in answer.supported {
            if !supported.contains(id) {
                tell("is not supported", id);
            }
        }
        for id in &supported {
            if !answer.supported.contains(id) && !answer.made_as_well.contains(id) {
                tell("is supported and was not made", id);
            }
        }
        for id in answer.possible {
            if !possible.contains(id) {
                tell("is not possible", id);
            }
        }
        wrong
    }

    fn reasons(&self, id: &str) -> String {
        let of_it = self.0.iter().filter(|it| it.0 == id);
        of_it
            .map(|(_, verdict, why)| format!("\n      {} {why}", verdict.letter()))
            .collect()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |verdict| {
            let names: Vec<_> = self.with(verdict).into_iter().collect();
            if names.is_empty() {
                "nothing".to_owned()
            } else {
                names.join(", ")
            }
        };
        write!(
            formatter,
            "supported: {}; possible: {}",
            named(Verdict::Supported),
            named(Verdict::Possible)
        )
    }
}

/// The name of a row: the injection, and which of its windows.
#[must_use]
pub(super) fn row_name(injection: &Injection, window: Option<usize>) -> String {
    match window {
        _ if injection.windows.len() == 1 => injection.name.to_owned(),
        Some(index) => format!("{}, window {}", injection.name, index + 1),
        None => format!("{}, compared", injection.name),
    }
}

/// Every finding that is the answer to anything, in the order of [`ALL`].
#[must_use]
pub fn columns() -> Vec<&'static str> {
    let mut columns = Vec::new();
    for (_, answer) in rows() {
        for &id in answer.supported.iter().chain(answer.possible) {
            if !columns.contains(&id) {
                columns.push(id);
            }
        }
    }
    columns
}

fn rows() -> Vec<(String, Answer)> {
    let rows = ALL.iter().flat_map(|injection| {
        let windows = injection.windows.iter().enumerate();
        let windows = windows.map(|(index, it)| (row_name(injection, Some(index)), it.answer));
        let compared = injection.compared.map(|it| (row_name(injection, None), it));
        windows.chain(compared)
    });
    rows.collect()
}

/// The right answers as the table that docs/diagnosis.md has.
#[must_use]
pub fn page() -> String {
    let columns = columns();
    let mut text = format!(
        "| injected | {} | any other |\n|---|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len() + 1)
    );
    for (name, answer) in rows() {
        let cells: Vec<_> = columns
            .iter()
            .map(|id| {
                if answer.supported.contains(id) {
                    "**S**"
                } else if answer.possible.contains(id) {
                    "p"
                } else if answer.made_as_well.contains(id) {
                    "(S)"
                } else {
                    ""
                }
            })
            .collect();
        text.push_str(&format!("| {name} | {} | |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"findings":[
        {"id":"h3-placement","of":"0000:00:04.0","verdict":"supported","why":"a","numbers":[]},
        {"id":"h3-placement","of":"0000:00:05.0","verdict":"not-measured","why":"b"},
        {"id":"h0-load","of":"0000:00:05.0","verdict":"not-measured","why":"c"},
        {"id":"h0-load","of":"0000:00:04.0","verdict":"possible","why":"d"}]}"#;

    #[test]
    fn the_strongest_verdict_of_all_controllers_counts() {
        let found = Found::parse(JSON).unwrap();
        assert_eq!(
            found.to_string(),
            "supported: h3-placement; possible: h0-load"
        );
        assert!(Found::parse("{}").is_err());
    }

    #[test]
    fn anything_else_supported_is_wrong_and_so_is_anything_missing() {
        let found = Found::parse(JSON).unwrap();
        let right = Answer {
            supported: &["h3-placement"],
            possible: &["h0-load"],
            ..Answer::NOTHING
        };
        assert_eq!(found.differences(&right), [""; 0]);
        assert_eq!(
            found.differences(&Answer::supports(&["h3-placement"])),
            [""; 0]
        );
        let as_well = Answer {
            made_as_well: &["h3-placement", "h9-link"],
            ..Answer::NOTHING
        };
        assert_eq!(found.differences(&as_well), [""; 0]);
        let wrong = found.differences(&Answer::NOTHING);
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].starts_with("h3-placement is supported and was not made"));
        let wrong = found.differences(&Answer::supports(&["h9-link"]));
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].starts_with("h9-link is not supported"));
        let wrong = found.differences(&Answer {
            supported: &["h3-placement"],
            possible: &["h4-device"],
            ..Answer::NOTHING
        });
        assert_eq!(wrong, ["h4-device is not possible"]);
    }

    #[test]
    fn the_page_has_the_answers() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join("../../docs/diagnosis.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, rest) = text.split_once("<!-- injections -->\n").unwrap();
        let (table, _) = rest.split_once("<!-- end -->").unwrap();
        assert_eq!(table, page(), "docs/diagnosis.md should have:\n{}", page());
    }
}
