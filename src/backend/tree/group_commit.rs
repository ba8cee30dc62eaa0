//! Group commit: the steps of many calls in one commit.
//!
//! A commit applies all of its operations or none, so a step whose condition fails takes the others of its commit along.
//! Such a step gets its answer, and the others are sent again in two halves. To keep that seldom, and because all grants
//! of a commit share its number, a commit has only one step of each lock, or several that append to its queue. The next
//! step of a lock is sent when the one before was answered; appends to a queue wait only for each other, so that a
//! crowded lock is handed over while callers join its queue. A step is not sent before an earlier append to the queue of
//! its lock. Calls that wait in a queue append one after the other, so that a commit has at most one of these beside
//! tries, which have no order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::calls::InFlight;
use super::data::record::Claim;
use super::fenced_connection::{FencedConnection, FencedConnections, is_check_failure};
use crate::backend::tree::store::{Done, Failure, Op, Reason, Tree};
use crate::name::LockName;

/// The most steps of a commit, and the most commits under way.
const STEPS: usize = 64;
const IN_FLIGHT: usize = 4;
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
    /// The operation that creates a holder, and its claim: its record gets the base of the connection that it is sent
    /// over.
    pub grant: Option<(usize, Arc<Claim>)>,
    /// The call, which is in flight until the step was answered.
    pub call: Option<InFlight>,
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
    answer: oneshot::Sender<Result<StepDone, Failure>>,
}

/// Sends steps.
#[derive(Debug, Clone)]
pub struct Batcher {
    queue: mpsc::UnboundedSender<Pending>,
    connections: Arc<FencedConnections>,
    /// The largest step, in bytes.
    pub max_request: usize,
}

/// A batch was answered.
struct Answered {
    locks: HashSet<OrderKey>,
    /// Why it was not sent, if there was no connection.
    not_sent: Option<Failure>,
}

