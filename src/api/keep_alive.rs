//! `KeepAlive`: passes the beats of a stream to the state of its leases ([`KeptLeases`]), renews the leases, and converts
//! the messages.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, Stream, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Status, Streaming};

use super::access::GuardedNamespaces;
use super::authenticate::Caller;
use super::catch_panic::unreadable;
use super::concurrency_limit::{Kind, Permit, Permits};
use super::proto::keep_alive_response::{Ask, Event, Kept, Lost};
use super::proto::{KeepAliveRequest, KeepAliveResponse};
use super::request_log::{CallName, bug};
use super::{convert, status};
use crate::backend::BackendError;
use crate::error::Error;
use crate::ledger::{EndWatch, LeaseEnded};
use crate::locks::Locks;
use crate::name::{InvalidField, LeaseKey, Namespace, Secret};
use crate::quota::QuotaUse;
use crate::rpc::path;
use crate::session::{KeptLeases, Message};

/// How many leases a stream keeps at most.
const LEASES: usize = 1_000;
/// How many steps of one stream and one namespace the store processes at once.
const STEPS: usize = 64;
/// When to ask for a permit again.
const RETRY: Duration = Duration::from_millis(10);

/// A KeepAlive call.
pub(super) struct KeepAliveStream {
    context: KeepAliveContext,
    caller: Caller,
    call: Option<CallName>,
    requests: Streaming<KeepAliveRequest>,
    state: KeptLeases,
    /// The leases of the last beat that this caller may keep.
    leases: HashMap<Secret, WatchedLease>,
    ends: (UnboundedSender<LeaseEnded>, UnboundedReceiver<LeaseEnded>),
    /// The steps that have not begun, by namespace, so that a slow store does not hold up the leases of another.
    steps: BTreeMap<Namespace, Steps>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    unauthenticated: Pin<Box<dyn Future<Output = Error> + Send>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    has_ended: bool,
    permit: Option<Permit>,
    _quota: QuotaUse,
}

/// What all streams share.
#[derive(Debug, Clone)]
pub(super) struct KeepAliveContext {
    pub guarded: GuardedNamespaces,
    pub permits: Arc<Permits>,
    /// The size limit of a beat.
    pub request_bytes: usize,
}

/// A lease of the stream, and the watch of its end. It holds no namespace open, so that one can be removed.
struct WatchedLease {
    key: LeaseKey,
    _watch: EndWatch,
}

/// The steps for the leases of one namespace.
#[derive(Default)]
struct Steps {
    waiting: VecDeque<Step>,
    running: usize,
}

/// A step in the store, for the lease with this secret.
#[derive(Debug, Clone, Copy)]
enum Step {
    Renew(Secret),
    /// Looks whether the lease is still held, without renewing it.
    Look(Secret),
}

impl Step {
    fn secret(&self) -> &Secret {
        let (Self::Renew(secret) | Self::Look(secret)) = self;
        secret
    }
}

/// The outcome of a step.
enum Outcome {
    Renewed(Duration),
    Held(Duration),
    Failed(Error),
}

/// A step that was made, and when it was sent.
struct Done {
    step: Step,
    sent: Instant,
    key: LeaseKey,
    outcome: Outcome,
}

/// What happens next on a stream.
enum Next {
    Beat(KeepAliveRequest),
    /// The client has no more beats.
    End,
    Broken(Status),
    Stopped(Error),
    LeaseEnded(LeaseEnded),
    Done(Done),
    Wake,
    Retry,
}

impl KeepAliveStream {
    /// The stream of a caller that may open it.
    pub(super) fn new(
        context: KeepAliveContext,
        caller: Caller,
        call: Option<CallName>,
        requests: Streaming<KeepAliveRequest>,
        quota: QuotaUse,
    ) -> Self {
        Self {
            unauthenticated: Box::pin(GuardedNamespaces::until_unauthenticated(caller.clone())),
            draining: Box::pin(context.permits.drain.clone().cancelled_owned()),
            context,
            caller,
            call,
            requests,
            state: KeptLeases::default(),
            leases: HashMap::new(),
            ends: unbounded_channel(),
            steps: BTreeMap::new(),
            running: FuturesUnordered::new(),
            has_ended: false,
            permit: None,
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
                    let status = unreadable(&status, self.context.request_bytes).unwrap_or(status);
                    return self.failed(status);
                }
                Next::Stopped(error) => return self.failed(status::of(error)),
                Next::LeaseEnded(LeaseEnded { secret, cause }) => self.state.lost(&secret, Error::LeaseLost { cause }),
                Next::Done(done) => self.done(done),
                Next::Wake => {
                    let over = self.state.wake(Instant::now());
                    over.into_iter().for_each(|secret| self.add(Step::Look(secret)));
                }
                Next::Retry => {}
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
        let has_permits = self.start_steps();
        let wake = self.state.next_wake();
        let may_read = !self.has_ended && !self.state.is_beating();
        tokio::select! {
            biased;
            () = &mut self.draining => Next::Stopped(Error::Draining),
            error = &mut self.unauthenticated => Next::Stopped(error),
            Some(end) = self.ends.1.recv() => Next::LeaseEnded(end),
            Some(done) = self.running.next() => Next::Done(done),
            request = self.requests.message(), if may_read => match request {
                Ok(Some(beat)) => Next::Beat(beat),
                Ok(None) => Next::End,
                Err(status) => Next::Broken(status),
            },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => Next::Wake,
            () = sleep(RETRY), if !has_permits => Next::Retry,
        }
    }

