//! Bad input of every field: the documented error each time, and the server serves on.

use serde_json::json;

use super::grpcurl::Caller;
use super::server::Server;

/// Asks for which every optional field may be left out, in the text format.
const ACQUIRE: &str = r#"namespace: "default" name: "a" owner: "me""#;

/// Durations that no field takes: negative, huge or not normalised.
const BAD_TIMES: [&str; 6] = [
    "{seconds: -1}",
    "{nanos: -1}",
    "{seconds: 1 nanos: 1000000000}",
    "{seconds: 1 nanos: -1}",
    "{seconds: 9223372036854775807}",
    "{seconds: 86401}",
];

/// A server, and one that calls it with bad requests.
struct Bad {
    caller: Caller,
    _server: Server,
    _home: tempfile::TempDir,
}

impl Bad {
    fn start() -> Option<Self> {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::start(&home);
        Some(Self {
            caller: Caller::of(&server)?,
            _server: server,
            _home: home,
        })
    }

    /// Asserts that a request is refused for this field, or one within it.
    #[track_caller]
    fn refuses(&self, method: &str, request: &str, field: &str) {
        match self.caller.try_text(method, request) {
            Err(refused) => refused.is_of_field(field),
            Ok(answer) => panic!("{method} {request}: {answer}"),
        }
    }

    /// The same for an Acquire that is good but for these fields.
    #[track_caller]
    fn refuses_acquire(&self, fields: &str, field: &str) {
        self.refuses("LockService/Acquire", &format!("{ACQUIRE} {fields}"), field);
    }

    /// Asserts that a lock can be taken, and is all that is there.
    #[track_caller]
    fn serves_on(&self) {
        let good = json!({ "namespace": "default", "name": "good", "owner": "me" });
        self.caller.call("LockService/Acquire", good).expect("it serves on");
        let all = self
            .caller
            .call("LockService/ListLocks", json!({ "namespace": "default" }));
        let all = all.expect("a page");
        assert_eq!(all["locks"].as_array().map(Vec::len), Some(1), "{all}");
    }
}

/// Texts that a required text of so many bytes refuses, as the text format writes them.
fn bad_texts(longest: usize) -> [String; 4] {
    let long = "x".repeat(longest + 1);
    ["", r"a\n", r"\000", &long].map(str::to_owned)
}

#[test]
fn an_empty_request_is_refused_by_each_method_that_needs_a_field() {
    let Some(bad) = Bad::start() else { return };
    for (method, field) in [
        ("LockService/Acquire", "namespace"),
        ("LockService/Renew", "lease_id"),
        ("LockService/Release", "lease_id"),
        ("LockService/GetLock", "namespace"),
        ("LockService/ListLocks", "namespace"),
        ("LockService/WatchLock", "namespace"),
        ("LockService/CheckToken", "namespace"),
        ("AdminService/ForceRelease", "namespace"),
        ("AdminService/Admit", "namespace"),
    ] {
        let refused = bad.caller.call(method, json!({})).expect_err(method);
        refused.is_of_field(field);
        assert!(refused.0.contains(&format!("\"field\": \"{field}\"")), "{refused:?}");
    }
    let all = bad.caller.call("AdminService/ListNamespaces", json!({}));
    assert_eq!(all.expect("it has no fields")["namespaces"][0]["name"], "default");
    bad.serves_on();
}

