//! Reads the YAML of a file of settings: one mapping of names to a value or a
//! list of values, each with the line it is on. Values stay text: what they mean
//! is for the flag of that name to say.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

/// A setting as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub name: String,
    pub line: usize,
    pub values: Vec<Value>,
    /// Whether the values were written as a list.
    pub list: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub text: String,
    pub line: usize,
}

/// What is wrong, and on which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub line: usize,
    pub what: String,
}

impl Problem {
    pub(super) fn new(line: usize, what: impl Into<String>) -> Self {
        Self {
            line,
            what: what.into(),
        }
    }
}

/// All settings, in the file's order. A file without any is an empty list.
pub(super) fn settings(text: &str) -> Result<Vec<Setting>, Problem> {
    let mut events = Events(Parser::new_from_str(text));
    let mut settings = Vec::new();
    loop {
        match events.next()? {
            (Event::StreamStart | Event::DocumentStart(_), _) => {}
            (Event::StreamEnd, _) => return Ok(settings),
            (Event::MappingStart(..), _) => break,
            // A document that holds only `---` or comments.
            (Event::Scalar(text, style, ..), _) if is_absent(&text, style) => {}
            (Event::DocumentEnd, _) => {}
            (_, line) => {
                return Err(Problem::new(
                    line,
                    "this is no list of settings: write `name: value`, one a line",
                ));
            }
        }
    }
    let mut lines = HashMap::new();
    while let Some(setting) = events.setting()? {
        if let Some(first) = lines.insert(setting.name.clone(), setting.line) {
            return Err(Problem::new(
                setting.line,
                format!(
                    "{} is on line {first} already: remove one of them",
                    setting.name
                ),
            ));
        }
        settings.push(setting);
    }
    loop {
        match events.next()? {
            (Event::StreamEnd, _) => return Ok(settings),
            (Event::DocumentEnd, _) => {}
            (_, line) => {
                return Err(Problem::new(
                    line,
                    "a second document begins here: a file holds one",
                ));
            }
        }
    }
}

struct Events<'a>(Parser<'a, saphyr_parser::StrInput<'a>>);

impl<'a> Events<'a> {
    /// The next event and its line. Anchors, aliases and tags end it: nothing here
    /// needs them, and without them a file is as large as it looks.
    fn next(&mut self) -> Result<(Event<'a>, usize), Problem> {
        let (event, Span { start, .. }) = match self.0.next() {
            Some(Ok(item)) => item,
            Some(Err(error)) => {
                return Err(Problem::new(
                    error.marker().line(),
                    format!("not YAML: {}", error.info()),
                ));
            }
            None => return Ok((Event::StreamEnd, 1)),
        };
        let line = start.line();
        let (anchor, tagged) = match &event {
            Event::Alias(_) => (true, false),
            Event::Scalar(_, _, anchor, tag)
            | Event::SequenceStart(anchor, tag)
            | Event::MappingStart(anchor, tag) => (*anchor != 0, tag.is_some()),
            _ => (false, false),
        };
        if anchor {
            return Err(Problem::new(
                line,
                "anchors (&) and aliases (*) are not used here: write the value out, in quotes if \
                 it begins with such a character",
            ));
        }
        if tagged {
            return Err(Problem::new(
                line,
                "tags (!) are not used here: write the value alone, in quotes if it begins with \
                 such a character",
            ));
        }
        Ok((event, line))
    }

    /// The next name and what it is set to; None at the mapping's end.
    fn setting(&mut self) -> Result<Option<Setting>, Problem> {
        let (name, line) = match self.next()? {
            (Event::MappingEnd, _) => return Ok(None),
            (Event::Scalar(name, ..), line) => (name.into_owned(), line),
            (_, line) => return Err(Problem::new(line, "a setting's name must be a plain word")),
        };
        let no_value = || {
            Problem::new(
                line,
                format!("{name} has no value: write one behind the colon, or remove the line"),
            )
        };
        match self.next()? {
            (Event::Scalar(text, style, ..), _) if is_absent(&text, style) => Err(no_value()),
            (Event::Scalar(text, ..), value_line) => Ok(Some(Setting {
                name,
                line,
                values: vec![Value {
                    text: text.into_owned(),
                    line: value_line,
                }],
                list: false,
            })),
            (Event::SequenceStart(..), _) => {
                let mut values = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (Event::Scalar(text, style, ..), line) if !is_absent(&text, style) => {
                            values.push(Value {
                                text: text.into_owned(),
                                line,
                            });
                        }
                        (_, line) => {
                            return Err(Problem::new(
                                line,
                                format!("the list of {name} may hold plain values only"),
                            ));
                        }
                    }
                }
                if values.is_empty() {
                    return Err(no_value());
                }
                Ok(Some(Setting {
                    name,
                    line,
                    values,
                    list: true,
                }))
            }
            (Event::MappingStart(..), _) => Err(Problem::new(
                line,
                format!(
                    "{name} holds further names: write each setting's whole name on one line, as \
                     in `web.max-requests: 4`"
                ),
            )),
            (_, line) => Err(Problem::new(
                line,
                format!("the value of {name} is not understood"),
            )),
        }
    }
}

