//! The tables of a namespace's stores, by the name of the store kind.

use std::sync::Arc;

use crate::backend::driver::{Entry, StoreTable};
use crate::schema::{Section, Table, Tables};

/// The table of each store kind in the registry, if the namespace has it.
#[derive(Debug, Clone, Default)]
pub struct StoreTables(Vec<(Entry, Found)>);

/// Whether the namespace has the table of a store kind.
#[derive(Debug, Clone)]
enum Found {
    No,
    /// The table was not read, because this program was built without the store kind.
    Unread,
    Table(Arc<dyn StoreTable>),
}

impl StoreTables {
    /// Tables for the store kinds of a registry, all absent.
    pub(super) fn of(stores: &[Entry]) -> Self {
        Self(stores.iter().map(|store| (*store, Found::No)).collect())
    }

    /// Sets the table of a store kind; `None` if it was not read.
    pub(super) fn put(&mut self, kind: &str, table: Option<Arc<dyn StoreTable>>) {
        if let Some((_, found)) = self.0.iter_mut().find(|(store, _)| store.kind() == kind) {
            *found = table.map_or(Found::Unread, Found::Table);
        }
    }

    /// The table of a store kind. If it is absent, a table with the defaults is inserted. Returns `None` if this
    /// program was built without the store kind.
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

    /// The first store kind other than `kind` that has a table.
    pub(super) fn other_than(&self, kind: &str) -> Option<&'static str> {
        let mut others = self
            .0
            .iter()
            .filter(|(store, found)| store.kind() != kind && !matches!(found, Found::No));
        others.next().map(|(store, _)| store.kind())
    }

    /// The store kinds that this program was built with, separated by commas.
    pub(super) fn built(&self) -> String {
        let built = self.0.iter().filter(|(store, _)| store.is_built());
        built.map(|(store, _)| store.kind()).collect::<Vec<_>>().join(", ")
    }

    /// The names of all store kinds, in the order of the registry.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.0.iter().map(|(store, _)| store.kind()).collect()
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

/// The paths of these tables do not contain the name of the field.
impl Tables for StoreTables {
    fn below(&self, _: &str) -> Vec<Table<&dyn Section>> {
        let tables = self.0.iter().filter_map(|(store, found)| match found {
            Found::Table(table) => Some(Table::one(store.kind(), &**table as &dyn Section)),
            _ => None,
        });
        tables.collect()
    }

    fn absent(&self, _: &str) -> Vec<Table<Box<dyn Section>>> {
        let absent = self.0.iter().filter(|(_, found)| !matches!(found, Found::Table(_)));
        let absent = absent.filter_map(|(store, _)| Some(Table::one(store.kind(), store.section()?)));
        absent.collect()
    }
}
