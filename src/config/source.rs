//! The text of a configuration file, and where in it a key stands.

use std::ops::Range;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::{ConfigError, ValueLocation};
use crate::files;

/// Where a configuration came from, to name the place of a value that is refused.
#[derive(Debug, Default)]
pub struct Source {
    file: Option<(PathBuf, String)>,
    flags: Vec<(&'static str, &'static str)>,
}

impl Source {
    /// The text of a file; no file is an empty one.
    ///
    /// # Errors
    /// [`ConfigError::Unreadable`] when it cannot be read, or is no UTF-8.
    pub fn read(path: Option<PathBuf>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        match files::read_text(&path) {
            Ok(text) => Ok(Self::new(path, text)),
            Err(source) => Err(ConfigError::Unreadable { path, source }),
        }
    }

    /// A text that stands in `path`.
    pub fn new(path: PathBuf, text: String) -> Self {
        Self {
            file: Some((path, text)),
            flags: Vec::new(),
        }
    }

    /// What the text says.
    ///
    /// # Errors
    /// [`ConfigError::Refused`] with the place and the key that is wrong.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let parsed = toml::Deserializer::parse(self.text()).map_err(|wrong| self.refuse_text(&wrong, String::new()))?;
        serde_path_to_error::deserialize(parsed).map_err(|wrong| {
            let key = wrong.path().to_string();
            let root = key == ".";
            self.refuse_text(wrong.inner(), if root { String::new() } else { key })
        })
    }

    /// Notes that the top-level key `key` was given by a flag, which has the last word.
    pub fn overridden(&mut self, key: &'static str, flag: &'static str) {
        self.flags.push((key, flag));
    }

    /// The refusal of the value at a key.
    pub fn refuse(&self, key: &[&str], problem: impl Into<String>) -> ConfigError {
        ConfigError::Refused {
            place: self.place(key),
            key: path(key),
            problem: problem.into(),
        }
    }

    fn place(&self, key: &[&str]) -> ValueLocation {
        let flag = self.flags.iter().find(|(overridden, _)| key == [*overridden]);
        match flag {
            Some((_, flag)) => ValueLocation::Flag(flag),
            None => self.position(self.find(key)),
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

    /// Where a key stands, or else the nearest table around it that the text has.
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
            // The tables of a list have no place of their own, but where their list has one.
            if !span.is_empty() {
                found = span;
            }
            within = Some(value.get_ref());
        }
        found
    }
}

type Value<'a> = Spanned<DeValue<'a>>;

fn named<'a, 'b>((name, value): (&'b Spanned<DeString<'a>>, &'b Value<'a>)) -> (Range<usize>, &'b Value<'a>) {
    (name.span(), value)
}

/// The number of an item of a list, which a path shows as `[3]`.
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
