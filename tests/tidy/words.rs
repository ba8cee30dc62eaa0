//! What no file says.

use crate::source::{Source, files_in, read, root};

/// Spelled in two halves, so that this file does not say them.
const LEFTOVERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[", "ignore"),
    concat!("/wo", "rk/"),
    concat!("CON", "TRACT"),
    concat!("DES", "IGN"),
];

/// The files that people read: all but what is built, and the licence and the lock file, which
/// others wrote.
fn all_files() -> Vec<String> {
    let folders = ["src", "tests", "examples", "benches", "proto", "scripts", ".ci", "helm"];
    let there = folders.iter().filter(|folder| root().join(folder).is_dir());
    let documents = crate::documents::documents();
    let own = ["Cargo.toml", "Dockerfile", "build.rs"].map(str::to_owned);
    there
        .flat_map(|folder| files_in(folder))
        .chain(documents)
        .chain(own)
        .chain(files_in("clients/rust/src"))
        .filter(|path| !is_built(path))
        .collect()
}

/// The folders of `examples/` that its tools fill, and that git ignores.
const BUILT: &[&str] = &[
    ".mypy_cache",
    ".venv",
    "__pycache__",
    "bin",
    "dist",
    "fencepost",
    "gen",
    "node_modules",
    "target",
];

fn is_built(path: &str) -> bool {
    let is_folder = |segment: &str| BUILT.contains(&segment);
    path.starts_with("examples/") && (path.split('/').any(is_folder) || path.ends_with(".db"))
}

#[test]
fn nothing_is_left_to_be_done() {
    let mut found = Vec::new();
    for path in all_files() {
        for (number, line) in read(&path).lines().enumerate() {
            let words = LEFTOVERS.iter().filter(|word| line.contains(**word));
            found.extend(words.map(|word| format!("{path}:{}: {word}", number + 1)));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The longest file of the product, in lines: past this a module has a joint to be cut at.
const LONGEST: usize = 450;

#[test]
fn no_file_is_too_long_to_read() {
    let lengths = ["src", "clients/rust/src"]
        .into_iter()
        .flat_map(files_in)
        .map(|path| (read(&path).lines().count(), path));
    let too_long: Vec<_> = lengths.filter(|(lines, _)| *lines > LONGEST).collect();
    assert!(too_long.is_empty(), "{too_long:?}");
}

/// The words that stand in the first column of the table of replaced words, between backticks.
fn replaced_words() -> Vec<String> {
    let text = read("CONTRIBUTING.md");
    let (_, table) = text.split_once("\n### Replaced words\n").expect("the table");
    let rows = table.lines().skip_while(|line| !line.starts_with("| --- ")).skip(1);
    let cells = rows
        .take_while(|line| line.starts_with("| "))
        .filter_map(|line| line.split('|').nth(1));
    cells
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn words_that_were_replaced_do_not_come_back() {
    let words = replaced_words();
    assert!(words.len() > 20, "{words:?}");
    let mut found = Vec::new();
    for Source { path, code } in Source::all() {
        for (number, line) in code.lines().enumerate() {
            let identifiers: Vec<&str> = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
            let old = words.iter().filter(|word| identifiers.contains(&word.as_str()));
            found.extend(old.map(|word| format!("{path}:{}: {word}", number + 1)));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
