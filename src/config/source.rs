//! The text of a configuration file, and the positions of its keys.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;

use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::{ConfigError, ValueLocation};
use super::file::File;
use super::store_tables::StoreTables;
use crate::backend::driver::Entry;
use crate::files;
use crate::schema::{RawValue, ReadError};

/// The path that stands for standard input.
pub const STANDARD_INPUT: &str = "-";
/// What `--memory` stands for.
const IN_MEMORY: &str = "[namespaces.default.embedded]\npath = \":memory:\"\n";

/// The origin of a configuration, to report the location of a refused value.
#[derive(Debug, Default)]
pub struct Source {
    file: Option<(PathBuf, String)>,
    flags: Vec<(&'static str, &'static str)>,
}

impl Source {
    /// What `--memory` stands for.
    pub fn in_memory() -> Self {
        Self::new("--memory".into(), IN_MEMORY.to_owned())
    }

    /// Reads a file, or standard input if the path is `-`. Without a path, the text is empty.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] if the file cannot be read or is not UTF-8.
    pub fn read(path: Option<PathBuf>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let read = match path.as_os_str() == STANDARD_INPUT {
            true => io::read_to_string(io::stdin().take(files::MAX_FILE_BYTES)),
            false => files::read_text(&path),
        };
        match read {
            Ok(text) => Ok(Self::new(path, text)),
            Err(source) => Err(ConfigError::Unreadable { path, source }),
        }
    }

    /// The text of the file at `path`.
    pub fn new(path: PathBuf, text: String) -> Self {
        Self {
            file: Some((path, text)),
            flags: Vec::new(),
        }
    }

    /// Parses the text. Each store kind reads its own tables.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] with the location of the first invalid key, in the order of the keys.
    pub fn parse(&self, stores: &[Entry]) -> Result<File, ConfigError> {
        let mut document = DeTable::parse(self.text()).map_err(|wrong| self.refuse_text(&wrong, String::new()))?;
        let tables = take_store_tables(document.get_mut(), stores);
        let file = serde_path_to_error::deserialize::<_, File>(toml::Deserializer::from(document));
        let file = file.map_err(|wrong| Wrong::new(&[], &wrong));
        match (file, tables) {
            (Ok(mut file), Ok(mut tables)) => {
                for (name, section) in &mut file.namespaces {
                    section.stores = tables.remove(name).unwrap_or_else(|| StoreTables::of(stores));
                }
                Ok(file)
            }
            (Err(of_file), Err(of_store)) if of_store.path < of_file.path => Err(self.refuse_wrong(of_store, stores)),
            (Err(wrong), _) | (_, Err(wrong)) => Err(self.refuse_wrong(wrong, stores)),
        }
    }

    /// Records that a flag overrides the top-level key `key`.
    pub fn overridden(&mut self, key: &'static str, flag: &'static str) {
        self.flags.push((key, flag));
    }

    /// Refuses the value at a key.
    pub fn refuse(&self, key: &[&str], problem: impl Into<String>) -> ConfigError {
        ConfigError::Refused {
            place: self.place(key),
            key: path(key),
            problem: problem.into(),
        }
    }

    /// Whether the text has this key.
    pub fn contains(&self, key: &[&str]) -> bool {
        key.split_last()
            .is_some_and(|(_, table)| self.find(key) != self.find(table))
    }

    fn place(&self, key: &[&str]) -> ValueLocation {
        let flag = self.flags.iter().find(|(overridden, _)| key == [*overridden]);
        match flag {
            Some((_, flag)) => ValueLocation::Flag(flag),
            None => self.position(self.find(key)),
        }
    }

    fn refuse_wrong(&self, wrong: Wrong, stores: &[Entry]) -> ConfigError {
        let mut problem = wrong.error.message().to_owned();
        // The tables of stores are parsed separately, but they are allowed in a namespace's table.
        if let [first, _, _] = wrong.path.as_slice()
            && first == "namespaces"
            && problem.starts_with("unknown field")
        {
            let kinds = StoreTables::of(stores).kinds();
            problem.extend(kinds.into_iter().map(|kind| format!(", `{kind}`")));
        }
        ConfigError::Refused {
            place: self.position(wrong.error.span().unwrap_or_default()),
            key: wrong.key,
            problem,
        }
    }

    fn refuse_text(&self, wrong: &toml::de::Error, key: String) -> ConfigError {
        ConfigError::Refused {
            place: self.position(wrong.span().unwrap_or_default()),
            key,
            problem: wrong.message().to_owned(),
        }
    }

