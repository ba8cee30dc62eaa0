//! Ends a claim, or one hold of it: by a release, a force release or the undo of a call.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetOptions, TxnOp};

use super::Replica;
use super::grant::Granting;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::{put_on, unchanged};
use crate::backend::etcd::data::key_suffixes::KeySuffix;
use crate::backend::etcd::data::keys::{LockKeys, behind};
use crate::backend::etcd::data::record::{Claim, End, Hold, Request};
use crate::backend::etcd::data::snapshot::{Call, FIRST_CLAIMS};
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::Lease;
use crate::backend::{Grant, NewClaim, ReleaseOutcome, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockName, Secret};

/// How often a step is retried when the lock changed concurrently.
const TRIES: usize = 64;

/// The lock of a release, and the waiter that the lock may be handed over to.
struct ClaimRemoval<'a> {
    name: &'a LockName,
    lock: LockKeys,
    next: Option<&'a NewClaim>,
    /// The generation of the pool of leases when the removal began.
    generation: u64,
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
        let removal = ClaimRemoval {
            name,
            lock: self.keys.lock(name),
            next,
            generation: self.leases.generation(),
        };
        if let ReleaseTarget::Hold(_) = target {
            self.batches.appended(removal.lock.all()).await;
        }
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
                Err(Failure::LeaseGone) => self.history.replace_history_lease(),
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
                for id in [lease.id].into_iter().chain(lease.request_lease.map(|lease| lease.id)) {
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
        let known = self.known_holder(lease).await?;
        let Some(entry) = known.as_ref().filter(|entry| entry.hold_of(lease).is_some()) else {
            let before = self.history.of(lease).await?;
            return Ok(Some(Released::before(before).into()));
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
        let now = self
            .holder_at(&removal.lock, entry.claim.terms.mode.into(), entry.suffix)
            .await?;
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
        Ok(Some(Released::before(before).into()))
    }

    async fn undo(
        &self,
        removal: &ClaimRemoval<'_>,
        id: &ClaimId,
        call: CallId,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        self.calls.cancel(call);
        // A known waiter is removed without a read, because many waits may end at the same time. It stays known until
        // the removal was answered, because an undo may be dropped and begun again.
        if let Some(own) = self.locks.leaving(removal.name, id, call)
            && self
                .delete_waiter(removal, id, (own.suffix, own.since, own.retryable))
                .await?
        {
            return Ok(Some(self.undone(removal, id, call, Released::Ended(Cause::Cancelled))));
        }
        // If a step of the call may still be in flight, a cancel mark keeps it from taking effect. It is written before
        // the read, so a claim that is not read cannot appear later.
        let settled = self.calls.settle(call, self.link.request_timeout()).await;
        if !settled && !self.mark(&removal.lock, call).await? {
            return Ok(None);
        }
        let (view, request) = self.read_for_undo(removal, id, call).await?;
        if let Some(entry) = view.waiter_with(id) {
            let Some(hold) = entry.claim.holds.first().filter(|hold| hold.call == call) else {
                return Ok(Some(self.undone(removal, id, call, Released::Adopted)));
            };
            let written = (entry.suffix, entry.modified, hold.retryable);
            let gone = self.delete_waiter(removal, id, written).await?;
            return Ok(gone.then(|| self.undone(removal, id, call, Released::Ended(Cause::Cancelled))));
        }
        let Some(entry) = view.holder_with(id) else {
            let released = match request {
                Some(Request::Ended(end)) => Released::EndedBefore(end.cause),
                // Under a key suffix that this call never knew, so another call waits there.
                Some(Request::Waits(_)) => Released::Adopted,
                Some(Request::Holds { .. }) | None => Released::Nothing,
            };
            return Ok(Some(self.undone(removal, id, call, released)));
        };
        let Some(hold) = entry.claim.hold(id).filter(|hold| hold.call == call && !hold.adopted) else {
            return Ok(Some(self.undone(removal, id, call, Released::Adopted)));
        };
        let ending = Ending {
            entry,
            hold: Some(hold.secret),
            cause: Cause::Undone,
        };
        let ended = self.end(removal, ending).await?;
        if ended.is_some() {
            self.undone(removal, id, call, Released::Ended(Cause::Undone));
        }
        Ok(ended)
    }

    /// Forgets a call that was undone.
    fn undone(&self, removal: &ClaimRemoval<'_>, id: &ClaimId, call: CallId, released: Released) -> ReleaseOutcome {
        self.locks.remove_waiter(removal.name, id, call);
        self.suffixes.end(call);
        released.into()
    }

    /// Reads the holders of a lock, the waiters under the key suffixes of a call, and the record of its request.
    async fn read_for_undo(
        &self,
        removal: &ClaimRemoval<'_>,
        id: &ClaimId,
        call: CallId,
    ) -> Result<(View, Option<Request>), Failure> {
        let some = GetOptions::new().with_prefix().with_limit(FIRST_CLAIMS);
        let mut reads = vec![
            TxnOp::get(removal.lock.holders(), Some(some)),
            TxnOp::get(self.keys.request(*id), None),
        ];
        let suffixes = self.suffixes.of(call);
        reads.extend(
            suffixes
                .iter()
                .map(|suffix| TxnOp::get(removal.lock.waiter(*suffix), None)),
        );
        let answer = self.step(&removal.lock, Vec::new(), reads).await?;
        let [holders, request, waiters @ ..] = answer.reads.as_slice() else {
            return Err(Failure::no_answer());
        };
        let (revision, mut kvs) = match holders.more() {
            true => {
                let all = removal.lock.holders();
                self.link.range(all.as_str(), behind(&all)).await?
            }
            false => (answer.read_at, holders.kvs().to_vec()),
        };
        kvs.extend(waiters.iter().flat_map(|read| read.kvs().iter().cloned()));
        let request = request.kvs().first();
        let request = request.and_then(|kv| Request::decode(kv.value()).ok());
        Ok((View::read(&removal.lock, revision, &kvs)?, request))
    }

    /// Deletes a waiter with this id and the record of its request, if it was last written at this revision. True if it
    /// was.
    async fn delete_waiter(
        &self,
        removal: &ClaimRemoval<'_>,
        id: &ClaimId,
        (suffix, written, retryable): (KeySuffix, i64, bool),
    ) -> Result<bool, Failure> {
        let key = removal.lock.waiter(suffix);
        let when = vec![Compare::mod_revision(key.clone(), CompareOp::Equal, written)];
        let mut then = vec![TxnOp::delete(key, None)];
        if retryable {
            then.push(TxnOp::delete(self.keys.request(*id), None));
        }
        let answer = self.step(&removal.lock, when, then).await?;
        if answer.succeeded {
            self.suffixes.deleted(suffix);
        }
        Ok(answer.succeeded)
    }

    /// Writes a cancel mark. It lives as long as this replica's session, because steps of that session fail after its end
    /// without a mark. False if that session has ended.
    async fn mark(&self, lock: &LockKeys, call: CallId) -> Result<bool, Failure> {
        let epoch = self.session.epoch().await?;
        let put = put_on(epoch.session, self.keys.mark(call), "1");
        match self.step(lock, Vec::new(), vec![put]).await {
            Ok(_) => Ok(true),
            Err(Failure::LeaseGone) => {
                self.session.note_ended(epoch);
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
        let mut then = match self.records_of(removal.name, &ending, &gone).await {
            // A full store cannot remember ends.
            Err(Failure::Full(_)) => self.history.forget_requests(&gone),
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
            let answer = self.step(&removal.lock, when, then).await?;
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
            return Ok(Some(Released::Ended(cause).into()));
        }
        then.push(TxnOp::delete(key, None));
        let next = match removal.next.filter(|_| !self.session.clock.is_wrong()) {
            Some(next) => self.hand_over(removal, entry, next, then.clone()).await?,
            None => None,
        };
        if next.is_none() && !self.end_alone(removal, entry, &gone, then).await? {
            return Ok(None);
        }
        self.note_ended(removal, entry, cause);
        self.history.remember_others(removal.name, entry, &gone, cause).await;
        let released = Released::Ended(cause);
        Ok(Some(ReleaseOutcome { released, next }))
    }

    /// Ends a claim without a hand-over. False if it has changed concurrently.
    async fn end_alone(
        &self,
        removal: &ClaimRemoval<'_>,
        entry: &Entry,
        gone: &[Hold],
        then: Vec<TxnOp>,
    ) -> Result<bool, Failure> {
        let key = entry.holder_key(&removal.lock);
        let when = || vec![unchanged(key.clone(), entry)];
        let ended = match self.step(&removal.lock, when(), then).await {
            // A full store executes only deletes, so the end is not remembered.
            Err(Failure::Full(_)) => {
                let mut delete = self.history.forget_requests(gone);
                delete.push(TxnOp::delete(key.clone(), None));
                self.step(&removal.lock, when(), delete).await?
            }
            answer => answer?,
        };
        Ok(ended.succeeded)
    }

    /// The records of the step that ends these holds of a claim.
    async fn records_of(&self, name: &LockName, ending: &Ending<'_>, gone: &[Hold]) -> Result<Vec<TxnOp>, Failure> {
        let mut ops = self.history.ops(name, ending.entry, gone, ending.cause).await?;
        if ending.cause == Cause::Forced
            && let Some(token) = ending.entry.token()
        {
            ops.push(self.tell_forced(name, token).await?);
        }
        Ok(ops)
    }

    /// Notes that this replica ended a holder.
    fn note_ended(&self, removal: &ClaimRemoval<'_>, entry: &Entry, cause: Cause) {
        let alive = self.history.ended(entry);
        self.locks.ended(removal.name, entry);
        self.suffixes.deleted(entry.suffix);
        let settled = || entry.claim.holds.iter().all(|hold| self.calls.is_settled(hold.call));
        // A holder that is about to move to another lease is marked as not poolable, too.
        let poolable = !entry.claim.not_poolable;
        if poolable && (cause == Cause::Released || (cause == Cause::Undone && settled())) {
            let (granted_ttl_s, requests) = (entry.claim.granted_ttl_s, entry.claim.request_lease());
            let lease = Lease::freed(entry.lease, granted_ttl_s, requests, removal.generation);
            self.leases.put_back(lease.kept_alive(alive));
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
        let known = self
            .locks
            .ask_with(name, &next.id, |view| next_alone(view, entry, next));
        let waiter = match known {
            Some(waiter) => waiter,
            None => next_alone(&View::fetch(&self.link, lock).await?, entry, next),
        };
        let Some(waiter) = waiter else {
            return Ok(None);
        };
        let key = lock.waiter(waiter.suffix);
        // While the first waiter is unchanged, nobody can have joined the holders.
        let when = vec![
            unchanged(entry.holder_key(lock), entry),
            unchanged(key.clone(), &waiter),
        ];
        let guard = self.locks.hand_over(name, next.id);
        with.push(TxnOp::delete(key, None));
        let hand_over = async |call: &Call<'_>| {
            let granting = Granting {
                suffix: waiter.suffix,
                is_new: false,
                when: when.clone(),
                in_session: false,
                decided_at: None,
                with: with.clone(),
                otherwise: Vec::new(),
            };
            self.grant(call, granting).await
        };
        let call = Call::new(&self.keys, name, next, self.session.epoch().await?);
        let mut granted = hand_over(&call).await;
        // Another replica that has just connected has raised the token base.
        if matches!(granted, Ok(Err(_))) && !self.holds_good(&call, &self.snapshot(&call).await?) {
            let call = Call::new(&self.keys, name, next, self.session.epoch().await?);
            granted = hand_over(&call).await;
        }
        if matches!(granted, Ok(Ok(_))) {
            self.locks.remove_waiter(name, &next.id, next.call);
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
    let alone = view.holders.iter().all(|holder| holder.suffix == gone.suffix);
    let first = view.next_without(Some(gone.suffix)).next()?;
    (alone && first.waits_for(next)).then(|| first.clone())
}
