//! Clients that break HTTP/2: that is no bug of the server, and is not told as one.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;

use super::fixture::{Client, ask, metrics, runtime, start};
use super::server::until;

/// How many calls are open when their connection breaks.
const OPEN: u32 = 500;
/// A WINDOW_UPDATE of the connection by nothing, which is an error.
const BAD_UPDATE: &[u8] = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0";

/// How many calls their client breaks off one after the other.
const BROKEN: u32 = 20;

/// A call of a method, whose message follows.
fn half_a_call(method: &str) -> http::Request<()> {
    http::Request::post(format!("http://localhost/fencepost.v1.LockService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request")
}

/// Begins calls whose messages do not come, and breaks the protocol then.
async fn break_protocol(address: &str) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let socket = tokio::net::TcpStream::connect(address)
        .await
        .expect("the server accepts");
    let (mut from_server, mut to_server) = socket.into_split();
    let (mut from_client, mut to_client) = tokio::io::split(far);
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let (opener, connection) = h2::client::handshake(near).await.expect("HTTP/2");
    tokio::spawn(connection);
    let sending = tokio::spawn(async move {
        // Until nothing comes for a moment: then all calls are there.
        let mut bytes = [0; 4096];
        let quiet = Duration::from_millis(300);
        while let Ok(Ok(read)) =
            tokio::time::timeout(quiet, tokio::io::AsyncReadExt::read(&mut from_client, &mut bytes)).await
        {
            to_server.write_all(&bytes[..read]).await.expect("it is sent");
        }
        to_server.write_all(BAD_UPDATE).await.expect("it is sent");
        to_server
    });
    let mut calls = Vec::new();
    for _ in 0..OPEN {
        let mut opener = opener.clone().ready().await.expect("room for calls");
        let (answer, mut body) = opener.send_request(half_a_call("Renew"), false).expect("sent");
        body.send_data(Bytes::from_static(b"\0\0\0"), false).expect("sent");
        calls.push((answer, body));
    }
    drop(sending.await.expect("no panic"));
    for (answer, _body) in calls {
        assert!(answer.await.is_err(), "the connection is closed");
    }
}

#[test]
fn a_client_that_breaks_the_protocol_is_counted_as_such_and_not_as_a_bug() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, "metrics_listen = \"127.0.0.1:0\"\n");
    runtime().block_on(async {
        let normal = Client::connect(&server.address, None).await;
        break_protocol(&server.address).await;
        normal
            .acquire(ask("after", Duration::ZERO))
            .await
            .expect("the server lives on");
    });
    let address = server.metrics.clone().expect("a port");
    let told = until("it is counted", || {
        Some(metrics(&address)).filter(|text| text.contains("fencepost_protocol_errors_total 1"))
    });
    let bugs = told.lines().filter(|line| line.contains("reason=\"INTERNAL\""));
    let counted: Vec<_> = bugs.filter(|line| !line.ends_with(" 0")).collect();
    assert!(counted.is_empty(), "{counted:?}");
    assert!(
        !server.said("a call met a bug") && !server.said("ERROR"),
        "a bug is logged"
    );
}

#[test]
fn calls_that_their_client_breaks_off_are_no_bugs() {
    let home = tempfile::tempdir().expect("a directory");
    let server = start(&home, "metrics_listen = \"127.0.0.1:0\"\n");
    let address = server.metrics.clone().expect("a port");
    runtime().block_on(async {
        let socket = tokio::net::TcpStream::connect(&server.address).await.expect("a socket");
        let (opener, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        tokio::spawn(connection);
        for _ in 0..BROKEN {
            let mut opener = opener.clone().ready().await.expect("room for calls");
            let (_answer, mut body) = opener.send_request(half_a_call("Renew"), false).expect("sent");
            body.send_data(Bytes::from_static(b"\0\0\0"), false).expect("sent");
            // Calls of a connection begin in their order, so that this one is answered after the other has begun.
            let mut opener = opener.ready().await.expect("room for calls");
            let (answer, mut message) = opener.send_request(half_a_call("GetLock"), false).expect("sent");
            message.send_data(Bytes::from_static(&[0; 5]), true).expect("sent");
            answer.await.expect("an answer");
            body.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    });
    let renews = |text: &str| -> Vec<(String, u32)> {
        let of = |line: &&str| line.starts_with("fencepost_requests_total") && line.contains("Renew");
        let counted = text.lines().filter(of).filter_map(|line| line.rsplit_once(' '));
        counted
            .map(|(name, count)| (name.to_owned(), count.parse().expect("a number")))
            .collect()
    };
    let told = until("they are counted", || {
        let all = renews(&metrics(&address));
        (all.iter().map(|(_, count)| count).sum::<u32>() >= BROKEN).then_some(all)
    });
    let bugs = told.iter().filter(|(name, _)| name.contains("reason=\"INTERNAL\""));
    assert!(bugs.clone().count() > 0, "{told:?}");
    assert!(bugs.clone().all(|(_, count)| *count == 0), "{told:?}");
    assert!(!server.said("ERROR"), "a bug is logged");
}
