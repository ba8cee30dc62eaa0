//! Each method once, as its users type it.

use std::io::{BufReader, Read};
use std::process::ChildStdout;

use serde_json::{Value, json};

use super::grpcurl::{Caller, Format};
use super::server::Server;

fn acquire(owner: &str) -> Value {
    json!({ "namespace": "default", "name": "reports", "owner": owner })
}

fn lock() -> Value {
    json!({ "namespace": "default", "name": "reports" })
}

fn token(lease: &Value) -> Value {
    json!({ "namespace": "default", "name": "reports", "fencingToken": lease["fencingToken"] })
}

fn take(caller: &Caller, owner: &str) -> Value {
    let answer = caller.call("LockService/Acquire", acquire(owner));
    answer.expect("it is free")["lease"].clone()
}

#[test]
fn a_lease_is_taken_renewed_seen_and_released() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    let lease = take(&caller, "me");
    let id = json!({ "leaseId": lease["leaseId"] });
    assert_eq!((&lease["owner"], &lease["ttl"]), (&json!("me"), &json!("30s")));
    let renewed = caller.call("LockService/Renew", id.clone()).expect("it lives");
    assert_eq!(renewed["lease"]["fencingToken"], lease["fencingToken"]);
    let seen = caller.call("LockService/GetLock", lock()).expect("a state");
    assert_eq!(seen["lock"]["holders"][0]["owner"], "me");
    let listed = caller.call(
        "LockService/ListLocks",
        json!({ "namespace": "default", "prefix": "rep" }),
    );
    assert_eq!(listed.expect("a page")["locks"][0]["name"], "reports");
    let checked = caller.call("LockService/CheckToken", token(&lease)).expect("an answer");
    assert_eq!((&checked["held"], &checked["owner"]), (&json!(true), &json!("me")));
    let held = caller
        .call("LockService/Acquire", acquire("you"))
        .expect_err("it is held");
    held.is("Aborted", "\"reason\": \"LOCK_HELD\"");
    caller.call("LockService/Release", id.clone()).expect("it is released");
    let lost = caller.call("LockService/Renew", id).expect_err("it is gone");
    lost.is("FailedPrecondition", "\"reason\": \"LEASE_LOST\"");
    let checked = caller.call("LockService/CheckToken", token(&lease));
    assert_eq!(checked.expect("an answer"), json!({}));
}

#[test]
fn an_operator_takes_a_lock_away_and_sees_the_namespaces() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    let lease = take(&caller, "me");
    let forced = caller.call("AdminService/ForceRelease", token(&lease));
    assert_eq!(forced.expect("it is held"), json!({}));
    let lost = caller
        .call("AdminService/ForceRelease", token(&lease))
        .expect_err("gone");
    lost.is("FailedPrecondition", "\"cause\": \"forced\"");
    assert_ne!(take(&caller, "you")["fencingToken"], lease["fencingToken"]);
    let all = caller
        .call("AdminService/ListNamespaces", json!({}))
        .expect("an answer");
    let only = &all["namespaces"][0];
    assert_eq!(
        (&only["name"], &only["backend"]),
        (&json!("default"), &json!("embedded"))
    );
    let admit = caller.call("AdminService/Admit", json!({ "namespace": "default" }));
    admit
        .expect_err("never in quarantine")
        .is("FailedPrecondition", "\"reason\": \"UNSUPPORTED\"");
}

/// The messages of a stream as they come.
fn messages(stream: ChildStdout) -> impl Iterator<Item = Value> {
    let bytes = BufReader::new(stream).bytes().map_while(Result::ok);
    let mut text = Vec::new();
    bytes.filter_map(move |byte| {
        text.push(byte);
        let whole = (byte == b'}').then(|| serde_json::from_slice(&text).ok()).flatten();
        if whole.is_some() {
            text.clear();
        }
        whole
    })
}

#[test]
fn a_watch_shows_the_state_and_then_each_change() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    let mut watch = caller.begin(Format::Json, "LockService/WatchLock", &lock().to_string());
    let mut seen = messages(watch.stdout.take().expect("a pipe"));
    let first = seen.next().expect("the state");
    assert_eq!(first["state"]["name"], "reports");
    let lease = take(&caller, "me");
    let granted = seen.next().expect("a change");
    assert_eq!(granted["change"]["kind"], "CHANGE_KIND_GRANTED");
    assert_eq!(granted["change"]["fencingToken"], lease["fencingToken"]);
    let id = json!({ "leaseId": lease["leaseId"] });
    caller.call("LockService/Release", id).expect("it is released");
    assert_eq!(seen.next().expect("a change")["change"]["kind"], "CHANGE_KIND_RELEASED");
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
}

#[test]
fn both_listeners_serve_the_same_locks() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let (Some(tcp), Some(socket)) = (Caller::of(&server), Caller::of_socket(&server)) else {
        return;
    };
    let lease = take(&socket, "me");
    let held = tcp.call("LockService/Acquire", acquire("you")).expect_err("it is held");
    held.is("Aborted", "\"owner\": \"me\"");
    let id = json!({ "leaseId": lease["leaseId"] });
    tcp.call("LockService/Release", id).expect("it is released");
    take(&socket, "you");
}
