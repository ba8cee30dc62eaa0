//! How a call comes to a lock: granted at once, queued, or finding a claim that is there already.

use etcd_client::{GetOptions, PutOptions, TxnOp};

use super::Replica;
use super::grant::{Granting, absent, grant_of, guard, none_made_after, none_under, unchanged};
use super::keys::LockKeys;
use super::leases::seconds;
use super::link::Failure;
use super::record::{Claim, Hold};
use super::session::Ticket;
use super::survey::Survey;
use super::view::{Entry, View};
use crate::backend::{Ahead, NewClaim, Patience, Place, Refusal};
use crate::name::{LockName, Mode};

/// How often a step is tried against others that change the lock meanwhile.
const TRIES: usize = 64;

/// A call on its way into a lock.
struct Coming<'a> {
    name: &'a LockName,
    lock: LockKeys,
    new: &'a NewClaim,
    ticket: Ticket,
}

/// What one try gave: a place, or a later survey to try again from.
enum Tried {
    Placed(Place),
    Again(Option<Survey>),
}

impl Replica {
    /// See [`crate::backend::Backend::enter`].
    pub async fn enter(&self, name: &LockName, new: &NewClaim) -> Result<Place, Failure> {
        let lock = self.keys.lock(name);
        let mut coming = Coming {
            ticket: self.session.ticket().await?,
            name,
            lock,
            new,
        };
        let mut survey = match self.enter_first(&coming).await? {
            Ok(place) => return Ok(place),
            Err(survey) => survey,
        };
        for _ in 0..TRIES {
            survey = match self.enter_seeing(&coming, survey).await {
                Ok(Tried::Placed(place)) => return Ok(place),
                Ok(Tried::Again(Some(survey))) => survey,
                // A lease on the way had ended before anything was written.
                Ok(Tried::Again(None)) | Err(Failure::LeaseGone) => {
                    coming.ticket = self.session.ticket().await?;
                    self.survey(coming.ticket, name, new).await?
                }
                Err(failure) => return Err(failure),
            };
        }
        Err(Failure::Away("etcd: the lock changes too fast".into()))
    }

    /// The first step: where this replica knows that others wait, the end of the queue, and
    /// otherwise the lock itself. The store judges the step, so an old view costs one more.
    async fn enter_first(&self, coming: &Coming<'_>) -> Result<Result<Place, Survey>, Failure> {
        if let Some(view) = self.scenes.view(coming.name).filter(|view| is_behind(view, coming.new)) {
            match self.queue(coming, &view).await? {
                Tried::Placed(place) => return Ok(Ok(place)),
                Tried::Again(Some(survey)) => return Ok(Err(survey)),
                Tried::Again(None) => {}
            }
        }
        Ok(self.enter_free(coming).await?.map(Place::Held))
    }

    /// The short way: one transaction on a lock that nobody uses.
    async fn enter_free(&self, coming: &Coming<'_>) -> Result<Result<crate::backend::Grant, Survey>, Failure> {
        let when = vec![none_under(&coming.lock.holders()), none_under(&coming.lock.waiters())];
        self.grant_newcomer(coming, when).await
    }

    async fn grant_newcomer(
        &self,
        coming: &Coming<'_>,
        mut when: Vec<etcd_client::Compare>,
    ) -> Result<Result<crate::backend::Grant, Survey>, Failure> {
        let Coming {
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
            when,
            with: Vec::new(),
            otherwise: Survey::ops(&self.keys, name, lock, new, *ticket),
        };
        self.granted_or_survey(*ticket, lock, granting).await
    }

