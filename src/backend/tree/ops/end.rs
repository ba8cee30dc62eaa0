//! Ends holds of a claim, and with the last hold the claim: every end goes through here with its cause.

use std::sync::Arc;

use super::{Replica, changed, grant_of, set};
use crate::backend::tree::calls::InFlight;
use crate::backend::tree::data::record::{Claim, Hold};
use crate::backend::tree::group_commit::{Class, Step, StepDone, StepOp};
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::{ANY, Failure, Op};
use crate::backend::{Grant, NewClaim, ReleaseOutcome, Released};
use crate::claim::Cause;
use crate::name::{Mode, Secret};

/// What ends, and why.
pub struct Ending<'a> {
    pub lease: &'a Lease,
    /// The secret of one hold; None for all holds.
    pub hold: Option<Secret>,
    pub cause: Cause,
}

/// A waiter of this replica that a release hands the lock over to.
struct HandOver<'a> {
    new: &'a NewClaim,
    claim: Arc<Claim>,
    waiter: String,
    call: InFlight,
}

/// What the step of an end consists of besides the end of the holder itself.
#[derive(Default)]
struct EndOps {
    /// The records of the ends.
    ends: Vec<Op>,
    /// The deletion of the lock's node.
    lock: Option<Op>,
}

impl Replica {
    /// Ends holds at the version of the holder that is known, and hands over to `next` if it may hold then. None if the
    /// holder has changed.
    pub async fn end(&self, ending: Ending<'_>, next: Option<&NewClaim>) -> Result<Option<ReleaseOutcome>, Failure> {
        let lease = ending.lease;
        let holds = lease.claim.holds.iter().cloned();
        let (gone, left): (Vec<Hold>, Vec<Hold>) =
            holds.partition(|known| ending.hold.is_none_or(|hold| known.secret == hold));
        let mut ends = self
            .history
            .end(&lease.lock, (&lease.claim, lease.token), &gone, ending.cause);
        let later = self.split_off_later(&mut ends);
        let outcome = match left.is_empty() {
            true => self.end_claim(&ending, ends, next).await?,
            false => self.end_holds(&ending, ends, left).await?,
        };
        match outcome {
            Some(_) => self.remember(lease, later).await,
            None => self.leases.mark_outdated(lease),
        }
        Ok(outcome)
    }

    /// Splits off the records that do not fit into half a request.
    fn split_off_later(&self, ends: &mut Vec<Op>) -> Vec<Op> {
        let mut size = 0;
        let fits = |end: &&Op| {
            size += end.size();
            size <= self.batcher.max_request / 2
        };
        let count = ends.iter().take_while(fits).count();
        ends.split_off(count)
    }

    /// Writes the records that did not fit into the step of their end. No safety rests on them, so a failure is passed
    /// over.
    async fn remember(&self, lease: &Lease, mut ends: Vec<Op>) {
        while !ends.is_empty() {
            let later = self.split_off_later(&mut ends);
            loop {
                let ops = ends.iter().cloned().map(StepOp::Op).collect();
                match self.step(&lease.lock, ops).await {
                    Ok(done) => {
                        self.history.ended(&ends, (&done, 0), lease.claim.finished_limit);
                        break;
                    }
                    Err(Failure::Refused { index, .. }) if index < ends.len() => repair(&mut ends, index),
                    Err(failure) => {
                        tracing::debug!(%failure, "the ends of some holds are not remembered");
                        return;
                    }
                }
            }
            ends = later;
        }
    }

    /// Ends holds of a claim that keeps others.
    async fn end_holds(
        &self,
        ending: &Ending<'_>,
        ends: Vec<Op>,
        left: Vec<Hold>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let lease = ending.lease;
        let claim = Claim {
            holds: left,
            ..lease.claim_with_this_lease()
        };
        let path = self.child(&lease.lock, &lease.child.name);
        let rewrite = Op::set(path, claim.encode(), lease.version);
        let end_ops = EndOps { ends, lock: None };
        let Some(done) = self.send_end(lease, rewrite, end_ops).await? else {
            return Ok(None);
        };
        self.leases.note(lease.rewritten(claim, set(&done, 0)?));
        Ok(Some(Released::Ended(ending.cause).into()))
    }

    /// Rewrites a holder at the version that is known. None if that has changed.
    pub async fn rewrite(&self, lease: &Lease, claim: Claim) -> Result<Option<Lease>, Failure> {
        let path = self.child(&lease.lock, &lease.child.name);
        let write = Op::set(path, claim.encode(), lease.version);
        let Some(done) = changed(self.step(&lease.lock, vec![write.into()]).await)? else {
            self.leases.mark_outdated(lease);
            return Ok(None);
        };
        Ok(Some(self.leases.note(lease.rewritten(claim, set(&done, 0)?))))
    }