    fn text(&self) -> &str {
        self.file.as_ref().map_or("", |(_, text)| text)
    }

    fn position(&self, span: Range<usize>) -> ValueLocation {
        let Some((path, text)) = &self.file else {
            return ValueLocation::Default;
        };
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        ValueLocation::File {
            path: path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    /// The position of a key, or else of the innermost existing table around it.
    fn find(&self, key: &[&str]) -> Range<usize> {
        let Ok(document) = DeTable::parse(self.text()) else {
            return 0..0;
        };
        let (mut found, mut within): (_, Option<&DeValue<'_>>) = (0..0, None);
        for part in key {
            let next = match (item(part), within) {
                (Some(number), Some(DeValue::Array(items))) => items.get(number).map(|item| (item.span(), item)),
                (None, None) => document.get_ref().get_key_value(*part).map(named),
                (None, Some(DeValue::Table(table))) => table.get_key_value(*part).map(named),
                _ => None,
            };
            let Some((span, value)) = next else { break };
            // Tables in a list of tables have no span. The position of the list is used instead.
            if !span.is_empty() {
                found = span;
            }
            within = Some(value.get_ref());
        }
        found
    }
}

/// An error in the text.
struct Wrong {
    /// The parts of the key.
    path: Vec<String>,
    /// The whole key, as displayed.
    key: String,
    error: Box<toml::de::Error>,
}

impl Wrong {
    /// An error in the value at this path.
    fn new(base: &[&str], wrong: &ReadError) -> Self {
        let own = wrong.path();
        let parts = own.iter().map(|part| match part {
            Segment::Map { key } => key.clone(),
            other => other.to_string(),
        });
        let own_key = own.to_string();
        let key = match (base.join("."), own_key.as_str()) {
            (base, ".") => base,
            (base, own) if base.is_empty() || own.starts_with('[') => base + own,
            (base, own) => format!("{base}.{own}"),
        };
        Self {
            path: base.iter().map(|part| (*part).to_owned()).chain(parts).collect(),
            key,
            error: Box::new(wrong.inner().clone()),
        }
    }
}

/// Removes the tables of stores from all namespaces of the document, and parses them.
fn take_store_tables(document: &mut DeTable<'_>, stores: &[Entry]) -> Result<BTreeMap<String, StoreTables>, Wrong> {
    let mut all = BTreeMap::new();
    let mut first: Option<Wrong> = None;
    for (name, section) in namespace_tables(document) {
        let mut tables = StoreTables::of(stores);
        for store in stores {
            let Some(raw) = section.remove(store.kind()) else {
                continue;
            };
            match store.read(RawValue::from(raw)) {
                Ok(table) => tables.put(store.kind(), table),
                Err(wrong) => {
                    let wrong = Wrong::new(&["namespaces", &name, store.kind()], &wrong);
                    if first.as_ref().is_none_or(|first| wrong.path < first.path) {
                        first = Some(wrong);
                    }
                }
            }
        }
        all.insert(name, tables);
    }
    first.map_or(Ok(all), Err)
}

/// The tables of the namespaces, by name.
fn namespace_tables<'t, 'd>(document: &'t mut DeTable<'d>) -> impl Iterator<Item = (String, &'t mut DeTable<'d>)> {
    let namespaces = match document.get_mut("namespaces").map(Spanned::get_mut) {
        Some(DeValue::Table(namespaces)) => Some(namespaces),
        _ => None,
    };
    let sections = namespaces.into_iter().flat_map(|namespaces| namespaces.iter_mut());
    sections.filter_map(|(name, section)| match section.get_mut() {
        DeValue::Table(section) => Some((name.get_ref().to_string(), section)),
        _ => None,
    })
}

type Value<'a> = Spanned<DeValue<'a>>;

fn named<'a, 'b>((name, value): (&'b Spanned<DeString<'a>>, &'b Value<'a>)) -> (Range<usize>, &'b Value<'a>) {
    (name.span(), value)
}

/// The number of a list item, which is written as `[3]` in a path.
fn item(part: &str) -> Option<usize> {
    part.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// The parts of a key as one text, such as `auth.rules[1].verbs`.
fn path(key: &[&str]) -> String {
    let mut path = String::new();
    for part in key {
        if !path.is_empty() && item(part).is_none() {
            path.push('.');
        }
        path.push_str(part);
    }
    path
}
