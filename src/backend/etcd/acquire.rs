//! How a call comes to a lock: granted at once, queued, or (in [`super::adopt`]) finding a claim that is there already.

use std::task::Poll;

use etcd_client::{Compare, PutOptions, TxnOp};
use futures::poll;

use super::Replica;
use super::admission::AdmissionTicket;
use super::grant::{Granting, absent, guard, none_made_after, none_under, present, some_under};
use super::keys::LockKeys;
use super::cluster_client::Failure;
use super::batch_packing::BatchClass;
use super::record::Claim;
use super::lock_watch;
use super::session::SessionEpoch;
use super::snapshot::Snapshot;
use super::batches::Answer;
use super::in_flight::InFlightGuard;
use super::view::{Entry, View};
use crate::backend::{QueuePosition, NewClaim, WaitPolicy, AcquireOutcome, Refusal};
use crate::name::{ClaimId, LockName, Mode};

/// How often a step is tried against others that change the lock meanwhile.
const TRIES: usize = 64;
/// Behind how many waiters a newcomer is in no hurry to be queued.
const FAR: usize = 2;

/// A call on its way into a lock.
pub struct EnqueueRequest<'a> {
    pub name: &'a LockName,
    pub lock: LockKeys,
    pub new: &'a NewClaim,
    pub ticket: SessionEpoch,
}

/// What one try gave: a place, or a later survey to try again from.
pub enum EnqueueStep {
    Placed(AcquireOutcome),
    Again(Option<Snapshot>),
}

impl Replica {
    /// See [`crate::backend::Backend::acquire`].
    pub async fn acquire(
        &self,
        (line, ticket): (Option<AdmissionTicket<'_>>, SessionEpoch),
        name: &LockName,
        new: &NewClaim,
    ) -> Result<AcquireOutcome, Failure> {
        let Some(arrival) = line else {
            return self.acquire_now(ticket, name, new).await;
        };
        let entering = self.acquire_now(ticket, name, new);
        tokio::pin!(entering);
        // Who goes along with the next turn stands in line there from the first moment on. And one whom a retry may
        // look for goes with nobody: others are held up by it only while nobody is known to wait.
        if self.goes_far_behind(name, new) || (new.retryable && self.waits_behind(name, new)) {
            let first = poll!(&mut entering);
            drop(arrival);
            return match first {
                Poll::Ready(place) => place,
                Poll::Pending => entering.await,
            };
        }
        let place = entering.await;
        if place.is_err() {
            arrival.failed();
        }
        place
    }

    /// Whether a newcomer's step is in no hurry.
    fn goes_far_behind(&self, name: &LockName, new: &NewClaim) -> bool {
        !new.retryable && self.waits_behind(name, new) && self.last_far(name).is_some()
    }

    /// Whether this replica knows that a newcomer has to wait.
    fn waits_behind(&self, name: &LockName, new: &NewClaim) -> bool {
        self.scenes.ask(name, |view| is_behind(view, new)) == Some(true)
    }

    /// The last of those who are known to wait, if they are so many that a newcomer is in no hurry.
    fn last_far(&self, name: &LockName) -> Option<ClaimId> {
        let last = |view: &View| {
            let last = view.waiters.last().map(|last| last.id);
            last.filter(|_| view.waiters.len() >= FAR)
        };
        self.scenes.ask(name, last).flatten()
    }

    async fn acquire_now(&self, ticket: SessionEpoch, name: &LockName, new: &NewClaim) -> Result<AcquireOutcome, Failure> {
        let mut coming = EnqueueRequest {
            lock: self.keys.lock(name),
            ticket,
            name,
            new,
        };
        let mut survey = match self.acquire_first(&coming).await? {
            Ok(place) => return Ok(place),
            Err(survey) => survey,
        };
        for _ in 0..TRIES {
            survey = match self.acquire_seeing(&coming, survey).await {
                Ok(EnqueueStep::Placed(place)) => return Ok(place),
                Ok(EnqueueStep::Again(Some(survey))) => survey,
                // A lease on the way had ended before anything was written.
                Ok(EnqueueStep::Again(None)) | Err(Failure::LeaseGone) => {
                    coming.ticket = self.session.ticket().await?;
                    self.survey(coming.ticket, name, new).await?
                }
                Err(failure) => return Err(failure),
            };
        }
        Err(Failure::Unavailable("etcd: the lock changes too fast".into()))
    }

    /// The first step: where this replica knows that others wait, the end of the queue, and
    /// otherwise the lock itself. The store judges the step, so an old view costs one more.
    async fn acquire_first(&self, coming: &EnqueueRequest<'_>) -> Result<Result<AcquireOutcome, Snapshot>, Failure> {
        let EnqueueRequest { name, new, .. } = coming;
        if self.waits_behind(name, new)
            && let Some(_sending) = self.reserve(coming, None)
        {
            match self.queue_behind(coming).await? {
                EnqueueStep::Placed(place) => return Ok(Ok(place)),
                EnqueueStep::Again(Some(survey)) => return Ok(Err(survey)),
                EnqueueStep::Again(None) => {}
            }
        }
        Ok(self.acquire_free(coming).await?.map(AcquireOutcome::Held))
    }

    /// The short way: one transaction on a lock that nobody uses.
    async fn acquire_free(&self, coming: &EnqueueRequest<'_>) -> Result<Result<crate::backend::Grant, Snapshot>, Failure> {
        self.grant_newcomer(coming, vec![none_under(coming.lock.all())]).await
    }

    async fn grant_newcomer(
        &self,
        coming: &EnqueueRequest<'_>,
        mut when: Vec<Compare>,
    ) -> Result<Result<crate::backend::Grant, Snapshot>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = coming;
        if new.retryable {
            when.push(absent(self.keys.request(new.id)));
        }
        let granting = Granting {
            name,
            lock,
            new,
            company: BatchClass::Alone,
            when,
            with: Vec::new(),
            otherwise: Snapshot::ops(&self.keys, name, lock, new, *ticket),
        };
        self.granted_or_survey(*ticket, lock, granting).await
    }

