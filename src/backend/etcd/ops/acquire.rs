//! Acquires a lock: grants a new claim at once or enqueues it; [`super::existing_claim`] handles claims that exist already.

use std::task::Poll;

use etcd_client::{Compare, TxnOp};
use futures::poll;
use tokio::time::Instant;

use super::Replica;
use super::grant::{Granting, Retry};
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::{guard, none_in, none_made_after, none_under, put_on, some_under};
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::record::{Claim, Request};
use crate::backend::etcd::data::snapshot::{Call, Snapshot};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::session::SessionEpoch;
use crate::backend::etcd::lock_state::call_queue::CallPosition;
use crate::backend::etcd::lock_state::{LockState, OwnWaiter, ReservedPlace};
use crate::backend::etcd::txn::Answer;
use crate::backend::etcd::txn::packing::{Append, BatchClass, Step};
use crate::backend::{AcquireOutcome, Grant, NewClaim, QueuePosition, Refusal, WaitPolicy};
use crate::name::{LockName, Mode};

/// How often a step is retried when the lock changed concurrently.
pub const TRIES: usize = 64;
/// The number of known waiters from which on an append is certainly not the next claim.
const FAR_FROM: usize = 2;

impl Replica {
    /// See [`crate::backend::Backend::acquire`].
    pub async fn acquire(
        &self,
        (position, epoch): (Option<CallPosition<'_>>, SessionEpoch),
        name: &LockName,
        new: &NewClaim,
    ) -> Result<AcquireOutcome, Failure> {
        let mut call = Call::new(&self.keys, name, new, epoch);
        let Some(mut position) = position else {
            return self.acquire_now(&mut call).await;
        };
        if position.concurrent {
            let free = async {
                match self.acquire_free(&call).await {
                    Ok(grant) => Ok(Some(grant)),
                    Err(Retry::Failed(failure)) if failure != Failure::LeaseGone => Err(failure),
                    Err(_) => Ok(None),
                }
            };
            if let Some(grant) = self.execute_in_order(&position, free).await? {
                return Ok(AcquireOutcome::Held(grant));
            }
            // It is not granted at once, so it must keep its order of arrival.
            position.wait_for_earlier_calls().await?;
        }
        let far = self.must_wait(&call) && self.is_far(&call);
        let acquiring = self.acquire_now(&mut call);
        tokio::pin!(acquiring);
        // An append keeps its order among those of its lock, which it joins with the first poll.
        if far {
            let first = poll!(&mut acquiring);
            drop(position);
            return match first {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => acquiring.await,
            };
        }
        self.execute_in_order(&position, acquiring).await
    }

    /// Executes a step of a call that is first in its queue. If the store does not answer it, the calls behind it fail
    /// at once.
    pub async fn execute_in_order<T>(
        &self,
        position: &CallPosition<'_>,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let answer = step.await;
        // A step that fails sooner does not delay the next call, and one that lost to others was answered by the store.
        if let Err(failure) = &answer
            && !matches!(failure, Failure::Contended(_))
            && sent.elapsed() >= self.link.request_timeout()
        {
            position.fail_later_calls(failure);
        }
        answer
    }

    /// Whether a call may run concurrently with others: it reads, and as far as this replica knows, it is granted at
    /// once.
    pub fn may_run_concurrently(&self, name: &LockName, new: &NewClaim) -> bool {
        let is_free = |view: &View| {
            let writes = |holder: &Entry| holder.claim.terms.mode == Mode::Exclusive;
            view.waiters.len() == 0 && !view.holders.iter().any(writes)
        };
        new.mode == Mode::Shared && !new.reentrant && self.locks.ask(name, is_free) != Some(false)
    }

    /// Whether a new claim has to wait, as far as this replica knows.
    fn must_wait(&self, call: &Call<'_>) -> bool {
        let (name, new) = (call.name, call.new);
        match self.locks.ask(name, |view| is_blocked(view, new)) {
            Some(is_blocked) => is_blocked,
            None => {
                let waits = new.mode == Mode::Exclusive && new.wait_policy == WaitPolicy::Wait && !new.reentrant;
                waits && self.locks.is_taken_unseen(name, new.limits.queue as usize)
            }
        }
    }

    /// Whether a new claim is behind at least [`FAR_FROM`] known waiters, or behind one of a lock that is about to be
    /// watched.
    fn is_far(&self, call: &Call<'_>) -> bool {
        let seen = self.locks.ask(call.name, |view| view.waiters.len() >= FAR_FROM);
        seen.unwrap_or_else(|| self.locks.has_waiters_unseen(call.name))
    }

    /// The key suffix of the claim that a call may make.
    fn own_suffix(&self, call: &Call<'_>) -> KeySuffix {
        self.suffixes.own(call.new.call, call.name, call.epoch.session)
    }

    async fn acquire_now(&self, call: &mut Call<'_>) -> Result<AcquireOutcome, Failure> {
        let mut tried = self.acquire_first(call).await;
        for _ in 0..TRIES {
            let snapshot = match tried {
                Ok(outcome) => return Ok(outcome),
                Err(Retry::Changed(snapshot)) => *snapshot,
                // A lease that the step names had ended, so nothing was written.
                Err(Retry::Read | Retry::Failed(Failure::LeaseGone)) => {
                    call.epoch = self.session.epoch().await?;
                    self.snapshot(call).await?
                }
                Err(Retry::Failed(failure)) => return Err(failure),
            };
            tried = self.acquire_by_snapshot(call, &snapshot).await;
        }
        Err(Failure::contended())
    }

    /// The first step: an append to the queue if this replica knows that the claim has to wait, and otherwise a grant.
    /// The store checks the step's conditions, so an outdated view costs only another step.
    async fn acquire_first(&self, call: &Call<'_>) -> Result<AcquireOutcome, Retry> {
        if self.must_wait(call)
            && let Some(_sending) = self.reserve(call, None)
        {
            return self.queue_behind(call).await;
        }
        Ok(AcquireOutcome::Held(self.acquire_free(call).await?))
    }

    /// Grants in one transaction, if the lock has no claim, or only readers for a reader.
    async fn acquire_free(&self, call: &Call<'_>) -> Result<Grant, Retry> {
        let (name, new) = (call.name, call.new);
        // A reentrant call must look for a holder to join first.
        let reads = new.mode == Mode::Shared && !new.reentrant;
        // An etcd transaction cannot count the claims of a lock. So each replica grants up to half of the limit
        // uncounted.
        let uncounted = new.limits.queue as usize / 2;
        let has_room = |state: &LockState| self.history.granted.lock().readers(name) + state.in_flight() < uncounted;
        let sending = reads
            .then(|| self.locks.reserve(name, self.own_suffix(call), has_room))
            .flatten();
        let when = match sending {
            Some(_) => vec![none_in(call.lock.all_but_readers())],
            None => vec![none_under(call.lock.all())],
        };
        self.grant_new(call, when, None).await
    }

    async fn grant_new(
        &self,
        call: &Call<'_>,
        mut when: Vec<Compare>,
        decided_at: Option<i64>,
    ) -> Result<Grant, Retry> {
        when.push(call.not_cancelled());
        when.extend(call.request_is_new());
        let granting = Granting {
            suffix: self.own_suffix(call),
            is_new: true,
            when,
            in_session: true,
            decided_at,
            with: Vec::new(),
            otherwise: self.refusals.reads(call),
        };
        self.granted(call, granting).await
    }

    async fn acquire_by_snapshot(&self, call: &mut Call<'_>, snapshot: &Snapshot) -> Result<AcquireOutcome, Retry> {
        let (new, view) = (call.new, &snapshot.view);
        if snapshot.marked {
            return Ok(AcquireOutcome::Cancelled);
        }
        if !self.holds_good(call, snapshot) {
            return Err(Retry::Read);
        }
        if new.retryable {
            if let Some(entry) = view.waiter_with(&new.id) {
                return self.adopt_waiter(call, view, entry).await;
            }
            if let Some(entry) = view.holder_with(&new.id) {
                return self.adopt_hold(call, entry).await;
            }
            if let Some(cause) = snapshot.finished {
                return Ok(AcquireOutcome::Finished(cause));
            }
        }
        if let Some(entry) = view.joined_by(new) {
            return self.reenter(call, entry).await;
        }
        self.acquire_new(call, view).await
    }

    async fn acquire_new(&self, call: &mut Call<'_>, view: &View) -> Result<AcquireOutcome, Retry> {
        let new = call.new;
        if let Some(there) = view.mismatch(new.mode) {
            return Ok(AcquireOutcome::Refused(Refusal::LimitMismatch { existing: there }));
        }
        let fits = view.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::NoWait {
            return Ok(AcquireOutcome::Busy(self.first_holder(view).await?));
        }
        let limit = new.limits.queue;
        if view.len() >= limit as usize {
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }));
        }
        // Several readers may be granted from one view, so each needs room in addition to those in flight.
        let sending = match fits && new.mode != Mode::Shared {
            true => None,
            false => match self.reserve(call, Some(view)) {
                None => return Ok(AcquireOutcome::Refused(Refusal::Full { limit })),
                reserved => reserved,
            },
        };
        let outcome = match fits {
            true => self.acquire_fitting(call, view).await,
            false => self.queue(call, view).await,
        };
        drop(sending);
        outcome
    }

    /// Reserves a place in the queue for a claim, if `view`, or else the watched view, has room for it in addition to
    /// this replica's appends in flight.
    fn reserve<'a>(&'a self, call: &Call<'a>, view: Option<&View>) -> Option<ReservedPlace<'a>> {
        let limit = call.new.limits.queue as usize;
        // A reader that was granted after the view is in neither that nor the reserved places.
        let newer = || {
            view.map_or(0, |view| {
                self.history.granted.lock().readers_after(call.name, view.revision)
            })
        };
        let has_room = |state: &LockState| state.has_room(view, limit.saturating_sub(newer()));
        self.locks.reserve(call.name, self.own_suffix(call), has_room)
    }

    /// Grants a new claim that fits behind all claims of the view, if no conflicting claim was added since.
    async fn acquire_fitting(&self, call: &Call<'_>, view: &View) -> Result<AcquireOutcome, Retry> {
        let (lock, new) = (&call.lock, call.new);
        let mut when = guard(lock, new.mode, view.revision);
        when.push(none_made_after(&lock.waiters(), view.revision));
        if new.mode == Mode::Shared && new.reentrant {
            // There may be a new holder that it could join.
            when.push(none_made_after(&lock.readers(), view.revision));
        }
        let decided_at = matches!(new.mode, Mode::Semaphore { .. }).then_some(view.revision);
        Ok(AcquireOutcome::Held(self.grant_new(call, when, decided_at).await?))
    }

    /// Appends a claim to the queue of a lock that was read.
    async fn queue(&self, call: &mut Call<'_>, view: &View) -> Result<AcquireOutcome, Retry> {
        let mut when = append_conditions(call);
        if call.new.reentrant {
            // A newer holder might be one that this call could join, or has joined.
            when.push(none_made_after(&call.lock.holders(), view.revision));
        }
        let waiting = self.waiting(call);
        self.put_waiter(call, when, waiting).await
    }

    /// Appends a claim to the queue of a watched lock, or of one that is about to be. It reads nothing, because the watch will report when the claim is
    /// next. If no waiter is known that the claim is behind, a holder must still block it: a grant needs no watch then.
    async fn queue_behind(&self, call: &Call<'_>) -> Result<AcquireOutcome, Retry> {
        let (name, new) = (call.name, call.new);
        let mut when = append_conditions(call);
        let append = if self.is_far(call) {
            Append::NextBatch
        } else {
            when.push(some_under(&blockers(&call.lock, new.mode)));
            Append::OwnBatch
        };
        let waiting = self.waiting(call);
        let answer = self.write_waiter(call, append, when, &waiting, None).await?;
        let own = OwnWaiter::new(new, waiting.suffix, answer.revision);
        self.locks.join_behind(name, new.id, own);
        let ahead = self.locks.ask(name, |view| {
            let is_first = view.waiters.len() == 0 || view.is_first(waiting.suffix);
            Some((view.first_holder()?, is_first))
        });
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        Ok(AcquireOutcome::Waiting(QueuePosition {
            position: answer.revision.unsigned_abs(),
            frees_in: match ahead.flatten() {
                Some((holder, is_first)) => self.frees_in(holder, is_first).await,
                None => None,
            },
        }))
    }

    /// A new claim that begins to wait.
    fn waiting(&self, call: &Call<'_>) -> Waiting {
        let mut claim = Claim::of(call.new);
        claim.place = self.locks.place(call.new.arrived);
        Waiting {
            suffix: self.own_suffix(call),
            claim,
            is_adopted: false,
        }
    }

    /// Writes a waiting claim, and returns its outcome.
    pub async fn put_waiter(
        &self,
        call: &mut Call<'_>,
        when: Vec<Compare>,
        waiting: Waiting,
    ) -> Result<AcquireOutcome, Retry> {
        let read_first_claims = Some(call.read_first_claims(0));
        let answer = self
            .write_waiter(call, Append::OwnBatch, when, &waiting, read_first_claims)
            .await?;
        let read = answer.reads.first().ok_or_else(Failure::no_answer)?;
        let view = match read.more() {
            true => View::fetch(&self.link, &call.lock).await?,
            false => View::read(&call.lock, answer.read_at, read.kvs())?,
        };
        Ok(self.promote_from_view(call, waiting.suffix, view).await?)
    }

    /// Writes a waiting claim and the record of its request, together with a read.
    async fn write_waiter(
        &self,
        call: &Call<'_>,
        append: Append,
        when: Vec<Compare>,
        waiting: &Waiting,
        read: Option<TxnOp>,
    ) -> Result<Answer, Retry> {
        let (session, suffix) = (call.epoch.session, waiting.suffix);
        let mut then = vec![put_on(session, call.lock.waiter(suffix), waiting.claim.encode())];
        if call.new.retryable {
            then.push(put_on(session, call.request(), Request::Waits(suffix).encode()));
        }
        then.extend(read);
        let otherwise = self.refusals.reads(call);
        let mut step = Step::new(call.lock.all(), BatchClass::Other, when, then, otherwise);
        step.append = Some(append);
        let made = (!waiting.is_adopted).then_some(suffix);
        let written = self.step_of(call, step, made).await;
        if matches!(written, Err(Retry::Failed(Failure::LeaseGone))) {
            self.session.note_ended(call.epoch);
        }
        written
    }
}

/// A claim that is about to wait, and its key suffix.
pub struct Waiting {
    pub suffix: KeySuffix,
    pub claim: Claim,
    /// It is under the key suffix of another call's claim already.
    pub is_adopted: bool,
}

/// The conditions under which a claim is appended. Its session needs none, because etcd refuses a put on a dead lease.
fn append_conditions(call: &Call<'_>) -> Vec<Compare> {
    [call.not_cancelled()]
        .into_iter()
        .chain(call.request_is_new())
        .collect()
}

/// Whether a new claim has to wait, judged by a view.
fn is_blocked(view: &View, new: &NewClaim) -> bool {
    let blocks = |mode| new.mode == Mode::Exclusive || mode == Mode::Exclusive;
    new.wait_policy == WaitPolicy::Wait
        && !new.reentrant
        && view.holders.iter().any(|holder| blocks(holder.claim.terms.mode))
        && view.mismatch(new.mode).is_none()
}

/// The prefix of the holders that each block a claim of this mode.
fn blockers(lock: &LockKeys, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => lock.holders(),
        Mode::Shared | Mode::Semaphore { .. } => lock.exclusive_holders(),
    }
}
