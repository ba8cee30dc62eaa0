//! KeepAlive while Redis hangs.

use std::time::{Duration, Instant};

use fencepost::api::proto::KeepAliveRequest;
use fencepost::api::proto::keep_alive_response::Event;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::{Listener, Settings, serve};
use fencepost::backend::embedded::Store;
use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;
use fencepost::namespaces::Namespaces;
use futures::channel::mpsc::unbounded;

use crate::harness::{impatient, replica, standalone, take};
use crate::servers::{RedisServer, available};

/// The TTL of the lease in the store that answers.
const TTL: Duration = Duration::from_secs(3);
/// More leases than a stream renews at once.
const HANGING: usize = 80;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_hangs_holds_up_no_lease_of_another() {
    if !available() {
        return;
    }
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

    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let uri = format!("http://{}", listener.local_addr());
    let namespaces = Namespaces::new(vec![redis, memory]);
    tokio::spawn(serve(
        vec![listener],
        namespaces,
        Settings::default(),
        std::future::pending(),
    ));
    let mut client = LockServiceClient::connect(uri).await.unwrap();
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
