//! Ends a claim, or one hold of it: by a release, a force release or the undo of a call.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, TxnOp};

use super::Replica;
use super::grant::Granting;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::{absent, none_changed_after, only, put_on, unchanged};
use crate::backend::etcd::data::keys::{LockKeys, behind};
use crate::backend::etcd::data::record::{Claim, End, Hold};
use crate::backend::etcd::data::snapshot::{Call, GLIMPSE};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::Lease;
use crate::backend::etcd::txn::packing::BatchClass;
use crate::backend::{Grant, NewClaim, ReleaseOutcome, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Mode, Secret};

/// How often a step is retried when the lock changed concurrently.
const TRIES: usize = 64;

/// The lock of a release, and the waiter that the lock may be handed over to.
struct ClaimRemoval<'a> {
    name: &'a LockName,
    lock: LockKeys,
    next: Option<&'a NewClaim>,
}

/// The holds of a holder that end, and the cause.
struct Ending<'a> {
    entry: &'a Entry,
    /// The secret of one hold; None for all holds.
    hold: Option<Secret>,
    cause: Cause,
}

impl Replica {
    /// See [`crate::backend::Backend::release`].
    pub async fn release(
        &self,
        name: &LockName,
        target: ReleaseTarget<'_>,
        next: Option<&NewClaim>,
    ) -> Result<ReleaseOutcome, Failure> {
        let lock = self.keys.lock(name);
        let removal = ClaimRemoval { name, lock, next };
        for _ in 0..TRIES {
            let left = match target {
                ReleaseTarget::Hold(lease) => self.release_hold(&removal, lease).await,
                ReleaseTarget::Call(claim, call) => self.undo(&removal, claim, call).await,
                ReleaseTarget::Forced(token) => self.force(&removal, token).await,
            };
            match left {
                Ok(Some(outcome)) => {
                    if let ReleaseTarget::Call(_, call) = target {
                        self.revoke_lost(call, &outcome.released);
                    }
                    return Ok(outcome);
                }
                Ok(None) => {}
                // Nothing was written: the lease of a bucket, of the session or of the holder has ended.
                Err(Failure::LeaseGone) => self.history.rotate_bucket(),
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::contended())
    }

    /// Revokes the leases of an undone call's steps of unknown outcome. After the undo none of these steps can take
    /// effect any more. The leases stay if another call has adopted the claim.
    fn revoke_lost(&self, call: CallId, found: &Released) {
        let lost = self.calls.over(call);
        if !matches!(found, Released::Nothing | Released::Ended(_)) {
            return;
        }
        for lease in lost {
            let leases = Arc::clone(&self.leases);
            tokio::spawn(async move {
                for id in [Some(lease.id), lease.memory].into_iter().flatten() {
                    // If that fails, it expires.
                    let _ = leases.revoke(id).await;
                }
            });
        }
    }

    async fn release_hold(
        &self,
        removal: &ClaimRemoval<'_>,
        lease: &LeaseKey,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let known = match self.history.known(lease) {
            Some(known) => Some(known),
            None => self.holder(lease).await?,
        };
        let Some(entry) = known.as_ref().filter(|entry| entry.hold_of(lease).is_some()) else {
            let before = self.history.of(lease).await?;
            return Ok(Some(outcome(before.map_or(Released::Nothing, Released::EndedBefore))));
        };
        let ending = Ending {
            entry,
            hold: Some(lease.secret),
            cause: Cause::Released,
        };
        let left = self.end(removal, ending).await?;
        if left.is_none() {
            self.refresh(removal, entry).await?;
        }
        Ok(left)
    }

    /// Reads a holder again, because its known record is outdated.
    async fn refresh(&self, removal: &ClaimRemoval<'_>, entry: &Entry) -> Result<(), Failure> {
        let now = self.holder_at(&removal.lock, entry.claim.mode.into(), entry.id).await?;
        match now.filter(|now| now.created == entry.created) {
            Some(now) => self.history.note(removal.name, &now, None),
            None => self.history.gone(removal.name, entry).await?,
        }
        Ok(())
    }

    async fn force(&self, removal: &ClaimRemoval<'_>, token: FencingToken) -> Result<Option<ReleaseOutcome>, Failure> {
        let view = View::fetch_holders(&self.link, &removal.lock).await?;
        if let Some(entry) = view.holder_of(token) {
            let ending = Ending {
                entry,
                hold: None,
                cause: Cause::Forced,
            };
            return self.end(removal, ending).await;
        }
        let ends = self.keys.ends(removal.name);
        let (_, ends) = self.link.range(ends.as_str(), behind(&ends)).await?;
        let mut ends = ends.iter().filter_map(|kv| End::decode(kv.value()).ok());
        let before = match ends.find(|end| end.token == token) {
            Some(end) => Some(end.cause),
            None => self.history.of_token(removal.name, token).await?,
        };
        Ok(Some(outcome(before.map_or(Released::Nothing, Released::EndedBefore))))
    }

    async fn undo(
        &self,
        removal: &ClaimRemoval<'_>,
        id: &ClaimId,
        call: CallId,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        self.calls.release(call);
        // A known waiter is removed without a read, because many waits may end at the same time. It stays known until
        // the removal was answered, because an undo may be dropped and begun again.
        if let Some(queued) = self.locks.leaving(removal.name, id, call)
            && self.remove_waiter(removal, *id, queued).await?
        {
            self.locks.part(removal.name, id, call);
            return Ok(Some(outcome(Released::Ended(Cause::Cancelled))));
        }
        self.locks.part(removal.name, id, call);
        // Settled before the lock is read: then a claim that is not read cannot appear later.
        let settled = self.calls.settle(call, self.link.request_timeout()).await;
        let view = self.read_for_undo(removal, id).await?;
        let id = &view.name_of(id, call);
        if let Some(entry) = view.waiters.get(id) {
            if entry.claim.holds.first().is_some_and(|hold| hold.call == call) {
                let gone = self.remove_waiter(removal, *id, entry.modified).await?;
                return Ok(gone.then(|| outcome(Released::Ended(Cause::Cancelled))));
            }
            let when = vec![unchanged(removal.lock.waiter(*id), entry)];
            let kept_out = settled || self.mark(&removal.lock, when, call).await?;
            return Ok(kept_out.then(|| outcome(Released::Adopted)));
        }
        let Some(entry) = view.holder_with(id) else {
            return self.undo_nothing(removal, &view, id, (call, settled)).await;
        };
        match entry.claim.hold(id) {
            Some(hold) if hold.call == call && !hold.adopted => {
                let ending = Ending {
                    entry,
                    hold: Some(hold.secret),
                    cause: Cause::Undone,
                };
                self.end(removal, ending).await
            }
            _ => {
                let key = entry.holder_key(&removal.lock);
                let when = vec![unchanged(key, entry)];
                let kept_out = settled || self.mark(&removal.lock, when, call).await?;
                Ok(kept_out.then(|| outcome(Released::Adopted)))
            }
        }
    }

    /// Reads the holders of a lock, and of its waiters the one with this id.
    async fn read_for_undo(&self, removal: &ClaimRemoval<'_>, id: &ClaimId) -> Result<View, Failure> {
        let some = GetOptions::new().with_prefix().with_limit(GLIMPSE);
        let reads = vec![
            TxnOp::get(removal.lock.holders(), Some(some)),
            TxnOp::get(removal.lock.waiter(*id), None),
        ];
        let answer = self.step(&removal.lock, BatchClass::Removal, Vec::new(), reads).await?;
        let [holders, waiter] = answer.reads.as_slice() else {
            return Err(Failure::no_answer());
        };
        let (revision, mut kvs) = match holders.more() {
            true => {
                let all = removal.lock.holders();
                self.link.range(all.as_str(), behind(&all)).await?
            }
            false => (answer.read_at, holders.kvs().to_vec()),
        };
        kvs.extend_from_slice(waiter.kvs());
        View::read(&removal.lock, revision, &kvs)
    }

    /// Removes a waiter, if it was last written at this revision. True if it was.
    async fn remove_waiter(&self, removal: &ClaimRemoval<'_>, id: ClaimId, written: i64) -> Result<bool, Failure> {
        let key = removal.lock.waiter(id);
        let when = vec![Compare::mod_revision(key.clone(), CompareOp::Equal, written)];
        let then = vec![TxnOp::delete(key, None)];
        let answer = self.step(&removal.lock, BatchClass::Removal, when, then).await?;
        Ok(answer.succeeded)
    }

    /// Undoes a call without a claim: if a step of it may still be in flight, a cancel mark keeps it from taking
    /// effect.
    async fn undo_nothing(
        &self,
        removal: &ClaimRemoval<'_>,
        view: &View,
        id: &ClaimId,
        (call, settled): (CallId, bool),
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let when = vec![
            none_changed_after(&removal.lock.holders(), view.revision),
            absent(removal.lock.waiter(*id)),
        ];
        if !settled && !self.mark(&removal.lock, when, call).await? {
            return Ok(None);
        }
        let request = self.link.get(self.keys.request(*id), GetOptions::new()).await?;
        let before = request.kvs().first().and_then(|kv| End::decode(kv.value()).ok());
        Ok(Some(outcome(
            before.map_or(Released::Nothing, |end| Released::EndedBefore(end.cause)),
        )))
    }

    /// Writes a cancel mark, if the conditions are met. It lives as long as this replica's session, because steps of
    /// that session fail after its end without a mark.
    async fn mark(&self, lock: &LockKeys, when: Vec<Compare>, call: CallId) -> Result<bool, Failure> {
        let ticket = self.session.ticket().await?;
        let put = put_on(ticket.session, self.keys.mark(call), "1");
        match self.step(lock, BatchClass::Alone, when, vec![put]).await {
            Ok(answer) => Ok(answer.succeeded),
            Err(Failure::LeaseGone) => {
                self.session.is_over(ticket);
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Ends holds of a claim, and with the last hold the claim. None if the claim has changed concurrently.
    async fn end(&self, removal: &ClaimRemoval<'_>, ending: Ending<'_>) -> Result<Option<ReleaseOutcome>, Failure> {
        let Ending { entry, hold, cause } = ending;
        let (gone, left): (Vec<Hold>, Vec<Hold>) = entry
            .claim
            .holds
            .iter()
            .cloned()
            .partition(|known| hold.is_none_or(|hold| known.secret == hold));
        let mut then = match self.history.ops(removal.name, entry, &gone, cause).await {
            // A full store cannot remember ends.
            Err(Failure::Full(_)) => Vec::new(),
            ops => ops?,
        };
        let key = entry.holder_key(&removal.lock);
        if !left.is_empty() {
            let claim = Claim {
                holds: left,
                ..entry.claim.clone()
            };
            then.push(put_on(entry.lease, key.clone(), claim.encode()));
            let when = vec![unchanged(key, entry)];
            let answer = self.step(&removal.lock, BatchClass::Host, when, then).await?;
            if !answer.succeeded {
                return Ok(None);
            }
            let modified = answer.revision;
            let entry = Entry {
                claim,
                modified,
                ..entry.clone()
            };
            self.history.note(removal.name, &entry, None);
            return Ok(Some(outcome(Released::Ended(cause))));
        }
        then.push(TxnOp::delete(key.clone(), None));
        if let Some(next) = removal.next
            && let Some(grant) = self.hand_over(removal, entry, next, then.clone()).await?
        {
            self.note_ended(removal.name, entry, cause);
            self.history.remember_others(removal.name, entry, &gone, cause).await;
            return Ok(Some(ReleaseOutcome {
                released: Released::Ended(cause),
                next: Some(grant),
            }));
        }
        let when = || vec![unchanged(key.clone(), entry)];
        let class = match entry.claim.mode {
            Mode::Exclusive => BatchClass::Host,
            Mode::Shared | Mode::Semaphore { .. } => BatchClass::End,
        };
        let ended = match self.step(&removal.lock, class, when(), then).await {
            // A full store executes only deletes, so the end is not remembered.
            Err(Failure::Full(_)) => {
                let mut delete = self.history.forget_requests(&gone);
                delete.push(TxnOp::delete(key.clone(), None));
                self.step(&removal.lock, class, when(), delete).await?
            }
            answer => answer?,
        };
        if !ended.succeeded {
            return Ok(None);
        }
        self.note_ended(removal.name, entry, cause);
        self.history.remember_others(removal.name, entry, &gone, cause).await;
        Ok(Some(outcome(Released::Ended(cause))))
    }

    /// Notes that this replica ended a holder.
    fn note_ended(&self, name: &LockName, entry: &Entry, cause: Cause) {
        let alive = self.history.ended(entry);
        self.locks.ended(name, entry);
        let settled = || entry.claim.holds.iter().all(|hold| self.calls.is_settled(hold.call));
        // A holder that is about to move to another lease is marked as not poolable, too.
        let poolable = !entry.claim.not_poolable;
        if poolable && (cause == Cause::Released || (cause == Cause::Undone && settled())) {
            self.leases.put_back(Lease {
                id: entry.lease,
                span_s: entry.claim.span_s,
                alive,
                used: true,
                memory: entry.claim.memory(),
            });
        }
        if poolable && cause == Cause::Released {
            self.key_pool.released(entry);
        }
    }

    /// Ends the only holder and grants the next waiter in one transaction, if that waiter is the first in a view.
    async fn hand_over(
        &self,
        removal: &ClaimRemoval<'_>,
        entry: &Entry,
        next: &NewClaim,
        mut with: Vec<TxnOp>,
    ) -> Result<Option<Grant>, Failure> {
        let (name, lock) = (removal.name, &removal.lock);
        let known = self.locks.ask(name, |view| {
            view.waiters
                .get(&next.id)
                .is_some()
                .then(|| next_alone(view, entry, next))
        });
        let waiter = match known.flatten() {
            Some(waiter) => waiter,
            None => next_alone(&View::fetch(&self.link, lock).await?, entry, next),
        };
        let Some(waiter) = waiter else {
            return Ok(None);
        };
        // An exclusive holder is always the only one, and a range would cost a walk through the lock's whole history.
        let alone = match entry.claim.mode {
            Mode::Exclusive => unchanged(entry.holder_key(lock), entry),
            Mode::Shared | Mode::Semaphore { .. } => only(&lock.holders(), entry),
        };
        let when = vec![alone, unchanged(lock.waiter(next.id), &waiter)];
        let guard = self.locks.hand_over(name, next.id);
        with.push(TxnOp::delete(lock.waiter(next.id), None));
        let hand_over = async |call: &Call<'_>| {
            let granting = Granting {
                class: BatchClass::Host,
                when: when.clone(),
                judged_at: None,
                with: with.clone(),
                otherwise: Vec::new(),
            };
            self.grant(call, granting).await
        };
        let call = Call::new(&self.keys, name, next, self.session.ticket().await?);
        let mut granted = hand_over(&call).await;
        // Another replica that has just connected has raised the token base.
        if matches!(granted, Ok(Err(_))) && !self.holds_good(&call, &self.snapshot(&call).await?) {
            let call = Call::new(&self.keys, name, next, self.session.ticket().await?);
            granted = hand_over(&call).await;
        }
        if matches!(granted, Ok(Ok(_))) {
            self.locks.part(name, &next.id, next.call);
        }
        drop(guard);
        match granted {
            Ok(Ok(grant)) => Ok(Some(grant)),
            // Nothing was written, or the waiter's call was cancelled: the holder is released without a hand-over.
            Ok(Err(_)) | Err(Failure::LeaseGone | Failure::NotSent(_)) => Ok(None),
            // If the grant took effect all the same, the plain release finds that this holder is gone.
            Err(Failure::Full(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// The waiter of this call, if it is the first one and would be the only holder once this holder is gone.
fn next_alone(view: &View, gone: &Entry, next: &NewClaim) -> Option<Entry> {
    let alone = view.holders.iter().all(|holder| holder.id == gone.id);
    let first = view.next_without(Some(&gone.id)).next()?;
    let ours = first.id == next.id && first.claim.holds.first().is_some_and(|hold| hold.call == next.call);
    (alone && ours).then(|| first.clone())
}

fn outcome(released: Released) -> ReleaseOutcome {
    ReleaseOutcome { released, next: None }
}
