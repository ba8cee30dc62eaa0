//! Connections by the dozen on which nobody proves who it is.

use std::time::Duration;

use fencepost::api::Settings;
use fencepost::auth::PolicySettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::fixture::{Fixture, access, ask, bearer, everything, until};

const CONNECTIONS: usize = 16;
/// A quarter.
const UNPROVEN: usize = 4;

/// The beginning of HTTP/2, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A connection that is as good as any, and on which no call is made. It is there when the server has
/// answered.
async fn idle(fixture: &Fixture) -> TcpStream {
    let mut socket = TcpStream::connect(&fixture.address).await.expect("a port");
    socket.write_all(GREETING).await.expect("it is sent");
    let mut first = [0; 9];
    let answered = timeout(super::fixture::PATIENCE, socket.read_exact(&mut first)).await;
    answered.expect("settings in time").expect("settings");
    socket
}

/// Whether the server has closed it.
async fn is_closed(socket: &mut TcpStream) -> bool {
    let mut bytes = [0; 1024];
    loop {
        match timeout(Duration::from_millis(1), socket.read(&mut bytes)).await {
            Ok(Ok(0) | Err(_)) => return true,
            Ok(Ok(_)) => {}
            Err(_) => return false,
        }
    }
}

// G154
#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_connections_keep_nobody_out() {
    let settings = PolicySettings {
        bearers: vec![bearer("ci")],
        rules: everything(),
        ..PolicySettings::default()
    };
    let limits = Settings {
        max_connections: CONNECTIONS,
        // All of them are at one address here.
        peer_share: 100,
        ..Settings::default()
    };
    let fixture = Fixture::start(access(&settings), None, limits).await;
    let early = fixture.caller(Some("secret-ci")).await;
    early.inspect("jobs", "a").await.expect("known");

    let mut crowd = Vec::new();
    for number in 0..3 * CONNECTIONS {
        crowd.push(idle(&fixture).await);
        if number % CONNECTIONS == 0 {
            let late = fixture.caller(Some("secret-ci")).await;
            let lease = late.acquire(ask("jobs", "b")).await.expect("served among them");
            late.release(&lease).await.expect("it is held");
        }
    }
    let newest = crowd.split_off(crowd.len() - UNPROVEN);
    for socket in &mut crowd {
        until("an older one is closed", async || is_closed(socket).await).await;
    }
    for mut socket in newest {
        assert!(!is_closed(&mut socket).await, "the newest stay");
    }
    early.inspect("jobs", "a").await.expect("who is proven stays");
}
