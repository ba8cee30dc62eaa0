//! `GUARANTEES.md`: a summary, then a section for each store with its promises, and the tests that show each of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::book::sections;
use crate::documents::{is_named, rows};
use crate::names::all_tests;
use crate::source::read;

/// What every store says something of.
const TOPICS: &[&str] = &[
    "Exclusion",
    "Tokens",
    "Order",
    "Modes",
    "Failover",
    "Restart",
    "Data loss",
    "Watch",
];

/// Sections that hold promises of other parts than a store.
const OTHER_SECTIONS: &[&str] = &["Every store", "Wrong clocks", "Clients", "Callers"];

/// The sections that hold promises: their heading and text.
fn promising(text: &str) -> Vec<(&str, &str)> {
    let with_tests = sections(text)
        .into_iter()
        .filter(|(_, section)| section.contains("\n### Tests\n"));
    with_tests.collect()
}

/// The promises of a section by their names: `**Name.** sentence`, each as an item of a list.
fn promises(section: &str) -> Vec<&str> {
    let (claims, _) = section.split_once("\n### Tests\n").expect("the tests");
    let items = claims.lines().filter(|line| line.starts_with("- "));
    let names = items.map(|line| {
        let name = line.strip_prefix("- **").and_then(|line| line.split_once(".** "));
        name.unwrap_or_else(|| panic!("a promise without a name: {line}")).0
    });
    names.collect()
}

/// The tests that a section lists, by the name of the promise that they show.
fn evidence(section: &str) -> BTreeMap<&str, Vec<&str>> {
    let (_, tests) = section.split_once("\n### Tests\n").expect("the tests");
    let items = tests.split("\n- ").skip(1);
    let named = items.map(|item| {
        let (name, tests) = item.split_once(": ").unwrap_or_else(|| panic!("no name: {item}"));
        (name, tests.split('`').skip(1).step_by(2).collect())
    });
    named.collect()
}

#[test]
fn every_promise_names_tests_that_exist() {
    let text = read("GUARANTEES.md");
    let tests = all_tests();
    let sections = promising(&text);
    assert!(sections.len() > OTHER_SECTIONS.len() + 3, "{}", sections.len());
    for (heading, section) in sections {
        let promises = promises(section);
        let evidence = evidence(section);
        let distinct: BTreeSet<_> = promises.iter().copied().collect();
        assert_eq!(distinct.len(), promises.len(), "{heading}: a name twice: {promises:?}");
        assert_eq!(
            distinct,
            evidence.keys().copied().collect(),
            "{heading}: promises, and their tests"
        );
        for (promise, named) in evidence {
            assert!(!named.is_empty(), "{heading}: {promise}: no test");
            for name in named {
                assert!(
                    tests.iter().any(|test| is_named(test, name)),
                    "{heading}: {promise}: no test {name}"
                );
            }
        }
    }
}

#[test]
fn every_section_but_the_first_holds_promises() {
    let text = read("GUARANTEES.md");
    let all: Vec<&str> = sections(&text).iter().map(|(heading, _)| *heading).collect();
    let promising: Vec<&str> = promising(&text).iter().map(|(heading, _)| *heading).collect();
    assert_eq!(all[1..], promising[..], "sections, and those that list their tests");
    assert_eq!(all[0], "Summary");
}

#[test]
fn every_store_promises_something_on_every_topic() {
    let text = read("GUARANTEES.md");
    let stores: Vec<_> = promising(&text)
        .into_iter()
        .filter(|(heading, _)| !OTHER_SECTIONS.contains(heading))
        .collect();
    for backend in crate::cargo::backends().keys() {
        assert!(
            stores.iter().any(|(heading, _)| heading.starts_with(backend.as_str())),
            "no section of {backend}"
        );
    }
    for (heading, section) in &stores {
        let promises = promises(section);
        for topic in TOPICS {
            assert!(promises.contains(topic), "{heading}: nothing on {topic}");
        }
    }
    let rows = rows(sections(&text)[0].1);
    let listed: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(
        listed,
        stores.iter().map(|(heading, _)| *heading).collect::<Vec<_>>(),
        "the rows of the summary"
    );
}

/// The longest cell of the summary, in bytes.
const LONGEST_CELL: usize = 60;

#[test]
fn the_cells_of_the_summary_are_short() {
    let text = read("GUARANTEES.md");
    let rows = rows(sections(&text)[0].1);
    for row in &rows {
        assert_eq!(row.len(), rows[0].len(), "{row:#?}");
        for cell in row {
            assert!(!cell.is_empty() && cell.len() <= LONGEST_CELL, "{cell:?}");
        }
    }
}
