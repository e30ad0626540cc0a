//! JSON without its numbers: what stays the same from one Snapshot to the next.

use std::collections::HashMap;

/// Most numbers in one text: a Snapshot of the largest host has a million.
const MAX_NUMBERS: usize = 4 << 20;
/// Most bytes of all columns' paths: a Snapshot has some ten thousand.
const MAX_PATH_BYTES: usize = 1 << 20;
/// Deepest nesting, the same as serde_json's own.
const MAX_DEPTH: usize = 128;

/// A JSON text whose unsigned integers were taken out.
///
/// The numbers are kept apart **by column**: those at the same path of field
/// names (elements of an array are not told apart) stand together, columns in
/// the order in which the text first has them. Numbers of one column behave
/// alike, so their differences pack well. With [`Apart::ByKind`] a field `kind`
/// that is a string is part of the path of what follows it in its object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    text: String,
    /// Places in `text` where a number was, rising.
    places: Vec<usize>,
    /// For each place the number's position by column.
    positions: Vec<u32>,
    /// How many numbers each column has.
    columns: Vec<usize>,
}

/// Which elements of an array are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Apart {
    /// None: version 1 of the format.
    #[default]
    Not,
    ByKind,
}

/// The text has more numbers or fields, or is nested deeper, than any Snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more numbers or fields or deeper nesting than a snapshot has")]
pub(super) struct TooMuch;

impl Template {
    /// Takes the numbers out of valid JSON; on any other text the result means
    /// nothing, but [`Template::fill`] still undoes it. Numbers that are not
    /// written as `u64` is printed stay in the text.
    pub(super) fn split(json: &str, apart: Apart) -> Result<(Self, Vec<u64>), TooMuch> {
        let mut scanner = Scanner {
            apart,
            ..Scanner::default()
        };
        scanner.scan(json)?;
        let Scanner {
            template:
                Self {
                    text,
                    places,
                    positions: column_of,
                    columns,
                },
            numbers,
            ..
        } = scanner;
        let mut next: Vec<usize> = columns
            .iter()
            .scan(0, |sum, size| {
                let start = *sum;
                *sum += size;
                Some(start)
            })
            .collect();
        let mut by_column = vec![0; numbers.len()];
        let mut positions = Vec::with_capacity(numbers.len());
        for (column, number) in column_of.into_iter().zip(numbers) {
            let place = &mut next[column as usize];
            by_column[*place] = number;
            positions.push(*place as u32);
            *place += 1;
        }
        let template = Self {
            text,
            places,
            positions,
            columns,
        };
        Ok((template, by_column))
    }

    /// The text with these numbers, given by column; there must be as many as
    /// were taken out.
    pub(super) fn fill(&self, by_column: &[u64]) -> String {
        let mut json = String::with_capacity(self.text.len() + 8 * by_column.len());
        let mut from = 0;
        for (&place, &position) in self.places.iter().zip(&self.positions) {
            json.push_str(&self.text[from..place]);
            if let Some(number) = by_column.get(position as usize) {
                json.push_str(&number.to_string());
            }
            from = place;
        }
        json.push_str(&self.text[from..]);
        json
    }

    /// How many numbers each column has.
    pub(super) fn columns(&self) -> &[usize] {
        &self.columns
    }
}

#[derive(Debug, Default)]
struct Scanner {
    /// Its `positions` are the columns of the numbers until all are known.
    template: Template,
    numbers: Vec<u64>,
    /// Field names down to where we are, each ended by a zero byte.
    path: Vec<u8>,
    open: Vec<Open>,
    apart: Apart,
    column_of: HashMap<Vec<u8>, u32>,
    /// Bytes of its keys.
    path_bytes: usize,
}

/// An object or array that has not been closed.
#[derive(Debug)]
struct Open {
    /// How long the path was at its start.
    start: usize,
    /// How long it is before a field's name.
    names_at: usize,
    is_object: bool,
}

