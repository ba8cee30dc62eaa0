//! Escapes characters that a terminal interprets or does not display.
//!
//! Names, owners, metadata and error messages are chosen by other callers and by servers. A control character can move
//! the cursor or change colours, a bidirectional one can reverse the surrounding text, and an invisible one can make
//! two different names look the same.

/// Whether a terminal interprets this character, or displays nothing for it, or displays it like a space.
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || is_ignorable(c)
        || is_rare_space(c)
        || matches!(c,
            // Line and paragraph separators; interlinear annotations; private use.
            '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..)
}

/// Whether nothing is displayed for this character: Unicode's Default_Ignorable_Code_Point, such as soft hyphens, variation
/// selectors, fillers, tags, zero-width and bidirectional controls.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Whether this is a space other than the common one, or is blank like one.
fn is_rare_space(c: char) -> bool {
    matches!(
        c,
        '\u{a0}' | '\u{1680}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{2800}' | '\u{3000}'
    )
}

/// The text in one line, with each unprintable character as `\u{202e}`, and spaces at its ends, which nobody sees, as
/// `\u{20}`.
pub fn plain(text: &str) -> String {
    let rest = text.trim_start_matches(' ');
    let inner = rest.trim_end_matches(' ');
    let spaces = |count| "\\u{20}".repeat(count);
    let escaped = escape_if(inner, is_unprintable, |c| c.escape_unicode().to_string());
    spaces(text.len() - rest.len()) + &escaped + &spaces(rest.len() - inner.len())
}

/// The text with its newlines and tabs, and each other unprintable character as `\u{202e}`.
pub fn escaped(text: &str) -> String {
    let is_escaped = |c| is_unprintable(c) && !matches!(c, '\n' | '\t');
    escape_if(text, is_escaped, |c| c.escape_unicode().to_string())
}

/// Equivalent JSON with unprintable characters, which occur only in strings, as `\u202e`.
pub fn escaped_json(json: &str) -> String {
    escape_if(json, is_unprintable, |c| {
        let mut units = [0; 2];
        let units = c.encode_utf16(&mut units).iter();
        units.map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn escape_if(text: &str, is_escaped: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> String {
    let mut all = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            all += &escape(c);
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
            "\u{34f}",
            "\u{115f}",
            "\u{17b4}",
            "\u{180b}",
            "\u{3164}",
            "\u{fe0f}",
            "\u{ffa0}",
            "\u{1d173}",
            "\u{e0100}",
            "\u{a0}",
            "\u{2003}",
            "\u{202f}",
            "\u{3000}",
            "\u{2800}",
            "\u{e000}",
            "\u{10fffd}",
        ] {
            let spelled = plain(&format!("a{hidden}b"));
            assert!(spelled.is_ascii() && spelled.starts_with("a\\u{"), "{spelled}");
        }
        assert_eq!(plain("a\nb"), "a\\u{a}b");
        assert_eq!(plain(" a b  "), "\\u{20}a b\\u{20}\\u{20}");
        assert_eq!((plain("  "), plain("")), ("\\u{20}\\u{20}".to_owned(), String::new()));
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
