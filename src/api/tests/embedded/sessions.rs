//! Sessions over a memory store whose steps can hang.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use tokio::time::{sleep, timeout};
use tonic::Streaming;

use self::blocking_store::{BlockingStore, locks_over};
use crate::api::Settings;
use crate::api::proto::lock_service_client::LockServiceClient;
use crate::api::proto::session_command::{Acquire, Cancel, Close, Command, KeepAlive, Open};
use crate::api::proto::session_event::Event;
use crate::api::proto::session_event::command_result::Outcome;
use crate::api::proto::{
    AcquireRequest, GetLockRequest, ReleaseRequest, SessionCommand, SessionEvent, SessionRequest, SessionResponse,
};
use crate::api::tests::Running;
use crate::backend::{Health, InspectLimit};
use crate::name::LockName;
use crate::namespaces::Namespaces;

// The one that the tests of the locks have.
#[allow(dead_code, reason = "each of both uses its share")]
#[path = "../../../../core/src/locks/tests/blocking_store.rs"]
mod blocking_store;

/// Longer than any event takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a wait takes that is to end.
const SHORT: Duration = Duration::from_millis(200);
/// Within which time what is not kept is gone; shorter than what is kept for.
const SOON: Duration = Duration::from_secs(4);

async fn serve(store: &Arc<BlockingStore>) -> Running {
    let settings = Settings {
        drain_timeout: PATIENCE / 4,
        ..Settings::default()
    };
    Running::serving(Namespaces::new(vec![locks_over(store)]), &["127.0.0.1:0"], settings).await
}

/// The client of a session.
struct Client {
    commands: UnboundedSender<SessionRequest>,
    responses: Streaming<SessionResponse>,
    events: Vec<Event>,
}

impl Client {
    async fn open(server: &Running) -> Self {
        let (commands, sent) = unbounded();
        let responses = LockServiceClient::new(server.channel(0).await).session(sent).await;
        Self {
            commands,
            responses: responses.unwrap().into_inner(),
            events: Vec::new(),
        }
    }

    /// Sends commands in one message.
    fn send(&self, commands: impl IntoIterator<Item = (u64, Command)>) {
        let command = |(id, command)| SessionCommand {
            id,
            command: Some(command),
        };
        let commands = commands.into_iter().map(command).collect();
        self.commands.unbounded_send(SessionRequest { commands }).unwrap();
    }

    /// The first event that fits.
    async fn find<T>(&mut self, fits: impl Fn(&Event) -> Option<T>) -> T {
        loop {
            if let Some(found) = self.events.iter().find_map(&fits) {
                return found;
            }
            let response = timeout(PATIENCE, self.responses.message()).await;
            let response = response.expect("an event in time").unwrap().expect("not the end");
            let events = response.events.into_iter();
            self.events.extend(events.filter_map(|SessionEvent { event }| event));
        }
    }

    /// The result of a command.
    async fn outcome(&mut self, id: u64) -> Outcome {
        let result = self.find(|event| match event {
            Event::Result(result) if result.id == id => result.outcome.clone(),
            _ => None,
        });
        result.await
    }

    /// Why a command failed.
    async fn reason(&mut self, id: u64) -> String {
        match self.outcome(id).await {
            Outcome::Error(error) => error.reason,
            other => panic!("{other:?}"),
        }
    }

    /// How many leases a keep_alive did not renew.
    async fn not_renewed(&mut self, id: u64) -> usize {
        let kept = self.find(|event| match event {
            Event::Kept(kept) if kept.id == id => Some(kept.not_renewed.len()),
            _ => None,
        });
        kept.await
    }
}

fn acquire_of(name: &str, owner: &str, wait: Option<Duration>, keep: bool) -> Command {
    let request = Some(AcquireRequest {
        namespace: "n".into(),
        name: name.into(),
        owner: owner.into(),
        wait: wait.map(|wait| wait.try_into().unwrap()),
        ..AcquireRequest::default()
    });
    Command::Acquire(Acquire { request, keep })
}

fn acquire(owner: &str, wait: Option<Duration>, keep: bool) -> Command {
    acquire_of("a", owner, wait, keep)
}

/// Until a lock has so many waiters.
async fn until_waiters(store: &BlockingStore, count: usize) {
    let name = LockName::new("a").unwrap();
    let reached = async {
        let waiters = || store.store.inspect(&name, InspectLimit::of_each(9));
        while waiters().await.unwrap().waiter_count != count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, reached).await.expect("so many waiters in time");
}

// G221
#[tokio::test]
async fn a_session_that_is_closed_and_cut_before_its_waits_have_left_keeps_no_place() {
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let (mut holder, client) = (Client::open(&server).await, Client::open(&server).await);
    holder.send([(1, acquire("a", None, true))]);
    holder.outcome(1).await;
    let open = Command::Open(Open {
        session_id: "session".into(),
        number: 1,
        grace: Some((SOON * 2).try_into().unwrap()),
        ..Open::default()
    });
    let Command::Acquire(mut wait) = acquire("b", Some(PATIENCE), false) else {
        panic!("it is one")
    };
    wait.request.as_mut().unwrap().request_id = "request".into();
    client.send([(1, open), (2, Command::Acquire(wait))]);
    until_waiters(&store, 1).await;
    store.blocked.store(true, Ordering::SeqCst);
    client.send([(3, Command::Close(Close { release_leases: false }))]);
    // Shorter than the server waits for the removal.
    sleep(SHORT / 2).await;
    drop(client);
    sleep(SHORT).await;
    store.unblock();
    until_waiters(&store, 0).await;
}

