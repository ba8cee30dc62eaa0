//! The clients of Connect for JavaScript and Go, as their users call the service with them.

use std::path::{Path, PathBuf};
use std::process::Command;

use fencepost::api::proto::DESCRIPTORS;

use super::start;

/// What a program prints that calls a server, after its preparation in the same folder; `None` where it is not installed.
fn printed(folder: &Path, prepare: &[&str], program: &[&str]) -> Option<String> {
    let version = Command::new(program[0]).arg("version").output();
    if version.is_err() {
        println!("skipped: {} is not installed", program[0]);
        return None;
    }
    let (server, _home) = start("");
    let run = |step: &[&str]| {
        let output = Command::new(step[0])
            .args(&step[1..])
            .current_dir(folder)
            .env("SERVER", format!("http://{}", server.address))
            .output()
            .expect("it is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{step:?}: {text}\n{errors}");
        text
    };
    run(prepare);
    Some(run(program))
}

/// The folder with a client.
fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http").join(name)
}

/// What each program prints: for both versions of HTTP and both kinds of messages, the states and the end of a stream.
const EXPECTED: &str = "\
http1 json: taken, LOCK_HELD aborted, watched held, watched free, deadline_exceeded
http1 proto: taken, LOCK_HELD aborted, watched held, watched free, deadline_exceeded
http2 json: taken, LOCK_HELD aborted, watched held, watched free, deadline_exceeded
http2 proto: taken, LOCK_HELD aborted, watched held, watched free, deadline_exceeded
";

#[test]
fn the_client_for_javascript_calls_the_service() {
    // Its packages are installed beside a copy.
    let home = tempfile::tempdir().expect("a folder");
    for file in ["client.mjs", "package.json", "package-lock.json"] {
        std::fs::copy(client("node").join(file), home.path().join(file)).expect("a copy");
    }
    std::fs::write(home.path().join("descriptors.bin"), DESCRIPTORS).expect("a file");
    let install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"];
    if let Some(printed) = printed(home.path(), &install, &["node", "client.mjs"]) {
        assert_eq!(printed, EXPECTED);
    }
}

#[test]
fn the_client_for_go_calls_the_service() {
    if let Some(printed) = printed(&client("go"), &["go", "mod", "download"], &["go", "run", "."]) {
        assert_eq!(printed, EXPECTED);
    }
}