    async fn enter_seeing(&self, coming: &Coming<'_>, survey: Survey) -> Result<Tried, Failure> {
        let new = coming.new;
        if survey.marked {
            return Ok(Tried::Placed(Place::Left));
        }
        if !self.holds_good(coming.ticket, &survey) {
            return Ok(Tried::Again(None));
        }
        if let Some(entry) = survey.view.waiters.get(&new.id) {
            return self.adopt_waiter(coming, &survey.view, entry).await;
        }
        if let Some(entry) = survey.view.holder_with(&new.id) {
            return self.adopt_hold(coming, entry).await;
        }
        if let Some(cause) = survey.finished {
            return Ok(Tried::Placed(Place::Finished(cause)));
        }
        if let Some(entry) = survey.view.joined_by(new) {
            return self.reenter(coming, entry).await;
        }
        self.enter_new(coming, &survey.view).await
    }

    async fn enter_new(&self, coming: &Coming<'_>, view: &View) -> Result<Tried, Failure> {
        let new = coming.new;
        if let Some(there) = view.mismatch(new.mode) {
            return Ok(Tried::Placed(Place::Refused(Refusal::LimitMismatch { there })));
        }
        let fits = view.admits(new.mode);
        if !fits && new.patience == Patience::Try {
            return Ok(Tried::Placed(Place::Busy(self.first_holder(view).await?)));
        }
        if view.len() >= new.limits.queue as usize {
            let limit = new.limits.queue;
            return Ok(Tried::Placed(Place::Refused(Refusal::Full { limit })));
        }
        if fits {
            return self.enter_fitting(coming, view).await;
        }
        self.queue(coming, view).await
    }

    /// Grants a newcomer that fits behind all that are there; nobody may have come meanwhile.
    async fn enter_fitting(&self, coming: &Coming<'_>, view: &View) -> Result<Tried, Failure> {
        let (lock, new) = (&coming.lock, coming.new);
        let mut when = guard(lock, new.mode, view.revision);
        when.push(none_made_after(&lock.waiters(), view.revision));
        if new.mode != Mode::Exclusive {
            // The same claim, brought by another call, is not to be overwritten.
            when.push(absent(lock.holder(new.mode.into(), new.id)));
            when.push(none_made_after(&lock.other_holders(), view.revision));
        }
        Ok(match self.grant_newcomer(coming, when).await? {
            Ok(grant) => Tried::Placed(Place::Held(grant)),
            Err(survey) => Tried::Again(Some(survey)),
        })
    }

    /// Puts a claim at the tail.
    async fn queue(&self, coming: &Coming<'_>, view: &View) -> Result<Tried, Failure> {
        let Coming { lock, new, ticket, .. } = coming;
        let mut when = self.fence(*ticket, new);
        when.push(absent(lock.holder(new.mode.into(), new.id)));
        when.push(absent(lock.waiter(new.id)));
        if new.retryable {
            when.push(absent(self.keys.request(new.id)));
        }
        if new.reentrant {
            // It might be a holder by now that this one could join, or has joined.
            when.push(none_made_after(&lock.holders(), view.revision));
        }
        self.put_waiter(coming, when, &Claim::of(new)).await
    }

