//! The calls that the API page shows, run as they stand there.
//!
//! `calls.txt` has each command with what it prints. `UPDATE_DOCS=1 cargo test --locked --test program e2e::page` writes it anew.

use std::process::Command;

use super::grpcurl::Caller;
use super::server::Server;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/calls.txt");

/// Where the server listens in the file.
const ADDRESS: &str = "127.0.0.1:50051";

/// What differs from run to run, and is named by later commands.
const NAMES: &[&str] = &["leaseId", "fencingToken"];

/// What differs from run to run.
const TIMES: &[&str] = &["waited", "remainingTtl", "since"];

/// What a command printed, also as its error.
fn run(command: &str) -> String {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools");
    let path = format!("{}:{tools}", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash").args(["-c", command]).env("PATH", path).output();
    let output = output.expect("bash runs");
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    texts.concat()
}

/// The key and the value of a line such as `"owner": "me",`.
fn field(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().split_once(": ")?;
    Some((key.trim_matches('"'), value.trim_end_matches(',').trim_matches('"')))
}

/// An answer without the values that differ from run to run.
fn masked(answer: &str) -> String {
    let differs = |key: &str| NAMES.contains(&key) || TIMES.contains(&key);
    let lines = answer.lines().map(|line| match field(line) {
        Some((key, _)) if differs(key) => key,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The same with the events of all messages in one: they come in one or in several.
fn joined(answer: &str) -> String {
    answer.replace("    }\n  ]\n}\n{\n  \"events\": [\n    {", "    },\n    {")
}

/// What the names of a recorded answer are in one that has the same lines.
fn renamed(recorded: &str, printed: &str) -> Vec<(String, String)> {
    let fields = recorded.lines().zip(printed.lines());
    let fields = fields.filter_map(|(old, new)| Some((field(old)?, field(new)?)));
    fields
        .filter(|((key, _), _)| NAMES.contains(key))
        .map(|((_, old), (_, new))| (old.to_owned(), new.to_owned()))
        .collect()
}

#[test]
fn the_calls_of_the_api_page_print_what_it_shows() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    if Caller::of(&server).is_none() {
        return;
    }
    let is_update = std::env::var_os("UPDATE_DOCS").is_some();
    let file = std::fs::read_to_string(FILE).expect("the calls");
    let (mut names, mut update) = (Vec::new(), Vec::new());
    for call in file.split("\n\n") {
        let (command, recorded) = call.split_once('\n').expect("a command and its answer");
        let (command, recorded) = (command.trim_start_matches("$ "), joined(recorded));
        let command = names
            .iter()
            .fold(command.to_owned(), |command, (old, new): &(String, String)| {
                command.replace(old, new)
            });
        let printed = joined(&run(&command.replace(ADDRESS, &server.address)));
        if !is_update {
            assert_eq!(masked(&recorded), masked(&printed), "{command}");
        }
        names.extend(renamed(&recorded, &printed));
        update.push(format!("$ {command}\n{}", printed.trim_end()));
    }
    assert!(names.len() > 10, "only {} names were found", names.len());
    if is_update {
        std::fs::write(FILE, update.join("\n\n") + "\n").expect("the file is written");
    }
}
