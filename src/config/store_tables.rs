//! The tables of a namespace's stores, each under the name of its store.

use std::sync::Arc;

use crate::backend::driver::{Entry, StoreTable};
use crate::schema::{Section, Table, Tables};

/// One table for each store in the registry, where the namespace has it.
#[derive(Debug, Clone, Default)]
pub struct StoreTables(Vec<(Entry, Found)>);

/// Whether a store has a table.
#[derive(Debug, Clone)]
enum Found {
    No,
    /// It was not read, because this program was built without the store.
    Unread,
    Table(Arc<dyn StoreTable>),
}

impl StoreTables {
    /// No table yet, for the stores of a registry.
    pub(super) fn of(stores: &[Entry]) -> Self {
        Self(stores.iter().map(|store| (*store, Found::No)).collect())
    }

    /// Puts in what was found under the name of a store.
    pub(super) fn put(&mut self, kind: &str, table: Option<Arc<dyn StoreTable>>) {
        if let Some((_, found)) = self.0.iter_mut().find(|(store, _)| store.kind() == kind) {
            *found = table.map_or(Found::Unread, Found::Table);
        }
    }

    /// The table of a store that this program was built with; the one with the defaults is put in where there is
    /// none.
    pub(super) fn get_or_insert_default(&mut self, kind: &str) -> Option<Arc<dyn StoreTable>> {
        let (store, found) = self.0.iter_mut().find(|(store, _)| store.kind() == kind)?;
        match found {
            Found::Table(table) => Some(Arc::clone(table)),
            _ => {
                let table = store.table()?;
                *found = Found::Table(Arc::clone(&table));
                Some(table)
            }
        }
    }

    /// The store other than `kind` that has a table.
    pub(super) fn other_than(&self, kind: &str) -> Option<&'static str> {
        let others = self.in_order().into_iter();
        let mut others = others.filter(|(store, found)| store.kind() != kind && !matches!(found, Found::No));
        others.next().map(|(store, _)| store.kind())
    }

    /// The stores that this program was built with, as a list in a sentence.
    pub(super) fn built(&self) -> String {
        let built = self.0.iter().filter(|(store, _)| store.is_built());
        built.map(|(store, _)| store.kind()).collect::<Vec<_>>().join(", ")
    }

    /// The names of all stores, in the order of their tables.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.in_order().iter().map(|(store, _)| store.kind()).collect()
    }

    /// In the order of the documentation: stores over the same servers are next to each other.
    fn in_order(&self) -> Vec<&(Entry, Found)> {
        let mut ordered: Vec<&(Entry, Found)> = Vec::new();
        for entry in &self.0 {
            let is_like =
                |other: &&(Entry, Found)| other.0.servers().is_some() && other.0.servers() == entry.0.servers();
            let behind = ordered.iter().rposition(is_like).map(|at| at + 1);
            ordered.insert(behind.unwrap_or(ordered.len()), entry);
        }
        ordered
    }
}

impl PartialEq for StoreTables {
    fn eq(&self, other: &Self) -> bool {
        let keys = |tables: &Self| {
            let below = tables.below("").into_iter();
            below
                .map(|table| (table.path, table.section.keys()))
                .collect::<Vec<_>>()
        };
        keys(self) == keys(other)
    }
}

/// The name of the field is not part of their paths.
impl Tables for StoreTables {
    fn below(&self, _: &str) -> Vec<Table<&dyn Section>> {
        let tables = self.in_order().into_iter().filter_map(|(store, found)| match found {
            Found::Table(table) => Some(Table::one(store.kind(), table.section())),
            _ => None,
        });
        tables.collect()
    }

    fn absent(&self, _: &str) -> Vec<Table<Box<dyn Section>>> {
        let absent = self.in_order().into_iter();
        let absent = absent.filter(|(_, found)| !matches!(found, Found::Table(_)));
        let absent = absent.filter_map(|(store, _)| Some(Table::one(store.kind(), store.section()?)));
        absent.collect()
    }
}
