//! `KeepAlive`: passes the beats of a stream to the state of its leases ([`KeptLeases`]), renews the leases, and converts
//! the messages.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, Streaming};

use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::catch_panic::unreadable;
use super::proto::keep_alive_response::{Ask, Event, Kept, Lost};
use super::proto::{KeepAliveRequest, KeepAliveResponse};
use super::request_log::{CallName, bug};
use super::{convert, status};
use crate::backend::BackendError;
use crate::error::Error;
use crate::ledger::{EndWatch, LeaseEnd};
use crate::locks::Locks;
use crate::name::LeaseKey;
use crate::quota::QuotaUse;
use crate::rpc::path;
use crate::session::{KeptLeases, Message};

/// How many steps of one stream the stores process at once.
const STEPS: usize = 64;

/// A KeepAlive call.
pub(super) struct KeepAliveStream {
    guarded: GuardedNamespaces,
    caller: Caller,
    call: Option<CallName>,
    requests: Streaming<KeepAliveRequest>,
    state: KeptLeases,
    /// The leases of the last beat that this caller may keep.
    leases: Vec<Option<WatchedLease>>,
    ends: (UnboundedSender<LeaseEnd>, UnboundedReceiver<LeaseEnd>),
    /// Steps that have not begun, and those under way.
    waiting: VecDeque<Step>,
    running: FuturesUnordered<BoxFuture<'static, (usize, Outcome)>>,
    unauthenticated: Pin<Box<dyn Future<Output = Error> + Send>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The size limit of a beat.
    request_bytes: usize,
    has_ended: bool,
    _quota: QuotaUse,
}

/// A lease of the stream, and the watch of its end.
struct WatchedLease {
    locks: Locks,
    key: LeaseKey,
    _watch: EndWatch,
}

/// A step in the store, for the lease with this index.
#[derive(Debug, Clone, Copy)]
enum Step {
    Renew(usize),
    /// Looks whether the lease is still held, without renewing it.
    Look(usize),
}

/// The outcome of a step.
enum Outcome {
    Renewed { ttl: Duration, sent: Instant },
    Held { left: Duration },
    Failed(Error),
}

/// What happens next on a stream.
enum Next {
    Beat(KeepAliveRequest),
    /// The client has no more beats.
    End,
    Broken(Status),
    Stopped(Error),
    LeaseEnd(LeaseEnd),
    Done(usize, Outcome),
    Wake,
}

impl KeepAliveStream {
    /// The stream of a caller that may open it.
    pub(super) fn new(
        guarded: GuardedNamespaces,
        caller: Caller,
        call: Option<CallName>,
        requests: Streaming<KeepAliveRequest>,
        quota: QuotaUse,
        (drain, request_bytes): (&CancellationToken, usize),
    ) -> Self {
        Self {
            unauthenticated: Box::pin(GuardedNamespaces::until_unauthenticated(caller.clone())),
            guarded,
            caller,
            call,
            requests,
            state: KeptLeases::default(),
            leases: Vec::new(),
            ends: unbounded_channel(),
            waiting: VecDeque::new(),
            running: FuturesUnordered::new(),
            draining: Box::pin(drain.clone().cancelled_owned()),
            request_bytes,
            has_ended: false,
            _quota: quota,
        }
    }

    /// The messages for the client. Nothing happens while it does not read them.
    pub(super) fn messages(self) -> impl Stream<Item = Result<KeepAliveResponse, Status>> + Send {
        stream::unfold(self, |mut stream| async move {
            let message = stream.message().await?;
            Some((message, stream))
        })
    }

    /// The next message; `None` after the last one.
    async fn message(&mut self) -> Option<Result<KeepAliveResponse, Status>> {
        loop {
            if let Some(message) = self.state.message() {
                return Some(Ok(encoded(message)));
            }
            if self.has_ended && !self.state.is_beating() {
                return None;
            }
            match self.next().await {
                Next::Beat(beat) => {
                    if let Err(error) = self.begin(beat).await {
                        return self.failed(status::of(error));
                    }
                }
                Next::End => self.has_ended = true,
                Next::Broken(status) => {
                    let status = unreadable(&status, self.request_bytes).unwrap_or(status);
                    return self.failed(status);
                }
                Next::Stopped(error) => return self.failed(status::of(error)),
                Next::LeaseEnd(LeaseEnd { secret, cause }) => {
                    if let Some(index) = self.state.index_of(&secret) {
                        self.state.lost(index, Error::LeaseLost { cause });
                    }
                }
                Next::Done(index, outcome) => self.done(index, outcome),
                Next::Wake => {
                    let over = self.state.wake(Instant::now());
                    self.waiting.extend(over.into_iter().map(Step::Look));
                    self.forget_unneeded_renewals();
                }
            }
        }
    }

    /// Ends the stream with a status.
    fn failed(&mut self, status: Status) -> Option<Result<KeepAliveResponse, Status>> {
        self.has_ended = true;
        self.state.end();
        Some(Err(status))
    }

