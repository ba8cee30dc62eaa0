//! `GUARANTEES.md`: numbered statements, a section for each store, and the tests that carry the numbers.

use std::collections::{BTreeMap, BTreeSet};

use crate::book::sections;
use crate::documents::rows;
use crate::names::all_tests;
use crate::source::{files_in, read};

/// A statement's number, `G12`, or that of one of its clauses, `G12a`.
fn id(word: &str) -> Option<&str> {
    let rest = word.strip_prefix('G')?;
    let number = rest
        .strip_suffix(|last: char| last.is_ascii_lowercase())
        .unwrap_or(rest);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(word)
}

/// The statement that a clause belongs to.
fn statement_of(id: &str) -> &str {
    id.trim_end_matches(|last: char| last.is_ascii_lowercase())
}

/// The statements `- G12 …` in their order, and the clauses `  - G12a …` below them.
fn statements(text: &str) -> Vec<&str> {
    let mut above = "";
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(item) = line.trim_start().strip_prefix("- G") else {
            continue;
        };
        let word = &line[line.len() - item.len() - 1..];
        let id = word.split_once(' ').and_then(|(word, _)| id(word));
        let id = id.unwrap_or_else(|| panic!("no number and statement: {line}"));
        let is_clause = id != statement_of(id);
        assert_eq!(is_clause, line.starts_with(' '), "clauses alone are indented: {line}");
        match is_clause {
            true => assert_eq!(statement_of(id), above, "a clause below another statement: {line}"),
            false => above = id,
        }
        found.push(id);
    }
    found
}

/// What tests carry: each clause, and each statement that has none.
fn tested<'a>(statements: &[&'a str]) -> Vec<&'a str> {
    let clauses: BTreeSet<&str> = statements
        .iter()
        .filter(|id| statement_of(id) != **id)
        .copied()
        .collect();
    let split: BTreeSet<&str> = clauses.iter().map(|id| statement_of(id)).collect();
    statements.iter().filter(|id| !split.contains(**id)).copied().collect()
}

/// The numbers that a line carries: `// G12, G14a`.
fn tag(line: &str) -> Option<Vec<&str>> {
    line.trim().strip_prefix("// ")?.split(", ").map(id).collect()
}

/// The name of the function below a tag, with nothing but attributes and documentation between.
fn tagged<'a>(mut below: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let line = below.find(|line| !line.trim().starts_with("#[") && !line.trim().starts_with("///"))?;
    let (_, name) = line.split_once("fn ")?;
    name.split(['(', '<']).next()
}

/// The tests that carry each number, as `path: function`.
fn tags() -> BTreeMap<String, Vec<String>> {
    let tests = all_tests();
    let functions: BTreeSet<&str> = tests.iter().filter_map(|test| test.rsplit("::").next()).collect();
    let files = ["src", "core", "tests", "clients/rust/src"]
        .into_iter()
        .flat_map(files_in);
    let mut tags: BTreeMap<String, Vec<String>> = BTreeMap::new();
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
                tags.entry(number.to_owned())
                    .or_default()
                    .push(format!("{path}: {function}"));
            }
        }
    }
    tags
}

#[test]
fn every_statement_or_clause_has_a_test_that_carries_its_number_and_no_other_number_is_carried() {
    let text = read("GUARANTEES.md");
    let statements = statements(&text);
    assert!(statements.len() > 100, "{}", statements.len());
    let mut once = BTreeSet::new();
    let twice: Vec<_> = statements.iter().filter(|id| !once.insert(**id)).collect();
    assert!(twice.is_empty(), "a number of several statements: {twice:?}");
    let (tested, tags) = (tested(&statements), tags());
    let untested: Vec<_> = tested.iter().filter(|id| !tags.contains_key(**id)).collect();
    assert!(untested.is_empty(), "no test carries {untested:?}");
    let unknown = tags.iter().filter(|(id, _)| !tested.contains(&id.as_str()));
    let unknown: Vec<_> = unknown.collect();
    assert!(
        unknown.is_empty(),
        "numbers of no statement, or of one with clauses: {unknown:?}"
    );
}

#[test]
fn a_statement_with_clauses_is_tested_by_its_clauses() {
    let found = statements("- G1 One.\n- G2 Two:\n  - G2a first,\n    and more;\n  - G2b second.\n");
    assert_eq!(found, ["G1", "G2", "G2a", "G2b"]);
    assert_eq!(tested(&found), ["G1", "G2a", "G2b"]);
}

#[test]
fn tags_are_read_with_the_function_below() {
    assert_eq!(tag("    // G1, G20b"), Some(vec!["G1", "G20b"]));
    for other in ["// Grants", "// G1x2", "// Ga"] {
        assert_eq!(tag(other), None, "{other}");
    }
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
