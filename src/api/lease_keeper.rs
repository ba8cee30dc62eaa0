//! Keeps the leases of a stream: renews them in the store, watches their ends, and looks at those whose time is over.
//! What is due and what the client is told is decided by [`KeptLeases`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until};

use super::authenticate::Caller;
use super::concurrency_limit::{Kind, Permit};
use super::request_log::{CallName, bug};
use super::shared::Api;
use super::status;
use super::stream_leases::{LeasePlace, StreamLeases, WatchedLease};
use crate::backend::BackendError;
use crate::clock::since_boot;
use crate::error::Error;
use crate::ledger::LeaseEnded;
use crate::locks::Locks;
use crate::name::{InvalidField, LeaseKey, Namespace, Secret};
use crate::session::{KeptLeases, Message, Moment, NamedBy};

/// How many steps of one stream and one namespace the store processes at once.
const STEPS: usize = 64;
/// When to ask for a permit again.
const RETRY: Duration = Duration::from_millis(10);

/// The leases of a stream.
pub(super) struct LeaseKeeper {
    api: Arc<Api>,
    caller: Caller,
    stream: StreamName,
    state: KeptLeases,
    /// Those that this caller may keep.
    leases: Arc<StreamLeases>,
    ends: (UnboundedSender<LeaseEnded>, UnboundedReceiver<LeaseEnded>),
    /// The steps that have not begun, by namespace, so that a slow store does not hold up the leases of another.
    steps: BTreeMap<Namespace, Steps>,
    running: FuturesUnordered<BoxFuture<'static, Done>>,
    /// The detached leases to report in the answer to the beat in progress, and in the next one: one answer has room for a
    /// limited number of ids.
    leaving: [Vec<LeasePlace>; 2],
    /// How many releases have no outcome yet.
    releases: usize,
    not_released: Vec<(String, Error)>,
}

/// The name of a stream in the log: its method and its id.
#[derive(Debug, Clone)]
pub(super) struct StreamName {
    pub method: &'static str,
    pub id: Option<CallName>,
}

/// The steps for the leases of one namespace.
#[derive(Default)]
struct Steps {
    waiting: VecDeque<Step>,
    running: usize,
}

/// A step in the store for a lease.
#[derive(Debug, Clone)]
struct Step {
    kind: StepKind,
    key: Arc<LeaseKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    Renew,
    /// Looks whether the lease is still held, without renewing it.
    Look,
    Release,
}

/// The outcome of a step.
enum Outcome {
    Renewed(Duration),
    Held(Duration),
    Released,
    Failed(Error),
}

/// A step that was made, and when it was sent.
struct Done {
    step: Step,
    sent: Instant,
    outcome: Outcome,
}

impl LeaseKeeper {
    /// Keeps the leases of this caller's stream, beginning with this state.
    pub(super) fn new(
        api: Arc<Api>,
        caller: Caller,
        stream: StreamName,
        state: KeptLeases,
        leases: Arc<StreamLeases>,
    ) -> Self {
        Self {
            api,
            caller,
            stream,
            state,
            leases,
            ends: unbounded_channel(),
            steps: BTreeMap::new(),
            running: FuturesUnordered::new(),
            leaving: Default::default(),
            releases: 0,
            not_released: Vec::new(),
        }
    }

    /// The same caller under the current policy.
    pub(super) fn set_caller(&mut self, caller: Caller) {
        self.caller = caller;
    }

    /// The next message for the client.
    pub(super) fn message(&mut self) -> Option<Message> {
        let message = self.state.message();
        if matches!(message, Some(Message::Kept { .. })) {
            self.leaving[0].clear();
        }
        message
    }

    /// Whether a beat is in progress.
    pub(super) fn is_beating(&self) -> bool {
        self.state.is_beating()
    }

    /// Discards the beat and the messages.
    pub(super) fn end(&mut self) {
        self.state.end();
    }