    /// Begins a beat under the rules of this moment.
    async fn begin(&mut self, beat: KeepAliveRequest) -> Result<(), Error> {
        // Beats without pause leave other calls their turn.
        yield_now().await;
        let count = beat.lease_ids.len();
        if count > LEASES {
            let problem = format!("must be at most {LEASES} on one stream, not {count}");
            return Err(InvalidField::new("lease_ids", problem).into());
        }
        self.caller = GuardedNamespaces::current(&self.caller).await?;
        self.permit = None;
        self.permit = Some(self.context.permits.keep(count, &self.caller)?);
        let (mut named, mut leases) = (Vec::with_capacity(count), HashMap::with_capacity(count));
        for lease_id in beat.lease_ids {
            let secret = match self.watched(&lease_id) {
                Ok(lease) => {
                    let secret = lease.key.secret;
                    if leases.insert(secret, lease).is_some() {
                        return Err(InvalidField::new("lease_ids", "must be distinct").into());
                    }
                    Ok(secret)
                }
                Err(error) => Err(error),
            };
            named.push((lease_id, secret));
        }
        // The watches of the leases that stay have begun before the older ones end.
        self.leases = leases;
        for steps in self.steps.values_mut() {
            steps.waiting.retain(|step| matches!(step, Step::Look(_)));
        }
        self.steps
            .retain(|_, steps| steps.running > 0 || !steps.waiting.is_empty());
        let renewals = self.state.begin(beat.beat, named, Instant::now());
        renewals.into_iter().for_each(|secret| self.add(Step::Renew(secret)));
        Ok(())
    }

    /// A lease that the caller may keep.
    fn watched(&self, lease_id: &str) -> Result<WatchedLease, Error> {
        let key = LeaseKey::parse(lease_id)?;
        let locks = self.context.guarded.lease(&self.caller, &key)?;
        let watch = locks.ledger().watch_end(&key, self.ends.0.clone());
        Ok(WatchedLease { key, _watch: watch })
    }

    fn add(&mut self, step: Step) {
        if let Some(lease) = self.leases.get(step.secret()) {
            let steps = self.steps.entry(lease.key.lock.namespace.clone()).or_default();
            steps.waiting.push_back(step);
        }
    }

    /// Starts the next steps. Returns whether there were permits for them.
    fn start_steps(&mut self) -> bool {
        for steps in self.steps.values_mut() {
            while steps.running < STEPS
                && let Some(step) = steps.waiting.pop_front()
            {
                let Some(lease) = self.leases.get(step.secret()) else {
                    continue;
                };
                let Ok(permit) = self.context.permits.admit(Kind::Finishing, Some(&self.caller)) else {
                    steps.waiting.push_front(step);
                    return false;
                };
                let sent = Instant::now();
                if let Step::Renew(secret) = step {
                    self.state.sent(&secret, sent);
                }
                steps.running += 1;
                let locks = self.context.guarded.lease(&self.caller, &lease.key);
                self.running
                    .push(Box::pin(run((step, sent), locks, lease.key.clone(), permit)));
            }
        }
        true
    }

    fn done(&mut self, done: Done) {
        let Done {
            step,
            sent,
            key,
            outcome,
        } = done;
        let secret = step.secret();
        if let Some(steps) = self.steps.get_mut(&key.lock.namespace) {
            steps.running -= 1;
        }
        match (outcome, step) {
            (Outcome::Renewed(ttl), _) => self.state.renewed(secret, ttl, sent),
            (Outcome::Held(left), _) => self.state.found(secret, left, Instant::now()),
            (Outcome::Failed(error @ Error::LeaseLost { .. }), _) => self.state.lost(secret, error),
            (Outcome::Failed(_), Step::Look(_)) => self.state.not_found_out(secret, Instant::now()),
            (Outcome::Failed(Error::Backend(error)), Step::Renew(_)) => {
                if let (BackendError::Broken { .. }, Some(call)) = (&error, &self.call) {
                    bug(call, path::KEEP_ALIVE, &status::of(error));
                }
                self.state.unanswered(secret, sent);
            }
            (Outcome::Failed(error), Step::Renew(_)) => self.state.lost(secret, error),
        }
    }
}

async fn run((step, sent): (Step, Instant), locks: Result<Locks, Error>, key: LeaseKey, _permit: Permit) -> Done {
    let outcome = async {
        let locks = locks?;
        if let Step::Renew(_) = step {
            return Ok(Outcome::Renewed(locks.renew(&key, None).await?.ttl));
        }
        if let Some(holder) = locks.check(&key.lock.name, key.token).await? {
            return Ok(Outcome::Held(holder.remaining));
        }
        // The renewal of an ended lease changes nothing, and shows the cause of the end.
        Ok(Outcome::Held(locks.renew(&key, None).await?.ttl))
    };
    let outcome = outcome.await.unwrap_or_else(Outcome::Failed);
    Done {
        step,
        sent,
        key,
        outcome,
    }
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
