//! Acquires a lock: grants a new claim at once or enqueues it; [`super::adopt`] handles claims that exist already.

use std::task::Poll;

use etcd_client::Compare;
use futures::poll;
use tokio::time::Instant;

use super::Replica;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::keys::LockKeys;
use crate::backend::etcd::data::snapshot::Snapshot;
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::session::SessionEpoch;
use crate::backend::etcd::lock_state::admission::AdmissionTicket;
use crate::backend::etcd::lock_state::in_flight::{InFlightGuard, Others};
use crate::backend::etcd::ops::grant::Granting;
use crate::backend::etcd::txn::conditions::{absent, guard, none_in, none_made_after, none_under};
use crate::backend::etcd::txn::packing::BatchClass;
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition, Refusal, WaitPolicy};
use crate::name::{ClaimId, LockName, Mode};

/// How often a step is retried when the lock changed concurrently.
const TRIES: usize = 64;
/// The number of known waiters from which on an append is deferred.
const DEFER_FROM: usize = 2;

/// A call that acquires a lock.
pub struct EnqueueRequest<'a> {
    pub name: &'a LockName,
    pub lock: LockKeys,
    pub new: &'a NewClaim,
    pub ticket: SessionEpoch,
}

/// The result of one try: an outcome, or a newer snapshot for the next try.
pub enum EnqueueStep {
    Placed(AcquireOutcome),
    Again(Option<Snapshot>),
}