/// A command that holds up those after it while the store does not answer it.
fn get_lock() -> Command {
    Command::GetLock(GetLockRequest {
        namespace: "n".into(),
        name: "a".into(),
    })
}

#[tokio::test]
async fn a_wait_that_ends_while_it_is_held_up_is_answered_as_by_its_call() {
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let mut client = Client::open(&server).await;
    store.hangs.store(true, Ordering::SeqCst);
    client.send([
        (1, get_lock()),
        (2, acquire("b", Some(SHORT), false)),
        (3, acquire("", Some(SHORT), true)),
    ]);
    assert_eq!(client.reason(2).await, "WAIT_TIMEOUT");
    assert_eq!(client.reason(3).await, "INVALID_FIELD");
    store.health.send_replace(Health::Unavailable {
        reason: "unplugged".into(),
    });
    client.send([(4, acquire("b", Some(SHORT), false))]);
    assert_eq!(client.reason(4).await, "BACKEND_UNAVAILABLE");
    assert_eq!(
        store.acquires.load(Ordering::SeqCst),
        0,
        "none has passed the command before it"
    );
}

/// The runtime has one thread, so the session sees the ends of both releases and that of the wait in one moment.
#[tokio::test]
async fn a_wait_whose_hold_up_has_ended_is_tried_although_its_time_is_over() {
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let mut client = Client::open(&server).await;
    client.send([
        (1, acquire_of("other", "a", None, false)),
        (2, acquire("a", None, false)),
    ]);
    let mut releases = Vec::new();
    for id in [1, 2] {
        let Outcome::Acquire(granted) = client.outcome(id).await else {
            panic!("it is free")
        };
        let lease_id = granted.lease.unwrap().lease_id;
        releases.push((
            id + 2,
            Command::Release(ReleaseRequest {
                lease_id,
                keep_for: None,
            }),
        ));
    }
    store.blocked.store(true, Ordering::SeqCst);
    let wait = 10 * SHORT;
    client.send(releases.into_iter().chain([(5, acquire("b", Some(wait), false))]));
    sleep(SHORT).await;
    store.unblock();
    std::thread::sleep(wait);
    assert!(matches!(client.outcome(5).await, Outcome::Acquire(_)));
}

#[tokio::test]
async fn acquires_that_are_held_up_get_draining_at_once() {
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let mut client = Client::open(&server).await;
    store.hangs.store(true, Ordering::SeqCst);
    client.send([
        (1, get_lock()),
        (2, acquire("b", Some(3 * PATIENCE), true)),
        (3, acquire("b", None, false)),
        (4, Command::Cancel(Cancel { id: 99, request: None })),
    ]);
    client.outcome(4).await;
    let stop = tokio::spawn(server.stop());
    for id in [2, 3] {
        assert_eq!(client.reason(id).await, "DRAINING");
    }
    assert!(!stop.is_finished(), "the command that holds them up is in flight");
    assert_eq!(store.acquires.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn keep_alives_that_have_arrived_share_a_renewal_and_later_ones_have_the_next() {
    /// How many keep_alives a message has.
    const BEATS: u64 = 10;
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let mut client = Client::open(&server).await;
    client.send([(0, acquire("a", None, true))]);
    assert!(matches!(client.outcome(0).await, Outcome::Acquire(_)));
    *store.renew_takes.lock().unwrap() = SHORT;
    let beats = |from: u64| (from..from + BEATS).map(|id| (id, Command::KeepAlive(KeepAlive {})));
    client.send(beats(1));
    let begun = async {
        while store.renews.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, begun).await.expect("a renewal in time");
    client.send(beats(1 + BEATS));
    for id in 1..=2 * BEATS {
        assert_eq!(client.not_renewed(id).await, 0);
    }
    // One that has begun may be older than those that came meanwhile.
    assert_eq!(store.renews.load(Ordering::SeqCst), 2);
}

/// Reads until the server has asked so many times.
async fn asked(client: &mut Client, times: usize) {
    let asks = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Ask(_))).count();
    let asked = async {
        while asks(&client.events) < times {
            let response = client.responses.message().await.unwrap().expect("not the end");
            client
                .events
                .extend(response.events.into_iter().filter_map(|event| event.event));
        }
    };
    timeout(PATIENCE, asked).await.expect("it asks in time");
}

// G213
#[tokio::test]
async fn a_session_that_waits_or_keeps_is_asked_also_if_no_lease_needs_it() {
    let store = Arc::new(BlockingStore::serving());
    let server = serve(&store).await;
    let (mut idle, mut client) = (Client::open(&server).await, Client::open(&server).await);
    let keep = acquire_of("a", "one", None, true);
    client.send([(1, keep)]);
    client.outcome(1).await;
    // A third of its TTL is later, and nobody answers.
    asked(&mut client, 3).await;
    let mut waiter = Client::open(&server).await;
    waiter.send([(1, acquire_of("a", "two", Some(2 * PATIENCE), false))]);
    asked(&mut waiter, 2).await;
    waiter.send([(2, Command::KeepAlive(KeepAlive {}))]);
    assert_eq!(waiter.not_renewed(2).await, 0);
    asked(&mut waiter, 3).await;
    // One that waits and keeps no more is not.
    waiter.send([(3, Command::Cancel(Cancel { id: 1, request: None }))]);
    waiter.outcome(1).await;
    waiter.events.clear();
    for client in [&mut waiter, &mut idle] {
        assert!(timeout(Duration::from_secs(3), asked(client, 1)).await.is_err());
    }
}
