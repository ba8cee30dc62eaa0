//! Texts of others on a terminal: names, owners, metadata and errors cannot move its cursor, reverse its lines or
//! hide a part of themselves.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use crate::cli::program::{Fixture, Running, asking, run, text};

/// Names and owners: a reversal, an invisible joint, an isolate, a line separator. The service refuses control
/// characters there, and takes them in metadata.
const HOSTILE: &str = "a\u{202e}b\u{200d}\u{2066}\u{2028}c";
/// The same, and what clears the screen and changes colours, in one byte and in two.
const HOSTILE_METADATA: &str = "a\u{1b}[2J\u{9b}31m\u{202e}b\u{200d}\nc";
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether a text has only what is seen, besides the ends of its lines.
#[track_caller]
fn is_printable(said: &str) {
    let found: Vec<char> = said
        .chars()
        .filter(|c| !(' '..='~').contains(c) && *c != '\n')
        .collect();
    assert!(found.is_empty(), "{found:?} in {said:?}");
}

/// A lock with a name, a holder and a waiter that others chose.
fn hostile(fixture: &Fixture) -> (String, Running) {
    let lock = format!("default/{HOSTILE}");
    let metadata = format!("{HOSTILE_METADATA}={HOSTILE_METADATA}");
    let ask = [
        "acquire",
        &lock,
        "--owner",
        HOSTILE,
        "--metadata",
        &metadata,
        "--ttl",
        "1h",
    ];
    let taken = run(fixture.command(ask));
    assert_eq!(taken.status.code(), Some(0), "{}", text(&taken.stderr));
    is_printable(&text(&taken.stdout));
    let mut waits = fixture.command(ask);
    waits.args(["--wait", "1h"]).stdout(Stdio::null());
    let waits = Running::new(waits);
    crate::cli::server::until("it waits", || (fixture.count(&lock, "waiterCount") == 1).then_some(()));
    (lock, waits)
}

#[test]
fn names_owners_and_metadata_are_spelled_out_in_every_table() {
    let fixture = Fixture::start();
    let (lock, _waits) = hostile(&fixture);
    let token = fixture.json(&["get", &lock])["holders"][0]["fencingToken"].clone();
    let token = token.as_str().expect("a token");
    for arguments in [
        vec!["get", &lock],
        vec!["list", "default"],
        vec!["top", "--once"],
        vec!["check-token", &lock, token],
    ] {
        let said = fixture.said(&arguments);
        is_printable(&said);
        assert!(said.contains("\\u{202e}b\\u{200d}"), "{arguments:?}: {said}");
    }
    let mut held = fixture.command(["acquire", &lock]);
    let held = held.output().expect("it runs");
    let said = text(&held.stderr);
    is_printable(&said);
    assert!(held.status.code() == Some(120) && said.contains("\\u{202e}b"), "{said}");
}

#[test]
fn a_watch_spells_out_the_state_and_each_change() {
    let fixture = Fixture::start();
    let (lock, waits) = hostile(&fixture);
    let mut watch = fixture.command(["watch", &lock]);
    let mut watch = Running::new({
        watch.stdout(Stdio::piped());
        watch
    });
    let mut lines = BufReader::new(watch.0.stdout.take().expect("a pipe"))
        .lines()
        .map_while(Result::ok);
    let mut until = |word: &str| {
        let seen: Vec<String> = lines.by_ref().take_while(|line| !line.contains(word)).collect();
        seen.iter().for_each(|line| is_printable(line));
        seen.join("\n")
    };
    let state = until("WAITER");
    assert!(state.contains("\\u{202e}b\\u{200d}"), "{state}");
    drop(waits);
    until("left ");
}

#[test]
fn json_has_the_same_texts_in_escapes() {
    let fixture = Fixture::start();
    let (lock, _waits) = hostile(&fixture);
    for arguments in [["get", lock.as_str()], ["list", "default"]] {
        let said = fixture.said(&[&arguments[..], &["--output", "json"]].concat());
        is_printable(&said);
        let value: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(value["name"], HOSTILE);
        let holder = value.get("firstHolder").unwrap_or(&value["holders"][0]);
        assert_eq!(holder["owner"], HOSTILE);
    }
    let state = fixture.json(&["get", &lock]);
    assert_eq!(state["holders"][0]["metadata"][HOSTILE_METADATA], HOSTILE_METADATA);
}

/// Answers each call of each connection with an error in these words, percent-encoded.
async fn refuse_all(listener: TcpListener, status: &'static str, message: &'static str) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(refuse(socket, status, message));
    }
}

async fn refuse(socket: TcpStream, status: &'static str, message: &'static str) {
    let mut connection = h2::server::handshake(socket).await.expect("HTTP/2");
    while let Some(Ok((_, mut answer))) = connection.accept().await {
        let head = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", status)
            .header("grpc-message", message)
            .body(())
            .expect("a response");
        answer.send_response(head, true).expect("sent");
    }
}

#[test]
fn an_error_of_a_server_is_one_line_without_anything_that_moves_the_cursor() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let message = "gone%1B%5B2J%E2%80%AE%0Aerror: the disk is full";
    for status in ["5", "14"] {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let served = runtime.spawn(refuse_all(listener, status, message));
        let failed = run(asking(&address, ["get", "a/b"]));
        let said = text(&failed.stderr);
        is_printable(&said);
        assert!(
            said.contains("gone\\u{1b}[2J\\u{202e}\\u{a}error: the disk"),
            "{status}: {said}"
        );
        assert!(!said.contains("\nerror:"), "{said}");
        served.abort();
    }
    runtime.shutdown_timeout(PATIENCE);
}
