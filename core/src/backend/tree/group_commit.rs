//! Group commit: the steps of many calls in one commit.
//!
//! Where a commit applies all of its operations or none, a step whose condition fails takes the others of its commit
//! along. Such a step gets its answer, and the others are sent again in two halves. To keep that seldom, and because all
//! grants of a commit share its number, a commit has only one step of each lock, or several that append to its queue. The
//! next step of a lock is sent when the one before was answered; appends to a queue wait only for each other, so that a
//! crowded lock is handed over while callers join its queue. A step is not sent before an earlier append to the queue of
//! its lock. Calls that wait in a queue append one after the other, so that a commit has at most one of these beside
//! tries, which have no order.
//!
//! Where steps are independent, a commit has at most one grant of each lock and any other steps. An append that others are
//! ahead of goes with the next step on its lock, which on a crowded lock is a hand-over: so that costs one commit. No step
//! is sent while appends of its lock are under way, because commits have no order.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::batch::{deliver, take_batch};
use super::calls::InFlight;
use super::data::record::Claim;
use super::fenced_connection::{FencedConnection, FencedConnections, is_check_failure};
use crate::backend::tree::store::{CommitBounds, Done, Failure, Op, Tree};
use crate::name::LockName;
use crate::supervisor::supervise;

/// The most commits under way that begin with a reader.
const READERS: usize = 32;
/// How long a patient append waits for a step that it goes with.
const PATIENCE: Duration = Duration::from_millis(10);
/// How often a batch yields before it begins if the one before had several steps: callers that were answered together
/// send their next steps together.
const GATHER: usize = 4;
/// How often a commit is sent again because the base was raised.
const TRIES: usize = 16;

/// What a step does beside its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// It appends to the queue of its lock.
    Append,
    /// It grants a reader among readers, if the store finds only readers: it goes before or after any other step.
    Reader,
    /// Anything else.
    Alone,
}

/// Steps of one class on one lock, which keep their order.
type OrderKey = (LockName, Class);

/// The operations of one call on one lock, which take effect together or not at all.
#[derive(Debug)]
pub struct Step {
    pub lock: LockName,
    pub class: Class,
    /// Whether it checks the fence, as every step that grants, enqueues or adopts.
    pub fenced: bool,
    pub ops: Vec<Op>,
    /// The connection over which what the step rests on was read: a later one may be to an old copy of the store.
    pub read_over: Option<u64>,
    /// The operation that creates a holder, and its claim: its record gets the base of the connection that it is sent
    /// over.
    pub grant: Option<(usize, Arc<Claim>)>,
    /// The call, which is in flight until the step was answered.
    pub call: Option<InFlight>,
    /// An append that others are ahead of: where steps are independent, it goes with the next step on its lock.
    pub patient: bool,
}

impl Step {
    fn size(&self) -> usize {
        let claim = self.grant.as_ref().map_or(0, |(_, claim)| claim.size());
        self.ops.iter().map(Op::size).sum::<usize>() + claim
    }
}

/// The answer to a step.
#[derive(Debug, Clone)]
pub struct StepDone {
    /// The answers to its operations.
    pub done: Vec<Done>,
    /// The connection that it was sent over.
    pub connection: Arc<FencedConnection>,
    /// When it was sent.
    pub sent: Instant,
    /// The number of its transaction, if that grants: the token counts from it.
    pub granted: Option<i64>,
}

#[derive(Debug)]
struct Pending {
    step: Step,
    /// Since when it waits.
    since: Instant,
    /// How long it waits for a step on its lock that it goes with.
    until: Option<Instant>,
    answer: oneshot::Sender<Result<StepDone, Failure>>,
}

/// Sends steps.
#[derive(Debug, Clone)]
pub struct Batcher {
    queue: mpsc::UnboundedSender<Pending>,
    connections: Arc<FencedConnections>,
    /// What a commit may have.
    pub bounds: CommitBounds,
    /// The largest step, in bytes.
    pub max_request: usize,
}

/// A batch was answered.
struct Answered {
    locks: HashSet<OrderKey>,
    is_of_reader: bool,
    /// Why it was not sent, if there was no connection.
    not_sent: Option<Failure>,
}

/// A batch that is under way; it counts as answered when this is dropped, also by a panic.
struct InFlightGuard {
    locks: HashSet<OrderKey>,
    is_of_reader: bool,
    not_sent: Option<Failure>,
    answered: mpsc::UnboundedSender<Answered>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let _ = self.answered.send(Answered {
            locks: std::mem::take(&mut self.locks),
            is_of_reader: self.is_of_reader,
            not_sent: self.not_sent.take(),
        });
    }
}

struct Sender {
    tree: Arc<dyn Tree>,
    connections: Arc<FencedConnections>,
    max_request: usize,
}

