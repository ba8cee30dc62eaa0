//! Keys that have a new name. The old name is accepted until the next release, and the server warns of it.

use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::ValueLocation;
use crate::backend::driver::Entry;

/// A key that a file gives by its old name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedKey {
    /// Where the key stands.
    pub(super) place: ValueLocation,
    /// The table of the key, such as `namespaces.jobs.redis`.
    pub(super) table: String,
    /// The old name.
    pub(super) old: &'static str,
    /// The new name.
    pub(super) new: &'static str,
}

impl fmt::Display for RenamedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, table, old, new } = self;
        write!(
            f,
            "{place}: {table}.{old} is called {new} now; the next release refuses the old name"
        )
    }
}

/// A key that was found by its old name.
pub(super) struct Found {
    pub path: [String; 3],
    pub old: &'static str,
    pub new: &'static str,
    pub span: Range<usize>,
    /// Whether the table has the key by both names.
    pub is_twice: bool,
}

/// Renames the keys of the tables of stores that have new names. A key that is there by both names stays as it is.
pub(super) fn rename(document: &mut DeTable<'_>, stores: &[Entry]) -> Vec<Found> {
    let mut all = Vec::new();
    let namespaces = document.get_mut("namespaces").map(Spanned::get_mut);
    let Some(DeValue::Table(namespaces)) = namespaces else {
        return all;
    };
    for (name, section) in namespaces.iter_mut() {
        let DeValue::Table(section) = section.get_mut() else {
            continue;
        };
        for store in stores {
            let Some(DeValue::Table(table)) = section.get_mut(store.kind()).map(Spanned::get_mut) else {
                continue;
            };
            for (old, new) in store.renamed_keys() {
                let Some((key, _)) = table.get_key_value(*old) else {
                    continue;
                };
                let (span, is_twice) = (key.span(), table.contains_key(*new));
                if !is_twice && let Some(value) = table.remove(*old) {
                    table.insert(Spanned::new(span.clone(), DeString::Borrowed(new)), value);
                }
                all.push(Found {
                    path: [
                        "namespaces".to_owned(),
                        name.get_ref().to_string(),
                        store.kind().to_owned(),
                    ],
                    old,
                    new,
                    span,
                    is_twice,
                });
            }
        }
    }
    all
}