impl Replica {
    /// See [`crate::backend::Backend::acquire`].
    pub async fn acquire(
        &self,
        (admission, ticket): (Option<AdmissionTicket<'_>>, SessionEpoch),
        name: &LockName,
        new: &NewClaim,
    ) -> Result<AcquireOutcome, Failure> {
        let Some(mut admission) = admission else {
            return self.acquire_now(ticket, name, new).await;
        };
        if admission.together {
            let request = self.enqueue_request(ticket, name, new);
            match self.execute_admitted(&admission, self.acquire_free(&request)).await {
                Ok(Ok(grant)) => return Ok(AcquireOutcome::Held(grant)),
                // It is not granted at once, so it must keep its order of arrival.
                Ok(Err(_)) | Err(Failure::LeaseGone) => admission.go_alone().await?,
                Err(failure) => return Err(failure),
            }
        }
        let acquiring = self.acquire_now(ticket, name, new);
        tokio::pin!(acquiring);
        // A deferred step keeps its order in the queue of deferred steps, which it enters with the first poll. A
        // retryable call shares no request with others, so it would delay the calls behind it: they wait for it only
        // while no waiter is known.
        if self.may_defer(name, new) || (new.retryable && self.must_wait(name, new)) {
            let first = poll!(&mut acquiring);
            drop(admission);
            return match first {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => acquiring.await,
            };
        }
        self.execute_admitted(&admission, acquiring).await
    }

    /// Executes a step of an admitted call. If the store does not answer it, the calls behind it fail at once.
    pub async fn execute_admitted<T>(
        &self,
        admission: &AdmissionTicket<'_>,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let answer = step.await;
        // A step that fails sooner does not delay the next call, and one that lost to others was answered by the store.
        if let Err(failure) = &answer
            && !matches!(failure, Failure::Contended(_))
            && sent.elapsed() >= self.link.request_timeout()
        {
            admission.failed(failure);
        }
        answer
    }

    /// Whether a call is admitted concurrently with others: it reads, and as far as this replica knows, it is granted
    /// at once.
    pub fn goes_together(&self, name: &LockName, new: &NewClaim) -> bool {
        let is_free = |view: &View| {
            let writes = |holder: &Entry| holder.claim.mode == Mode::Exclusive;
            view.waiters.len() == 0 && !view.holders.iter().any(writes)
        };
        new.mode == Mode::Shared && !new.reentrant && self.lock_watches.ask(name, is_free) != Some(false)
    }

    fn enqueue_request<'a>(&self, ticket: SessionEpoch, name: &'a LockName, new: &'a NewClaim) -> EnqueueRequest<'a> {
        EnqueueRequest {
            lock: self.keys.lock(name),
            ticket,
            name,
            new,
        }
    }

    /// Whether a call's append may be deferred.
    fn may_defer(&self, name: &LockName, new: &NewClaim) -> bool {
        !new.retryable && self.must_wait(name, new) && self.last_far(name).is_some()
    }

    /// Whether a new claim has to wait, as far as this replica knows.
    fn must_wait(&self, name: &LockName, new: &NewClaim) -> bool {
        self.lock_watches.ask(name, |view| is_blocked(view, new)) == Some(true)
    }

    /// The last known waiter, if at least [`DEFER_FROM`] are known.
    pub fn last_far(&self, name: &LockName) -> Option<ClaimId> {
        let last = |view: &View| {
            let last = view.waiters.last().map(|last| last.id);
            last.filter(|_| view.waiters.len() >= DEFER_FROM)
        };
        self.lock_watches.ask(name, last).flatten()
    }

    async fn acquire_now(
        &self,
        ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
    ) -> Result<AcquireOutcome, Failure> {
        let mut request = self.enqueue_request(ticket, name, new);
        let mut snapshot = match self.acquire_first(&request).await? {
            Ok(outcome) => return Ok(outcome),
            Err(snapshot) => snapshot,
        };
        for _ in 0..TRIES {
            snapshot = match self.acquire_by_snapshot(&request, snapshot).await {
                Ok(EnqueueStep::Placed(outcome)) => return Ok(outcome),
                Ok(EnqueueStep::Again(Some(snapshot))) => snapshot,
                // A lease that the step names had ended, so nothing was written.
                Ok(EnqueueStep::Again(None)) | Err(Failure::LeaseGone) => {
                    request.ticket = self.session.ticket().await?;
                    self.read_snapshot(request.ticket, name, new).await?
                }
                Err(failure) => return Err(failure),
            };
        }
        Err(Failure::Contended("etcd: the lock changes too fast".into()))
    }

    /// The first step: an append to the queue if this replica knows that the claim has to wait, and otherwise a grant.
    /// The store checks the step's conditions, so an outdated view costs only another step.
    async fn acquire_first(&self, request: &EnqueueRequest<'_>) -> Result<Result<AcquireOutcome, Snapshot>, Failure> {
        let EnqueueRequest { name, new, .. } = request;
        if self.must_wait(name, new)
            && let Some(_sending) = self.reserve(request, None)
        {
            match self.queue_behind(request).await? {
                EnqueueStep::Placed(outcome) => return Ok(Ok(outcome)),
                EnqueueStep::Again(Some(snapshot)) => return Ok(Err(snapshot)),
                EnqueueStep::Again(None) => {}
            }
        }
        Ok(self.acquire_free(request).await?.map(AcquireOutcome::Held))
    }

    /// Grants in one transaction, if the lock has no claim, or only readers for a reader.
    async fn acquire_free(
        &self,
        request: &EnqueueRequest<'_>,
    ) -> Result<Result<crate::backend::Grant, Snapshot>, Failure> {
        let EnqueueRequest { name, lock, new, .. } = request;
        // A reentrant call must look for a holder to join first.
        let reads = new.mode == Mode::Shared && !new.reentrant;
        // An etcd transaction cannot count the claims of a lock. So each replica grants up to half of the limit
        // uncounted.
        let uncounted = new.limits.queue as usize / 2;
        let has_room = |others: &Others| self.history.readers(name) + others.len() < uncounted;
        let sending = reads.then(|| self.in_flight.begin(name, new.id, has_room)).flatten();
        let when = match sending {
            Some(_) => vec![
                none_in(lock.all_but_readers()),
                absent(lock.holder(new.mode.into(), new.id)),
            ],
            None => vec![none_under(lock.all())],
        };
        self.grant_new(request, when, None).await
    }

    async fn grant_new(
        &self,
        request: &EnqueueRequest<'_>,
        mut when: Vec<Compare>,
        judged_at: Option<i64>,
    ) -> Result<Result<crate::backend::Grant, Snapshot>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = request;
        if new.retryable {
            when.push(absent(self.keys.request(new.id)));
        }
        let granting = Granting {
            name,
            lock,
            new,
            class: match new.mode {
                Mode::Exclusive => BatchClass::Alone,
                Mode::Shared | Mode::Semaphore { .. } => BatchClass::Sharer,
            },
            when,
            judged_at,
            with: Vec::new(),
            otherwise: Snapshot::ops(&self.keys, name, lock, new, *ticket),
        };
        self.granted_or_snapshot(*ticket, lock, granting).await
    }

