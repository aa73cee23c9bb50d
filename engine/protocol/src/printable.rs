//! Others' words in logs and on terminals.

use std::fmt::Write;

/// The text with an escape for each character that is not shown as itself: control characters,
/// which begin lines and move cursors, and those that turn the direction of what follows or join
/// it.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\\' | '"' | '\'' => shown.push(char),
            _ => write!(shown, "{}", char.escape_debug()).expect("a string has room"),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_begins_a_line_or_turns_one() {
        let cases = [
            ("llama \"70b\" é 漢 \\", "llama \"70b\" é 漢 \\"),
            ("a\n2026 ERROR b\0\u{1b}[2K", "a\\n2026 ERROR b\\0\\u{1b}[2K"),
            ("x\u{202e}y\u{2066}\u{200b}\u{feff}", "x\\u{202e}y\\u{2066}\\u{200b}\\u{feff}"),
            ("\u{2028}\u{85}\u{e0041}", "\\u{2028}\\u{85}\\u{e0041}"),
        ];
        for (text, shown) in cases {
            assert_eq!(printable(text), shown);
        }
    }
}
