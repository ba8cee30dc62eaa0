//! Calls that begin and never send their message.

use std::time::Duration;

use bytes::Bytes;
use fencepost::api::proto::RenewRequest;
use futures::stream::{FuturesUnordered, StreamExt};
use h2::client::{ResponseFuture, SendRequest};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::server::Server;
use super::traffic::{Client, ask, connect, runtime, take};

/// How many calls of a kind the server takes at once.
const MOST: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection on which calls can be begun.
async fn opener(address: &str) -> SendRequest<Bytes> {
    let socket = TcpStream::connect(address).await.expect("the server accepts");
    let (opener, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    opener.ready().await.expect("room for calls")
}

/// Begins a call of a method with its head alone; dropped, the call ends.
async fn half_open(opener: &SendRequest<Bytes>, method: &str) -> (ResponseFuture, h2::SendStream<Bytes>) {
    let request = http::Request::post(format!("http://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let mut opener = opener.clone().ready().await.expect("room for calls");
    opener.send_request(request, false).expect("sent")
}

async fn renews(client: &Client, lease_id: &str) -> bool {
    let ask = RenewRequest {
        lease_id: lease_id.into(),
        ttl: None,
    };
    client.clone().renew(ask).await.is_ok()
}

#[test]
fn calls_whose_message_never_comes_keep_no_renewal_out() {
    let home = tempfile::tempdir().expect("a directory");
    let config = format!("data_dir = \"d\"\n[server]\ncall_limit = {MOST}\npeer_share = 100\n");
    std::fs::write(home.path().join("f.toml"), config).expect("a file");
    let server = Server::start_with(&home, &["--config", "f.toml", "--listen", "127.0.0.1:0"]);
    runtime().block_on(async {
        let client = connect(&server.address).await;
        let lease = take(&client, ask("held", Duration::ZERO)).await.expect("it is free");
        let opener = opener(&server.address).await;

        // Anybody may ask for health. Of one more than there is room for some one is refused at once, and then
        // all the others are there.
        let mut checks = FuturesUnordered::new();
        let mut bodies = Vec::new();
        for _ in 0..=MOST {
            let (answer, body) = half_open(&opener, "/grpc.health.v1.Health/Check").await;
            checks.push(answer);
            bodies.push(body);
        }
        let first = timeout(PATIENCE, checks.next()).await.expect("an answer");
        let refused = first.expect("one").expect("an answer");
        assert_eq!(refused.headers()["grpc-status"], "8");
        assert!(
            renews(&client, &lease.lease_id).await,
            "health checks keep a renewal out"
        );

        // Those who call as somebody may fill the places of renewals, but not for long.
        let mut half = Vec::new();
        for _ in 0..MOST {
            half.push(half_open(&opener, "/fencepost.v1.LockService/Renew").await);
        }
        let began = Instant::now();
        while !renews(&client, &lease.lease_id).await {
            assert!(began.elapsed() < PATIENCE, "half-open renewals keep a renewal out");
            sleep(Duration::from_millis(20)).await;
        }
        let mut late = 0;
        for (answer, _) in half {
            let answer = timeout(PATIENCE, answer).await.expect("an answer").expect("an answer");
            late += usize::from(answer.headers()["grpc-status"] == "3");
        }
        // A renewal may have had the place of one.
        assert!(late >= MOST - 1, "{late} of {MOST} were ended");
    });
}