    async fn acquire_by_snapshot(
        &self,
        request: &EnqueueRequest<'_>,
        snapshot: Snapshot,
    ) -> Result<EnqueueStep, Failure> {
        let new = request.new;
        if snapshot.marked {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Cancelled));
        }
        if !self.holds_good(request.ticket, &snapshot) {
            return Ok(EnqueueStep::Again(None));
        }
        if !new.retryable && snapshot.view.is_foreign(new) {
            // The store was restored from an old snapshot, with an earlier claim of this id.
            return Err(Failure::Unavailable("etcd: a claim id is in use already".into()));
        }
        if let Some(entry) = snapshot.view.waiters.get(&new.id) {
            return self.adopt_waiter(request, &snapshot.view, entry).await;
        }
        if let Some(entry) = snapshot.view.holder_with(&new.id) {
            return self.adopt_hold(request, entry).await;
        }
        if let Some(cause) = snapshot.finished {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Finished(cause)));
        }
        if let Some(entry) = snapshot.view.joined_by(new) {
            return self.reenter(request, entry).await;
        }
        self.acquire_new(request, &snapshot.view).await
    }

    async fn acquire_new(&self, request: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let new = request.new;
        if let Some(there) = view.mismatch(new.mode) {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::LimitMismatch {
                there,
            })));
        }
        let fits = view.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::Try {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Busy(
                self.first_holder(view).await?,
            )));
        }
        let limit = new.limits.queue;
        let full = Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::Full { limit })));
        if view.len() >= limit as usize {
            return full;
        }
        if fits {
            return self.acquire_fitting(request, view).await;
        }
        let Some(_sending) = self.reserve(request, Some(view)) else {
            return full;
        };
        self.queue(request, view).await
    }

    /// Reserves a slot in the queue for a claim, if `view`, or else the watched view, has room for it in addition to
    /// this replica's appends in flight.
    fn reserve<'a>(&'a self, request: &'a EnqueueRequest<'_>, view: Option<&View>) -> Option<InFlightGuard<'a>> {
        let EnqueueRequest { name, new, .. } = request;
        let limit = new.limits.queue as usize;
        let has_room = |others: &_| self.lock_watches.has_room(name, view, others, limit);
        self.in_flight.begin(name, new.id, has_room)
    }

    /// Grants a new claim that fits behind all claims of the view, if no conflicting claim was added since.
    async fn acquire_fitting(&self, request: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let (lock, new) = (&request.lock, request.new);
        let mut when = guard(lock, new.mode, view.revision);
        when.push(none_made_after(&lock.waiters(), view.revision));
        let mut sending = None;
        if new.mode == Mode::Shared {
            // Several readers may be granted from one view, so each needs room in addition to those in flight.
            sending = self.reserve(request, Some(view));
            if sending.is_none() {
                let limit = new.limits.queue;
                return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::Full { limit })));
            }
            // Another call may have been granted this claim. (For the other modes the guard excludes that.)
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            if new.reentrant {
                // Nor may there be a new holder that it could join.
                when.push(none_made_after(&lock.readers(), view.revision));
            }
        }
        let judged_at = matches!(new.mode, Mode::Semaphore { .. }).then_some(view.revision);
        let granted = self.grant_new(request, when, judged_at).await?;
        drop(sending);
        Ok(match granted {
            Ok(grant) => EnqueueStep::Placed(AcquireOutcome::Held(grant)),
            Err(snapshot) => EnqueueStep::Again(Some(snapshot)),
        })
    }

    /// Promotes a waiting claim that is next in the view, with retries while the lock changes concurrently. A claim
    /// that is not next is registered as a local waiter.
    pub async fn stand(
        &self,
        mut ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
        mut view: View,
    ) -> Result<AcquireOutcome, Failure> {
        for _ in 0..TRIES {
            let Some(entry) = view.waiters.get(&new.id) else {
                // The view is newer than the step that wrote the claim, so the claim was changed since.
                let snapshot = self.read_snapshot(ticket, name, new).await?;
                match self.outcome_of(name, new, &snapshot).await? {
                    Some(outcome) => return Ok(outcome),
                    None => view = snapshot.view,
                }
                continue;
            };
            if !view.is_next(&new.id) {
                return Ok(self.wait(name, new, entry, &view).await);
            }
            match self.grant_waiting(ticket, name, new, (entry, view.revision)).await {
                Ok(Ok(grant)) => return Ok(AcquireOutcome::Held(grant)),
                Ok(Err(snapshot)) if snapshot.marked => return Ok(AcquireOutcome::Cancelled),
                Ok(Err(snapshot)) => {
                    if !self.holds_good(ticket, &snapshot) {
                        ticket = self.session.ticket().await?;
                    }
                    match self.outcome_of(name, new, &snapshot).await? {
                        Some(outcome) => return Ok(outcome),
                        None => view = snapshot.view,
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Contended("etcd: the lock changes too fast".into()))
    }

    async fn wait(&self, name: &LockName, new: &NewClaim, entry: &Entry, view: &View) -> AcquireOutcome {
        let frees_in = match view.first_holder() {
            Some(holder) => self.frees_in(holder, view.is_first(&new.id)).await,
            None => None,
        };
        self.lock_watches.join(name, entry, view);
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        AcquireOutcome::Waiting(QueuePosition {
            position: entry.created.unsigned_abs(),
            frees_in,
        })
    }
}

/// Whether a new claim has to wait, judged by a view.
fn is_blocked(view: &View, new: &NewClaim) -> bool {
    let blocks = |mode| new.mode == Mode::Exclusive || mode == Mode::Exclusive;
    new.wait_policy == WaitPolicy::Wait
        && !new.reentrant
        && view.holders.iter().any(|holder| blocks(holder.claim.mode))
        && view.waiters.get(&new.id).is_none()
        && view.holder_with(&new.id).is_none()
        && view.mismatch(new.mode).is_none()
}