    /// Writes a waiting claim, and says where it stands.
    async fn put_waiter(
        &self,
        coming: &Coming<'_>,
        when: Vec<etcd_client::Compare>,
        claim: &Claim,
    ) -> Result<Tried, Failure> {
        let Coming {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let on_session = PutOptions::new().with_lease(ticket.session);
        let put = TxnOp::put(lock.waiter(new.id), claim.encode(), Some(on_session));
        let whole = TxnOp::get(lock.all(), Some(GetOptions::new().with_range(lock.behind())));
        let otherwise = Survey::ops(&self.keys, name, lock, new, *ticket);
        let answer = match self.step(lock, when, vec![put, whole], otherwise).await {
            Err(Failure::LeaseGone) => {
                self.session.is_over(*ticket);
                return Ok(Tried::Again(None));
            }
            answer => answer?,
        };
        if !answer.succeeded {
            return Ok(Tried::Again(Some(Survey::read(lock, &answer)?)));
        }
        let Some(read) = answer.reads.first() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let view =
            View::read(lock, answer.revision, read.kvs()).map_err(|error| Failure::Refused(error.to_string()))?;
        self.stand(*ticket, name, new, view).await.map(Tried::Placed)
    }

    /// Takes a waiting claim up if the view says so, for as long as others change the lock
    /// meanwhile; otherwise says what is ahead and listens.
    pub async fn stand(
        &self,
        mut ticket: Ticket,
        name: &LockName,
        new: &NewClaim,
        mut view: View,
    ) -> Result<Place, Failure> {
        for _ in 0..TRIES {
            let Some(entry) = view.waiters.get(&new.id) else {
                break;
            };
            if !view.is_next(&new.id) {
                return Ok(self.wait(name, new, entry, &view).await);
            }
            match self.grant_waiting(ticket, name, new, (entry, view.revision)).await {
                Ok(Ok(grant)) => return Ok(Place::Held(grant)),
                Ok(Err(survey)) if survey.marked => return Ok(Place::Left),
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
        Err(Failure::Away("etcd: the lock changes too fast".into()))
    }

    async fn wait(&self, name: &LockName, new: &NewClaim, entry: &Entry, view: &View) -> Place {
        let frees_in = self.frees_in(view, &new.id).await;
        self.scenes.join(name, entry, view);
        tracing::trace!(lock = %name, claim = %new.id, "waits");
        Place::Waiting(Ahead {
            turn: entry.created.unsigned_abs(),
            frees_in,
        })
    }

    /// Takes over a claim of the same request that waits.
    async fn adopt_waiter(&self, coming: &Coming<'_>, view: &View, entry: &Entry) -> Result<Tried, Failure> {
        let Coming {
            name,
            lock,
            new,
            ticket,
        } = coming;
        if let Some(field) = entry.claim.differs(new) {
            return Ok(Tried::Placed(Place::Refused(Refusal::OtherParameters { field })));
        }
        if view.is_next(&new.id) {
            return Ok(
                match self.grant_waiting(*ticket, name, new, (entry, view.revision)).await? {
                    Ok(grant) => Tried::Placed(Place::Held(grant)),
                    Err(survey) => Tried::Again(Some(survey)),
                },
            );
        }
        let mut when = self.fence(*ticket, new);
        when.push(unchanged(lock.waiter(new.id), entry));
        if new.patience == Patience::Try {
            return self.take_out(coming, view, entry, when).await;
        }
        let adopted = Claim {
            since: entry.claim.since,
            ..Claim::of(new)
        };
        self.put_waiter(coming, when, &adopted).await
    }

    /// A try found its own claim waiting where it does not fit: takes it out, and marks the older
    /// call.
    async fn take_out(
        &self,
        coming: &Coming<'_>,
        view: &View,
        entry: &Entry,
        when: Vec<etcd_client::Compare>,
    ) -> Result<Tried, Failure> {
        let Coming {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let mut then = vec![TxnOp::delete(lock.waiter(new.id), None)];
        if let Some(older) = entry.claim.holds.first().filter(|older| older.call != new.call) {
            let on_session = PutOptions::new().with_lease(ticket.session);
            then.push(TxnOp::put(self.keys.mark(older.call), "1", Some(on_session)));
        }
        let otherwise = Survey::ops(&self.keys, name, lock, new, *ticket);
        let answer = self.step(lock, when, then, otherwise).await?;
        if answer.succeeded {
            return Ok(Tried::Placed(Place::Busy(self.first_holder(view).await?)));
        }
        Ok(Tried::Again(Some(Survey::read(lock, &answer)?)))
    }

    /// Notes on a hold of the same request that two calls know it.
    async fn adopt_hold(&self, coming: &Coming<'_>, entry: &Entry) -> Result<Tried, Failure> {
        let new = coming.new;
        if let Some(field) = entry.claim.differs(new) {
            return Ok(Tried::Placed(Place::Refused(Refusal::OtherParameters { field })));
        }
        let mut entry = entry.clone();
        let Some(hold) = entry.claim.holds.iter_mut().find(|hold| hold.id == new.id) else {
            return Ok(Tried::Again(None));
        };
        let secret = hold.secret;
        // The same step sent twice is not a second call.
        if hold.call != new.call && !hold.adopted {
            hold.adopted = true;
            entry.claim.entangled = true;
            if let Err(survey) = self.rewrite(coming, &mut entry).await? {
                return Ok(Tried::Again(Some(survey)));
            }
        }
        let Some(left) = self.leases.remaining(entry.lease).await? else {
            return Ok(Tried::Again(None));
        };
        Ok(Tried::Placed(Place::Held(grant_of(
            &entry,
            secret,
            left,
            std::time::Duration::ZERO,
        )?)))
    }

    /// One more hold on a claim of the same owner.
    async fn reenter(&self, coming: &Coming<'_>, entry: &Entry) -> Result<Tried, Failure> {
        let new = coming.new;
        let refused = |refusal| Ok(Tried::Placed(Place::Refused(refusal)));
        if let Some(field) = entry.claim.differs(new) {
            return refused(Refusal::OtherParameters { field });
        }
        if entry.claim.holds.len() >= new.limits.holds as usize {
            return refused(Refusal::Full {
                limit: new.limits.holds,
            });
        }
        let mut entry = entry.clone();
        entry.claim.holds.push(Hold::of(new));
        entry.claim.entangled = true;
        let longer = seconds(new.ttl.get()) > entry.claim.span_s;
        if !longer {
            entry.claim.ttl = new.ttl.get();
        }
        let on = entry.lease;
        let (written, alive) = tokio::join!(self.rewrite(coming, &mut entry), self.leases.keep_alive(on));
        if let Err(survey) = written? {
            return Ok(Tried::Again(Some(survey)));
        }
        if !alive? {
            return Err(Failure::Away("etcd: a lease ended with a re-entry".into()));
        }
        let mut ttl = super::leases::span(entry.claim.span_s);
        if longer {
            let Some((moved, span)) = self.move_lease(coming.name, &entry, new.ttl.get()).await? else {
                return Err(Failure::Away("etcd: a holder changed while its lease did".into()));
            };
            (entry, ttl) = (moved, span);
        }
        Ok(Tried::Placed(Place::Held(grant_of(
            &entry,
            new.secret,
            ttl,
            std::time::Duration::ZERO,
        )?)))
    }

    /// Writes a holder's record anew on its lease, if it is what was read and the call may.
    async fn rewrite(&self, coming: &Coming<'_>, entry: &mut Entry) -> Result<Result<(), Survey>, Failure> {
        let Coming {
            name,
            lock,
            new,
            ticket,
        } = coming;
        let key = lock.holder(entry.claim.mode.into(), entry.id);
        let mut when = self.fence(*ticket, new);
        when.push(unchanged(key.clone(), entry));
        if new.retryable {
            when.push(absent(self.keys.request(new.id)));
        }
        let put = TxnOp::put(
            key,
            entry.claim.encode(),
            Some(PutOptions::new().with_lease(entry.lease)),
        );
        let otherwise = Survey::ops(&self.keys, name, lock, new, *ticket);
        let answer = self.step(lock, when, vec![put], otherwise).await?;
        if !answer.succeeded {
            return Ok(Err(Survey::read(lock, &answer)?));
        }
        entry.modified = answer.revision;
        self.ends.granted(name, entry);
        Ok(Ok(()))
    }
}

/// Whether a newcomer has to wait behind those that a view shows, whatever has changed since.
fn is_behind(view: &View, new: &NewClaim) -> bool {
    new.patience == Patience::Wait
        && !new.reentrant
        && view.waiters.len() > 0
        && view.len() < new.limits.queue as usize
        && view.waiters.get(&new.id).is_none()
        && view.holder_with(&new.id).is_none()
        && view.mismatch(new.mode).is_none()
}
