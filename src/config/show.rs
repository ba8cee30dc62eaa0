//! Prints a configuration as TOML with its documentation.

use std::collections::HashSet;
use std::fmt::Write;

use crate::schema::{Key, Section, Table};

/// The TOML of a table and of all tables in it. The documentation of the keys is printed with the first table of each
/// kind. A key without a value is printed as a comment. So is an absent table, unless one of its kind was printed
/// before.
pub fn show(section: &dyn Section) -> String {
    let mut shown = Shown::default();
    shown.section("", section);
    shown.text
}

#[derive(Default)]
struct Shown {
    text: String,
    explained: HashSet<&'static str>,
    /// Whether an absent table is being printed.
    absent: bool,
}

impl Shown {
    /// Prints a table under its header, such as `[server]`. The outermost table has none.
    fn section(&mut self, header: &str, section: &dyn Section) {
        let first = self.explained.insert(section.about());
        if first {
            self.comment(section.about());
        }
        if !header.is_empty() {
            self.value_line(header);
        }
        self.line("");
        for key in section.keys() {
            self.key(&key, first);
        }
        for table in section.tables() {
            self.section(&below(header, &table), table.section);
        }
        for table in section.absent() {
            if !self.explained.contains(table.section.about()) {
                let outer = std::mem::replace(&mut self.absent, true);
                self.section(&below(header, &table), &*table.section);
                self.absent = outer;
            }
        }
    }

    fn key(&mut self, key: &Key, explain: bool) {
        if explain {
            self.comment(key.about);
            self.comment(&remark(key));
        }
        match &key.value {
            Some(value) => self.value_line(&format!("{} = {value}", key.name)),
            None => self.line(&format!("#{} =", key.name)),
        }
        self.line("");
    }

    /// Prints a header or a value, as a comment if the table is absent.
    fn value_line(&mut self, line: &str) {
        let mark = if self.absent { "#" } else { "" };
        self.line(&format!("{mark}{line}"));
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

/// The header of a table within the table with this header.
fn below<S>(header: &str, table: &Table<S>) -> String {
    let outer = header.trim_matches(['[', ']']);
    let own: Vec<String> = table.path.iter().map(|part| key_text(part)).collect();
    let dot = if outer.is_empty() { "" } else { "." };
    let path = format!("{outer}{dot}{}", own.join("."));
    if table.is_one_of_many {
        format!("[[{path}]]")
    } else {
        format!("[{path}]")
    }
}

/// The bounds and the default of a key, if it has them.
fn remark(key: &Key) -> String {
    let bounds = key.bounds.iter().map(|bounds| format!("Accepts {bounds}."));
    let default = key.default.iter().map(|default| format!("Default: {default}"));
    bounds.chain(default).collect::<Vec<_>>().join("\n")
}

/// A key in TOML syntax: quoted unless it may be bare.
fn key_text(key: &str) -> String {
    let bare = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if key.bytes().all(bare) {
        return key.to_owned();
    }
    toml::Value::from(key).to_string()
}
