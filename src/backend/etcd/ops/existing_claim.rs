//! Calls that find an existing claim: the one of their own request, or one that they join.

use std::time::Duration;

use etcd_client::{Compare, TxnOp};

use super::Replica;
use super::acquire::Waiting;
use super::grant::{Retry, grant_of};
use super::history;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::data::conditions::{present, put_on, unchanged};
use crate::backend::etcd::data::record::{Claim, Hold};
use crate::backend::etcd::data::snapshot::Call;
use crate::backend::etcd::data::view::{Entry, View};
use crate::backend::etcd::lease::{seconds, ttl_of};
use crate::backend::etcd::txn::packing::{BatchClass, Step};
use crate::backend::{AcquireOutcome, Refusal, WaitPolicy};

impl Replica {
    /// Adopts a waiting claim of the same request.
    pub async fn adopt_waiter(&self, call: &mut Call<'_>, view: &View, entry: &Entry) -> Result<AcquireOutcome, Retry> {
        let new = call.new;
        if let Some(field) = entry.claim.terms.differs(new) {
            return Ok(AcquireOutcome::Refused(Refusal::OtherParameters { field }));
        }
        self.suffixes.adopt(new.call, entry.suffix);
        if view.is_next(entry.suffix) {
            let grant = self.grant_waiting(call, entry, view.revision).await?;
            return Ok(AcquireOutcome::Held(grant));
        }
        let key = call.lock.waiter(entry.suffix);
        let when = vec![call.not_cancelled(), unchanged(key.clone(), entry)];
        if new.wait_policy == WaitPolicy::Wait {
            let mut adopted = Claim::of(new);
            (adopted.terms.since, adopted.place) = (entry.claim.terms.since, entry.claim.place);
            let waiting = Waiting {
                suffix: entry.suffix,
                claim: adopted,
                is_adopted: true,
            };
            return self.put_waiter(call, when, waiting).await;
        }
        // It cannot be granted now, so a try removes it, and leaves a cancel mark for the older call.
        let mut then = vec![TxnOp::delete(key, None), TxnOp::delete(call.request(), None)];
        if let Some(older) = entry.claim.holds.first().filter(|older| older.call != new.call) {
            then.push(put_on(call.epoch.session, call.keys.mark(older.call), "1"));
        }
        let step = Step::new(call.lock.all(), BatchClass::Other, when, then, call.reads());
        self.step_of(call, step, None).await?;
        self.suffixes.deleted(entry.suffix);
        Ok(AcquireOutcome::Busy(self.first_holder(view).await?))
    }

    /// Adopts a hold of the same request: its record notes that two calls know it.
    pub async fn adopt_hold(&self, call: &Call<'_>, entry: &Entry) -> Result<AcquireOutcome, Retry> {
        let new = call.new;
        if let Some(field) = entry.claim.terms.differs(new) {
            return Ok(AcquireOutcome::Refused(Refusal::OtherParameters { field }));
        }
        let mut entry = entry.clone();
        let Some(hold) = entry.claim.holds.iter_mut().find(|hold| hold.id == new.id) else {
            return Err(Retry::Read);
        };
        let secret = hold.secret;
        // The same step sent twice is not a second call.
        if hold.call != new.call && !hold.adopted {
            hold.adopted = true;
            entry.claim.not_poolable = true;
            // The rewrite compares the key, so the hold has not ended since.
            self.rewrite(call, &mut entry, None).await?;
        }
        let left = self.remaining(&entry).await?.ok_or(Retry::Read)?;
        Ok(AcquireOutcome::Held(grant_of(&entry, secret, left, Duration::ZERO)?))
    }

    /// Adds a hold to a claim of the same owner.
    pub async fn reenter(&self, call: &Call<'_>, entry: &Entry) -> Result<AcquireOutcome, Retry> {
        let new = call.new;
        if let Some(field) = entry.claim.terms.differs(new) {
            return Ok(AcquireOutcome::Refused(Refusal::OtherParameters { field }));
        }
        let limit = new.limits.holds;
        if entry.claim.holds.len() >= limit as usize {
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }));
        }
        let mut entry = entry.clone();
        entry.claim.holds.push(Hold::of(new));
        entry.claim.not_poolable = true;
        if entry.claim.request_lease == 0 && history::is_remembered(new) {
            entry.claim.request_lease = self.leases.request_lease(entry.claim.granted_ttl_s).await?.id;
        }
        let longer = seconds(new.ttl.get()) > entry.claim.granted_ttl_s;
        if !longer {
            entry.claim.ttl = new.ttl.get();
        }
        let (lease, request_lease) = (entry.lease, entry.claim.request_lease());
        let (written, alive) = tokio::join!(
            self.rewrite(call, &mut entry, call.request_is_new()),
            self.leases.keep_both_alive(lease, request_lease),
        );
        written?;
        if !alive? {
            return Err(Failure::Unavailable("etcd: a lease ended with a re-entry".into()).into());
        }
        let mut ttl = ttl_of(entry.claim.granted_ttl_s);
        if longer {
            let changed = || Failure::Unavailable("etcd: a holder changed while its lease did".into());
            let moved = self.move_lease(call.name, &entry, new.ttl.get()).await?;
            (entry, ttl) = moved.ok_or_else(changed)?;
        }
        Ok(AcquireOutcome::Held(grant_of(&entry, new.secret, ttl, Duration::ZERO)?))
    }

    /// Rewrites a holder's record on its lease, if it is unchanged since it was read, the call may still take effect
    /// and the condition `and` is met.
    async fn rewrite(&self, call: &Call<'_>, entry: &mut Entry, and: Option<Compare>) -> Result<(), Retry> {
        let key = entry.holder_key(&call.lock);
        let mut when = vec![
            present(call.session()),
            call.not_cancelled(),
            unchanged(key.clone(), entry),
        ];
        let mut then = vec![put_on(entry.lease, key, entry.claim.encode())];
        if and.is_some() {
            then.extend(self.history.hold(entry, call.new.id));
        }
        when.extend(and);
        let step = Step::new(call.lock.all(), BatchClass::Other, when, then, call.reads());
        let answer = self.step_of(call, step, None).await?;
        entry.modified = answer.revision;
        self.history.note(call.name, entry, None);
        Ok(())
    }
}