    async fn next(&mut self) -> Next {
        self.start_steps();
        let wake = self.state.next_wake();
        let may_read = !self.has_ended && !self.state.is_beating();
        tokio::select! {
            biased;
            () = &mut self.draining => Next::Stopped(Error::Draining),
            error = &mut self.unauthenticated => Next::Stopped(error),
            Some(end) = self.ends.1.recv() => Next::LeaseEnd(end),
            Some((index, outcome)) = self.running.next() => Next::Done(index, outcome),
            request = self.requests.message(), if may_read => match request {
                Ok(Some(beat)) => Next::Beat(beat),
                Ok(None) => Next::End,
                Err(status) => Next::Broken(status),
            },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Next::Wake,
        }
    }

    /// Begins a beat under the rules of this moment.
    async fn begin(&mut self, beat: KeepAliveRequest) -> Result<(), Error> {
        self.caller = GuardedNamespaces::current(&self.caller).await?;
        let mut refused = Vec::new();
        let mut leases = Vec::with_capacity(beat.lease_ids.len());
        for (index, lease_id) in beat.lease_ids.iter().enumerate() {
            let lease = self.watched(lease_id);
            leases.push(lease.map_err(|error| refused.push((index, error))).ok());
        }
        let secret = |lease: &Option<WatchedLease>| lease.as_ref().map(|lease| lease.key.secret);
        let named = beat.lease_ids.into_iter().zip(leases.iter().map(secret)).collect();
        // The watches of the leases that stay have begun before the older ones end.
        self.leases = leases;
        self.running = FuturesUnordered::new();
        self.waiting = (0..self.leases.len()).map(Step::Renew).collect();
        self.state.begin(beat.beat, named, Instant::now());
        for (index, error) in refused {
            self.state.lost(index, error);
        }
        Ok(())
    }

    /// A lease that the caller may keep.
    fn watched(&self, lease_id: &str) -> Result<WatchedLease, Error> {
        let key = LeaseKey::parse(lease_id)?;
        let locks = self.guarded.lease(&self.caller, &key)?;
        Ok(WatchedLease {
            _watch: locks.ledger().watch_end(&key, self.ends.0.clone()),
            locks,
            key,
        })
    }

    fn start_steps(&mut self) {
        while self.running.len() < STEPS
            && let Some(step) = self.waiting.pop_front()
        {
            let (Step::Renew(index) | Step::Look(index)) = step;
            if let Some(Some(lease)) = self.leases.get(index) {
                self.running
                    .push(Box::pin(run(step, lease.locks.clone(), lease.key.clone())));
            }
        }
    }

    fn done(&mut self, index: usize, outcome: Outcome) {
        let now = Instant::now();
        match outcome {
            Outcome::Renewed { ttl, sent } => self.state.renewed(index, ttl, sent),
            Outcome::Held { left } => self.state.found(index, left, now),
            Outcome::Failed(error) if error.is_transient() => self.state.unanswered(index, now),
            Outcome::Failed(error) if matches!(error, Error::Backend(BackendError::Broken { .. })) => {
                if let Some(call) = &self.call {
                    bug(call, path::KEEP_ALIVE, &status::of(error));
                }
                self.state.unanswered(index, now);
            }
            Outcome::Failed(error) => self.state.lost(index, error),
        }
    }

    /// A beat that was answered needs the renewals no more that have not begun.
    fn forget_unneeded_renewals(&mut self) {
        if !self.state.is_beating() {
            self.waiting.retain(|step| matches!(step, Step::Look(_)));
        }
    }
}

async fn run(step: Step, locks: Locks, key: LeaseKey) -> (usize, Outcome) {
    let sent = Instant::now();
    match step {
        Step::Renew(index) => {
            let renewed = locks.renew(&key, None).await;
            let outcome = renewed.map(|lease| Outcome::Renewed { ttl: lease.ttl, sent });
            (index, outcome.unwrap_or_else(Outcome::Failed))
        }
        Step::Look(index) => (index, look(&locks, &key).await.unwrap_or_else(Outcome::Failed)),
    }
}

/// Whether a lease is still held; if not, why it ended.
async fn look(locks: &Locks, key: &LeaseKey) -> Result<Outcome, Error> {
    if let Some(holder) = locks.check(&key.lock.name, key.token).await? {
        return Ok(Outcome::Held { left: holder.remaining });
    }
    // A renewal of an ended lease changes nothing, and shows the cause of the end.
    let sent = Instant::now();
    let lease = locks.renew(key, None).await?;
    Ok(Outcome::Renewed { ttl: lease.ttl, sent })
}

fn encoded(message: Message) -> KeepAliveResponse {
    let event = match message {
        Message::Ask => Event::Ask(Ask {}),
        Message::Kept { beat, ttls } => Event::Kept(Kept {
            beat,
            ttls: ttls.into_iter().map(convert::wire_duration).collect(),
        }),
        Message::Lost { lease_id, error } => {
            let (reason, cause) = status::reason_and_cause(&error);
            Event::Lost(Lost {
                lease_id,
                reason: reason.into(),
                cause: cause.into(),
            })
        }
    };
    KeepAliveResponse { event: Some(event) }
}
