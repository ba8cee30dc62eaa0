use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::Credentials;

#[tokio::test(start_paused = true)]
async fn a_stream_is_opened_again_for_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let addresses = [address.parse().expect("an address")];
    let connections = Connections::open(&addresses, Credentials::default()).await;
    let calls = Calls::over(connections.expect("it accepts"));
    drop(listener);
    let begin = Instant::now();
    let failed = Failed::no_response(&address, "the stream ended");
    let opened = calls.open_again(&proto::ObserveRequest::default(), failed).await;
    let failed = opened.map(drop).expect_err("nobody is there");
    assert_eq!(failed.retry, Retryable::Elsewhere);
    assert_eq!(begin.elapsed().as_secs(), OUTAGE.as_secs());
}