/// A batch that is under way; it counts as answered when this is dropped, also by a panic.
struct InFlightGuard {
    locks: HashSet<OrderKey>,
    not_sent: Option<Failure>,
    answered: mpsc::UnboundedSender<Answered>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let _ = self.answered.send(Answered {
            locks: std::mem::take(&mut self.locks),
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
        };
        tokio::spawn(queued.run(receiver, closed));
        Self {
            queue,
            connections,
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
        let size = step.size();
        if size > self.max_request {
            return Err(Failure::TooLarge(size));
        }
        // Steps that wait for a connection do so together, and not in the order of the queue.
        self.connections.ready().await?;
        let (answer, answered) = oneshot::channel();
        let closed = || Failure::NotSent("the namespace is closed".into());
        self.queue.send(Pending { step, answer }).map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

struct Queue {
    sender: Arc<Sender>,
    waiting: VecDeque<Pending>,
    /// The locks that have steps under way, with their class.
    busy: HashSet<OrderKey>,
    in_flight: usize,
}

impl Queue {
    async fn run(mut self, mut steps: mpsc::UnboundedReceiver<Pending>, closed: CancellationToken) {
        let (answered, mut answers) = mpsc::unbounded_channel::<Answered>();
        let mut taken = Vec::new();
        let mut gather = 0;
        loop {
            tokio::select! {
                count = steps.recv_many(&mut taken, STEPS) => {
                    if count == 0 {
                        return;
                    }
                }
                Some(answered) = answers.recv() => self.free(answered),
                () = closed.cancelled(), if self.in_flight == 0 => return,
            }
            for _ in 0..gather {
                yield_now().await;
            }
            while let Ok(step) = steps.try_recv() {
                taken.push(step);
            }
            while let Ok(answered) = answers.try_recv() {
                self.free(answered);
            }
            self.waiting.extend(taken.drain(..));
            while self.in_flight < IN_FLIGHT
                && let Some((locks, batch)) = take_batch(&mut self.waiting, &self.busy, self.sender.max_request)
            {
                gather = if batch.len() > 1 { GATHER } else { 0 };
                self.in_flight += 1;
                self.busy.extend(locks.iter().cloned());
                let sender = Arc::clone(&self.sender);
                let in_flight = InFlightGuard {
                    locks,
                    not_sent: None,
                    answered: answered.clone(),
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

    fn free(&mut self, answered: Answered) {
        self.in_flight -= 1;
        self.busy.retain(|lock| !answered.locks.contains(lock));
        // What waits behind a batch that found no connection in time has waited as long.
        if let Some(not_sent) = answered.not_sent
            && self.sender.connections.current().borrow().is_none()
        {
            answer_all(self.waiting.drain(..).collect(), &not_sent);
        }
    }
}

/// Takes the steps of the next batch, with their locks, if any can go. Of `busy` locks, steps of that class stay.
fn take_batch(
    waiting: &mut VecDeque<Pending>,
    busy: &HashSet<OrderKey>,
    max_request: usize,
) -> Option<(HashSet<OrderKey>, Vec<Pending>)> {
    let mut batch: Vec<Pending> = Vec::new();
    let mut classes: HashMap<LockName, Class> = HashMap::new();
    // Locks of which an earlier step of a class stays behind.
    let mut blocked: HashSet<OrderKey> = HashSet::new();
    let (mut kept, mut size) = (VecDeque::new(), 0);
    while let Some(pending) = waiting.pop_front() {
        if pending.answer.is_closed() {
            continue;
        }
        let class = pending.step.class;
        let key = (pending.step.lock.clone(), class);
        let goes_with = |other: &Class| class == Class::Append && *other == Class::Append;
        let is_behind = |class| blocked.contains(&(pending.step.lock.clone(), class));
        let stays = busy.contains(&key)
            || is_behind(class)
            || is_behind(Class::Append)
            || classes.get(&key.0).is_some_and(|other| !goes_with(other));
        if stays {
            blocked.insert(key);
            kept.push_back(pending);
            continue;
        }
        let bytes = pending.step.size();
        if !batch.is_empty() && (batch.len() == STEPS || size + bytes > max_request) {
            waiting.push_front(pending);
            break;
        }
        classes.insert(key.0, class);
        size += bytes;
        batch.push(pending);
    }
    kept.append(waiting);
    *waiting = kept;
    (!batch.is_empty()).then(|| (classes.into_iter().collect(), batch))
}

impl Sender {
    /// Sends a batch, and again what another step refused. Returns the failure if there was no connection.
    fn send(&self, batch: Vec<Pending>, tries: usize) -> BoxFuture<'_, Option<Failure>> {
        async move {
            // A call that has ended meanwhile must not take effect.
            let (cancelled, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_cancelled);
            answer_all(cancelled, &Failure::CallEnded);
            if batch.is_empty() {
                return None;
            }
            let connection = match self.connections.ready().await {
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
            if batch.is_empty() {
                return None;
            }
            let (ops, first) = self.ops(&connection, &batch);
            let sent = Instant::now();
            match self.tree.commit(connection.generation, &ops).await {
                Ok(done) => deliver(batch, done.split_at_checked(first), &connection, sent),
                Err(Failure::Refused { index, reason }) if index < first => {
                    if tries == 0 || !is_check_failure(&reason) || self.connections.renew(&connection).await.is_err() {
                        answer_all(batch, &Failure::NotSent(reason.to_string()));
                        return None;
                    }
                    return self.send(batch, tries - 1).await;
                }
                Err(Failure::Refused { index, reason }) => {
                    let mut first_half = answer_refused(batch, index - first, &reason);
                    let second_half = first_half.split_off(first_half.len().div_ceil(2));
                    let (one, other) = tokio::join!(self.send(first_half, tries), self.send(second_half, tries));
                    return one.or(other);
                }
                Err(failure) => answer_all(batch, &failure),
            }
            None
        }
        .boxed()
    }

    /// The operations of a batch, and how many of them precede those of its steps.
    fn ops(&self, connection: &FencedConnection, batch: &[Pending]) -> (Vec<Op>, usize) {
        let mut ops = Vec::new();
        if batch.iter().any(|pending| pending.step.fenced) {
            ops.push(connection.fence_check());
        }
        if batch.iter().any(|pending| pending.step.grant.is_some()) {
            ops.extend(self.connections.granting(connection));
        }
        let first = ops.len();
        for Pending { step, .. } in batch {
            let at = ops.len();
            ops.extend(step.ops.iter().cloned());
            if let Some((index, claim)) = &step.grant
                && let Some(Op::Create { data, .. }) = ops.get_mut(at + index)
            {
                let mut claim = Claim::clone(claim);
                claim.base = connection.base;
                *data = claim.encode();
            }
        }
        (ops, first)
    }
}

fn is_cancelled(pending: &Pending) -> bool {
    pending.step.call.as_ref().is_some_and(InFlight::is_cancelled)
}

fn answer_all(batch: Vec<Pending>, failure: &Failure) {
    for Pending { step, answer } in batch {
        drop(step);
        let _ = answer.send(Err(failure.clone()));
    }
}

/// Answers each step with its part of the answers, which follow those of the checks. `None`: there are too few.
fn deliver(batch: Vec<Pending>, done: Option<(&[Done], &[Done])>, connection: &Arc<FencedConnection>, sent: Instant) {
    let Some((checks, mut done)) = done else {
        return answer_all(batch, &Failure::malformed());
    };
    let granted = checks.iter().find_map(|done| match done {
        Done::Set(stat) => Some(stat.modified),
        _ => None,
    });
    for Pending { step, answer } in batch {
        let (own, rest) = done.split_at(step.ops.len().min(done.len()));
        done = rest;
        drop(step);
        let _ = answer.send(Ok(StepDone {
            done: own.to_vec(),
            connection: Arc::clone(connection),
            sent,
            granted,
        }));
    }
}

/// Answers the step of an operation that could not be applied, and returns the others.
fn answer_refused(batch: Vec<Pending>, mut index: usize, reason: &Reason) -> Vec<Pending> {
    let mut rest = Vec::new();
    let mut found = false;
    for pending in batch {
        let count = pending.step.ops.len();
        if !found && index < count {
            found = true;
            let Pending { step, answer } = pending;
            drop(step);
            let reason = reason.clone();
            let _ = answer.send(Err(Failure::Refused { index, reason }));
            continue;
        }
        index = index.wrapping_sub(if found { 0 } else { count });
        rest.push(pending);
    }
    rest
}

#[cfg(test)]
mod tests;
