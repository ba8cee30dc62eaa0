//! Escapes characters that a terminal interprets or does not display.
//!
//! Names, owners, metadata and error messages are chosen by other callers and by servers. A control character can move
//! the cursor or change colours, a bidirectional one can reverse the surrounding text, and an invisible one can make
//! two different names look the same.

/// Whether a terminal interprets this character, or displays nothing for it.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen; Arabic, Mongolian and zero-width controls.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            // Line and paragraph separators; bidirectional embeddings, overrides and isolates.
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Byte order mark, interlinear annotations, tags.
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text in one line, with each unprintable character as `\u{202e}`.
pub fn plain(text: &str) -> String {
    escape_if(text, is_unprintable)
}

/// The text with its newlines and tabs, and each other unprintable character as `\u{202e}`.
pub fn escaped(text: &str) -> String {
    escape_if(text, |c| is_unprintable(c) && !matches!(c, '\n' | '\t'))
}

fn escape_if(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            all.extend(c.escape_unicode());
        } else {
            all.push(c);
        }
    }
    all
}

/// Equivalent JSON with unprintable characters, which occur only in strings, as `\u202e`.
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
    fn control_and_invisible_characters_are_escaped() {
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
