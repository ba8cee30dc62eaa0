//! `GUARANTEES.md`: numbered statements, a section for each store, and the tests that carry the numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::book::sections;
use crate::documents::rows;
use crate::names::all_tests;
use crate::source::{files_in, read};

/// The numbers of the statements: `- G12 …`.
fn statements(text: &str) -> Vec<u32> {
    let items = text.lines().filter_map(|line| line.strip_prefix("- G"));
    let numbers = items.map(|item| item.split_once(' ').and_then(|(number, _)| number.parse().ok()));
    numbers
        .map(|number| number.expect("a number and a statement"))
        .collect()
}

/// The numbers that a line carries: `// G12, G14`.
fn tag(line: &str) -> Option<Vec<u32>> {
    let numbers = line.trim().strip_prefix("// ")?.split(", ");
    numbers.map(|number| number.strip_prefix('G')?.parse().ok()).collect()
}

/// The name of the function below a tag, with nothing but attributes and documentation between.
fn tagged<'a>(mut below: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let line = below.find(|line| !line.trim().starts_with("#[") && !line.trim().starts_with("///"))?;
    let (_, name) = line.split_once("fn ")?;
    name.split(['(', '<']).next()
}

/// The tests that carry each number, as `path: function`.
fn tags() -> BTreeMap<u32, Vec<String>> {
    let tests = all_tests();
    let functions: BTreeSet<&str> = tests.iter().filter_map(|test| test.rsplit("::").next()).collect();
    let files = ["src", "tests", "clients/rust/src"].into_iter().flat_map(files_in);
    let mut tags: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for path in files.filter(|path| path.ends_with(".rs")) {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (at, numbers) in lines.iter().enumerate().filter_map(|(at, line)| Some((at, tag(line)?))) {
            let function = tagged(lines[at + 1..].iter().copied()).unwrap_or_default();
            assert!(
                functions.contains(function),
                "{path}:{}: no test below {numbers:?}",
                at + 1
            );
            for number in numbers {
                tags.entry(number).or_default().push(format!("{path}: {function}"));
            }
        }
    }
    tags
}

#[test]
fn every_statement_has_a_test_that_carries_its_number_and_no_other_number_is_carried() {
    let statements = statements(&read("GUARANTEES.md"));
    assert!(statements.len() > 100, "{}", statements.len());
    let mut once = BTreeSet::new();
    let twice: Vec<_> = statements.iter().filter(|number| !once.insert(**number)).collect();
    assert!(twice.is_empty(), "a number of several statements: {twice:?}");
    let tags = tags();
    let untested: Vec<_> = statements.iter().filter(|number| !tags.contains_key(number)).collect();
    assert!(untested.is_empty(), "no test carries G{untested:?}");
    let unknown: Vec<_> = tags.iter().filter(|(number, _)| !statements.contains(number)).collect();
    assert!(unknown.is_empty(), "numbers of no statement: {unknown:?}");
}

#[test]
fn tags_are_read_with_the_function_below() {
    assert_eq!(tag("    // G1, G20"), Some(vec![1, 20]));
    assert_eq!(tag("// Grants"), None);
    let below = ["/// Says.", "#[test]", "async fn shows<T>(fixture: &Fixture) {"];
    assert_eq!(tagged(below.into_iter()), Some("shows"));
    assert_eq!(tagged(["", "fn other() {"].into_iter()), None);
}

#[test]
fn every_store_has_a_section_and_a_row() {
    let text = read("GUARANTEES.md");
    let sections = sections(&text);
    let rows = rows(sections[0].1);
    for backend in crate::cargo::backends().keys() {
        let section = sections.iter().find(|(heading, _)| heading == backend);
        let (_, section) = section.unwrap_or_else(|| panic!("no section of {backend}"));
        assert!(!statements(section).is_empty(), "{backend}: no statement");
        assert!(
            rows.iter().any(|row| row[0].split(',').next() == Some(backend)),
            "no row of {backend}"
        );
    }
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
