//! Characters that a terminal obeys or does not show: texts of others reach it escaped.
//!
//! Names, owners, metadata and error messages are chosen by other callers and by servers. A control character
//! moves the cursor or changes colours; a bidirectional one reverses what stands beside it; an invisible one
//! makes two different names look the same.

/// Whether a terminal would obey this character, or show nothing for it.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // The soft hyphen, and the controls of Arabic, Mongolian and zero width.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            // Separators of lines and paragraphs; embeddings, overrides and isolates of direction.
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // The byte order mark, interlinear annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text in one line: each unprintable character is written as `\u{202e}`.
pub fn plain(text: &str) -> String {
    replaced(text, is_unprintable)
}

/// The text with its lines and tabs: each other unprintable character is written as `\u{202e}`.
pub fn escaped(text: &str) -> String {
    replaced(text, |c| is_unprintable(c) && !matches!(c, '\n' | '\t'))
}

fn replaced(text: &str, is_replaced: impl Fn(char) -> bool) -> String {
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        if is_replaced(c) {
            all.extend(c.escape_unicode());
        } else {
            all.push(c);
        }
    }
    all
}

/// JSON of the same value: unprintable characters, which stand in strings only, are written as `\u202e`.
pub fn escaped_json(json: &str) -> String {
    let mut all = String::with_capacity(json.len());
    for c in json.chars() {
        if is_unprintable(c) {
            all.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            all.push(c);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_or_hides_is_spelled_out() {
        for hidden in [
            "\u{1b}",
            "\u{9b}",
            "\u{7f}",
            "\u{200b}",
            "\u{200e}",
            "\u{202e}",
            "\u{2066}",
            "\u{2028}",
            "\u{feff}",
            "\u{e0041}",
            "\u{ad}",
            "\u{61c}",
        ] {
            let spelled = plain(&format!("a{hidden}b"));
            assert!(spelled.is_ascii() && spelled.starts_with("a\\u{"), "{spelled}");
        }
        assert_eq!(plain("a\nb"), "a\\u{a}b");
        assert_eq!(escaped("a\n\tb\r"), "a\n\tb\\u{d}");
        assert_eq!(plain("Zoë 東京 שלום 🔒"), "Zoë 東京 שלום 🔒");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "owner": "a\u{1b}\u{9b}\u{202e}\u{e0041}\\z" });
        let json = escaped_json(&value.to_string());
        assert!(json.is_ascii(), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(read, value);
    }
}
