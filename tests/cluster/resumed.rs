//! Sessions through a rolling restart: a wait that comes back in time, at any server, has its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::session_command::{Command, Open};
use fencepost::api::proto::session_event::command_result::Outcome;
use fencepost::api::proto::session_event::{CommandResult, Event};
use fencepost::api::proto::{AcquireRequest, Lease};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::asks::{living, named, reason, waiting, wire};
use crate::calls::Calls;
use crate::replicas::{PATIENCE, REPLICAS, Replicas};
use crate::session_client::{SessionClient, acquire, status};

/// How many wait for the lock.
const WAITERS: usize = 30;
/// Who is away for longer may lose its place.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// For how long a session keeps its places.
const GRACE: Duration = Duration::from_secs(10);
/// How long each holds the lock: long enough that the restarts meet holders, waiters and grants on their way.
const WORK: Duration = Duration::from_millis(250);
/// How long a client rests that found no server.
const REST: Duration = Duration::from_millis(50);

/// What the waiters have seen.
#[derive(Default)]
struct Seen {
    /// Who was granted which token.
    granted: Mutex<Vec<(u64, usize)>>,
    /// Who was away for too long.
    late: Mutex<Vec<usize>>,
    /// How often a stream ended under a wait.
    breaks: Mutex<usize>,
}

fn ask(owner: &str) -> AcquireRequest {
    let ask = AcquireRequest {
        namespace: "jobs".into(),
        name: "lock".into(),
        owner: owner.into(),
        ..AcquireRequest::default()
    };
    living(2 * PATIENCE, ask)
}

/// Opens a stream of this session at a server, if that serves.
async fn open(end: &Endpoint, session: &str, number: u64) -> Option<SessionClient> {
    let channel = end.connect().await.ok()?;
    let (commands, sent) = SessionClient::commands();
    let events = LockServiceClient::new(channel).session(sent).await.ok()?;
    let mut session_client = SessionClient::opened(commands, events.into_inner()).await.ok()?;
    session_client.one(Command::Open(Open {
        session_id: session.into(),
        number,
        grace: Some(wire(GRACE)),
        ..Open::default()
    }));
    Some(session_client)
}

/// The lease of this command; nothing if the stream ends before.
async fn lease(session: &mut SessionClient, id: u64) -> Option<Lease> {
    loop {
        let Ok(Some(event)) = session.next().await else {
            return None;
        };
        let Event::Result(CommandResult { id: of, outcome }) = event else {
            continue;
        };
        match outcome.filter(|_| of == id) {
            Some(Outcome::Acquire(answer)) => return answer.lease,
            Some(Outcome::Error(error)) => {
                let error = status(&error);
                assert_eq!(error.code(), Code::Unavailable, "{error:?}");
                return None;
            }
            _ => {}
        }
    }
}

/// Waits for the lock on as many streams as that takes, one after another, and releases it after its work.
async fn wait(ends: Vec<Endpoint>, number: usize, seen: Arc<Seen>) {
    let (name, until) = (format!("waiter-{number}"), Instant::now() + 2 * PATIENCE);
    let (mut at, mut stream, mut away) = (number, 0, None::<Instant>);
    let lease = loop {
        assert!(Instant::now() < until, "{name} found no server");
        at += 1;
        stream += 1;
        let Some(mut session) = open(&ends[at % REPLICAS], &name, stream).await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let left = until.saturating_duration_since(Instant::now());
        let id = session.one(acquire(waiting(left, named("request", ask(&name))), true));
        if away.take().is_some_and(|since| since.elapsed() > BACK_WITHIN) {
            seen.late.lock().push(number);
        }
        match lease(&mut session, id).await {
            Some(lease) => break lease,
            None => {
                away = Some(Instant::now());
                *seen.breaks.lock() += 1;
            }
        }
    };
    seen.granted.lock().push((lease.fencing_token, number));
    tokio::time::sleep(WORK).await;
    release(&ends, &lease).await;
}

/// Releases a lease at any server.
async fn release(ends: &[Endpoint], lease: &Lease) {
    let until = Instant::now() + PATIENCE;
    for end in ends.iter().cycle() {
        assert!(Instant::now() < until, "no server releases");
        if let Ok(channel) = end.connect().await {
            match Calls(channel).try_release(lease).await {
                Ok(()) => return,
                Err(error) => assert_ne!(reason(&error), "LEASE_LOST", "{error:?}"),
            }
        }
        tokio::time::sleep(REST).await;
    }
}

async fn restart_in_turn(namespace: &str) {
    let mut replicas = Replicas::start(&format!("ttl_max = '5m'\n{namespace}")).await;
    let (ends, seen) = (replicas.ends(), Arc::<Seen>::default());
    let first = Calls(ends[0].connect().await.expect("it accepts"));
    let held = first.acquire(ask("first")).await;
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        waiters.spawn(wait(ends.clone(), number, Arc::clone(&seen)));
        // Its place is behind the others'.
        while first.look_at("jobs", "lock").await.waiter_count as usize <= number {
            tokio::time::sleep(REST / 10).await;
        }
    }
    // The first restart meets waiters alone, the others a queue that moves.
    replicas.0[0].restart().await;
    release(&ends, &held).await;
    for replica in &mut replicas.0[1..] {
        replica.restart().await;
    }
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("it was granted");
    }
    let (mut granted, late) = (seen.granted.lock().clone(), seen.late.lock().clone());
    granted.sort_unstable();
    let order = granted.iter().map(|(_, number)| *number);
    let order: Vec<_> = order.filter(|number| !late.contains(number)).collect();
    println!("{} streams broke off, {late:?} came back late", seen.breaks.lock());
    assert!(order.is_sorted(), "who came back in time lost its place: {order:?}");
    assert!(*seen.breaks.lock() >= WAITERS / REPLICAS, "the restarts met no wait");
}

// G226
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rolling_restart_on_redis_takes_no_place_of_sessions_that_come_back() {
    crate::stores::on_redis(async |namespace| restart_in_turn(namespace).await).await;
}

// G226
#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rolling_restart_on_etcd_takes_no_place_of_sessions_that_come_back() {
    crate::stores::on_etcd(async |namespace| restart_in_turn(namespace).await).await;
}

// G226
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rolling_restart_on_postgres_takes_no_place_of_sessions_that_come_back() {
    crate::stores::on_postgres(async |namespace| restart_in_turn(namespace).await).await;
}
