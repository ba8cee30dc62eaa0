//! Attackers that write HTTP/1.1 by hand.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::curl::json;
use super::server::{PATIENCE, Server, until};
use super::{guarded, start};

const ONE: &str = r#"{"namespace":"default","name":"app/one"}"#;

pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).expect("the port");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// A request with this body, of which the head tells `length` bytes.
pub fn request(server: &Server, method: &str, body: &str, length: usize) -> String {
    format!(
        "POST /fencepost.v1.LockService/{method} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}",
        server.address
    )
}

/// What arrives until the connection ends.
pub fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    // A connection that the server closed before it had read everything may end with an error.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

fn holders(server: &Server) -> serde_json::Value {
    json(server, "LockService/GetLock", &[], ONE).json()["lock"].clone()
}

#[test]
fn large_and_slow_requests_are_refused_and_the_server_lives_on() {
    let (server, _home) = start("");
    let mut large = connect(&server);
    let long = "x".repeat(100_000);
    let _ = large.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n").as_bytes());
    let answer = rest(large);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let mut large = connect(&server);
    let body = format!(r#"{{"namespace":"{long}"}}"#);
    let _ = large.write_all(request(&server, "GetLock", &body, body.len()).as_bytes());
    let mut head = [0; 12];
    large.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 400");

    let began = Instant::now();
    let mut slow = connect(&server);
    slow.write_all(request(&server, "GetLock", "{", 100).as_bytes())
        .expect("a request");
    slow.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 400");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(json(&server, "LockService/GetLock", &[], ONE).status, 200);
}

#[test]
fn garbage_ends_its_connection_alone() {
    let (server, _home) = start("metrics_listen = \"127.0.0.1:0\"\n");
    for garbage in [
        &b"\x16\x03\x01\x02\0\x01\0\x01\xfc"[..],
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"\0\0\0\r\n\r\n",
    ] {
        let mut stream = connect(&server);
        stream.write_all(garbage).expect("it is sent");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = rest(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(json(&server, "LockService/GetLock", &[], ONE).status, 200);
}

#[test]
fn a_waiter_whose_client_is_gone_leaves_the_queue_and_holds_nothing() {
    let (server, _home) = start("");
    let ask = r#"{"namespace":"default","name":"app/one","owner":"me","ttl":"30s","wait":"30s"}"#;
    let held = json(&server, "LockService/Acquire", &[], ask).json();
    let mut waiter = connect(&server);
    waiter
        .write_all(request(&server, "Acquire", ask, ask.len()).as_bytes())
        .expect("a request");
    until("it waits", || (holders(&server)["waiterCount"] == 1).then_some(()));
    drop(waiter);
    until("it left", || (holders(&server)["waiterCount"] == 0).then_some(()));
    let release = serde_json::json!({ "leaseId": held["lease"]["leaseId"] }).to_string();
    assert_eq!(json(&server, "LockService/Release", &[], &release).status, 200);
    assert_eq!(holders(&server)["holderCount"], 0);
}

#[test]
fn half_a_request_and_idle_connections_do_not_hold_up_the_servers_stop() {
    let (mut server, _home) = start("");
    let whole = request(&server, "GetLock", ONE, ONE.len());
    let (mut half, mut used, mut used_and_half, idle) =
        (connect(&server), connect(&server), connect(&server), connect(&server));
    half.write_all(&whole.as_bytes()[..60]).expect("a request");
    used.write_all(whole.as_bytes()).expect("a request");
    used_and_half
        .write_all(format!("{whole}{}", &whole[..60]).as_bytes())
        .expect("a request");
    for stream in [&mut used, &mut used_and_half] {
        stream.read_exact(&mut [0; 12]).expect("an answer");
    }
    let ask = r#"{"namespace":"default","name":"app/one","owner":"me","ttl":"30s","wait":"30s"}"#;
    assert_eq!(json(&server, "LockService/Acquire", &[], ask).status, 200);
    let mut waiter = connect(&server);
    waiter
        .write_all(request(&server, "Acquire", ask, ask.len()).as_bytes())
        .expect("a request");
    until("it waits", || (holders(&server)["waiterCount"] == 1).then_some(()));
    let began = Instant::now();
    server.stop();
    let answer = rest(waiter);
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("DRAINING"),
        "{answer}"
    );
    server.end();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop((half, used, used_and_half, idle));
}

#[test]
fn connections_and_unread_answers_are_bounded_as_over_http_2() {
    let config = "[server]\nconnection_limit = 8\npeer_share = 100\nconnection_unsent_bytes_limit = 1048576\n";
    let (server, _home) = start(&format!("{config}{}", guarded()));
    let open: Vec<_> = (0..8).map(|_| connect(&server)).collect();
    // Of eight connections at most two may be unauthenticated: the oldest were closed.
    for mut old in open.into_iter().take(6) {
        assert!(matches!(old.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
    }
    // Requests whose answers are never read. Each is far longer than its headers, so that a part of its body is unsent.
    let bearer = ["-H", "authorization: Bearer secret"];
    let lock = |number: usize| json!({ "name": format!("app/{number:0500}") });
    let locks: Vec<_> = (0..64).map(lock).collect();
    let all = json!({ "namespace": "default", "owner": "me", "ttl": "3600s", "locks": locks }).to_string();
    assert_eq!(json(&server, "LockService/AcquireAll", &bearer, &all).status, 200);
    let mut deaf = connect(&server);
    deaf.set_write_timeout(Some(PATIENCE)).expect("a socket");
    let body = r#"{"namespace":"default","prefix":"app/"}"#;
    let ask = request(&server, "ListLocks", body, body.len()).replace("Host:", "Authorization: Bearer secret\r\nHost:");
    let many = ask.repeat(200);
    let began = Instant::now();
    let ended = loop {
        if let Err(error) = deaf.write_all(many.as_bytes()) {
            break error.kind();
        }
        assert!(began.elapsed() < PATIENCE, "it is closed");
    };
    assert!(
        matches!(ended, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
        "{ended}"
    );
    assert_eq!(json(&server, "LockService/GetLock", &bearer, ONE).status, 200);
}

/// Otherwise HTTP/2 ends the stream while the client sends, which some clients report as an error.
#[tokio::test]
async fn an_answer_that_needs_no_message_waits_for_the_rest_of_its_request() {
    let (server, _home) = start(&guarded());
    let socket = tokio::net::TcpStream::connect(&server.address).await.expect("the port");
    let (opener, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = http::Request::post("http://localhost/fencepost.v1.LockService/GetLock")
        .header("content-type", "application/json")
        .body(())
        .expect("a request");
    let mut opener = opener.ready().await.expect("room for calls");
    let (mut answer, mut body) = opener.send_request(request, false).expect("sent");
    body.send_data(bytes::Bytes::from_static(b"{"), false).expect("sent");
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "{early:?}");
    body.send_data(bytes::Bytes::from_static(b"}"), true).expect("sent");
    assert_eq!(answer.await.expect("an answer").status(), 401);
}
