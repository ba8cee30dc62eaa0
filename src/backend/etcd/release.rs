//! How a claim, or one hold of it, ends by somebody's will.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, TxnOp};

use super::Replica;
use super::grant::{Granted, Granting, absent, none_changed_after, only, unchanged};
use super::keys::{LockKeys, behind};
use super::leases::Lease;
use super::cluster_client::Failure;
use super::batch_packing::BatchClass;
use super::record::{Claim, End, Hold};
use super::lock_watch;
use super::snapshot::GLIMPSE;
use super::view::{Entry, View};
use crate::backend::{ReleaseOutcome, Released, Grant, ReleaseTarget, NewClaim};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Mode, Secret};

/// How often a step is tried against others that change the lock meanwhile.
const TRIES: usize = 64;

/// Somebody who leaves.
struct ClaimRemoval<'a> {
    name: &'a LockName,
    lock: LockKeys,
    next: Option<&'a NewClaim>,
}

/// Which holds of a holder end, and why.
struct Ending<'a> {
    entry: &'a Entry,
    /// One hold, or all.
    hold: Option<Secret>,
    cause: Cause,
}

impl Replica {
    /// See [`crate::backend::Backend::release`].
    pub async fn release(
        &self,
        name: &LockName,
        who: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, Failure> {
        let lock = self.keys.lock(name);
        let going = ClaimRemoval { name, lock, next };
        for _ in 0..TRIES {
            let left = match who {
                ReleaseTarget::Hold(lease) => self.release_hold(&going, lease).await,
                ReleaseTarget::Call(claim, call) => self.undo(&going, claim, call).await,
                ReleaseTarget::Forced(token) => self.force(&going, token).await,
            };
            match left {
                Ok(Some(departure)) => {
                    if let ReleaseTarget::Call(_, call) = who {
                        self.has_left(call, &departure.found);
                    }
                    return Ok(departure);
                }
                Ok(None) => {}
                // Nothing was written: a bucket, a session or the holder's own lease has ended.
                Err(Failure::LeaseGone) => self.ends.rotate_bucket(),
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Unavailable("etcd: the lock changes too fast".into()))
    }

    /// The leave of a call was answered: nothing of it comes any more, so the leases of its lost steps are of no use,
    /// unless another call has found what is on one.
    fn has_left(&self, call: CallId, found: &Released) {
        let lost = self.calls.over(call);
        if !matches!(found, Released::Nothing | Released::Ended(_)) {
            return;
        }
        for lease in lost {
            let leases = Arc::clone(&self.leases);
            tokio::spawn(async move {
                for id in [Some(lease.id), lease.memory].into_iter().flatten() {
                    // Otherwise it ends by itself.
                    let _ = leases.revoke(id).await;
                }
            });
        }
    }

    async fn release_hold(&self, going: &ClaimRemoval<'_>, lease: &LeaseKey) -> Result<Option<ReleaseOutcome>, Failure> {
        let known = match self.ends.known(lease) {
            Some(known) => Some(known),
            None => self.holder(lease).await?,
        };
        let Some(entry) = known.as_ref().filter(|entry| entry.hold_of(lease).is_some()) else {
            let before = self.ends.of(lease).await?;
            return Ok(Some(found(before.map_or(Released::Nothing, Released::EndedBefore))));
        };
        let ending = Ending {
            entry,
            hold: Some(lease.secret),
            cause: Cause::Released,
        };
        let left = self.end(going, ending).await?;
        if left.is_none() {
            self.refresh(going, entry).await?;
        }
        Ok(left)
    }

    /// Looks again at a holder that has changed, for what is known of it is out of date.
    async fn refresh(&self, going: &ClaimRemoval<'_>, entry: &Entry) -> Result<(), Failure> {
        let now = self.holder_at(&going.lock, entry.claim.mode.into(), entry.id).await?;
        match now.filter(|now| now.created == entry.created) {
            Some(now) => self.ends.granted(going.name, &now),
            None => self.ends.gone(going.name, entry).await?,
        }
        Ok(())
    }

    async fn force(&self, going: &ClaimRemoval<'_>, token: FencingToken) -> Result<Option<ReleaseOutcome>, Failure> {
        let view = self.holders(&going.lock).await?;
        if let Some(entry) = view.holder_of(token) {
            let ending = Ending {
                entry,
                hold: None,
                cause: Cause::Forced,
            };
            return self.end(going, ending).await;
        }
        let ends = self.keys.ends(going.name);
        let (_, ends) = self.link.range(ends.as_str(), behind(&ends)).await?;
        let mut ends = ends.iter().filter_map(|kv| End::decode(kv.value()).ok());
        let before = match ends.find(|end| end.token == token) {
            Some(end) => Some(end.cause),
            None => self.ends.of_token(going.name, token).await?,
        };
        Ok(Some(found(before.map_or(Released::Nothing, Released::EndedBefore))))
    }

    async fn undo(&self, going: &ClaimRemoval<'_>, id: &ClaimId, call: CallId) -> Result<Option<ReleaseOutcome>, Failure> {
        self.calls.release(call);
        // What this replica knows it to be is not read: many waits may end in one moment. It is known for as long as
        // nobody has answered, for an undo may be given up and begun anew.
        if let Some(queued) = self.scenes.leaving(going.name, id, call)
            && self.take_out_waiter(going, *id, queued).await?
        {
            self.scenes.part(going.name, id, call);
            return Ok(Some(found(Released::Ended(Cause::Left))));
        }
        self.scenes.part(going.name, id, call);
        // Before the lock is read: what is not there then does not come any more.
        let settled = self.calls.settle(call, self.link.wait_policy()).await;
        let view = self.look_for(going, id).await?;
        let id = &view.name_of(id, call);
        if let Some(entry) = view.waiters.get(id) {
            if entry.claim.holds.first().is_some_and(|hold| hold.call == call) {
                let gone = self.take_out_waiter(going, *id, entry.modified).await?;
                return Ok(gone.then(|| found(Released::Ended(Cause::Left))));
            }
            let when = vec![unchanged(going.lock.waiter(*id), entry)];
            let kept_out = settled || self.mark(&going.lock, when, call).await?;
            return Ok(kept_out.then(|| found(Released::Adopted)));
        }
        let Some(entry) = view.holder_with(id) else {
            return self.undo_nothing(going, &view, id, (call, settled)).await;
        };
        match entry.claim.hold(id) {
            Some(hold) if hold.call == call && !hold.adopted => {
                let ending = Ending {
                    entry,
                    hold: Some(hold.secret),
                    cause: Cause::TakenBack,
                };
                self.end(going, ending).await
            }
            _ => {
                let key = going.lock.holder(entry.claim.mode.into(), entry.id);
                let when = vec![unchanged(key, entry)];
                let kept_out = settled || self.mark(&going.lock, when, call).await?;
                Ok(kept_out.then(|| found(Released::Adopted)))
            }
        }
    }

    /// The holders of a lock, and of its queue the waiter of this name alone.
    async fn look_for(&self, going: &ClaimRemoval<'_>, id: &ClaimId) -> Result<View, Failure> {
        let some = GetOptions::new().with_prefix().with_limit(GLIMPSE);
        let reads = vec![
            TxnOp::get(going.lock.holders(), Some(some)),
            TxnOp::get(going.lock.waiter(*id), None),
        ];
        let answer = self
            .step(&going.lock, BatchClass::Removal, Vec::new(), reads, Vec::new())
            .await?;
        let [holders, waiter] = answer.reads.as_slice() else {
            return Err(Failure::Refused("etcd: a transaction lacks an answer".into()));
        };
        let (revision, mut kvs) = match holders.more() {
            true => {
                let all = going.lock.holders();
                self.link.range(all.as_str(), behind(&all)).await?
            }
            false => (answer.read_at, holders.kvs().to_vec()),
        };
        kvs.extend_from_slice(waiter.kvs());
        View::read(&going.lock, revision, &kvs).map_err(|error| Failure::Refused(error.to_string()))
    }

    /// Takes a waiter out, if it was last written at this revision; whether it was.
    async fn take_out_waiter(&self, going: &ClaimRemoval<'_>, id: ClaimId, written: i64) -> Result<bool, Failure> {
        let key = going.lock.waiter(id);
        let when = vec![Compare::mod_revision(key.clone(), CompareOp::Equal, written)];
        let then = vec![TxnOp::delete(key, None)];
        let answer = self.step(&going.lock, BatchClass::Removal, when, then, Vec::new()).await?;
        Ok(answer.succeeded)
    }

    /// Nothing of the call is there: its mark keeps out what may still be on its way, if anything is.
    async fn undo_nothing(
        &self,
        going: &ClaimRemoval<'_>,
        view: &View,
        id: &ClaimId,
        (call, settled): (CallId, bool),
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let when = vec![
            none_changed_after(&going.lock.holders(), view.revision),
            absent(going.lock.waiter(*id)),
        ];
        if !settled && !self.mark(&going.lock, when, call).await? {
            return Ok(None);
        }
        let request = self.link.get(self.keys.request(*id), GetOptions::new()).await?;
        let before = request.kvs().first().and_then(|kv| End::decode(kv.value()).ok());
        Ok(Some(found(
            before.map_or(Released::Nothing, |end| Released::EndedBefore(end.cause)),
        )))
    }

    /// Leaves a cancel mark, if all is as it was seen. It lives as long as this replica's session:
    /// what was sent under that one fails afterwards anyhow.
    async fn mark(&self, lock: &LockKeys, when: Vec<Compare>, call: CallId) -> Result<bool, Failure> {
        let ticket = self.session.ticket().await?;
        let on_session = PutOptions::new().with_lease(ticket.session);
        let put = TxnOp::put(self.keys.mark(call), "1", Some(on_session));
        match self.step(lock, BatchClass::Alone, when, vec![put], Vec::new()).await {
            Ok(answer) => Ok(answer.succeeded),
            Err(Failure::LeaseGone) => {
                self.session.is_over(ticket);
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Ends a hold of a claim, or the claim with its last one; nothing if it has changed meanwhile.
    async fn end(&self, going: &ClaimRemoval<'_>, ending: Ending<'_>) -> Result<Option<ReleaseOutcome>, Failure> {
        let Ending { entry, hold, cause } = ending;
        let (gone, left): (Vec<Hold>, Vec<Hold>) = entry
            .claim
            .holds
            .iter()
            .cloned()
            .partition(|known| hold.is_none_or(|hold| known.secret == hold));
        let mut then = match self.ends.ops(going.name, entry, &gone, cause).await {
            // A full store remembers nothing more.
            Err(Failure::Full(_)) => Vec::new(),
            ops => ops?,
        };
        let key = going.lock.holder(entry.claim.mode.into(), entry.id);
        if !left.is_empty() {
            let claim = Claim {
                holds: left,
                ..entry.claim.clone()
            };
            let on_lease = PutOptions::new().with_lease(entry.lease);
            then.push(TxnOp::put(key.clone(), claim.encode(), Some(on_lease)));
            let when = vec![unchanged(key, entry)];
            let answer = self.step(&going.lock, BatchClass::Host, when, then, Vec::new()).await?;
            if !answer.succeeded {
                return Ok(None);
            }
            let modified = answer.revision;
            let entry = Entry {
                claim,
                modified,
                ..entry.clone()
            };
            self.ends.granted(going.name, &entry);
            return Ok(Some(found(Released::Ended(cause))));
        }
        then.push(TxnOp::delete(key.clone(), None));
        if let Some(next) = going.next
            && let Some(grant) = self.hand_over(going, entry, next, then.clone()).await?
        {
            self.after(going.name, entry, cause);
            self.ends.remember_others(going.name, entry, &gone, cause).await;
            return Ok(Some(ReleaseOutcome {
                found: Released::Ended(cause),
                next: Some(grant),
            }));
        }
        let when = || vec![unchanged(key.clone(), entry)];
        let ended = match self.step(&going.lock, BatchClass::Host, when(), then, Vec::new()).await {
            // A full store takes only what writes nothing; so the end is not remembered.
            Err(Failure::Full(_)) => {
                let mut delete = self.ends.forget_requests(&gone);
                delete.push(TxnOp::delete(key.clone(), None));
                self.step(&going.lock, BatchClass::Host, when(), delete, Vec::new())
                    .await?
            }
            answer => answer?,
        };
        if !ended.succeeded {
            return Ok(None);
        }
        self.after(going.name, entry, cause);
        self.ends.remember_others(going.name, entry, &gone, cause).await;
        Ok(Some(found(Released::Ended(cause))))
    }

    /// A holder is gone, and this replica has the answer that says so.
    fn after(&self, name: &LockName, entry: &Entry, cause: Cause) {
        let alive = self.ends.ended(entry);
        self.scenes.ended(name, entry);
        let settled = || entry.claim.holds.iter().all(|hold| self.calls.is_settled(hold.call));
        // A holder that is about to move to another lease is entangled, too.
        let unshared = !entry.claim.not_poolable;
        if unshared && (cause == Cause::Released || (cause == Cause::TakenBack && settled())) {
            self.leases.put_back(Lease {
                id: entry.lease,
                span_s: entry.claim.span_s,
                alive,
                used: true,
                memory: entry.claim.memory(),
            });
        }
        if unshared && cause == Cause::Released {
            self.names.released(entry);
        }
    }

    /// Ends the only holder and grants the next waiter in one step, if that one is first in a view.
    async fn hand_over(
        &self,
        going: &ClaimRemoval<'_>,
        entry: &Entry,
        next: &NewClaim,
        with: Vec<TxnOp>,
    ) -> Result<Option<Grant>, Failure> {
        let (name, lock) = (going.name, &going.lock);
        let known = self.scenes.ask(name, |view| {
            view.waiters
                .get(&next.id)
                .is_some()
                .then(|| next_alone(view, entry, next))
        });
        let waiter = match known.flatten() {
            Some(waiter) => waiter,
            None => next_alone(&lock_watch::read(&self.link, lock).await?, entry, next),
        };
        let Some(waiter) = waiter else {
            return Ok(None);
        };
        // Beside an exclusive holder there is none; and a range would be looked for in the lock's whole history.
        let alone = match entry.claim.mode {
            Mode::Exclusive => unchanged(lock.holder(Mode::Exclusive.into(), entry.id), entry),
            Mode::Shared | Mode::Semaphore { .. } => only(&lock.holders(), entry),
        };
        let when = vec![alone, unchanged(lock.waiter(next.id), &waiter)];
        let handing_over = self.scenes.hand_over(name, next.id);
        let mut with = with;
        with.push(TxnOp::delete(lock.waiter(next.id), None));
        let granting = Granting {
            name,
            lock,
            new: next,
            company: BatchClass::Host,
            when,
            with,
            otherwise: Vec::new(),
        };
        let ticket = self.session.ticket().await?;
        let granted = self.grant(ticket, granting).await;
        if matches!(granted, Ok(Granted::Yes(_))) {
            self.scenes.part(name, &next.id, next.call);
        }
        drop(handing_over);
        match granted {
            Ok(Granted::Yes(grant)) => Ok(Some(grant)),
            // Nothing was written, or the call of the next has left meanwhile: it is released plainly.
            Ok(Granted::No(_)) | Err(Failure::LeaseGone | Failure::NotSent(_)) => Ok(None),
            // If it was granted all the same, the plain release finds that this holder is gone.
            Err(Failure::Full(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// The waiter of this call, if it is the first one and would be alone once this holder is gone.
fn next_alone(view: &View, gone: &Entry, next: &NewClaim) -> Option<Entry> {
    let alone = view.holders.iter().all(|holder| holder.id == gone.id);
    let first = view.next_without(Some(&gone.id)).next()?;
    let ours = first.id == next.id && first.claim.holds.first().is_some_and(|hold| hold.call == next.call);
    (alone && ours).then(|| first.clone())
}

fn found(found: Released) -> ReleaseOutcome {
    ReleaseOutcome { found, next: None }
}
