//! Servers on one store, as their users run them, of which one is killed or stopped.

use std::time::{Duration, Instant};

use common::killed::{DEAD, SHORT};
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::mode::{Kind, Shared};
use fencepost::api::proto::session_command::Command;
use fencepost::api::proto::{AcquireRequest, Lease, Mode, RenewRequest};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::harness::{Servers, addresses, config, store};
use crate::process::Server;
use crate::session_client::{self, SessionClient};

async fn start(store: &Servers) -> (tempfile::TempDir, Server, LockServiceClient<Channel>) {
    let (home, server) = Server::of_namespace(&config(&addresses(store)));
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
    let client = LockServiceClient::new(endpoint.connect().await.expect("it listens"));
    (home, server, client)
}

async fn acquire(client: &mut LockServiceClient<Channel>, lock: &str, wait: Duration) -> Result<Lease, Status> {
    let ask = AcquireRequest {
        namespace: "faults".into(),
        name: lock.into(),
        owner: "tester".into(),
        ttl: Some(SHORT.try_into().expect("a TTL")),
        wait: Some(wait.try_into().expect("a time")),
        ..AcquireRequest::default()
    };
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match client.acquire(ask.clone()).await {
            Err(status) if status.code() == Code::Unavailable && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            answer => return Ok(answer?.into_inner().lease.expect("a lease")),
        }
    }
}

// G112
/// Nobody watches over its leases but the others; when it goes on, it believes nothing that has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_server_that_stands_still_end_and_it_finds_out_when_it_goes_on() {
    let Some(store) = store(1) else { return };
    let (_first_home, stopped, mut first) = start(&store).await;
    let (_second_home, _other, mut second) = start(&store).await;
    let held = acquire(&mut first, "a", Duration::ZERO).await.expect("it is free");
    let waiting = tokio::spawn({
        let mut first = first.clone();
        async move { acquire(&mut first, "b", Duration::from_secs(60)).await }
    });
    let other = acquire(&mut second, "b", Duration::ZERO).await;
    stopped.signal("STOP");
    let begun = Instant::now();
    let next = acquire(&mut second, "a", Duration::from_secs(30))
        .await
        .expect("it ends by its TTL");
    println!("the lease of the stopped server ended after {:?}", begun.elapsed());
    assert!(begun.elapsed() < 2 * SHORT + DEAD, "{:?}", begun.elapsed());
    assert!(next.fencing_token > held.fencing_token);
    // Longer than its session.
    tokio::time::sleep(Duration::from_secs(8).saturating_sub(begun.elapsed())).await;
    stopped.signal("CONT");
    let lease_id = held.lease_id.clone();
    let renewed = first.renew(RenewRequest { lease_id, ttl: None }).await;
    let lost = renewed.expect_err("it has expired");
    assert!(
        matches!(lost.code(), Code::FailedPrecondition | Code::Unavailable),
        "{lost:?}"
    );
    // Its waiter comes again.
    drop(other);
    let waited = waiting.await.expect("no panic");
    if let Err(status) = &waited {
        assert!(matches!(status.code(), Code::Unavailable | Code::Aborted), "{status:?}");
    }
    let last = acquire(&mut second, "b", Duration::from_secs(20))
        .await
        .expect("it is free in the end");
    if let Ok(waited) = waited {
        assert!(last.fencing_token > waited.fencing_token);
    }
}

async fn session(client: &mut LockServiceClient<Channel>) -> SessionClient {
    let (commands, sent) = SessionClient::commands();
    let events = client.session(sent).await.expect("a session").into_inner();
    SessionClient::opened(commands, events).await.expect("it is open")
}

/// A reader's Acquire, with a wait of so many seconds.
fn read(seconds: i64) -> Command {
    let ask = AcquireRequest {
        namespace: "faults".into(),
        name: "a".into(),
        owner: "tester".into(),
        mode: Some(Mode {
            kind: Some(Kind::Shared(Shared {})),
        }),
        wait: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..AcquireRequest::default()
    };
    session_client::acquire(ask, false)
}

// G60
/// Each of them alone would wait as long as the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_a_session_on_one_lock_fail_together_while_the_store_stands_still() {
    const OF_EACH: usize = 8;
    let Some(store) = store(1) else { return };
    let (_home, _server, mut client) = start(&store).await;
    let mut session = session(&mut client).await;
    let held = session.send(vec![read(0); OF_EACH]);
    let mut ends = Vec::new();
    for id in held {
        let lease = session.lease(id).await.expect("readers share");
        ends.push(session_client::release(&lease));
    }
    let by_turns = ends.into_iter().flat_map(|end| [read(60), end]);
    let commands = vec![read(0); OF_EACH].into_iter().chain(by_turns);
    store.servers[0].pause();
    let began = Instant::now();
    let mut took = Vec::new();
    for id in session.send(commands.collect()) {
        let status = session.result(id).await.expect_err("nobody answers");
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        took.push(began.elapsed());
    }
    store.servers[0].resume();
    let (tries, all) = (took[OF_EACH - 1], took[3 * OF_EACH - 1]);
    println!("tries failed within {tries:?}, all commands within {all:?}");
    // A second one would take three seconds more.
    assert!(tries < Duration::from_secs(5), "{tries:?}");
    // Two seconds more than promised, for a slow machine.
    assert!(all < Duration::from_secs(12), "{all:?}");
}

// G60
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_acquire_behind_a_command_that_the_store_does_not_answer_goes_on() {
    let Some(store) = store(1) else { return };
    let (_home, _server, mut client) = start(&store).await;
    let mut session = session(&mut client).await;
    let held = session.one(read(0));
    let held = session.lease(held).await.expect("it is free");
    store.servers[0].pause();
    let ids = session.send(vec![session_client::release(&held), read(60)]);
    let refused = session.result(ids[0]).await;
    store.servers[0].resume();
    assert_eq!(refused.expect_err("nobody answers").code(), Code::Unavailable);
    session.lease(ids[1]).await.expect("it rides the outage out");
}
