//! How a call comes to a lock: granted at once, queued, or (in [`super::adopt`]) finding a claim that is there already.

use std::task::Poll;

use etcd_client::Compare;
use futures::poll;
use tokio::time::Instant;

use super::Replica;
use super::admission::AdmissionTicket;
use super::batch_packing::BatchClass;
use super::cluster_client::Failure;
use super::grant::{Granting, absent, guard, none_in, none_made_after, none_under};
use super::in_flight::{InFlightGuard, Others};
use super::keys::LockKeys;
use super::session::SessionEpoch;
use super::snapshot::Snapshot;
use super::view::{Entry, View};
use crate::backend::{AcquireOutcome, NewClaim, QueuePosition, Refusal, WaitPolicy};
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
        let Some(mut arrival) = line else {
            return self.acquire_now(ticket, name, new).await;
        };
        if arrival.together {
            let coming = self.coming(ticket, name, new);
            match self.in_line(&arrival, self.acquire_free(&coming)).await {
                Ok(Ok(grant)) => return Ok(AcquireOutcome::Held(grant)),
                // Not at once: so in the order in which it came.
                Ok(Err(_)) | Err(Failure::LeaseGone) => arrival.go_alone().await?,
                Err(failure) => return Err(failure),
            }
        }
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
        self.in_line(&arrival, entering).await
    }

    /// Makes a step of a call whose turn has come. Where the store does not answer it, those behind it are told so.
    pub async fn in_line<T>(
        &self,
        arrival: &AdmissionTicket<'_>,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let answer = step.await;
        // One that fails sooner delays nobody.
        if let Err(failure) = &answer
            && sent.elapsed() >= self.link.wait_policy()
        {
            arrival.failed(failure);
        }
        answer
    }

    /// Whether a newcomer goes beside other readers: as far as this replica knows, it is granted at once, and takes
    /// nothing from them.
    pub fn goes_together(&self, name: &LockName, new: &NewClaim) -> bool {
        let is_free = |view: &View| {
            let writes = |holder: &Entry| holder.claim.mode == Mode::Exclusive;
            view.waiters.len() == 0 && !view.holders.iter().any(writes)
        };
        new.mode == Mode::Shared && !new.reentrant && self.scenes.ask(name, is_free) != Some(false)
    }

    fn coming<'a>(&self, ticket: SessionEpoch, name: &'a LockName, new: &'a NewClaim) -> EnqueueRequest<'a> {
        EnqueueRequest {
            lock: self.keys.lock(name),
            ticket,
            name,
            new,
        }
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
    pub fn last_far(&self, name: &LockName) -> Option<ClaimId> {
        let last = |view: &View| {
            let last = view.waiters.last().map(|last| last.id);
            last.filter(|_| view.waiters.len() >= FAR)
        };
        self.scenes.ask(name, last).flatten()
    }

    async fn acquire_now(
        &self,
        ticket: SessionEpoch,
        name: &LockName,
        new: &NewClaim,
    ) -> Result<AcquireOutcome, Failure> {
        let mut coming = self.coming(ticket, name, new);
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

    /// The short way: one transaction on a lock that nobody uses, or that others only read.
    async fn acquire_free(
        &self,
        coming: &EnqueueRequest<'_>,
    ) -> Result<Result<crate::backend::Grant, Snapshot>, Failure> {
        let EnqueueRequest { name, lock, new, .. } = coming;
        // One that may join a holder looks for that first.
        let reads = new.mode == Mode::Shared && !new.reentrant;
        // Etcd cannot count them in the step that adds one; so each replica adds some of its own without counting.
        let uncounted = new.limits.queue as usize / 2;
        let has_room = |others: &Others| self.ends.readers(name) + others.len() < uncounted;
        let sending = reads.then(|| self.under_way.begin(name, new.id, has_room)).flatten();
        let when = match sending {
            Some(_) => vec![
                none_in(lock.all_but_readers()),
                absent(lock.holder(new.mode.into(), new.id)),
            ],
            None => vec![none_under(lock.all())],
        };
        self.grant_newcomer(coming, when, None).await
    }

    async fn grant_newcomer(
        &self,
        coming: &EnqueueRequest<'_>,
        mut when: Vec<Compare>,
        judged_at: Option<i64>,
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
            company: match new.mode {
                Mode::Exclusive => BatchClass::Alone,
                Mode::Shared | Mode::Semaphore { .. } => BatchClass::Sharer,
            },
            when,
            judged_at,
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
        let mut sending = None;
        if new.mode == Mode::Shared {
            // Any number of them are granted by one view, so each needs room beside those on their way.
            sending = self.reserve(coming, Some(view));
            if sending.is_none() {
                let limit = new.limits.queue;
                return Ok(EnqueueStep::Placed(AcquireOutcome::Refused(Refusal::Full { limit })));
            }
            // Not this one, brought by another call. (For the other modes the guard says so.)
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            if new.reentrant {
                // Nor one that it could join.
                when.push(none_made_after(&lock.readers(), view.revision));
            }
        }
        let judged_at = matches!(new.mode, Mode::Semaphore { .. }).then_some(view.revision);
        let granted = self.grant_newcomer(coming, when, judged_at).await?;
        drop(sending);
        Ok(match granted {
            Ok(grant) => EnqueueStep::Placed(AcquireOutcome::Held(grant)),
            Err(survey) => EnqueueStep::Again(Some(survey)),
        })
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
