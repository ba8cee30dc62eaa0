//! The docs name only what is there: tests, files, links, commands, configurations.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::names::all_tests;
use crate::source::{read, root};

/// What people read beside the pages of `docs/`.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "GUARANTEES.md",
    "CONTRIBUTING.md",
    "RECIPES.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benches/README.md",
    "helm/fencepost/README.md",
    "tests/attack/README.md",
    ZOOKEEPER_CONDITIONS,
    "core/src/backend/tree/protocol.md",
];

/// The conditions of the tree engine, and what fails without each.
const ZOOKEEPER_CONDITIONS: &str = "tests/faults_zookeeper/README.md";

/// What people read: those above, and the pages of the book.
pub fn documents() -> Vec<String> {
    let own = DOCUMENTS.iter().map(|document| (*document).to_owned());
    own.chain(crate::book::pages()).collect()
}

/// How far a first screen reaches, in lines.
const FIRST_SCREEN: usize = 40;

/// What a document sets in code within its sentences and tables.
pub fn code_words(document: &str) -> Vec<String> {
    let text = read(document);
    let prose = text.split("\n```").step_by(2);
    prose
        .flat_map(|part| {
            part.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The blocks of commands of a text, each with the line in which it begins.
fn command_blocks(text: &str) -> Vec<(usize, Vec<&str>)> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = lines.iter().enumerate().filter(|(_, line)| **line == "```sh");
    let block = |start: usize| {
        lines[start + 1..]
            .iter()
            .take_while(|line| **line != "```")
            .copied()
            .collect()
    };
    starts.map(|(start, _)| (start, block(start))).collect()
}

/// Whether a name is the end of a test's whole name.
pub fn is_named(test: &str, name: &str) -> bool {
    test == name || test.strip_suffix(name).is_some_and(|before| before.ends_with("::"))
}

/// The rows of a table, each with its cells; without its head.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = lines.map(|line| line.trim_matches('|').split(" | "));
    cells.map(|cells| cells.map(str::trim).collect()).collect()
}

#[test]
fn every_condition_and_fault_of_the_zookeeper_store_names_what_shows_it() {
    let text = read(ZOOKEEPER_CONDITIONS);
    let (conditions, faults) = text.split_once("\n## The faults").expect("the faults");
    let of_code: Vec<_> = rows(conditions).into_iter().filter(|row| row.len() == 3).collect();
    assert!(of_code.len() > 20, "{of_code:#?}");
    for row in of_code.iter().filter(|row| row[1].contains(".rs")) {
        assert!(row[2].contains("::"), "{}: no test", row[0]);
    }
    let faults = rows(faults);
    assert!(faults.len() > 20, "{faults:#?}");
    for row in faults {
        assert!(row.len() == 2 && row[1].contains("::"), "no test: {row:#?}");
    }
    for test in all_tests()
        .iter()
        .filter(|test| test.starts_with("common::tree::versions::"))
    {
        assert!(
            text.contains(&format!("`{test}`")),
            "{ZOOKEEPER_CONDITIONS} does not name {test}"
        );
    }
}

#[test]
fn every_threat_names_the_test_that_shows_its_bound() {
    let text = read("SECURITY.md");
    let (_, threats) = text.split_once("\n## Threats\n").expect("the threats");
    let tables: Vec<&str> = threats.split("\n### ").skip(1).collect();
    assert!(tables.len() >= 3, "{tables:#?}");
    for row in tables.into_iter().flat_map(rows) {
        assert!(row.len() == 3 && row[2].contains("::"), "no test: {row:#?}");
    }
}

#[test]
fn the_documents_name_only_tests_that_exist() {
    let tests = all_tests();
    let binaries: Vec<&str> = tests.iter().filter_map(|test| test.split("::").next()).collect();
    let mut named = 0;
    for document in documents() {
        for word in code_words(&document) {
            let first = word.split("::").next().unwrap_or_default();
            let is_name = word.contains("::") && binaries.contains(&first);
            if is_name {
                named += 1;
                assert!(
                    tests.iter().any(|test| is_named(test, &word)),
                    "{document}: there is no test {word}"
                );
            }
        }
    }
    assert!(named > 20, "only {named} tests are named");
}

#[test]
fn the_first_screen_has_two_commands_and_they_exist() {
    let readme = read("README.md");
    let first_screen: Vec<_> = command_blocks(&readme)
        .into_iter()
        .filter(|(line, _)| *line < FIRST_SCREEN)
        .collect();
    assert_eq!(first_screen.len(), 2, "{first_screen:?}");
    for (_, lines) in first_screen {
        let [command] = lines.as_slice() else {
            panic!("one line each: {lines:?}")
        };
        let program = root().join(command.split(' ').next().expect("a program"));
        let mode = std::fs::metadata(&program)
            .unwrap_or_else(|error| panic!("{program:?}: {error}"))
            .permissions()
            .mode();
        assert_ne!(mode & 0o111, 0, "{program:?} cannot be run");
    }
}

#[test]
fn what_runs_for_every_change_is_what_the_readme_says() {
    let readme = read("README.md");
    let script = read(".ci/run");
    for (_, lines) in &command_blocks(&readme)[..2] {
        assert!(script.contains(lines[0]), ".ci/run does not run {:?}", lines[0]);
    }
}

#[test]
fn the_documents_name_only_files_that_exist() {
    let mut named = 0;
    for document in documents() {
        let text = read(&document);
        let links = crate::book::links(&text).into_iter();
        let links = links.filter(|(link, _)| !link.is_empty());
        let links = links.map(|(link, _)| crate::book::joined(&document, link));
        let tops = [
            "src/",
            "core/",
            "tests/",
            "scripts/",
            "clients/",
            "examples/",
            "proto/",
            "benches/",
            "helm/",
            ".ci/",
            "docs/",
        ];
        let words = code_words(&document)
            .into_iter()
            .filter(|word| tops.iter().any(|top| word.starts_with(top)));
        for path in words.chain(links) {
            let file = path.split(' ').next().unwrap_or_default();
            assert!(root().join(file).exists(), "{document}: there is no {file}");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} files are named");
}

#[test]
fn every_configuration_of_the_documents_is_valid() {
    let documents: Vec<_> = documents().iter().map(|document| read(document)).collect();
    let rest = documents
        .iter()
        .flat_map(|document| document.split("```toml\n").skip(1));
    let examples: Vec<_> = rest.filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() > 1, "only {} examples", examples.len());
    examples.into_iter().for_each(is_valid);
}

fn is_valid(example: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("fencepost.toml");
    // The files that it names are there.
    let home = folder.path().to_str().expect("a path");
    let example = ["/etc/fencepost", "/run/fencepost", "/var/lib/fencepost"]
        .iter()
        .fold(example.to_owned(), |text, path| text.replace(path, home));
    let certificate = rcgen::generate_simple_self_signed(["redis".to_owned()]).expect("a certificate");
    let keys = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let files = [
        ("redis-password", "secret\n"),
        ("redis-ca.pem", &certificate.cert.pem()),
        ("etcd-password", "secret\n"),
        ("etcd-ca.pem", &certificate.cert.pem()),
        ("postgres-password", "secret\n"),
        ("postgres-ca.pem", &certificate.cert.pem()),
        ("mysql-password", "secret\n"),
        ("mysql-ca.pem", &certificate.cert.pem()),
        ("server.pem", &certificate.cert.pem()),
        ("server.key", &certificate.signing_key.serialize_pem()),
        ("clients.pem", &certificate.cert.pem()),
        ("bearers", "# none\n"),
        ("jwks.json", keys),
    ];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    std::fs::write(&file, example).expect("the example is written");
    let mut check = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    check
        .args(["config", "check", "--config"])
        .arg(&file)
        .env_clear()
        .env("HOME", folder.path());
    let checked = check.output().expect("the program runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
