//! Clients over HTTP/1.1 that are gone while they wait, and clients that only stop to send.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::attacks::{connect, request, rest};
use super::curl::json;
use super::server::{Server, until};
use super::start;

/// How soon the wait of a client that is gone has ended.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// How a client ends its connection.
#[derive(Debug, Clone, Copy)]
enum End {
    Close,
    Reset,
    StopSending,
}

impl End {
    /// Ends the connection. Returns what must stay open.
    fn end(self, stream: TcpStream) -> Option<TcpStream> {
        match self {
            Self::Close => None,
            Self::Reset => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).expect("a socket");
                None
            }
            Self::StopSending => {
                stream.shutdown(Shutdown::Write).expect("a socket");
                Some(stream)
            }
        }
    }
}

fn ask(lock: &str, wait: &str) -> String {
    json!({ "namespace": "default", "name": lock, "owner": "me", "ttl": "60s", "wait": wait }).to_string()
}

fn state(server: &Server, lock: &str) -> serde_json::Value {
    let look = json!({ "namespace": "default", "name": lock }).to_string();
    json(server, "LockService/GetLock", &[], &look).json()["lock"].clone()
}

// G191
#[test]
fn a_wait_ends_whose_client_is_gone_whatever_lies_behind_its_request() {
    let (server, _home) = start("");
    let look = r#"{"namespace":"default","name":"any"}"#;
    let pipelined = request(&server, "GetLock", look, look.len());
    let tails = [
        String::new(),
        "\r\n".to_owned(),
        "P".to_owned(),
        pipelined.clone(),
        // The server does not read all of it ahead: the rest stays in the socket.
        pipelined.repeat(150),
    ];
    let ends = [End::Close, End::Reset, End::StopSending];
    let cases = tails.iter().flat_map(|tail| ends.map(|end| (tail, end)));
    let mut waits = Vec::new();
    for (number, (tail, end)) in cases.enumerate() {
        let lock = format!("gone/{number}");
        let held = json(&server, "LockService/Acquire", &[], &ask(&lock, "0s")).json();
        let mut waiter = connect(&server);
        let body = ask(&lock, "86400s");
        let sent = format!("{}{tail}", request(&server, "Acquire", &body, body.len()));
        waiter.write_all(sent.as_bytes()).expect("a request");
        waits.push((lock, held["lease"]["leaseId"].clone(), tail.len(), end, waiter));
    }
    for (lock, ..) in &waits {
        until("it waits", || (state(&server, lock)["waiterCount"] == 1).then_some(()));
    }
    let began = Instant::now();
    let ended: Vec<_> = waits
        .into_iter()
        .map(|(lock, lease, tail, end, waiter)| (lock, lease, tail, end, end.end(waiter)))
        .collect();
    for (lock, _, tail, end, _open) in &ended {
        while state(&server, lock)["waiterCount"] != 0 {
            assert!(began.elapsed() < 2 * GONE_WITHIN, "{end:?} with {tail} bytes behind it");
        }
    }
    assert!(began.elapsed() < GONE_WITHIN, "{:?}", began.elapsed());
    for (lock, lease, ..) in &ended {
        let release = json!({ "leaseId": lease }).to_string();
        assert_eq!(json(&server, "LockService/Release", &[], &release).status, 200);
        assert_eq!(state(&server, lock)["holderCount"], 0);
    }
}

/// The system receives no end behind so much that the server has not read.
// G191
#[test]
fn a_wait_ends_whose_client_sends_too_much_behind_it() {
    let (server, _home) = start("");
    json(&server, "LockService/Acquire", &[], &ask("full", "0s"));
    let mut waiter = connect(&server);
    let body = ask("full", "86400s");
    let behind = "GET / HTTP/1.1\r\n\r\n".repeat(10_000);
    let sent = format!("{}{behind}", request(&server, "Acquire", &body, body.len()));
    let _ = waiter.set_write_timeout(Some(Duration::from_millis(200)));
    // It may not accept all.
    let _ = waiter.write_all(sent.as_bytes());
    let mut head = [0; 12];
    waiter.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 503");
    drop(waiter);
    until("it left", || (state(&server, "full")["waiterCount"] == 0).then_some(()));
}

// G191
#[test]
fn connections_of_clients_that_are_gone_do_not_count() {
    let (server, _home) = start("[server]\nconnection_limit = 8\npeer_share = 100\n");
    json(&server, "LockService/Acquire", &[], &ask("held", "0s"));
    let body = ask("held", "86400s");
    let waiting = format!("{}\r\n", request(&server, "Acquire", &body, body.len()));
    for _ in 0..3 {
        // One place is left for the look at the lock.
        let waiters: Vec<_> = (0..7)
            .map(|_| {
                let mut waiter = connect(&server);
                waiter.write_all(waiting.as_bytes()).expect("a request");
                waiter
            })
            .collect();
        until("they wait", || {
            (state(&server, "held")["waiterCount"] == 7).then_some(())
        });
        drop(waiters);
        until("they left", || {
            (state(&server, "held")["waiterCount"] == 0).then_some(())
        });
    }
}

// G191
#[test]
fn a_client_that_stops_to_send_gets_the_answers_of_calls_that_do_not_wait() {
    let (server, _home) = start("");
    let look = r#"{"namespace":"default","name":"half"}"#;
    let take = ask("half", "0s");
    for (method, body) in [("GetLock", look), ("Acquire", take.as_str())] {
        for tail in ["", "\r\n"] {
            let mut client = connect(&server);
            let request = format!("{}{tail}", request(&server, method, body, body.len()));
            client.write_all(request.as_bytes()).expect("a request");
            client.shutdown(Shutdown::Write).expect("a socket");
            let answer = rest(client);
            let is_held = method == "Acquire" && !tail.is_empty();
            let expected = if is_held { "HTTP/1.1 409" } else { "HTTP/1.1 200" };
            assert!(answer.starts_with(expected), "{method}: {answer}");
        }
    }
    // A wait is not answered with a grant.
    let mut waiter = connect(&server);
    let body = ask("half", "60s");
    waiter
        .write_all(request(&server, "Acquire", &body, body.len()).as_bytes())
        .expect("a request");
    until("it waits", || {
        (state(&server, "half")["waiterCount"] == 1).then_some(())
    });
    waiter.shutdown(Shutdown::Write).expect("a socket");
    let mut answer = String::new();
    waiter.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("fencepost-reason: DRAINING"),
        "{answer}"
    );
    assert_eq!(state(&server, "half")["waiterCount"], 0);
}
