//! The console's calls: the same answers, rules and audit as over gRPC.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::fixture::{Fixture, eventually};
use crate::http::{reason, request};
use crate::server::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_parts_are_served_with_headers_that_confine_them() {
    let fixture = Fixture::open().await;
    let page = request(fixture.console(), "GET", "/");
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, "text/html; charset=utf-8")
    );
    let parts = page
        .body
        .split('"')
        .filter(|part| part.starts_with('/') && *part != "/");
    let mut parts: Vec<_> = parts.map(str::to_owned).collect();
    assert!(parts.len() >= 3, "{}", page.body);
    assert!(
        !page.body.contains("style=") && !page.body.contains("onclick"),
        "nothing is inline"
    );
    parts.push("/".into());
    for part in parts {
        let answer = request(fixture.console(), "GET", &part);
        assert_eq!(answer.status, 200, "{part}");
        let policy = answer.header("content-security-policy");
        for needed in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "base-uri 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|own| own == needed), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), value, "{part}");
        }
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
    let missing = request(fixture.console(), "GET", "/../Cargo.toml");
    assert_eq!((missing.status, missing.reason().as_str()), (404, "invalid_argument"));
    let head = fixture_head(&fixture);
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

/// The response to HEAD, which has a length and no body.
fn fixture_head(fixture: &Fixture) -> String {
    let address = fixture.console();
    let mut stream = TcpStream::connect(address).expect("the port");
    let request = format!("HEAD / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    std::io::read_to_string(stream).expect("a response")
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_answer_what_grpc_answers() {
    let fixture = Fixture::open().await;
    let lease = fixture.acquire("app/one", "worker").await;
    let namespaces = fixture.call("ListNamespaces", None, "{}").json();
    assert_eq!(namespaces["namespaces"][0]["name"], "default");
    assert_eq!(namespaces["namespaces"][0]["health"], "NAMESPACE_HEALTH_SERVING");

    let locks = fixture.call("ListLocks", None, r#"{"namespace":"default","prefix":"app/"}"#);
    let first = &locks.json()["locks"][0];
    assert_eq!((&first["name"], &first["holderCount"]), (&json!("app/one"), &json!(1)));
    let token = lease.fencing_token.to_string();
    assert_eq!(first["firstHolder"]["fencingToken"], json!(token));

    let one = json!({ "namespace": "default", "name": "app/one" }).to_string();
    let state = fixture.call("GetLock", None, &one).json();
    assert_eq!(state["lock"]["holders"][0]["metadata"]["job"], "nightly");
    assert!(!state.to_string().contains(&lease.lease_id), "the secret is not shown");

    let leadership = fixture.campaign("app/leader", "node-1", "10.0.0.1").await;
    let leader = json!({ "namespace": "default", "election": "app/leader" }).to_string();
    let leader = fixture.call("GetLeader", None, &leader).json();
    assert_eq!(leader["leader"]["value"], "10.0.0.1");
    assert_eq!(
        leader["leader"]["fencingToken"],
        json!(leadership.fencing_token.to_string())
    );

    for (method, body, status, reason) in [
        (
            "GetLock",
            r#"{"namespace":"none","name":"x"}"#,
            404,
            "NAMESPACE_NOT_FOUND",
        ),
        ("GetLock", r#"{"namespace":"default","name":""}"#, 400, "INVALID_FIELD"),
        ("GetLock", r#"{"namespace":"default","nam":""}"#, 400, "INVALID_FIELD"),
        ("GetLock", "", 400, "INVALID_FIELD"),
        ("GetLock", "[[[[", 400, "INVALID_FIELD"),
        (
            "ForceRelease",
            r#"{"namespace":"default","name":"app/one","fencingToken":"1"}"#,
            400,
            "LEASE_LOST",
        ),
        ("fencepost.v1.LockService/None", "{}", 501, "unimplemented"),
        ("None", "{}", 501, "unimplemented"),
    ] {
        let answer = fixture.call(method, None, body);
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "{method} {body}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_bind_the_console_and_a_force_is_audited() {
    let fixture = Fixture::guarded().await;
    let lease = fixture.acquire("app/one", "worker").await;
    let (admin, reader) = (Some("secret-admin"), Some("secret-reader"));
    let one = r#"{"namespace":"default","name":"app/one"}"#;
    for method in ["ListNamespaces", "ListSessions", "ListLocks", "GetLock"] {
        let body = match method {
            "ListNamespaces" | "ListSessions" => "{}",
            _ => r#"{"namespace":"default"}"#,
        };
        for bearer in [None, Some("wrong")] {
            let answer = fixture.call(method, bearer, body);
            assert_eq!(
                (answer.status, answer.reason().as_str()),
                (401, "UNAUTHENTICATED"),
                "{method}"
            );
        }
    }
    assert_eq!(fixture.call("GetLock", reader, one).status, 200);
    let force = json!({ "namespace": "default", "name": "app/one", "fencingToken": lease.fencing_token.to_string() });
    for (method, body) in [
        ("ForceRelease", force.to_string()),
        ("Admit", r#"{"namespace":"default"}"#.to_owned()),
        ("GetLock", r#"{"namespace":"default","name":"else"}"#.to_owned()),
        ("ListLocks", r#"{"namespace":"other"}"#.to_owned()),
    ] {
        let answer = fixture.call(method, reader, &body);
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (403, "PERMISSION_DENIED"),
            "{method}"
        );
    }
    assert_eq!(
        fixture.call("GetLock", admin, one).json()["lock"]["holderCount"],
        1,
        "nothing was forced"
    );

    let forced = fixture.call("ForceRelease", admin, &force.to_string());
    assert_eq!((forced.status, forced.body.as_str()), (200, "{}"));
    assert_eq!(fixture.call("GetLock", admin, one).json()["lock"]["holderCount"], 0);
    for identity in ["token:reader", "token:admin"] {
        let audited = format!(r#"action="force_release" identity="{identity}""#);
        eventually("the audit line", || fixture.server.said(&audited)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_streamed_and_a_stop_ends_the_stream_with_its_reason() {
    let fixture = Fixture::open().await;
    let lease = fixture.acquire("app/one", "worker").await;
    let mut messages = watch(&fixture, "app/one");
    assert_eq!(messages.next()["state"]["holders"][0]["owner"], "worker");
    fixture.release(&lease).await;
    assert_eq!(messages.next()["change"]["kind"], "CHANGE_KIND_RELEASED");
    fixture.server.stop();
    assert_eq!(reason(&messages.next()["error"]), Some("DRAINING"));
}

/// The messages of a stream that is open.
struct Messages(BufReader<TcpStream>);

impl Messages {
    /// The next message, or the end.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let bytes = self.0.read_line(&mut line).expect("a line");
            assert_ne!(bytes, 0, "the stream has ended");
            // Each message is a chunk of its own, after a prefix of five bytes.
            let Ok(length) = usize::from_str_radix(line.trim(), 16) else {
                continue;
            };
            let mut chunk = vec![0; length + 2];
            self.0.read_exact(&mut chunk).expect("a chunk");
            return serde_json::from_slice(&chunk[5..length]).expect("JSON");
        }
    }
}

fn watch(fixture: &Fixture, name: &str) -> Messages {
    let address = fixture.console();
    let mut stream = TcpStream::connect(address).expect("the port");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let body = json!({ "namespace": "default", "name": name }).to_string();
    let length = u32::try_from(body.len()).expect("a short one");
    let head = format!(
        "POST /fencepost.v1.LockService/WatchLock HTTP/1.1\r\nHost: {address}\r\n\
         Content-Type: application/connect+json\r\nContent-Length: {}\r\n\r\n",
        body.len() + 5
    );
    let request = [head.as_bytes(), &[0], &length.to_be_bytes(), body.as_bytes()].concat();
    stream.write_all(&request).expect("a request");
    Messages(BufReader::new(stream))
}