#[test]
fn bad_places_are_refused() {
    let Some(bad) = Bad::start() else { return };
    let long = "x".repeat(64);
    for namespace in ["", "Default", "-a", "a/b", "ü", r"default\n", &long] {
        let request = format!(r#"namespace: "{namespace}" name: "a" owner: "me""#);
        bad.refuses("LockService/Acquire", &request, "namespace");
    }
    for name in bad_texts(512) {
        let place = format!(r#"namespace: "default" name: "{name}""#);
        bad.refuses("LockService/Acquire", &format!(r#"{place} owner: "me""#), "name");
        bad.refuses("LockService/GetLock", &place, "name");
        bad.refuses("LockService/WatchLock", &place, "name");
    }
    let nowhere = json!({ "namespace": "nowhere", "name": "a", "owner": "me" });
    let refused = bad
        .caller
        .call("LockService/Acquire", nowhere)
        .expect_err("no such namespace");
    refused.is("NotFound", "\"reason\": \"NAMESPACE_NOT_FOUND\"");
    bad.serves_on();
}

#[test]
fn bad_times_are_refused() {
    let Some(bad) = Bad::start() else { return };
    for time in BAD_TIMES {
        bad.refuses_acquire(&format!("wait: {time}"), "wait");
        bad.refuses_acquire(&format!("ttl: {time}"), "ttl");
    }
    bad.refuses_acquire("ttl: {}", "ttl");
    bad.refuses_acquire("ttl: {nanos: 1}", "ttl");
    bad.serves_on();
}

#[test]
fn bad_modes_are_refused() {
    let Some(bad) = Bad::start() else { return };
    bad.refuses_acquire("mode: {}", "mode");
    for semaphore in [
        "permits: 1",
        "limit: 5",
        "permits: 6 limit: 5",
        "permits: 1 limit: 1000001",
        "permits: 4294967295 limit: 4294967295",
    ] {
        bad.refuses_acquire(&format!("mode: {{semaphore: {{{semaphore}}}}}"), "mode");
    }
    bad.serves_on();
}

#[test]
fn bad_labels_are_refused() {
    let Some(bad) = Bad::start() else { return };
    for owner in bad_texts(256) {
        let request = format!(r#"namespace: "default" name: "a" owner: "{owner}""#);
        bad.refuses("LockService/Acquire", &request, "owner");
    }
    bad.refuses_acquire(&format!(r#"request_id: "{}""#, "x".repeat(129)), "request_id");
    let entry = |key: usize, value: &str| format!(r#"metadata: {{key: "{key}" value: "{value}"}} "#);
    let many: String = (0..17).map(|key| entry(key, "")).collect();
    bad.refuses_acquire(&many, "metadata");
    bad.refuses_acquire(&entry(1, &"x".repeat(4096)), "metadata");
    bad.serves_on();
}

#[test]
fn bad_lease_ids_and_tokens_are_refused() {
    let Some(bad) = Bad::start() else { return };
    for lease in ["", "garbage", "1:default:a", r"\000", &"1".repeat(4096)] {
        let request = format!(r#"lease_id: "{lease}""#);
        bad.refuses("LockService/Renew", &request, "lease_id");
        bad.refuses("LockService/Release", &request, "lease_id");
    }
    for token in ["0", "9007199254740992", "18446744073709551615"] {
        let request = format!(r#"namespace: "default" name: "a" fencing_token: {token}"#);
        bad.refuses("LockService/CheckToken", &request, "fencing_token");
        bad.refuses("AdminService/ForceRelease", &request, "fencing_token");
    }
    bad.serves_on();
}

#[test]
fn bad_pages_and_nodes_are_refused() {
    let Some(bad) = Bad::start() else { return };
    let long = "x".repeat(513);
    for (fields, field) in [
        ("page_size: -1".to_owned(), "page_size"),
        ("page_size: -2147483648".to_owned(), "page_size"),
        (r#"page_token: "garbage""#.to_owned(), "page_token"),
        (format!(r#"prefix: "{long}""#), "prefix"),
    ] {
        bad.refuses(
            "LockService/ListLocks",
            &format!(r#"namespace: "default" {fields}"#),
            field,
        );
    }
    let node = format!(r#"namespace: "default" node: "{long}""#);
    bad.refuses("AdminService/Admit", &node, "node");
    bad.serves_on();
}

#[test]
fn a_request_that_is_too_large_is_refused() {
    let Some(bad) = Bad::start() else { return };
    let request = format!(r#"namespace: "default" name: "{}""#, "x".repeat(70_000));
    bad.refuses("LockService/GetLock", &request, "request");
    bad.refuses("LockService/Acquire", &request, "request");
    bad.serves_on();
}