    /// Begins a beat that names all leases of the client.
    ///
    /// # Errors
    /// When it names a lease twice.
    pub(super) fn begin_named(&mut self, beat: u64, lease_ids: Vec<String>) -> Result<(), Error> {
        let count = lease_ids.len();
        let (mut named, mut leases) = (Vec::with_capacity(count), HashMap::with_capacity(count));
        for lease_id in lease_ids {
            let secret = match LeaseKey::parse(&lease_id).map_err(Error::from) {
                Ok(key) => self.watched(key, None),
                Err(error) => Err(error),
            };
            let secret = match secret {
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
        drop(self.leases.replace(leases));
        self.drop_renewals();
        let renewals = self.state.begin(beat, named, now());
        self.add_all(StepKind::Renew, renewals);
        Ok(())
    }

    /// Records that a beat was refused.
    pub(super) fn refused(&mut self) {
        self.state.refused(Instant::now());
    }

    /// Begins a beat with all attached leases. Each renewal checks whether the caller may still keep its lease.
    pub(super) fn begin_attached(&mut self, beat: u64) {
        self.drop_renewals();
        self.leaving[0] = std::mem::take(&mut self.leaving[1]);
        let renewals = self.state.begin_attached(beat, now());
        self.add_all(StepKind::Renew, renewals);
    }

    /// Attaches a lease, with the TTL that it was just given if that is known. A lease that the caller may not keep is told
    /// as lost.
    pub(super) fn attach(&mut self, key: LeaseKey, ttl: Option<Duration>, place: LeasePlace) {
        let (secret, lease_id) = (key.secret, key.to_lease_id());
        let watched = self.watched(key, Some(place));
        self.state.attach(lease_id, secret, ttl, Instant::now());
        match watched {
            Ok(lease) => self.leases.insert(secret, lease),
            Err(error) => self.lost(&secret, error),
        }
    }

    /// Whether the caller may keep a lease.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, key: &LeaseKey) -> Result<(), Error> {
        self.api.guarded.lease(&self.caller, key).map(drop)
    }

    /// Whether no lease is attached.
    pub(super) fn is_idle(&self) -> bool {
        self.state.is_empty()
    }

    /// Asks the client for a beat now.
    pub(super) fn ask(&mut self) {
        self.state.ask();
    }

    /// Whether a lease is attached.
    pub(super) fn is_attached(&self, secret: &Secret) -> bool {
        self.leases.get(secret).is_some()
    }

    /// Records a keep_alive whose beat begins later.
    pub(super) fn keep_alive_arrived(&mut self) {
        self.state.keep_alive_arrived();
    }

    /// Detaches a lease.
    pub(super) fn detach(&mut self, secret: &Secret) {
        let place = self.leases.remove(secret).and_then(|lease| lease.place);
        match self.state.detach(secret) {
            NamedBy::None => drop(place),
            NamedBy::Beat => self.leaving[0].extend(place),
            NamedBy::NextBeat => self.leaving[1].extend(place),
        }
    }

    /// Records that the keep_alives that arrived were refused.
    pub(super) fn beat_refused(&mut self) {
        self.leaving[1].clear();
        self.state.beat_refused(Instant::now());
    }

    /// Records that a command to renew a lease begins.
    pub(super) fn renew_begins(&mut self, secret: &Secret) {
        self.state.renew_begins(secret);
    }

    /// Records the end of a command to renew a lease that was sent then, with the TTL of its answer.
    pub(super) fn renew_ended(&mut self, secret: &Secret, ttl: Option<Duration>, sent: Instant) {
        if self.state.renew_ended(secret, ttl, sent) {
            self.add_all(StepKind::Renew, vec![*secret]);
        }
    }

    /// Detaches all leases and gives them back.
    pub(super) fn release_all(&mut self) {
        for (secret, lease) in self.leases.replace(HashMap::new()) {
            self.state.detach(&secret);
            self.releases += 1;
            self.add(Step {
                kind: StepKind::Release,
                key: lease.key,
            });
        }
    }

    /// The leases that could not be given back, once each has an outcome.
    pub(super) fn not_released(&mut self) -> Option<Vec<(String, Error)>> {
        (self.releases == 0).then(|| std::mem::take(&mut self.not_released))
    }

    /// Waits for the end of a lease, the outcome of a step, or the time for the next one.
    ///
    /// # Cancellation safety
    /// Safe: steps that have begun continue with the next call.
    pub(super) async fn progress(&mut self) {
        let has_permits = self.start_steps();
        let wake = self.state.next_wake();
        tokio::select! {
            biased;
            Some(LeaseEnded { secret, cause }) = self.ends.1.recv() => self.lost(&secret, Error::LeaseLost { cause }),
            Some(done) = self.running.next() => self.done(done),
            Some(()) = OptionFuture::from(wake.map(sleep_until)) => {
                let over = self.state.wake(Instant::now());
                self.add_all(StepKind::Look, over);
            }
            () = sleep(RETRY), if !has_permits => {}
        }
    }

    /// A lease that the caller may keep.
    fn watched(&self, key: LeaseKey, place: Option<LeasePlace>) -> Result<WatchedLease, Error> {
        let locks = self.api.guarded.lease(&self.caller, &key)?;
        let watch = locks.ledger().watch_end(&key, self.ends.0.clone());
        Ok(WatchedLease {
            key: Arc::new(key),
            _watch: watch,
            place,
        })
    }

    fn lost(&mut self, secret: &Secret, error: Error) {
        self.leases.remove(secret);
        self.state.lost(secret, error);
    }

    /// Drops the renewals that have not begun, because the next beat has its own.
    fn drop_renewals(&mut self) {
        for steps in self.steps.values_mut() {
            steps.waiting.retain(|step| step.kind != StepKind::Renew);
        }
        self.steps
            .retain(|_, steps| steps.running > 0 || !steps.waiting.is_empty());
    }

    fn add_all(&mut self, kind: StepKind, secrets: Vec<Secret>) {
        for secret in secrets {
            if let Some(key) = self.leases.get(&secret) {
                self.add(Step { kind, key });
            }
        }
    }

    fn add(&mut self, step: Step) {
        let steps = self.steps.entry(step.key.lock.namespace.clone()).or_default();
        steps.waiting.push_back(step);
    }

    /// Starts the next steps. Returns whether there were permits for them.
    fn start_steps(&mut self) -> bool {
        for steps in self.steps.values_mut() {
            while steps.running < STEPS
                && let Some(step) = steps.waiting.pop_front()
            {
                let secret = &step.key.secret;
                if step.kind != StepKind::Release && self.leases.get(secret).is_none() {
                    continue;
                }
                let Ok(permit) = self.api.permits.admit(Kind::Finishing, Some(&self.caller)) else {
                    steps.waiting.push_front(step);
                    return false;
                };
                let now = now();
                let sent = now.timer;
                if step.kind == StepKind::Renew {
                    self.state.sent(secret, now);
                }
                steps.running += 1;
                let locks = self.api.guarded.lease(&self.caller, &step.key);
                self.running.push(Box::pin(run(step, sent, locks, permit)));
            }
        }
        true
    }

    fn done(&mut self, done: Done) {
        let Done { step, sent, outcome } = done;
        let secret = &step.key.secret;
        if let Some(steps) = self.steps.get_mut(&step.key.lock.namespace) {
            steps.running -= 1;
        }
        match (outcome, step.kind) {
            (outcome, StepKind::Release) => {
                self.releases -= 1;
                if let Outcome::Failed(error) = outcome {
                    self.not_released.push((step.key.to_lease_id(), error));
                }
            }
            (Outcome::Renewed(ttl), _) => self.state.renewed(secret, ttl, sent),
            (Outcome::Held(left), _) => self.state.found(secret, left, Instant::now()),
            (Outcome::Released, _) => {}
            (Outcome::Failed(error @ Error::LeaseLost { .. }), _) => self.lost(secret, error),
            (Outcome::Failed(_), StepKind::Look) => self.state.not_found_out(secret, Instant::now()),
            (Outcome::Failed(Error::Backend(error)), StepKind::Renew) => {
                if let (BackendError::Broken { .. }, Some(id)) = (&error, &self.stream.id) {
                    bug(id, self.stream.method, &status::of(error.clone()));
                }
                self.state.unanswered(secret, sent, error.into());
            }
            (Outcome::Failed(error), StepKind::Renew) => self.lost(secret, error),
        }
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        // What shows the stream may outlive it.
        drop(self.leases.replace(HashMap::new()));
    }
}

fn now() -> Moment {
    Moment {
        timer: Instant::now(),
        since_boot: since_boot(),
    }
}

async fn run(step: Step, sent: Instant, locks: Result<Locks, Error>, _permit: Permit) -> Done {
    let key = &*step.key;
    let outcome = async {
        let locks = locks?;
        match step.kind {
            StepKind::Renew => return Ok(Outcome::Renewed(locks.renew(key, None).await?.ttl)),
            StepKind::Release => return locks.release(key).await.map(|()| Outcome::Released),
            StepKind::Look => {}
        }
        let holder = locks.check(&key.lock.name, key.token).await?;
        if let Some(holder) = holder.filter(|holder| holder.holds > 0) {
            return Ok(Outcome::Held(holder.remaining));
        }
        // The renewal of an ended lease changes nothing, and shows the cause of the end.
        Ok(Outcome::Held(locks.renew(key, None).await?.ttl))
    };
    let outcome = outcome.await.unwrap_or_else(Outcome::Failed);
    Done { step, sent, outcome }
}