impl Batcher {
    /// Begins to send. Must be called within a tokio runtime.
    pub fn begin(tree: Arc<dyn Tree>, connections: Arc<FencedConnections>, max_request: usize) -> Self {
        let (queue, receiver) = mpsc::unbounded_channel();
        let closed = connections.closed().clone();
        let bounds = tree.bounds();
        let sender = Arc::new(Sender {
            tree,
            connections: Arc::clone(&connections),
            max_request,
        });
        let queued = Queue {
            sender,
            waiting: VecDeque::new(),
            busy: HashSet::new(),
            in_flight: 0,
            of_readers: 0,
            answers: mpsc::unbounded_channel(),
        };
        supervise("tree: commits", (queued, receiver), move |(queued, steps)| {
            queued.run(steps, closed.clone()).boxed()
        });
        Self {
            queue,
            connections,
            bounds,
            max_request,
        }
    }

    /// Sends a step with the next batch, and waits for its answer.
    ///
    /// # Cancellation safety
    /// A step that is dropped before it was sent has no effect; later it takes effect and its answer is lost.
    ///
    /// # Errors
    /// [`Failure::Refused`] with the index of an operation of this step that could not be applied; nothing was written.
    /// [`Failure::TooLarge`] if the servers would cut the connection for it.
    pub async fn send(&self, step: Step) -> Result<StepDone, Failure> {
        self.send_and(step, || ()).await
    }

    /// The same; calls `queued` when the step has its place among those of its lock.
    ///
    /// # Errors
    /// See [`Self::send`], also for cancellation safety.
    pub async fn send_and(&self, step: Step, queued: impl FnOnce()) -> Result<StepDone, Failure> {
        let size = step.size();
        if size > self.max_request {
            return Err(Failure::TooLarge(size));
        }
        // Steps that wait for a connection do so together, and not in the order of the queue.
        self.connections.ready().await?;
        let (answer, answered) = oneshot::channel();
        let closed = || Failure::NotSent("the namespace is closed".into());
        let since = Instant::now();
        let until = (step.patient && self.bounds.independent).then(|| since + PATIENCE);
        let pending = Pending {
            step,
            since,
            until,
            answer,
        };
        self.queue.send(pending).map_err(|_| closed())?;
        queued();
        // The task that sent it may have panicked.
        answered
            .await
            .unwrap_or_else(|_| Err(Failure::Unavailable("the step was stopped".into())))
    }
}

struct Queue {
    sender: Arc<Sender>,
    waiting: VecDeque<Pending>,
    /// The locks that have steps under way, with their class.
    busy: HashSet<OrderKey>,
    in_flight: usize,
    /// The commits under way that began with a reader, beside those.
    of_readers: usize,
    /// What became of the commits under way.
    answers: (mpsc::UnboundedSender<Answered>, mpsc::UnboundedReceiver<Answered>),
}

impl Queue {
    async fn run(&mut self, steps: &mut mpsc::UnboundedReceiver<Pending>, closed: CancellationToken) {
        let mut taken = Vec::new();
        let mut gather = 0;
        let bounds = self.sender.tree.bounds();
        loop {
            // While all commits are under way, an answer comes first.
            let now = Instant::now();
            let due = self.waiting.iter().filter_map(|pending| pending.until);
            let due = due
                .filter(|until| *until > now && self.in_flight < bounds.in_flight)
                .min();
            tokio::select! {
                biased;
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
                count = steps.recv_many(&mut taken, bounds.steps) => {
                    if count == 0 {
                        return;
                    }
                }
                Some(answered) = self.answers.1.recv() => self.free(answered),
                () = closed.cancelled(), if self.in_flight + self.of_readers == 0 => return,
            }
            for _ in 0..gather {
                yield_now().await;
            }
            while let Ok(step) = steps.try_recv() {
                taken.push(step);
            }
            while let Ok(answered) = self.answers.1.try_recv() {
                self.free(answered);
            }
            self.waiting.extend(taken.drain(..));
            while self.may_send()
                && let Some((locks, batch)) = take_batch(&mut self.waiting, &self.busy, bounds, self.sender.max_request)
            {
                gather = if batch.len() > 1 { GATHER } else { 0 };
                let is_of_reader = batch[0].step.class == Class::Reader;
                *self.count(is_of_reader) += 1;
                self.busy.extend(locks.iter().cloned());
                let sender = Arc::clone(&self.sender);
                let in_flight = InFlightGuard {
                    locks,
                    is_of_reader,
                    not_sent: None,
                    answered: self.answers.0.clone(),
                };
                let mut sending = async move {
                    // All of it, for its end is the answer.
                    let mut in_flight = in_flight;
                    in_flight.not_sent = sender.send(batch, TRIES).await;
                }
                .boxed();
                // Polled before the next batch, which may have a later step of one of its locks.
                let polled = catch_unwind(AssertUnwindSafe(|| (&mut sending).now_or_never()));
                // After a panic it counts as answered.
                if let Ok(None) = polled {
                    tokio::spawn(sending);
                }
            }
        }
    }