    async fn end_claim(
        &self,
        ending: &Ending<'_>,
        ends: Vec<Op>,
        next: Option<&NewClaim>,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let lease = ending.lease;
        let lock = &lease.lock;
        if let Some(next) = next
            && let Some(hand_over) = self.hand_over(lease, next).await?
        {
            let granted = self.send_hand_over(ending, ends.clone(), hand_over).await;
            // It asks for itself again, if it was not granted.
            self.table.allow_notification(lock, next.call);
            if let Some(grant) = granted? {
                let (released, next) = (Released::Ended(ending.cause), Some(grant));
                return Ok(Some(ReleaseOutcome { released, next }));
            }
        }
        let delete = Op::delete(self.child(lock, &lease.child.name), lease.version);
        let end_ops = EndOps {
            lock: self.is_alone(lease).then(|| Op::delete(self.paths.lock(lock), ANY)),
            ends,
        };
        if self.send_end(lease, delete, end_ops).await?.is_none() {
            return Ok(None);
        }
        self.note_ended(lease);
        Ok(Some(Released::Ended(ending.cause).into()))
    }

    /// Whether a lock has no other claim, as far as this replica knows: its node is deleted with the holder.
    fn is_alone(&self, lease: &Lease) -> bool {
        lease.claim.terms.mode == Mode::Exclusive && !self.table.has_waiters(&lease.lock)
    }

    fn note_ended(&self, lease: &Lease) {
        self.leases.forget(&lease.lock, &lease.child.name);
        self.table.ended(&lease.lock, &lease.child.name);
    }

    /// Sends the end of holds. Nothing that is only remembered or tidied up keeps a hold from ending. None if the holder
    /// has changed.
    async fn send_end(&self, lease: &Lease, end: Op, mut end_ops: EndOps) -> Result<Option<StepDone>, Failure> {
        loop {
            let mut ops = vec![StepOp::Op(end.clone())];
            ops.extend(end_ops.ends.iter().cloned().map(StepOp::Op));
            ops.extend(end_ops.lock.clone().map(StepOp::Op));
            match self.step(&lease.lock, ops).await {
                Ok(done) => {
                    let limit = lease.claim.finished_limit;
                    self.history.ended(&end_ops.ends, (&done, 1), limit);
                    return Ok(Some(done));
                }
                Err(Failure::Refused { index, .. }) if index > end_ops.ends.len() => end_ops.lock = None,
                Err(Failure::Refused { index, .. }) if index > 0 => repair(&mut end_ops.ends, index - 1),
                refused => return changed(refused),
            }
        }
    }

    /// The waiter of this call, if it may hold once this holder is gone.
    async fn hand_over<'a>(&self, lease: &Lease, next: &'a NewClaim) -> Result<Option<HandOver<'a>>, Failure> {
        let lock = &lease.lock;
        let Some(own) = self.table.own(lock, next.call) else {
            return Ok(None);
        };
        let connection = self.connections.ready().await?;
        let gone = Some(lease.child.name.as_str());
        let known = self.table.ask(lock, &connection, |view| {
            (view.has(&own.name) && gone.is_some_and(|gone| view.has(gone))).then(|| view.is_next(&own.name, gone))
        });
        let is_next = match known.flatten() {
            Some(is_next) => is_next,
            None => self.table.list(lock, &connection).await?.is_next(&own.name, gone),
        };
        let call = self.calls.begin(next.call).filter(|_| is_next);
        Ok(call.map(|call| HandOver {
            new: next,
            claim: Arc::new(Claim::of(next)),
            waiter: own.name,
            call,
        }))
    }

    /// Ends the holder and grants the waiter in one step. None if that was refused.
    async fn send_hand_over(
        &self,
        ending: &Ending<'_>,
        ends: Vec<Op>,
        to: HandOver<'_>,
    ) -> Result<Option<Grant>, Failure> {
        let lease = ending.lease;
        let lock = &lease.lock;
        let holder = self.new_holder(lock, to.new);
        let mut ops: Vec<StepOp> = vec![
            Op::delete(self.child(lock, &lease.child.name), lease.version).into(),
            StepOp::Grant(holder, Arc::clone(&to.claim)),
            Op::delete(self.child(lock, &to.waiter), ANY).into(),
        ];
        ops.extend(ends.iter().cloned().map(StepOp::Op));
        self.table.suppress_notification(lock, to.new.call);
        let step = Step {
            lock: lock.clone(),
            class: Class::Alone,
            fenced: true,
            ops,
            call: Some(to.call),
        };
        let Some(done) = self.send_grant(to.new, step).await? else {
            return Ok(None);
        };
        self.history.ended(&ends, (&done, 3), lease.claim.finished_limit);
        let granted = self.note_granted(lock, &to.claim, &done, 1)?;
        self.table.remove_own_waiter(lock, to.new.call);
        self.note_ended(lease);
        let waited = done.sent.saturating_duration_since(to.new.arrived);
        Ok(Some(grant_of(&granted, &to.claim.holds[0], to.claim.life, waited)))
    }
}

/// Changes a record of an end that could not be written: one that should be there is created, and one that is there
/// already stays as it is.
fn repair(ends: &mut Vec<Op>, index: usize) {
    let op = ends.remove(index);
    if let Op::Set { path, data, .. } = op {
        ends.insert(index, Op::create(path, data));
    }
}
