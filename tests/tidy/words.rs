//! What no file says.

use crate::source::{files_in, read, root};

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
    let papers = crate::papers::papers();
    let own = ["Cargo.toml", "Dockerfile", "build.rs"].map(str::to_owned);
    there
        .flat_map(|folder| files_in(folder))
        .chain(papers)
        .chain(own)
        .collect()
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

/// The longest file of the product, in lines: past this a room has a joint to be cut at.
const LONGEST: usize = 450;

#[test]
fn no_room_is_too_long_to_read() {
    let lengths = files_in("src")
        .into_iter()
        .map(|path| (read(&path).lines().count(), path));
    let too_long: Vec<_> = lengths.filter(|(lines, _)| *lines > LONGEST).collect();
    assert!(too_long.is_empty(), "{too_long:?}");
}
