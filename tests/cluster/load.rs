//! Clients of a cluster: those that count on a lock, and those that see each call fail.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use fencepost_client::{Client, Error};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::asks::{named, reason, waiting};
use crate::calls::Calls;
use crate::register::Register;
use crate::replicas::PATIENCE;

/// Longer than any client waits for a lock.
const WAIT: Duration = Duration::from_secs(60);
/// How long work under a lock takes.
const WORK: Duration = Duration::from_millis(5);
/// How long a call that failed rests before it is sent again.
const REST: Duration = Duration::from_millis(50);
/// How often it is.
const SENDS: u32 = 200;

/// What the clients of one load have in common.
#[derive(Debug, Default)]
pub struct LoadState {
    over: AtomicBool,
    /// Grants.
    pub granted: AtomicU64,
    /// Calls that a server refused with a reason.
    pub refused: AtomicU64,
    /// Calls that no server took.
    pub untaken: AtomicU64,
}

impl LoadState {
    /// Tells the clients to come to an end.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until a few more leases were granted.
    pub async fn goes_on_well(&self) {
        let before = self.granted.load(Ordering::Relaxed);
        let more = async {
            while self.granted.load(Ordering::Relaxed) < before + 10 {
                tokio::time::sleep(REST).await;
            }
        };
        assert!(timeout(PATIENCE, more).await.is_ok(), "nothing is granted any more");
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Counts a call that failed. Only two ways of failing are allowed: a server said UNAVAILABLE and why,
    /// or none took the call.
    fn failed(&self, call: &str, status: &Status, line: &Line) {
        let why = reason(status);
        if why.is_empty() {
            // One that was made as the server went may be closed before it is looked at.
            let was_looked_at = line.has_answered;
            assert!(!was_looked_at || was_not_taken(status), "{call}: {status:?}");
            self.untaken.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(status.code(), Code::Unavailable, "{call}: {status:?}");
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether no server ever took a call: nobody listens, the connection had closed before the call left, or
/// the server said in order that it takes no more of them. Other languages' clients repeat such calls by
/// themselves. A connection that breaks under a call is something else.
fn was_not_taken(status: &Status) -> bool {
    let all = std::iter::successors(std::error::Error::source(status), |error| error.source());
    let mut all = all.collect::<Vec<_>>().into_iter();
    all.any(|error| {
        let absent = error.downcast_ref::<io::Error>();
        let absent = absent.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        let closed = error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_canceled);
        let goes = error.downcast_ref::<h2::Error>();
        let goes = goes.is_some_and(|error| {
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
        });
        absent || closed || goes
    })
}

/// Writes to a register under a lock of its own, over and over: whoever is sure to hold is never refused.
pub async fn write(client: Client, lock: String, register: Arc<Register>, state: Arc<LoadState>) {
    while state.goes_on() {
        let guard = match client.acquire("jobs", &lock, "writer").wait(WAIT).await {
            Ok(guard) => guard,
            Err(error) => {
                is_unavailable("acquire", &error);
                continue;
            }
        };
        state.granted.fetch_add(1, Ordering::Relaxed);
        for _ in 0..3 {
            let taken = register.write(guard.fencing_token());
            // Sure after the write, it was sure at the write.
            assert!(taken || !guard.is_held(), "unsafe: a sure holder of {lock} was refused");
            assert!(guard.is_held(), "{lock}: a lease was lost within moments");
            tokio::time::sleep(WORK).await;
        }
        if let Err(error) = guard.release().await {
            is_unavailable("release", &error);
        }
    }
}

#[track_caller]
fn is_unavailable(call: &str, error: &Error) {
    let is_so = matches!(error, Error::Unavailable { reason, .. } if !reason.is_empty());
    assert!(is_so, "{call}: {error:?}");
}

/// Holds a lock from the beginning to the end.
pub async fn hold(client: Client, lock: String, state: Arc<LoadState>) {
    let guard = client.acquire("jobs", &lock, "holder").await.expect("it is free");
    let lost = guard.lost();
    tokio::pin!(lost);
    while state.goes_on() {
        tokio::select! {
            loss = &mut lost => panic!("{lock}: {loss}"),
            () = tokio::time::sleep(REST) => {}
        }
    }
    let token = guard.fencing_token();
    let held = client.check_token("jobs", &lock, token).await.expect("an answer");
    assert!(held.held, "{lock}: its token is not held");
    guard.release().await.expect("it is held to the end");
}

/// Takes a lock, renews its lease and gives it back, call by call: each one that fails is looked at, and
/// succeeds at another server in the end.
pub async fn call(ends: Vec<Endpoint>, number: usize, state: Arc<LoadState>) {
    let mut lines = Lines {
        at: number % ends.len(),
        line: Line::to(&ends[number % ends.len()]),
        ends,
        state: Arc::clone(&state),
    };
    for round in 0.. {
        if !state.goes_on() {
            return;
        }
        let ask = AcquireRequest {
            namespace: "jobs".into(),
            // Two callers share a lock, so that waits and hand-offs are interrupted too.
            name: format!("calls-{}", number / 2),
            owner: format!("caller-{number}"),
            ..AcquireRequest::default()
        };
        let ask = waiting(WAIT, named(&format!("{number}-{round}"), ask));
        let lease = lines
            .until_answered("Acquire", |calls| {
                let ask = ask.clone();
                async move { calls.try_acquire(ask).await }
            })
            .await;
        state.granted.fetch_add(1, Ordering::Relaxed);
        for _ in 0..2 {
            lines
                .until_answered("Renew", |calls| {
                    let lease = lease.clone();
                    async move { calls.try_renew(&lease, None).await }
                })
                .await;
            tokio::time::sleep(WORK).await;
        }
        lines
            .until_answered("Release", |calls| {
                let lease = lease.clone();
                async move { calls.try_release(&lease).await }
            })
            .await;
    }
}

/// A connection, and whether a call was answered over it.
struct Line {
    channel: Channel,
    has_answered: bool,
}

impl Line {
    fn to(end: &Endpoint) -> Self {
        Self {
            channel: end.connect_lazy(),
            has_answered: false,
        }
    }
}

/// Where all servers are, and the connection to one of them.
struct Lines {
    ends: Vec<Endpoint>,
    at: usize,
    line: Line,
    state: Arc<LoadState>,
}

impl Lines {
    /// Sends a call until it is answered, to the next server after each failure.
    async fn until_answered<T, F>(&mut self, name: &str, send: impl Fn(Calls) -> F) -> T
    where
        F: Future<Output = Result<T, Status>>,
    {
        for _ in 0..SENDS {
            match send(Calls(self.line.channel.clone())).await {
                Ok(answer) => {
                    self.line.has_answered = true;
                    return answer;
                }
                Err(status) => self.state.failed(name, &status, &self.line),
            }
            self.at = (self.at + 1) % self.ends.len();
            self.line = Line::to(&self.ends[self.at]);
            tokio::time::sleep(REST).await;
        }
        panic!("{name} failed {SENDS} times");
    }
}