    async fn acquire_seeing(&self, coming: &EnqueueRequest<'_>, survey: Snapshot) -> Result<EnqueueStep, Failure> {
        let new = coming.new;
        if survey.marked {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Cancelled));
        }
        if !self.holds_good(coming.ticket, &survey) {
            return Ok(EnqueueStep::Again(None));
        }
        if !new.retryable && survey.view.is_foreign(new) {
            // An old copy of the store was put back, with an earlier claim of this name.
            return Err(Failure::Unavailable("etcd: a name is in use already".into()));
        }
        if let Some(entry) = survey.view.waiters.get(&new.id) {
            return self.adopt_waiter(coming, &survey.view, entry).await;
        }
        if let Some(entry) = survey.view.holder_with(&new.id) {
            return self.adopt_hold(coming, entry).await;
        }
        if let Some(cause) = survey.finished {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Finished(cause)));
        }
        if let Some(entry) = survey.view.joined_by(new) {
            return self.reenter(coming, entry).await;
        }
        self.acquire_new(coming, &survey.view).await
    }

    async fn acquire_new(&self, coming: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let new = coming.new;
        if let Some(there) = view.mismatch(new.mode) {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::LimitMismatch { there })));
        }
        let fits = view.admits(new.mode);
        if !fits && new.wait_policy == WaitPolicy::Try {
            return Ok(EnqueueStep::Placed(AcquireOutcome::Busy(self.first_holder(view).await?)));
        }
        let limit = new.limits.queue;
        let full = Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::Full { limit })));
        if view.len() >= limit as usize {
            return full;
        }
        if fits {
            return self.acquire_fitting(coming, view).await;
        }
        let Some(_sending) = self.reserve(coming, Some(view)) else {
            return full;
        };
        self.queue(coming, view).await
    }

    /// Keeps a place in the queue for a claim on its way, if this view of it, or the one that is kept up,
    /// has room for that beside what this replica has sent.
    fn reserve<'a>(&'a self, coming: &'a EnqueueRequest<'_>, view: Option<&View>) -> Option<InFlightGuard<'a>> {
        let EnqueueRequest { name, new, .. } = coming;
        let limit = new.limits.queue as usize;
        let has_room = |others: &_| self.scenes.has_room(name, view, others, limit);
        self.under_way.begin(name, new.id, has_room)
    }

    /// Grants a newcomer that fits behind all that are there; nobody may have come meanwhile.
    async fn acquire_fitting(&self, coming: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let (lock, new) = (&coming.lock, coming.new);
        let mut when = guard(lock, new.mode, view.revision);
        when.push(none_made_after(&lock.waiters(), view.revision));
        if new.mode == Mode::Shared {
            // Neither a claim of another kind has come, nor this one, brought by another call. (For the other modes
            // the guard says so.)
            when.push(none_made_after(&lock.other_holders(), view.revision));
        }
        Ok(match self.grant_newcomer(coming, when).await? {
            Ok(grant) => EnqueueStep::Placed(AcquireOutcome::Held(grant)),
            Err(survey) => EnqueueStep::Again(Some(survey)),
        })
    }

    /// Puts a claim at the tail.
    async fn queue(&self, coming: &EnqueueRequest<'_>, view: &View) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { lock, new, .. } = coming;
        let mut when = self.newcomer(coming);
        if new.reentrant {
            // It might be a holder by now that this one could join, or has joined.
            when.push(none_made_after(&lock.holders(), view.revision));
        }
        self.put_waiter(coming, when, &self.waiting(new)).await
    }

    /// Puts a claim at the tail of a lock whose view is kept up, if somebody keeps it out still: nothing
    /// is read, for its events will tell when it is next.
    async fn queue_behind(&self, coming: &EnqueueRequest<'_>) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest { name, new, .. } = coming;
        let mut when = self.newcomer(coming);
        let (company, blocked) = match self.last_far(name) {
            // Somebody who is known to wait is looked up by name, and not in the history of the lock.
            Some(last) if !new.retryable => (BatchClass::FarTail, present(coming.lock.waiter(last))),
            _ => (tail(new), some_under(&blockers(&coming.lock, new.mode))),
        };
        when.push(blocked);
        let claim = self.waiting(new);
        let write = self.write_waiter(coming, company, (when, &claim, Vec::new()));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(tried) => return Ok(tried),
        };
        self.scenes.join_behind(name, new, answer.revision);
        let ahead = self.scenes.ask(name, |view| {
            let is_first = view.waiters.len() == 0 || view.is_first(&new.id);
            Some((view.first_holder()?, is_first))
        });
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        Ok(EnqueueStep::Placed(AcquireOutcome::Waiting(QueuePosition {
            position: answer.revision.unsigned_abs(),
            frees_in: match ahead.flatten() {
                Some((holder, is_first)) => self.frees_in(holder, is_first).await,
                None => None,
            },
        })))
    }

    /// A newcomer as it begins to wait.
    fn waiting(&self, new: &NewClaim) -> Claim {
        Claim {
            place: self.arrivals.place(new.arrived),
            ..Claim::of(new)
        }
    }

    /// What must be so for a claim to be put at the tail.
    fn newcomer(&self, coming: &EnqueueRequest<'_>) -> Vec<Compare> {
        let EnqueueRequest { lock, new, ticket, .. } = coming;
        let mut when = self.fence(*ticket, new);
        when.push(absent(lock.waiter(new.id)));
        // One of a random id is entered by this call alone, and once.
        if new.retryable {
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            when.push(absent(self.keys.request(new.id)));
        }
        when
    }

    /// Writes a waiting claim, and says where it stands.
    pub async fn put_waiter(&self, coming: &EnqueueRequest<'_>, when: Vec<Compare>, claim: &Claim) -> Result<EnqueueStep, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let write = self.write_waiter(coming, tail(new), (when, claim, vec![Snapshot::glimpse(lock)]));
        let answer = match write.await? {
            Ok(answer) => answer,
            Err(tried) => return Ok(tried),
        };
        let Some(read) = answer.reads.first() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view = match read.more() {
            true => lock_watch::read(&self.link, lock).await?,
            false => {
                View::read(lock, answer.read_at, read.kvs()).map_err(|error| Failure::Refused(error.to_string()))?
            }
        };
        self.stand(*ticket, name, new, view).await.map(EnqueueStep::Placed)
    }

    /// Writes a waiting claim, and reads something with it; otherwise how to try again.
    async fn write_waiter(
        &self,
        coming: &EnqueueRequest<'_>,
        company: BatchClass,
        (when, claim, reads): (Vec<Compare>, &Claim, Vec<TxnOp>),
    ) -> Result<Result<Answer, EnqueueStep>, Failure> {
        let EnqueueRequest {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let on_session = PutOptions::new().with_lease(ticket.session);
        let mut then = vec![TxnOp::put(lock.waiter(new.id), claim.encode(), Some(on_session))];
        then.extend(reads);
        let otherwise = Snapshot::ops(&self.keys, name, lock, new, *ticket);
        match self.step_of(new.call, lock, company, when, (then, otherwise)).await {
            Err(Failure::LeaseGone) => {
                self.session.is_over(*ticket);
                Ok(Err(EnqueueStep::Again(None)))
            }
            Err(failure) => Err(failure),
            Ok(answer) if answer.succeeded => Ok(Ok(answer)),
            Ok(answer) => {
                let survey = self.surveyed((*ticket, lock, name, new), &answer).await?;
                Ok(Err(EnqueueStep::Again(Some(survey))))
            }
        }
    }

    /// Takes a waiting claim up if the view says so, for as long as others change the lock
    /// meanwhile; otherwise says what is ahead and listens.
    pub async fn stand(
        &self,
        mut ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
        mut view: View,
    ) -> Result<AcquireOutcome, Failure> {
        for _ in 0..TRIES {
            let Some(entry) = view.waiters.get(&new.id) else {
                // It was read after the step that put the claim: something has become of that since.
                let survey = self.survey(ticket, name, new).await?;
                match self.place_of(name, new, &survey).await? {
                    Some(place) => return Ok(place),
                    None => view = survey.view,
                }
                continue;
            };
            if !view.is_next(&new.id) {
                return Ok(self.wait(name, new, entry, &view).await);
            }
            match self.grant_waiting(ticket, name, new, (entry, view.revision)).await {
                Ok(Ok(grant)) => return Ok(AcquireOutcome::Held(grant)),
                Ok(Err(survey)) if survey.marked => return Ok(AcquireOutcome::Cancelled),
                Ok(Err(survey)) => {
                    if !self.holds_good(ticket, &survey) {
                        ticket = self.session.ticket().await?;
                    }
                    match self.place_of(name, new, &survey).await? {
                        Some(place) => return Ok(place),
                        None => view = survey.view,
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Unavailable("etcd: the lock changes too fast".into()))
    }

    async fn wait(&self, name: &LockName, new: &NewClaim, entry: &Entry, view: &View) -> AcquireOutcome {
        let frees_in = match view.first_holder() {
            Some(holder) => self.frees_in(holder, view.is_first(&new.id)).await,
            None => None,
        };
        self.scenes.join(name, entry, view);
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        AcquireOutcome::Waiting(QueuePosition {
            position: entry.created.unsigned_abs(),
            frees_in,
        })
    }
}

/// Whom a claim at its way to the tail goes with: one of a random id is known to no other step.
fn tail(new: &NewClaim) -> BatchClass {
    match new.retryable {
        true => BatchClass::Alone,
        false => BatchClass::Tail,
    }
}

/// Whether a newcomer has to wait, as far as a view knows.
fn is_behind(view: &View, new: &NewClaim) -> bool {
    let blocks = |mode| new.mode == Mode::Exclusive || mode == Mode::Exclusive;
    new.wait_policy == WaitPolicy::Wait
        && !new.reentrant
        && view.holders.iter().any(|holder| blocks(holder.claim.mode))
        && view.waiters.get(&new.id).is_none()
        && view.holder_with(&new.id).is_none()
        && view.mismatch(new.mode).is_none()
}

/// The holders of which each one keeps out whoever comes with this mode.
fn blockers(lock: &LockKeys, mode: Mode) -> String {
    match mode {
        Mode::Exclusive => lock.holders(),
        Mode::Shared | Mode::Semaphore { .. } => lock.exclusive_holders(),
    }
}
