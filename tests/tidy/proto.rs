//! The API's own files: every item says what it is, and the README tells of all of them.

use std::collections::BTreeSet;

use crate::source::{Source, files_in, read};

fn proto_files() -> Vec<String> {
    let files = files_in("proto");
    assert!(files.iter().all(|path| path.ends_with(".proto")), "{files:?}");
    files
}

/// Whether a line begins an item that needs a comment.
fn is_item(line: &str) -> bool {
    let begins = ["service ", "rpc ", "message ", "enum ", "oneof "]
        .iter()
        .any(|word| line.starts_with(word));
    let is_header = ["syntax ", "package ", "import "]
        .iter()
        .any(|word| line.starts_with(word));
    begins || (line.ends_with(';') && line.contains(" = ") && !is_header)
}

#[test]
fn every_item_of_the_api_has_a_comment() {
    let (mut bare, mut items) = (Vec::new(), 0);
    for path in proto_files() {
        let text = read(&path);
        let mut before = "";
        for (number, line) in text.lines().map(str::trim).enumerate() {
            if is_item(line) {
                items += 1;
                if !before.starts_with("//") {
                    bare.push(format!("{path}:{}: {line}", number + 1));
                }
            }
            before = line;
        }
    }
    assert!(items > 100, "only {items} items were found");
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn the_readme_tells_of_every_method() {
    let readme = read("README.md");
    let mut methods = 0;
    for path in proto_files() {
        for line in read(&path).lines().filter_map(|line| line.trim().strip_prefix("rpc ")) {
            let (name, _) = line.split_once('(').expect("a method");
            assert!(
                readme.contains(&format!("| `{name}`")),
                "README.md does not tell of {name}"
            );
            methods += 1;
        }
    }
    assert!(methods >= 10, "only {methods} methods were found");
}

#[test]
fn the_readme_tells_of_just_the_reasons_that_are_answered() {
    let status = Source::read("src/api/status.rs");
    let paths = status.paths();
    let reasons = paths
        .iter()
        .filter(|path| path.segments.len() == 2 && path.segments[0] == "reason");
    let answered: BTreeSet<&str> = reasons.map(|path| path.segments[1].as_str()).collect();
    assert_eq!(
        answered,
        fencepost::rpc::reason::ALL.iter().copied().collect(),
        "all are answered"
    );
    let readme = read("README.md");
    let section = readme
        .split("\n## ")
        .find(|section| section.starts_with("Errors"))
        .expect("a section on errors");
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let told: BTreeSet<&str> = rows.map(|(reason, _)| reason).collect();
    assert!(answered.contains("LOCK_HELD"), "{answered:?}");
    assert_eq!(told, answered);
}