impl Scanner {
    fn scan(&mut self, json: &str) -> Result<(), TooMuch> {
        let bytes = json.as_bytes();
        let mut at = 0;
        // Where the text begins that has not been copied.
        let mut from = 0;
        // In an object: whether a name comes next.
        let mut name_next = false;
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'"' => {
                    let end = end_of_string(bytes, at);
                    if name_next && let Some(open) = self.open.last() {
                        self.path.truncate(open.names_at);
                        self.path.extend_from_slice(&bytes[at..end]);
                        self.path.push(0);
                        name_next = false;
                    } else if self.apart == Apart::ByKind
                        && let Some(open) = self.open.last_mut()
                        && open.is_object
                        && self.path.get(open.names_at..) == Some(b"\"kind\"\0")
                    {
                        self.path.extend_from_slice(&bytes[at..end]);
                        self.path.push(0);
                        open.names_at = self.path.len();
                    }
                    at = end;
                    continue;
                }
                b'{' | b'[' => {
                    if self.open.len() == MAX_DEPTH {
                        return Err(TooMuch);
                    }
                    name_next = byte == b'{';
                    self.open.push(Open {
                        start: self.path.len(),
                        names_at: self.path.len(),
                        is_object: name_next,
                    });
                }
                b'}' | b']' => {
                    if let Some(open) = self.open.pop() {
                        self.path.truncate(open.start);
                    }
                    name_next = false;
                }
                b',' => name_next = self.open.last().is_some_and(|open| open.is_object),
                b'-' | b'0'..=b'9' => {
                    let end = end_of_number(bytes, at);
                    if let Some(number) = canonical(&json[at..end]) {
                        self.template.text.push_str(&json[from..at]);
                        self.take(number)?;
                        from = end;
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        self.template.text.push_str(&json[from..]);
        Ok(())
    }

    fn take(&mut self, number: u64) -> Result<(), TooMuch> {
        if self.numbers.len() == MAX_NUMBERS {
            return Err(TooMuch);
        }
        let Template {
            text,
            places,
            positions,
            columns,
        } = &mut self.template;
        let column = match self.column_of.get(&self.path) {
            Some(&column) => column,
            None => {
                self.path_bytes = self.path_bytes.saturating_add(self.path.len());
                if self.path_bytes > MAX_PATH_BYTES {
                    return Err(TooMuch);
                }
                let column = columns.len() as u32;
                columns.push(0);
                self.column_of.insert(self.path.clone(), column);
                column
            }
        };
        columns[column as usize] += 1;
        places.push(text.len());
        positions.push(column);
        self.numbers.push(number);
        Ok(())
    }
}

/// One past the closing quote of the string that begins at `at`.
fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while let Some(&byte) = bytes.get(end) {
        match byte {
            b'"' => return end + 1,
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
    bytes.len()
}

fn end_of_number(bytes: &[u8], at: usize) -> usize {
    let is_part =
        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E');
    at + bytes[at..].iter().take_while(|byte| is_part(byte)).count()
}

/// The number, if it is written as `u64` is printed.
fn canonical(text: &str) -> Option<u64> {
    let zero_first = text.len() > 1 && text.starts_with('0');
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits && !zero_first {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_by_column() {
        let json = r#"{"a":1,"b":[{"x":2,"y":[3,4]},{"x":5,"y":[6]}],"c":-7,"d":8.5,"e":"9","f\"":{"x":10},"g":18446744073709551616}"#;
        let (template, numbers) = Template::split(json, Apart::Not).unwrap();
        assert_eq!(numbers, [1, 2, 5, 3, 4, 6, 10]);
        assert_eq!(template.columns(), [1, 2, 3, 1]);
        assert_eq!(template.fill(&numbers), json);
        let other = template.fill(&[0, 11, 12, 13, 14, 15, u64::MAX]);
        assert!(other.starts_with(r#"{"a":0,"b":[{"x":11,"y":[13,14]},{"x":12,"y":[15]}]"#));
        assert!(other.contains(r#"{"x":18446744073709551615}"#));
        assert_eq!(Template::split(&other, Apart::Not).unwrap().0, template);
    }

    #[test]
    fn kinds_are_told_apart() {
        let json = r#"[{"a":1,"kind":"x","b":2,"c":[{"d":3}]},{"a":4,"kind":"y","b":5,"c":[{"d":6}]},{"a":7,"kind":"x","b":8},{"a":9,"b":10,"kind":11}]"#;
        let (template, numbers) = Template::split(json, Apart::ByKind).unwrap();
        assert_eq!(numbers, [1, 4, 7, 9, 2, 8, 3, 5, 6, 10, 11]);
        assert_eq!(template.columns(), [4, 2, 1, 1, 1, 1, 1]);
        assert_eq!(template.fill(&numbers), json);
        // A value is no name, and an array's string no field's.
        let json = r#"{"a":"kind","kind":["x",1],"b":[{"c":1}]}"#;
        let (template, _) = Template::split(json, Apart::ByKind).unwrap();
        let without = Template::split(json, Apart::Not).unwrap().0;
        assert_eq!(template, without);
    }

    #[test]
    fn depth_and_paths_are_bounded() {
        let split = |text: &str| Template::split(text, Apart::ByKind);
        assert!(split(&"[".repeat(128)).is_ok());
        assert_eq!(split(&"[".repeat(129)), Err(TooMuch));
        let long = "x".repeat(MAX_PATH_BYTES / 2);
        let fields = |count: usize| {
            let fields: Vec<String> = (0..count).map(|it| format!("\"{it}\":1")).collect();
            format!("{{\"{long}\":{{{}}}}}", fields.join(","))
        };
        assert!(split(&fields(1)).is_ok());
        assert_eq!(split(&fields(2)), Err(TooMuch));
    }

    proptest! {
        #[test]
        fn any_text_is_put_together_again(
            text in "\\PC*|([\\[\\]{},:\"\\\\a0-9.e-]|\"a\":|\"kind\":|12)*"
        ) {
            for apart in [Apart::Not, Apart::ByKind] {
                let (template, numbers) = Template::split(&text, apart).unwrap();
                prop_assert_eq!(template.fill(&numbers), text.as_str());
                prop_assert_eq!(template.columns().iter().sum::<usize>(), numbers.len());
            }
        }
    }
}
