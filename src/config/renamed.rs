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

/// The tables of the namespaces, by name.
pub(super) fn namespace_tables<'t, 'd>(
    document: &'t mut DeTable<'d>,
) -> impl Iterator<Item = (String, &'t mut DeTable<'d>)> {
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

/// Renames the keys of the tables of stores that have new names. A key that is there by both names stays as it is.
pub(super) fn rename(document: &mut DeTable<'_>, stores: &[Entry]) -> Vec<Found> {
    let mut all = Vec::new();
    for (name, section) in namespace_tables(document) {
        for store in stores {
            let Some(DeValue::Table(table)) = section.get_mut(store.kind()).map(Spanned::get_mut) else {
                continue;
            };
            let renamed = store.renamed_keys().iter().filter_map(|(old, new)| {
                let (span, is_twice) = rename_key(table, old, new)?;
                Some(Found {
                    path: ["namespaces".to_owned(), name.clone(), store.kind().to_owned()],
                    old,
                    new,
                    span,
                    is_twice,
                })
            });
            all.extend(renamed);
        }
    }
    all
}

/// Renames one key. Returns its place in the text, and whether the table has the key by both names.
fn rename_key(table: &mut DeTable<'_>, old: &str, new: &'static str) -> Option<(Range<usize>, bool)> {
    let (key, _) = table.get_key_value(old)?;
    let (span, is_twice) = (key.span(), table.contains_key(new));
    if !is_twice && let Some(value) = table.remove(old) {
        table.insert(Spanned::new(span.clone(), DeString::Borrowed(new)), value);
    }
    Some((span, is_twice))
}