    /// Whether another commit may be sent. Those of readers are many, because each grants one of a lock, and small.
    fn may_send(&self) -> bool {
        let first = self.waiting.front();
        match first.is_some_and(|first| first.step.class == Class::Reader) {
            true => self.of_readers < READERS,
            false => self.in_flight < self.sender.tree.bounds().in_flight,
        }
    }

    fn count(&mut self, is_of_reader: bool) -> &mut usize {
        match is_of_reader {
            true => &mut self.of_readers,
            false => &mut self.in_flight,
        }
    }

    fn free(&mut self, answered: Answered) {
        *self.count(answered.is_of_reader) -= 1;
        self.busy.retain(|lock| !answered.locks.contains(lock));
        // What waits behind a batch that found no connection in time has waited as long.
        if let Some(not_sent) = answered.not_sent
            && self.sender.connections.current().borrow().is_none()
        {
            answer_all(self.waiting.drain(..).collect(), &not_sent);
        }
    }
}

impl Sender {
    /// Sends a batch, and again what another step refused. Returns the failure if there was no connection.
    fn send(&self, batch: Vec<Pending>, tries: usize) -> BoxFuture<'_, Option<Failure>> {
        async move {
            // A call that has ended meanwhile must not take effect.
            let (cancelled, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_cancelled);
            answer_all(cancelled, &Failure::CallEnded);
            let since = batch.iter().map(|pending| pending.since).min()?;
            // What waits behind each other for a store that does not answer is told so together.
            let connection = match self.connections.ready_since(since).await {
                Ok(connection) => connection,
                Err(failure) => {
                    answer_all(batch, &failure);
                    return Some(failure);
                }
            };
            let (refused, batch) = batch
                .into_iter()
                .partition(|pending| pending.step.fenced && connection.refusal.is_some());
            if let Some(refusal) = &connection.refusal {
                answer_all(refused, &Failure::NotSent(refusal.clone()));
            }
            let is_current = |read_over| read_over == connection.generation;
            let (batch, outdated): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|pending| pending.step.read_over.is_none_or(is_current));
            answer_all(outdated, &Failure::Outdated);
            if batch.is_empty() {
                return None;
            }
            let (guards, steps) = self.ops(&connection, &batch);
            let sent = Instant::now();
            match self.tree.commit(connection.generation, &guards, &steps).await {
                Ok(committed) => {
                    let mut first_half = deliver(batch, committed, &connection, sent);
                    let second_half = first_half.split_off(first_half.len().div_ceil(2));
                    if first_half.is_empty() {
                        return None;
                    }
                    let (one, other) = tokio::join!(self.send(first_half, tries), self.send(second_half, tries));
                    return one.or(other);
                }
                Err(Failure::Refused { reason, .. }) => {
                    if tries == 0 || !is_check_failure(&reason) || self.connections.renew(&connection).await.is_err() {
                        answer_all(batch, &Failure::NotSent(reason.to_string()));
                        return None;
                    }
                    return self.send(batch, tries - 1).await;
                }
                Err(failure) => answer_all(batch, &failure),
            }
            None
        }
        .boxed()
    }

    /// The guards of a batch, and the operations of its steps.
    fn ops(&self, connection: &FencedConnection, batch: &[Pending]) -> (Vec<Op>, Vec<Vec<Op>>) {
        let mut guards = Vec::new();
        if batch.iter().any(|pending| pending.step.fenced) {
            guards.push(connection.fence_check());
        }
        if batch.iter().any(|pending| pending.step.grant.is_some()) {
            guards.extend(self.connections.granting(connection));
        }
        let steps = batch.iter().map(|Pending { step, .. }| {
            let mut ops = step.ops.clone();
            if let Some((index, claim)) = &step.grant
                && let Some(Op::Create { data, .. }) = ops.get_mut(*index)
            {
                let mut claim = Claim::clone(claim);
                claim.base = connection.base;
                *data = claim.encode();
            }
            ops
        });
        (guards, steps.collect())
    }
}

fn is_cancelled(pending: &Pending) -> bool {
    pending.step.call.as_ref().is_some_and(InFlight::is_cancelled)
}

fn answer_all(batch: Vec<Pending>, failure: &Failure) {
    for Pending { step, answer, .. } in batch {
        drop(step);
        let _ = answer.send(Err(failure.clone()));
    }
}

mod batch;
#[cfg(test)]
mod tests;
