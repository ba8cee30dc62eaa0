//! The API's own files: every item says what it is, and the page on errors lists every reason.

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
    let is_header = ["syntax ", "package ", "import ", "option "]
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
fn the_page_on_errors_tells_of_just_the_reasons_that_are_answered() {
    let capitals = |text: &str| text.len() > 4 && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
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
    let page = read("docs/errors.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let rows = rows.filter(|(reason, _)| capitals(reason));
    let told: BTreeSet<&str> = rows.map(|(reason, _)| reason).collect();
    assert!(answered.contains("LOCK_HELD"), "{answered:?}");
    assert_eq!(told, answered);
}
