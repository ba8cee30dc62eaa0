//! Servers at unequal distances from their store.

use std::fmt::Debug;
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
use crate::forwarder::{Answers, Forwarder};
use crate::signals;
use crate::standstill::start;

/// How much later each answer reaches the far server.
const DISTANCE: Duration = Duration::from_millis(3);
/// How much later each answer reaches the server of a holder.
const DISTANCES: [Duration; 3] = [
    Duration::from_millis(5),
    Duration::from_millis(40),
    Duration::from_millis(150),
];
/// For how long a server in pulses runs, and stands still.
const PULSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(70));
/// How long both use the lock.
const TIME: Duration = Duration::from_secs(2);
/// How many clients each server has.
const CLIENTS: usize = 8;

/// How long calls took.
#[derive(Debug, Default, Clone, Copy)]
struct Calls {
    count: u32,
    all: Duration,
    slowest: Duration,
}

impl Calls {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.all += other.all;
        self.slowest = self.slowest.max(other.slowest);
    }

    fn one(&mut self, time: Duration) {
        self.add(Self {
            count: 1,
            all: time,
            slowest: time,
        });
    }

    fn mean(&self) -> Duration {
        self.all / self.count.max(1)
    }
}

/// Acquires and releases a share of a lock: each call changes its record, and waits for nobody.
async fn share(locks: Locks, lock: &'static str) -> Result<Calls, Error> {
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < TIME {
        let minute = Duration::from_secs(60);
        let ask = Acquire {
            mode: Mode::Shared,
            ..ask(lock, minute, Duration::ZERO)
        };
        let sent = Instant::now();
        let lease = locks.acquire(ask).await?.delivered();
        let acquired = Instant::now();
        locks.release(&lease.key).await?;
        let released = Instant::now();
        let slowest = (acquired - sent).max(released - acquired);
        calls.add(Calls {
            count: 2,
            all: released - sent,
            slowest,
        });
    }
    Ok(calls)
}

/// Renews a lease on a lock that others change.
async fn keep(locks: Locks, lock: &'static str) -> Result<Calls, Error> {
    let ask = Acquire {
        mode: Mode::Shared,
        ..ask(lock, Duration::from_secs(60), Duration::ZERO)
    };
    let lease = locks.acquire(ask).await?.delivered();
    let (mut calls, began) = (Calls::default(), Instant::now());
    while began.elapsed() < TIME {
        let sent = Instant::now();
        locks.renew(&lease.key, None).await?;
        calls.one(sent.elapsed());
    }
    locks.release(&lease.key).await?;
    Ok(calls)
}

/// The calls of several clients on one lock.
async fn share_by_many(locks: &Locks) -> Result<Calls, Error> {
    let clients = (0..CLIENTS).map(|_| tokio::spawn(share(locks.clone(), "hot")));
    let mut all = Calls::default();
    for calls in join_all(clients).await {
        all.add(calls.expect("no panic")?);
    }
    Ok(all)
}

/// The calls of the near clients and of the far ones on one lock, and those of a far one that is alone on its lock.
async fn run(near: &Locks, far: &Locks) -> Result<[Calls; 3], Error> {
    let (near, far, alone) = tokio::join!(share_by_many(near), share_by_many(far), share(far.clone(), "own"));
    Ok([near?, far?, alone?])
}

/// Asserts that no call of clients of two servers on the store at this port takes as long as 20 calls of one that is alone,
/// although one of the servers is far away.
pub async fn no_call_takes_twenty_round_trips(port: u16, replica: impl AsyncFn(String) -> Locks) {
    let mut seen = Vec::new();
    // A machine that stands still for a moment is no server that starves, and may fail a call.
    for _ in 0..5 {
        let way = Forwarder::before(port).await;
        way.answers(Answers::Late(DISTANCE));
        let (near, far) = (replica(format!("127.0.0.1:{port}")).await, replica(way.address()).await);
        let calls = run(&near, &far).await;
        println!("near, far and alone: {calls:?}");
        if let Ok([near, far, alone]) = calls {
            assert!(near.count > 0 && far.count > 0);
            if near.slowest.max(far.slowest) < 20 * alone.mean() {
                return;
            }
        }
        seen.push(calls);
    }
    panic!("{seen:?}");
}

/// Asserts that a holder whose server is far from the store at this port renews within ten of its round trips while clients
/// of a near server change the lock.
pub async fn a_far_holder_renews_within_ten_round_trips(port: u16, replica: impl AsyncFn(String) -> Locks) {
    for distance in DISTANCES {
        let way = Forwarder::before(port).await;
        let (near, far) = (replica(format!("127.0.0.1:{port}")).await, replica(way.address()).await);
        way.answers(Answers::Late(distance));
        within_ten(distance, async || {
            let calls = tokio::join!(share_by_many(&near), keep(far.clone(), "hot"), keep(far.clone(), "own"));
            Ok::<_, Error>((calls.0?, calls.1?, calls.2?))
        })
        .await;
    }
}

/// The same of a holder whose server, configured like this, stands still again and again, beside a near server.
pub async fn a_holder_of_a_server_in_pulses_renews_within_ten_round_trips(namespace: &str, near: &Locks) {
    let (_home, server) = start(namespace);
    let channel = Endpoint::from_shared(format!("http://{}", server.address)).expect("an address");
    let slow = LockServiceClient::new(channel.connect().await.expect("it accepts"));
    // Until its store serves.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = keep_at(slow.clone(), "own", Duration::ZERO).await {
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
    within_ten(PULSES.0 + PULSES.1, async || {
        let (hot, own) = (keep_at(slow.clone(), "hot", TIME), keep_at(slow.clone(), "own", TIME));
        let (near, hot, own) = tokio::join!(share_by_many(near), hot, own);
        Ok::<_, String>((near.map_err(|error| error.to_string())?, hot?, own?))
    })
    .await;
    is_over.store(true, Ordering::Relaxed);
    pulses.join().expect("no panic");
}

/// As [`keep`], at a server that is a process, for so long.
async fn keep_at(mut server: LockServiceClient<Channel>, lock: &str, time: Duration) -> Result<Calls, String> {
    let shared = AcquireRequest {
        namespace: "faults".into(),
        name: lock.into(),
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
        server
            .renew(RenewRequest { lease_id, ttl: None })
            .await
            .map_err(failed)?;
        calls.one(sent.elapsed());
    }
    server.release(ReleaseRequest { lease_id }).await.map_err(failed)?;
    Ok(calls)
}

/// Asserts that of these calls, which are those of near clients, those of a holder on their lock, and those of a holder on
/// its own, the holder's last no longer than ten of its own, or of this round trip.
async fn within_ten<E: Debug>(round_trip: Duration, run: impl AsyncFn() -> Result<(Calls, Calls, Calls), E>) {
    let mut seen = Vec::new();
    // A machine that stands still for a moment is no server that starves, and may fail a call.
    for _ in 0..5 {
        let calls = run().await;
        println!("near, kept and alone: {calls:?}");
        if let Ok((near, kept, alone)) = calls
            && near.count > 0
            && kept.slowest < 10 * alone.slowest.max(round_trip)
        {
            return;
        }
        seen.push(calls);
    }
    panic!("{seen:?}");
}
