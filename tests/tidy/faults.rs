//! The table *fault × store* of `tests/common/faults.rs`, and the tests that it makes.

use crate::source::{Source, Token, read, tokens};

const TABLE: &str = "tests/common/faults.rs";
/// Its columns.
const STORES: [&str; 6] = ["redis", "redlock", "etcd", "zookeeper", "postgres", "mysql"];

/// A fault, and its cell for each store.
type Row<'a> = (&'a str, Vec<&'a str>);

/// The rows `fn fault [cell cell …] case;`.
fn rows<'a>(tokens: &[Token<'a>]) -> Vec<Row<'a>> {
    let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
    let mut rows = Vec::new();
    for at in 0..texts.len() {
        if let ["fn", fault, "[", cells @ ..] = &texts[at..] {
            rows.push((*fault, cells.iter().take_while(|cell| **cell != "]").copied().collect()));
        }
    }
    rows
}

/// The store of `common::faults!(store, …)`.
fn store<'a>(tokens: &[Token<'a>]) -> Option<&'a str> {
    let mut calls = tokens.windows(4).map(|four| [0, 1, 2, 3].map(|at| four[at].text));
    calls.find_map(|call| match call {
        ["faults", "!", "(", store] => Some(store),
        _ => None,
    })
}

/// The tests of the table among these sources, each in the module that `module` names.
pub fn tests(sources: &[Source], module: impl Fn(&str) -> String) -> Vec<String> {
    let table = sources.iter().find(|source| source.path == TABLE).expect("the table");
    let table = tokens(&table.code);
    let mut tests = Vec::new();
    for source in sources {
        let Some(store) = store(&tokens(&source.code)) else {
            continue;
        };
        let column = STORES.iter().position(|column| *column == store);
        let column = column.unwrap_or_else(|| panic!("{}: no column {store}", source.path));
        let shown = rows(&table).into_iter().filter(|(_, cells)| cells[column] == "yes");
        tests.extend(shown.map(|(fault, _)| format!("{}::{fault}", module(&source.path))));
    }
    tests
}

#[test]
fn each_fault_is_shown_on_each_store_or_has_a_reason_that_the_table_explains() {
    let text = read(TABLE);
    let code = tokens(&text);
    let rows = rows(&code);
    assert!(rows.len() > 20, "{}", rows.len());
    for (fault, cells) in rows {
        assert_eq!(cells.len(), STORES.len(), "{fault}");
        assert!(cells.contains(&"yes"), "{fault}: no store shows it");
        for cell in cells.into_iter().filter(|cell| *cell != "yes") {
            assert!(
                text.contains(&format!("//! - `{cell}`: ")),
                "{fault}: {cell} is no reason"
            );
        }
    }
    let sources: Vec<_> = Source::all_in("tests").into_iter().collect();
    let mut stores: Vec<_> = sources
        .iter()
        .filter_map(|source| store(&tokens(&source.code)))
        .collect();
    stores.retain(|store| STORES.contains(store));
    stores.sort_unstable();
    let mut columns = STORES;
    columns.sort_unstable();
    assert_eq!(stores, columns, "each column has its tests once");
}
