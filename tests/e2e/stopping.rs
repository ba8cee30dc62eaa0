//! A stop in order, and what lives on after it.

use std::io::Read;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::grpcurl::{Caller, Format, Refused, answer};
use super::server::{Server, until};

/// How soon an open call has its answer: far below the time that a drain may take.
const AT_ONCE: Duration = Duration::from_secs(5);

// In the text format, because grpcurl asks how to show the details of an error in JSON only once it
// has the error, and a server that stops does not tell any more.
const LOCK: &str = r#"namespace: "default" name: "reports""#;
const WAITS: &str = r#"namespace: "default" name: "reports" owner: "you" wait: {seconds: 60}"#;

/// The error of a call that was under way.
fn ended(call: Child) -> Refused {
    let output = call.wait_with_output().expect("grpcurl ends");
    answer(output).expect_err("it is not granted")
}

/// Begins to watch, and returns with the first message.
fn watch(caller: &Caller) -> Child {
    let mut watch = caller.begin(Format::Text, "LockService/WatchLock", LOCK);
    let mut first = [0];
    let stdout = watch.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut first).expect("the state");
    watch
}

fn waiters(caller: &Caller, lock: &Value) -> u64 {
    let state = caller.call("LockService/GetLock", lock.clone()).expect("a state");
    state["lock"]["waiterCount"].as_u64().unwrap_or(0)
}

#[test]
fn a_stop_answers_who_waits_and_leaves_who_holds() {
    let home = tempfile::tempdir().expect("a directory");
    let mut server = Server::start(&home);
    let Some(caller) = Caller::of(&server) else { return };
    let lock = json!({ "namespace": "default", "name": "reports" });
    let ask = json!({ "namespace": "default", "name": "reports", "owner": "me", "ttl": "60s" });
    let lease = caller.call("LockService/Acquire", ask).expect("it is free");
    let waiting = caller.begin(Format::Text, "LockService/Acquire", WAITS);
    until("one waits", || (waiters(&caller, &lock) == 1).then_some(()));
    let watching = watch(&caller);

    server.stop();
    let stopped = Instant::now();
    for open in [waiting, watching] {
        ended(open).is("Unavailable", "DRAINING");
    }
    assert_eq!(server.end().code(), Some(0));
    assert!(stopped.elapsed() < AT_ONCE, "{:?}", stopped.elapsed());

    let server = Server::start(&home);
    let caller = Caller::of(&server).expect("as before");
    let id = json!({ "leaseId": lease["lease"]["leaseId"] });
    let renewed = caller.call("LockService/Renew", id.clone()).expect("it lived on");
    assert_eq!(renewed["lease"]["fencingToken"], lease["lease"]["fencingToken"]);
    assert_eq!(waiters(&caller, &lock), 0);
    caller.call("LockService/Release", id).expect("it is released");
}