/// Whether YAML means "nothing" by this.
fn is_absent(text: &str, style: ScalarStyle) -> bool {
    style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A name and its values, each with its line.
    type Read = (String, usize, Vec<(String, usize)>);

    fn read(text: &str) -> Vec<Read> {
        let settings = settings(text).unwrap_or_else(|problem| panic!("{problem:?}"));
        let values = |values: Vec<Value>| values.into_iter().map(|it| (it.text, it.line)).collect();
        settings
            .into_iter()
            .map(|it| (it.name, it.line, values(it.values)))
            .collect()
    }

    fn value(text: &str, line: usize) -> (String, usize) {
        (text.to_owned(), line)
    }

    #[test]
    fn names_and_values_keep_their_lines() {
        let text = "# a comment\nweb.max-requests: 8\n\nalso-lines:\n  - eth0-*\n  - 'x: y'\nlevel: [ counters ]\n";
        assert_eq!(
            read(text),
            [
                ("web.max-requests".to_owned(), 2, vec![value("8", 2)]),
                (
                    "also-lines".to_owned(),
                    4,
                    vec![value("eth0-*", 5), value("x: y", 6)]
                ),
                ("level".to_owned(), 7, vec![value("counters", 7)]),
            ]
        );
    }

    #[test]
    fn text_is_never_turned_into_something_else() {
        for text in ["0x10", "1e3", "yes", ":10973", "007", "2026-01-01"] {
            assert_eq!(
                read(&format!("a: {text}\n")),
                [("a".to_owned(), 1, vec![value(text, 1)])]
            );
        }
        assert_eq!(
            read("a: 'null'\n"),
            [("a".to_owned(), 1, vec![value("null", 1)])]
        );
    }

    #[test]
    fn a_file_may_hold_nothing() {
        for text in ["", "\n", "# only a comment\n", "---\n", "---\n# c\n...\n"] {
            assert_eq!(read(text), [], "{text:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, part) in [
            ("a: 1\nb: 2\na: 3\n", 3, "line 1 already"),
            ("a: 1\nb:\n", 2, "no value"),
            ("a: ~\n", 1, "no value"),
            ("a: []\n", 1, "no value"),
            ("a: 1\nweb:\n  listen: 2\n", 2, "whole name"),
            ("a:\n  - 1\n  - [2]\n", 3, "plain values"),
            ("a:\n  - 1\n  -\n", 3, "plain values"),
            ("- a\n", 1, "name: value"),
            ("hello\n", 1, "name: value"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: *b\n", 1, "not YAML"),
            ("a: &b 1\n", 1, "anchors"),
            ("a: 1\nb: !x 1\n", 2, "tags"),
            ("a: 'x\n", 1, "not YAML"),
            ("a: 1\n\tb: 2\n", 1, "a tab"),
            ("[a]: 1\n", 1, "plain word"),
        ] {
            let problem = settings(text).unwrap_err();
            assert!(problem.what.contains(part), "{text:?}: {problem:?}");
            assert_eq!(problem.line, line, "{text:?}: {problem:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[ \n\ta:\\-\\[\\]{}'\"#&*!|>%@,?~.0é\u{0}]{0,60}") {
            let _settings_or_problem = settings(&text);
        }

        #[test]
        fn what_was_written_is_read(values in prop::collection::vec("[ -~]{0,20}", 1..5)) {
            let quoted = |text: &String| format!("  - '{}'\n", text.replace('\'', "''"));
            let text = format!("x:\n{}", values.iter().map(quoted).collect::<String>());
            let expected: Vec<_> = values.iter().zip(2..).map(|(it, line)| value(it, line)).collect();
            prop_assert_eq!(read(&text), [("x".to_owned(), 1, expected)]);
        }
    }
}
