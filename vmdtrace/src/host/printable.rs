//! Text from devices and files, made fit for a terminal or a log.

use std::borrow::Cow;

/// `text` with everything escaped that could move the cursor, change the
/// colour or reorder what stands beside it.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unfit(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Control characters, line and paragraph separators, and the marks that
/// switch the direction of writing.
fn is_unfit(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_is_left_alone() {
        assert_eq!(printable("INTEL SSDPE2KX040T8 µ"), "INTEL SSDPE2KX040T8 µ");
    }

    #[test]
    fn controls_are_escaped() {
        assert_eq!(
            printable("a\u{1b}[31mb\n\u{202e}c"),
            "a\\u{1b}[31mb\\n\\u{202e}c"
        );
    }
}
