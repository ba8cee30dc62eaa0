//! The docs name only subcommands and flags of the program that it has.

use std::collections::BTreeMap;
use std::process::Command;

use crate::documents::{code_words, documents};
use crate::source::read;

/// The help of a subcommand, or of the program; nothing where there is no such subcommand.
fn help(subcommand: &[&str]) -> Option<String> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    let output = program.args(subcommand).arg("--help").env_clear().output();
    let output = output.expect("the program runs");
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).expect("text"))
}

/// The lines of a text that call the program: in blocks of commands, and in code within sentences.
fn calls(document: &str) -> Vec<String> {
    let text = read(document);
    let blocks = text.split("\n```").skip(1).step_by(2);
    let shells = blocks.filter(|block| {
        ["sh\n", "bash\n", "console\n"]
            .iter()
            .any(|kind| block.starts_with(kind))
    });
    let lines: Vec<String> = shells
        .flat_map(str::lines)
        .map(|line| line.trim_start_matches("$ ").trim().to_owned())
        .collect();
    let calls = lines.into_iter().chain(code_words(document));
    calls.filter(|call| call.starts_with("fencepost ")).collect()
}

/// The subcommand and the flags of a call, up to the command that it runs.
fn parts(call: &str) -> (Vec<&str>, Vec<&str>) {
    let words: Vec<&str> = call
        .split_whitespace()
        .skip(1)
        .take_while(|word| *word != "--")
        .collect();
    let length = if words.first() == Some(&"config") { 2 } else { 1 };
    let subcommand = words.iter().copied().take(length).collect();
    let flags = words.iter().filter(|word| word.starts_with("--"));
    (subcommand, flags.filter_map(|flag| flag.split('=').next()).collect())
}

#[test]
fn every_command_of_the_docs_exists_with_its_flags() {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut checked = 0;
    for document in documents() {
        for call in calls(&document) {
            let (subcommand, flags) = parts(&call);
            let name = subcommand.join(" ");
            let text = known.entry(name.clone()).or_insert_with(|| {
                help(&subcommand).unwrap_or_else(|| panic!("{document}: there is no command fencepost {name}"))
            });
            for flag in flags {
                assert!(text.contains(flag), "{document}: fencepost {name} has no {flag}");
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "only {checked} commands are named");
}
