//! A connection that falls silent without closing.

use std::time::{Duration, Instant};

use tokio::io::{copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::server::Server;
use super::traffic::{ask, connect, runtime, take, until_waiting};

/// How soon a waiter leaves whose connection is silent.
const NOTICED: Duration = Duration::from_secs(20);
const PATIENT: Duration = Duration::from_secs(120);

/// Forwards one connection to `to` until `silence`; from then on both ends stay open and hear
/// nothing.
async fn forward(listener: TcpListener, to: String, silence: CancellationToken) {
    let (caller, _) = listener.accept().await.expect("a caller");
    let server = TcpStream::connect(to).await.expect("the server accepts");
    let ((mut from_caller, mut to_caller), (mut from_server, mut to_server)) = (split(caller), split(server));
    let both = async {
        tokio::join!(
            copy(&mut from_caller, &mut to_server),
            copy(&mut from_server, &mut to_caller)
        )
    };
    silence.run_until_cancelled(both).await;
    std::future::pending().await
}

// G15
#[test]
fn a_waiter_of_a_silent_connection_leaves_the_queue() {
    let home = tempfile::tempdir().expect("a directory");
    let server = Server::start(&home);
    let noticed = runtime().block_on(async {
        let direct = connect(&server.address).await;
        take(&direct, ask("held", Duration::ZERO)).await.expect("it is free");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let silence = CancellationToken::new();
        tokio::spawn(forward(listener, server.address.clone(), silence.clone()));
        let through = connect(&address).await;
        let waiter = tokio::spawn(async move { take(&through, ask("held", PATIENT)).await });
        until_waiting(&direct, 1).await;
        silence.cancel();
        let began = Instant::now();
        until_waiting(&direct, 0).await;
        assert!(!waiter.is_finished(), "its connection was closed");
        began.elapsed()
    });
    println!("a waiter of a silent connection left after {noticed:?}");
    assert!(noticed < NOTICED, "it left after {noticed:?}");
}
