//! Requests that the console's own page would not send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::http::{post, send};
use crate::server::{PATIENCE, until};

#[tokio::test(flavor = "multi_thread")]
async fn other_sites_cannot_call_the_console() {
    let fixture = Fixture::open().await;
    let lease = fixture.acquire("app/one", "worker").await;
    let address = fixture.console();
    let force = format!(
        r#"{{"namespace":"default","name":"app/one","fencingToken":"{}"}}"#,
        lease.fencing_token
    );
    for headers in [
        &[("Origin", "https://evil.example")][..],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
    ] {
        let answer = post(address, "/fencepost.v1.AdminService/ForceRelease", headers, &force);
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (403, "permission_denied"),
            "{headers:?}"
        );
    }
    // The types that a form may send without being asked.
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        let length = force.len();
        let head = format!(
            "POST /fencepost.v1.AdminService/ForceRelease HTTP/1.1\r\nHost: {address}\r\nContent-Type: {content_type}\r\n"
        );
        let answer = send(address, &format!("{head}Content-Length: {length}\r\n\r\n{force}"));
        assert_eq!(answer.status, 415, "{content_type}");
    }
    for method in ["OPTIONS", "PUT"] {
        let answer = send(
            address,
            &format!("{method} /fencepost.v1.AdminService/ForceRelease HTTP/1.1\r\nHost: {address}\r\n\r\n"),
        );
        assert_eq!((answer.status, answer.header("allow")), (405, "POST"), "{method}");
        assert_eq!(answer.header("access-control-allow-methods"), "");
    }
    let state = fixture.call("GetLock", None, r#"{"namespace":"default","name":"app/one"}"#);
    assert_eq!(state.json()["lock"]["holderCount"], 1, "nothing was forced");
    let own = post(
        address,
        "/fencepost.v1.AdminService/ForceRelease",
        &[("Origin", &format!("http://{address}"))],
        &force,
    );
    assert_eq!(own.status, 200, "{own:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_site_lets_resolve_to_the_server_is_refused() {
    let fixture = Fixture::open().await;
    let address = fixture.console();
    let body = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    for (host, expected) in [
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("localhost:1", 200),
        ("[::1]:50052", 200),
        ("10.0.0.1", 200),
    ] {
        for request in [
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            format!("POST /fencepost.v1.AdminService/ListNamespaces HTTP/1.1\r\nHost: {host}\r\n{body}"),
        ] {
            assert_eq!(send(address, &request).status, expected, "{request}");
        }
    }
    for hosts in ["", "Host: localhost\r\nHost: evil.example\r\n"] {
        let answer = send(address, &format!("GET / HTTP/1.1\r\n{hosts}\r\n"));
        assert_eq!(answer.status, 400, "{hosts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_slow_requests_are_refused_and_the_server_lives_on() {
    let fixture = Fixture::open().await;
    let address = fixture.console();
    let large = format!(r#"{{"namespace":"{}"}}"#, "x".repeat(64 << 10));
    assert_eq!(
        post(address, "/fencepost.v1.LockService/GetLock", &[], &large).status,
        400
    );
    let long = "x".repeat(100_000);
    let mut stream = TcpStream::connect(address).expect("the port");
    // The server may close the connection before it has read everything, and the answer is then lost.
    let _ = stream.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: {long}\r\n\r\n").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let is_refused = answer.is_empty() || answer.starts_with(b"HTTP/1.1 431");
    assert!(is_refused, "{}", String::from_utf8_lossy(&answer));
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(
        post(address, "/fencepost.v1.LockService/GetLock", &[], &deep).status,
        400
    );

    let began = Instant::now();
    let mut slow = TcpStream::connect(address).expect("the port");
    slow.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let head = format!(
        "POST /fencepost.v1.LockService/GetLock HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    );
    let head = format!("{head}Content-Length: 100\r\n\r\n{{");
    slow.write_all(head.as_bytes()).expect("a request");
    let mut answer = [0; 64];
    let read = slow.read(&mut answer).expect("an answer");
    assert!(answer[..read].starts_with(b"HTTP/1.1 400"), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(fixture.call("ListNamespaces", None, "{}").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_request_and_idle_connections_do_not_hold_up_the_servers_stop() {
    let mut fixture = Fixture::open().await;
    let address = fixture.console().to_owned();
    let connect = || TcpStream::connect(&address).expect("the port");
    let whole = format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (mut half, mut used, mut used_and_half, idle) = (connect(), connect(), connect(), connect());
    half.write_all(&whole.as_bytes()[..whole.len() - 2]).expect("a request");
    used.write_all(whole.as_bytes()).expect("a request");
    used_and_half
        .write_all(format!("{whole}{}", &whole[..whole.len() - 2]).as_bytes())
        .expect("a request");
    for stream in [&mut used, &mut used_and_half] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.read_exact(&mut [0; 12]).expect("an answer");
    }
    let began = Instant::now();
    fixture.server.stop();
    fixture.server.end();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop((half, used, used_and_half, idle));
}

// G191
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_on_the_console_ends_whose_client_is_gone() {
    let fixture = Fixture::open().await;
    let address = fixture.console();
    let _lease = fixture.acquire("app/one", "worker").await;
    let body = r#"{"namespace":"default","name":"app/one","owner":"gone","wait":"3600s"}"#;
    let head = format!(
        "POST /fencepost.v1.LockService/Acquire HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
    );
    let mut waiter = TcpStream::connect(address).expect("the port");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}\r\n", body.len());
    waiter.write_all(request.as_bytes()).expect("a request");
    let waiters = || {
        let state = fixture.call("GetLock", None, r#"{"namespace":"default","name":"app/one"}"#);
        state.json()["lock"]["waiterCount"].clone()
    };
    until("it waits", || (waiters() == 1).then_some(()));
    drop(waiter);
    let gone = Instant::now();
    until("it left", || (waiters() == 0).then_some(()));
    assert!(gone.elapsed() < Duration::from_secs(5), "{:?}", gone.elapsed());
}
