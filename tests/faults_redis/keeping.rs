//! KeepAlive while Redis hangs, and what it tells of forced releases.

use std::time::{Duration, Instant};

use fencepost::api::proto::keep_alive_response::Event;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{KeepAliveRequest, KeepAliveResponse};
use fencepost::api::{Listener, Settings, serve};
use fencepost::backend::embedded::Store;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;
use fencepost::namespaces::Namespaces;
use futures::channel::mpsc::unbounded;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::faults_redis::forwarder::Forwarder;
use crate::faults_redis::harness::{impatient, replica, standalone, take};
use crate::faults_redis::servers::{RedisServer, available};

/// The TTL of the lease in the store that answers.
const TTL: Duration = Duration::from_secs(3);
/// More leases than a stream renews at once.
const HANGING: usize = 80;

/// A client of a server with these namespaces.
pub async fn served(locks: Vec<Locks>) -> LockServiceClient<Channel> {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let uri = format!("http://{}", listener.local_addr());
    tokio::spawn(serve(
        vec![listener],
        Namespaces::new(locks),
        Settings::default(),
        std::future::pending(),
    ));
    LockServiceClient::connect(uri).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs_holds_up_no_lease_of_another() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let redis = replica(&impatient(standalone(&server.url()))).await;
    let namespace = Namespace::new("memory").unwrap();
    let store = Store::memory().namespace(namespace.clone());
    let memory = Locks::new(namespace, Limits::default(), store);
    let mut lease_ids = Vec::new();
    for number in 0..HANGING {
        let lease = take(&redis, &format!("lock-{number}"), Duration::from_secs(120)).await;
        lease_ids.push(lease.key.to_lease_id());
    }
    lease_ids.push(take(&memory, "a", TTL).await.key.to_lease_id());

    let mut client = served(vec![redis, memory]).await;
    let (beats, sent) = unbounded();
    let mut events = client.keep_alive(sent).await.unwrap().into_inner();

    let mut paused: Option<Instant> = None;
    let mut kept_while_paused = 0;
    while paused.is_none_or(|since| since.elapsed() < 3 * TTL) {
        match events.message().await.unwrap().unwrap().event.unwrap() {
            Event::Ask(_) => {
                let lease_ids = lease_ids.clone();
                beats.unbounded_send(KeepAliveRequest { beat: 0, lease_ids }).unwrap();
            }
            Event::Kept(kept) => {
                let is_kept = |ttl: &prost_types::Duration| (ttl.seconds, ttl.nanos) != (0, 0);
                assert!(kept.ttls.last().is_some_and(is_kept), "{kept:?}");
                if paused.is_some() {
                    kept_while_paused += 1;
                } else if kept.ttls.iter().all(is_kept) {
                    server.pause();
                    paused = Some(Instant::now());
                }
            }
            Event::Lost(lost) => panic!("{lost:?}"),
        }
    }
    server.resume();
    assert!(kept_while_paused >= 3, "{kept_while_paused}");
}

// G39
/// Forced releases are told while a stream keeps leases, also after a connection to Redis was cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_releases_are_told_while_a_stream_keeps_leases() {
    common::skip_unless!(available());
    let long = Duration::from_secs(600);
    let server = RedisServer::start(&[]);
    let forwarder = Forwarder::before(server.port()).await;
    let here = replica(&standalone(&forwarder.url())).await;
    let there = replica(&standalone(&server.url())).await;
    let mut client = served(vec![here]).await;
    let (beats, sent) = unbounded();
    let mut events = client.keep_alive(sent).await.unwrap().into_inner();
    let mut told = 0;
    for number in 0..20 {
        let lease = take(&there, &format!("lock-{number}"), long).await;
        let lease_ids = vec![lease.key.to_lease_id()];
        let beat = KeepAliveRequest { beat: 0, lease_ids };
        beats.unbounded_send(beat.clone()).unwrap();
        // A beat is sent again while Redis cannot be reached.
        while !matches!(next(&mut events).await, Event::Kept(kept) if kept.ttls[0].seconds > 0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            beats.unbounded_send(beat.clone()).unwrap();
        }
        there
            .force_release(&lease.key.lock.name, lease.key.token)
            .await
            .unwrap();
        // What is forced before the connection was made anew is missed.
        let lost = tokio::time::timeout(Duration::from_secs(2), async {
            while !matches!(next(&mut events).await, Event::Lost(lost) if lost.cause == "forced") {}
        });
        if lost.await.is_ok() {
            told += 1;
            if told == 2 {
                break;
            }
            forwarder.cut();
        }
    }
    assert_eq!(told, 2, "before and after the cut");
}

async fn next(events: &mut Streaming<KeepAliveResponse>) -> Event {
    let message = tokio::time::timeout(Duration::from_secs(30), events.message()).await;
    let message = message.expect("an event in time").expect("no error");
    message.expect("not the end").event.expect("one of the three")
}
