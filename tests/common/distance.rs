//! Servers at unequal distances from their store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::{self, AcquireRequest, ReleaseRequest, RenewRequest};
use fencepost::error::Error;
use fencepost::locks::{Acquire, Locks};
use fencepost::name::Mode;
use futures::future::join_all;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::clients::ask;
use crate::faults::stores::{OneServer, Store};
use crate::forwarder::{Answers, Forwarder};
use crate::server::Server;
use crate::signals;

/// How much later each answer reaches the far server.
const DISTANCE: Duration = Duration::from_millis(20);
/// How much later each answer reaches the server of a holder.
const DISTANCES: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(40),
    Duration::from_millis(150),
];
/// For how long a server in pulses runs, and stands still.
const PULSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(70));
/// How long they use the lock in a run, at least, and in round trips of the far one.
const TIME: (Duration, u32) = (Duration::from_secs(1), 12);
/// How many clients each server has.
const CLIENTS: usize = 8;
/// How long a commit may take in the store itself, and in both processes, beside other tests on two processors.
const SERVED: Duration = Duration::from_millis(30);
/// How many runs there are, and how many of them must hold: a machine that stands still for a moment is no server that
/// starves.
const RUNS: (usize, usize) = (5, 3);

/// How long calls took.
#[derive(Debug, Default, Clone, Copy)]
struct Calls {
    count: u32,
    slowest: Duration,
}

impl Calls {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.slowest = self.slowest.max(other.slowest);
    }

    fn since(&mut self, sent: Instant) {
        let slowest = sent.elapsed();
        self.add(Self { count: 1, slowest });
    }
}

/// How long a run lasts beside a server so far away.
fn time(round_trip: Duration) -> Duration {
    TIME.0.max(TIME.1 * round_trip)
}

/// Acquires and releases a share of the lock: each call changes its record, and waits for nobody.
async fn share(locks: Locks, time: Duration) -> Result<Calls, Error> {
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < time {
        let sent = Instant::now();
        let lease = locks.acquire(shared()).await?.delivered();
        calls.since(sent);
        let sent = Instant::now();
        locks.release(&lease.key).await?;
        calls.since(sent);
    }
    Ok(calls)
}

fn shared() -> Acquire {
    Acquire {
        mode: Mode::Shared,
        ..ask("hot", Duration::from_secs(60), Duration::ZERO)
    }
}

/// Renews a lease on the lock, which others change, and releases it.
async fn keep(locks: &Locks, time: Duration) -> Result<Calls, Error> {
    let lease = locks.acquire(shared()).await?.delivered();
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < time {
        let sent = Instant::now();
        locks.renew(&lease.key, None).await?;
        calls.since(sent);
    }
    let sent = Instant::now();
    locks.release(&lease.key).await?;
    calls.since(sent);
    Ok(calls)
}

/// The calls of several clients on the lock.
async fn share_by_many(locks: &Locks, time: Duration) -> Result<Calls, Error> {
    let clients = (0..CLIENTS).map(|_| tokio::spawn(share(locks.clone(), time)));
    let mut all = Calls::default();
    for calls in join_all(clients).await {
        all.add(calls.expect("no panic")?);
    }
    Ok(all)
}

/// Asserts that no call of clients of two servers of a store takes as long as 20 round trips of the farther
/// one.
pub async fn no_call_takes_twenty_round_trips<S: OneServer>() {
    let store = S::start();
    let way = Forwarder::before(store.port()).await;
    let (near, far) = (store.locks().await, S::locks_at(way.address()).await);
    way.answers(Answers::Late(DISTANCE));
    let time = time(DISTANCE);
    most_last_at_most(20 * (DISTANCE + SERVED), async || {
        let (near, far) = tokio::join!(share_by_many(&near, time), share_by_many(&far, time));
        let (near, mut both) = (near.map_err(told)?, far.map_err(told)?);
        both.add(near);
        Ok((near, both))
    })
    .await;
}

/// Asserts that a holder whose server is far from its store renews and releases within ten of its round trips
/// while clients of a near server change the lock.
pub async fn a_far_holder_renews_within_ten_round_trips<S: OneServer>() {
    let store = S::start();
    for distance in DISTANCES {
        let way = Forwarder::before(store.port()).await;
        let (near, far) = (store.locks().await, S::locks_at(way.address()).await);
        way.answers(Answers::Late(distance));
        let time = time(distance);
        most_last_at_most(10 * (distance + SERVED), async || {
            let (near, kept) = tokio::join!(share_by_many(&near, time), keep(&far, time));
            Ok((near.map_err(told)?, kept.map_err(told)?))
        })
        .await;
    }
}

/// The same of a holder whose server stands still again and again, beside a near server.
pub async fn a_holder_of_a_server_in_pulses_renews_within_ten_round_trips<S: Store>() {
    let store = S::start();
    let near = &store.locks().await;
    let (_home, server) = Server::of_namespace(&store.namespace());
    let channel = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
    let slow = LockServiceClient::new(channel.connect().await.expect("it accepts"));
    // Until its store serves.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = keep_at(slow.clone(), Duration::ZERO).await {
        assert!(Instant::now() < end, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (process, is_over) = (server.id(), Arc::<AtomicBool>::default());
    let pulses = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(PULSES.0);
                signals::send("STOP", &[process]);
                std::thread::sleep(PULSES.1);
                signals::send("CONT", &[process]);
            }
        }
    });
    let round_trip = PULSES.0 + PULSES.1;
    let time = time(round_trip);
    most_last_at_most(10 * round_trip, async || {
        let (near, kept) = tokio::join!(share_by_many(near, time), keep_at(slow.clone(), time));
        Ok((near.map_err(told)?, kept?))
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    pulses.join().expect("no panic");
}

fn told(error: Error) -> String {
    error.to_string()
}

/// As [`keep`], at a server that is a process.
async fn keep_at(mut server: LockServiceClient<Channel>, time: Duration) -> Result<Calls, String> {
    let shared = AcquireRequest {
        namespace: "faults".into(),
        name: "hot".into(),
        owner: "tester".into(),
        ttl: Some(Duration::from_secs(60).try_into().expect("a short time")),
        mode: Some(proto::Mode {
            kind: Some(proto::mode::Kind::Shared(proto::mode::Shared {})),
        }),
        ..AcquireRequest::default()
    };
    let failed = |status: Status| status.to_string();
    let lease = server.acquire(shared).await.map_err(failed)?.into_inner().lease;
    let lease_id = lease.expect("a lease").lease_id;
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < time {
        let (lease_id, sent) = (lease_id.clone(), Instant::now());
        let renewed = server.renew(RenewRequest { lease_id, ttl: None }).await;
        renewed.map_err(failed)?;
        calls.since(sent);
    }
    let sent = Instant::now();
    server
        .release(ReleaseRequest {
            lease_id,
            keep_for: None,
        })
        .await
        .map_err(failed)?;
    calls.since(sent);
    Ok(calls)
}

/// Asserts that in most runs near clients are served, no call fails, and each measured one lasts at most so long.
async fn most_last_at_most(longest: Duration, run: impl AsyncFn() -> Result<(Calls, Calls), String>) {
    let (mut bad, mut good) = (Vec::new(), 0);
    while good < RUNS.1 {
        let calls = run().await;
        println!("at most {longest:?}; near, and measured: {calls:?}");
        match calls {
            Ok((near, measured)) if near.count > 0 && measured.count > 1 && measured.slowest <= longest => good += 1,
            calls => bad.push(calls),
        }
        assert!(bad.len() <= RUNS.0 - RUNS.1, "more than {longest:?}: {bad:?}");
    }
}
