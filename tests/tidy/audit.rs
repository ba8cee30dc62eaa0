//! What `scripts/audit` finds, and that a run on a schedule which could not look fails.

use std::fs;
use std::process::Command;

use crate::source::{read, root};

/// Whether the script passes with these arguments, and what it says.
fn audit(arguments: &[&str]) -> (bool, String) {
    let ran = Command::new(root().join("scripts/audit")).args(arguments).output();
    let ran = ran.expect("python3 runs");
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    (ran.status.success(), said)
}

#[test]
fn no_dependency_has_a_fault_that_is_known() {
    let (passes, said) = audit(&[]);
    assert!(passes, "{said}");
    let count = said.split_whitespace().find_map(|word| word.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count > 300), "{said}");
}

#[test]
fn a_known_fault_of_the_server_or_of_a_client_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("advisories.toml");
    for (ecosystem, package, place) in [
        ("crates.io", "tokio", "Cargo.lock: tokio "),
        ("Go", "google.golang.org/grpc", "go.mod: google.golang.org/grpc "),
        (
            "Maven",
            "io.grpc:grpc-netty-shaded",
            "clients/java/fencepost-client/pom.xml: io.grpc:grpc-netty-shaded ",
        ),
        (
            "npm",
            "@connectrpc/connect",
            "clients/typescript/package-lock.json: @connectrpc/connect ",
        ),
        ("PyPI", "mypy", "requirements-dev.txt: mypy "),
    ] {
        let fault = |mended: &str| {
            let text = format!(
                "[[advisory]]\nid = \"MADE-UP-1\"\necosystem = \"{ecosystem}\"\npackage = \"{package}\"\nmended = \"{mended}\"\n\
                 fault = \"none\"\n"
            );
            fs::write(&file, text).expect("a file");
            audit(&[file.to_str().expect("a path")])
        };
        let (passes, said) = fault("9999.0");
        assert!(
            !passes && said.contains(place) && said.contains("MADE-UP-1"),
            "{ecosystem}: {said}"
        );
        let (passes, said) = fault("0.0.1");
        assert!(passes, "{ecosystem}: {said}");
    }
}

#[test]
fn a_run_on_a_schedule_fails_if_it_could_not_look() {
    let scheduled = read(".ci/scheduled");
    assert!(scheduled.contains("\nscripts/deny strict ||") && scheduled.contains("\nscripts/audit --ask ||"));
    let nightly = read("scripts/nightly");
    let parts = nightly
        .split_once("\nparts=(")
        .and_then(|(_, rest)| rest.split_once(')'))
        .expect("parts")
        .0;
    assert!(parts.starts_with("advisories ") && nightly.contains("\nadvisories() { .ci/scheduled; }\n"));
    let matrix = format!("part: [{}]", parts.replace(' ', ", "));
    assert!(read(".github/workflows/nightly.yml").contains(&matrix), "{matrix}");
    // Nobody listens at this proxy.
    let ran = Command::new(root().join("scripts/audit"))
        .arg("--ask")
        .env("https_proxy", "http://127.0.0.1:1")
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        !ran.status.success() && said.contains("known vulnerabilities were NOT looked for"),
        "{said}"
    );
}
