//! A configuration written out as TOML with its documentation.

use std::collections::HashSet;
use std::fmt::Write;

use super::section::{Key, Section};

/// The TOML of a table and of all tables in it. Each key has its documentation, the first time
/// that its kind of table appears; a key without a value is a comment.
pub fn show(section: &dyn Section) -> String {
    let mut shown = Shown::default();
    shown.section(&[], section);
    shown.text
}

#[derive(Default)]
struct Shown {
    text: String,
    explained: HashSet<&'static str>,
}

impl Shown {
    fn section(&mut self, path: &[String], section: &dyn Section) {
        let first = self.explained.insert(section.about());
        if first {
            self.comment(section.about());
        }
        if !path.is_empty() {
            let header: Vec<String> = path.iter().map(|part| key_text(part)).collect();
            self.line(&format!("[{}]", header.join(".")));
        }
        self.line("");
        for key in section.keys() {
            self.key(&key, first);
        }
        for (below, table) in section.tables() {
            self.section(&[path, &below].concat(), table);
        }
    }

    fn key(&mut self, key: &Key, explain: bool) {
        if explain {
            self.comment(key.about);
            self.comment(&remark(key));
        }
        match &key.value {
            Some(value) => self.line(&format!("{} = {value}", key.name)),
            None => self.line(&format!("#{} =", key.name)),
        }
        self.line("");
    }

    fn comment(&mut self, text: &str) {
        for line in text.lines() {
            self.line(&format!("# {}", line.trim()));
        }
    }

    fn line(&mut self, line: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// The bounds and the default of a key, as far as it has them.
fn remark(key: &Key) -> String {
    let bounds = key.bounds.iter().map(|bounds| format!("Accepts {bounds}."));
    let default = key.default.iter().map(|default| format!("Default: {default}"));
    bounds.chain(default).collect::<Vec<_>>().join("\n")
}

/// A key as TOML takes it: bare where it may be, else quoted.
fn key_text(key: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if key.bytes().all(bare) {
        return key.to_owned();
    }
    toml::Value::from(key).to_string()
}
