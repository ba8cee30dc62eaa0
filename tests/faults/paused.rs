//! A server that stands still for longer than a lease lives.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use tonic::Code::FailedPrecondition;

use crate::client::{ask, living, refused, waiting};
use crate::history::Held;
use crate::server::Home;

const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ran_out_while_the_server_stood_still_is_over_and_its_waiter_is_served() {
    let home = Home::with_file();
    let server = home.start().await;
    let client = server.client();
    let sent = Instant::now();
    let held = Held::new(client.acquire(living(TTL, ask("a", "holder"))).await, sent);
    let waiter = client.clone();
    let next = tokio::spawn(async move { waiter.acquire(waiting(WAIT, ask("a", "next"))).await });
    client.until_waiting("a", 1).await;
    kill_process(server.pid(), Signal::STOP).expect("it lives");
    tokio::time::sleep(2 * TTL).await;
    kill_process(server.pid(), Signal::CONT).expect("it lives");
    let next = next.await.expect("the waiter is served");
    assert!(!held.is_sure(), "unsafe: two holders: {held:#?} and {next:#?}");
    assert!(next.fencing_token > held.lease.fencing_token);
    refused(
        client.try_renew(&held.lease, None).await,
        FailedPrecondition,
        "LEASE_LOST",
    );
    client.try_renew(&next, None).await.expect("the next one holds");
}
