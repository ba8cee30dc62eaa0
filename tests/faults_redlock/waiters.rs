//! Waiters whose locks are given back elsewhere, and whose answers are lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::claims::numbered;
use common::server::Server;
use fencepost::backend::redlock::settings::Quorum;
use fencepost::backend::redlock::{Redlock, Store};
use fencepost::backend::{AcquireOutcome, Backend, Health, InspectLimit, NewClaim, Refusal, ReleaseTarget};
use fencepost::clock;
use fencepost::error::Error;
use fencepost::locks::{Lease, Locks};
use fencepost::name::{LockName, Namespace, Ttl};
use fencepost_client::Client;
use tokio::task::JoinHandle;

use crate::answers::{Answers, Forwarder};
use crate::harness::{acquire, holding, nodes, of, quorum, replica, take_everywhere, token};
use crate::servers::{RedisServer, available, eventually};

const LONG: Duration = Duration::from_secs(40);

fn waiter(locks: &Locks, lock: &'static str) -> JoinHandle<Result<Lease, Error>> {
    let locks = locks.clone();
    tokio::spawn(async move { acquire(&locks, lock, LONG, LONG).await })
}

/// Waits until so many wait.
async fn waiting(locks: &Locks, lease: &Lease, count: usize) {
    let end = Instant::now() + Duration::from_secs(10);
    while locks.inspect(&lease.key.lock.name, 0).await.unwrap().waiter_count != count {
        assert!(Instant::now() < end, "not so many wait: {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_given_back_at_another_replica_goes_on_to_all_waiters_without_a_poll() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let quorum = of(&servers, LONG);
    let (here, there) = (replica(&quorum).await, replica(&quorum).await);
    let mut held = take_everywhere(&there, &servers, "a", LONG).await;
    let mut waiters = Vec::new();
    for count in 1..=5 {
        waiters.push(waiter(&here, "a"));
        waiting(&here, &held, count).await;
    }
    for next in waiters {
        let released = Instant::now();
        there.release(&held.key).await.unwrap();
        let next = next.await.unwrap().unwrap();
        let took = released.elapsed();
        // A poll is one second away.
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert!(token(&next) > token(&held));
        held = next;
    }
}

/// A claim as its call brings it to a backend.
fn claim(number: u8) -> NewClaim {
    NewClaim {
        ttl: Ttl::new(LONG).unwrap(),
        ..numbered(number.into())
    }
}

/// A replica's backend, with all its nodes.
async fn backend(quorum: &Quorum) -> Arc<Redlock> {
    let backend = Store::open(quorum.clone()).namespace(&Namespace::new("faults").unwrap());
    let end = Instant::now() + Duration::from_secs(20);
    while !backend.nodes().iter().all(|(_, health)| *health == Health::Serving) {
        assert!(Instant::now() < end, "{:?}", backend.nodes());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    backend
}

/// The backends of two replicas over three new nodes; absent where there is no Redis.
async fn two_backends() -> Option<([RedisServer; 3], Arc<Redlock>, Arc<Redlock>)> {
    if !available() {
        return None;
    }
    let servers = nodes::<3>();
    let quorum = of(&servers, LONG);
    Some((servers, backend(&quorum).await, backend(&quorum).await))
}

// G18c
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_counts_the_holder_and_the_waiters_of_one_server() {
    let Some((_servers, here, there)) = two_backends().await else {
        return;
    };
    let lock = LockName::new("a").unwrap();
    let asks = |number| {
        let mut claim = claim(number);
        claim.limits.queue = 2;
        claim
    };
    let held = here.acquire(&lock, &asks(1)).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    for (server, number) in [(&here, 2), (&there, 4)] {
        let waits = server.acquire(&lock, &asks(number)).await.unwrap();
        assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{number}: {waits:?}");
        let full = server.acquire(&lock, &asks(number + 1)).await.unwrap();
        let is_full = matches!(full, AcquireOutcome::Refused(Refusal::Full { limit: 2 }));
        assert!(is_full, "{number}: {full:?}");
    }
}

// G54a, G54b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_frees_no_lease_and_its_waiters_hold_nobody_up() {
    const TTL: Duration = Duration::from_secs(6);
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let other = replica(&of(&servers, LONG)).await;
    let urls = servers.each_ref().map(RedisServer::url);
    let (_home, doomed) = Server::of_namespace(&format!(
        "backend = 'redlock'\nttl_max = '40s'\nredlock.nodes = {urls:?}\nredlock.on_empty_store = 'admit'"
    ));
    let client = Client::connect(&[doomed.address.parse().unwrap()]).await.unwrap();
    let kept = client
        .acquire("faults", "kept", "doomed")
        .ttl(TTL)
        .wait(LONG)
        .await
        .unwrap();
    let held = take_everywhere(&other, &servers, "a", LONG).await;
    let dead = tokio::spawn(client.acquire("faults", "a", "doomed").wait(LONG).into_future());
    while client.get("faults", "a").await.unwrap().waiter_count == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let living = waiter(&other, "a");
    waiting(&other, &held, 1).await;
    drop(doomed);
    let killed = Instant::now();
    // A lease that a client counts on lives at least until then.
    let end = kept.end();
    other.release(&held.key).await.unwrap();
    living.await.unwrap().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    acquire(&other, "kept", LONG, LONG).await.unwrap();
    assert!(clock::since_boot() >= end, "it was freed early");
    dead.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_unheard_at_every_node_is_taken_back_by_the_next() {
    let Some((servers, here, there)) = two_backends().await else {
        return;
    };
    let (lock, other, claim) = (LockName::new("a").unwrap(), claim(1), claim(2));
    let held = there.acquire(&lock, &other).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    let waits = here.acquire(&lock, &claim).await.unwrap();
    assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{waits:?}");
    there
        .release(&lock, ReleaseTarget::Call(&other.id, other.call), None)
        .await
        .unwrap();
    eventually("no node holds", Duration::from_secs(10), || {
        (holding(&servers, "a") == 0).then_some(())
    });
    // Its own attempt, of which it hears nothing.
    let AcquireOutcome::Held(unheard) = there.acquire(&lock, &claim).await.unwrap() else {
        panic!("somebody is in the way");
    };
    eventually("every node holds for it", Duration::from_secs(10), || {
        (holding(&servers, "a") == 3).then_some(())
    });
    // At once: a few more times only where this machine was slow.
    let mut tries = 0;
    let grant = loop {
        match here.promote(&lock, &claim).await.unwrap() {
            AcquireOutcome::Held(grant) => break grant,
            place => assert!(tries < 4, "{place:?}"),
        }
        tries += 1;
    };
    assert!(grant.token > unheard.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_unheard_votes_ran_out_goes_on_and_is_told_that_it_left_only_once_it_has() {
    let Some((servers, here, there)) = two_backends().await else {
        return;
    };
    let lock = LockName::new("a").unwrap();
    let brief = Ttl::new(Duration::from_secs(1)).unwrap();
    let (other, claim) = (claim(1), NewClaim { ttl: brief, ..claim(2) });
    let held = there.acquire(&lock, &other).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    let waits = here.acquire(&lock, &claim).await.unwrap();
    assert!(matches!(waits, AcquireOutcome::Waiting(_)), "{waits:?}");
    let gone = ReleaseTarget::Call(&other.id, other.call);
    there.release(&lock, gone, None).await.unwrap();
    eventually("no node holds", Duration::from_secs(10), || {
        (holding(&servers, "a") == 0).then_some(())
    });
    // Its own attempt, of which it hears nothing, and whose time passes at every node.
    let AcquireOutcome::Held(unheard) = there.acquire(&lock, &claim).await.unwrap() else {
        panic!("somebody is in the way");
    };
    let end = Instant::now() + Duration::from_secs(10);
    while holding(&servers, "a") > 0 {
        assert!(Instant::now() < end, "its time does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Nodes end it with the next step of anybody.
        there.inspect(&lock, InspectLimit::of_each(1)).await.unwrap();
    }
    let mut tries = 0;
    let grant = loop {
        match here.promote(&lock, &claim).await.unwrap() {
            AcquireOutcome::Held(grant) => break grant,
            place => assert!(tries < 4 && matches!(place, AcquireOutcome::Waiting(_)), "{place:?}"),
        }
        tries += 1;
    };
    assert!(grant.token > unheard.token);
    // After its end there is nothing left of it, whichever of its rounds comes.
    let gone = ReleaseTarget::Call(&claim.id, claim.call);
    here.release(&lock, gone, None).await.unwrap();
    let left = there.acquire(&lock, &claim).await.unwrap();
    assert!(matches!(left, AcquireOutcome::Cancelled), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_votes_were_given_unheard_is_not_in_its_own_way() {
    common::skip_unless!(available());
    let servers = nodes::<3>();
    let mut ways = Vec::new();
    for server in &servers {
        ways.push(Forwarder::before(server.port()).await);
    }
    let there = replica(&of(&servers, LONG)).await;
    let here = replica(&quorum(ways.iter().map(Forwarder::url), LONG)).await;
    let held = take_everywhere(&there, &servers, "a", LONG).await;
    let next = waiter(&here, "a");
    waiting(&here, &held, 1).await;
    let votes = |ways: &[Forwarder]| {
        ways.iter().for_each(|way| way.answers(Answers::Lost));
    };
    votes(&ways);
    there.release(&held.key).await.unwrap();
    loop {
        eventually("it has all votes", Duration::from_secs(20), || {
            (holding(&servers, "a") == 3).then_some(())
        });
        // Nothing more reaches a node, and what was sent is not answered.
        ways.iter().for_each(Forwarder::stall);
        ways.iter().for_each(Forwarder::cut);
        if holding(&servers, "a") == 3 {
            break;
        }
        votes(&ways);
        ways.iter().for_each(Forwarder::go_on);
    }
    let back = Instant::now();
    ways.iter().for_each(Forwarder::go_on);
    let next = next.await.unwrap().unwrap();
    assert!(back.elapsed() < LONG / 4, "{:?}", back.elapsed());
    assert!(token(&next) > token(&held));
}
