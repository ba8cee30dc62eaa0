//! Ends holds of a claim, and with the last hold the claim: every end goes through here with its cause.

use std::time::Duration;

use super::{Replica, changed, set};
use crate::backend::tree::data::record::{Claim, Hold};
use crate::backend::tree::group_commit::StepDone;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::{ANY, Failure, Op};
use crate::backend::{NewClaim, ReleaseOutcome, Released};
use crate::claim::Cause;
use crate::name::{Mode, Secret};

/// The most records of a step.
const RECORDS: usize = 64;

/// What ends, and why.
pub struct Ending<'a> {
    pub lease: &'a Lease,
    /// The secret of one hold; None for all holds.
    pub hold: Option<Secret>,
    pub cause: Cause,
    /// How long the claim stays at least, although its last hold may end.
    pub keep_for: Option<Duration>,
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
        if ending.cause == Cause::Forced {
            ends.push(self.history.notice(&lease.lock, lease.token));
        }
        let outcome = match self.claim_left(&ending, left)? {
            None => self.end_claim(&ending, ends, next).await?,
            Some(claim) => self.end_holds(&ending, ends, claim).await?,
        };
        match outcome {
            Some(_) => self.remember(lease, later).await,
            None => self.leases.mark_outdated(lease),
        }
        Ok(outcome)
    }

    /// The claim without the holds that end; none if it ends with them.
    fn claim_left(&self, ending: &Ending<'_>, left: Vec<Hold>) -> Result<Option<Claim>, Failure> {
        let lease = ending.lease;
        let kept = ending.keep_for.unwrap_or_default().max(self.leases.kept(lease));
        let is_whole = ending.hold.is_none();
        if left.is_empty() && (is_whole || kept.is_zero()) {
            return Ok(None);
        }
        let claim = Claim {
            holds: left,
            ..self.leases.claim_with_this_lease(lease)
        };
        if ending.keep_for.is_none() && !claim.holds.is_empty() {
            return Ok(Some(claim));
        }
        let life = match claim.holds.is_empty() {
            true => kept,
            false => claim.life.max(kept),
        };
        let claim = Claim {
            life,
            kept: Some(kept),
            ..claim
        };
        claim.with_new_lease().map(Some)
    }

    /// Splits off the records that do not fit into half a request.
    fn split_off_later(&self, ends: &mut Vec<Op>) -> Vec<Op> {
        let mut size = 0;
        let fits = |end: &&Op| {
            size += end.size();
            size <= self.batcher.max_request / 2
        };
        let count = ends.iter().take(RECORDS).take_while(fits).count();
        ends.split_off(count)
    }

    /// Writes the records that did not fit into the step of their end. No safety rests on them, so a failure is passed
    /// over.
    async fn remember(&self, lease: &Lease, mut ends: Vec<Op>) {
        while !ends.is_empty() {
            let later = self.split_off_later(&mut ends);
            loop {
                match self.step(&lease.lock, ends.clone(), None).await {
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

    /// Ends holds of a claim that stays as this one.
    async fn end_holds(
        &self,
        ending: &Ending<'_>,
        ends: Vec<Op>,
        claim: Claim,
    ) -> Result<Option<ReleaseOutcome>, Failure> {
        let lease = ending.lease;
        let path = self.child(&lease.lock, &lease.child.name);
        let rewrite = Op::set(path, claim.encode(), lease.version);
        let Some(done) = self.send_end(lease, rewrite, (ends, None)).await? else {
            return Ok(None);
        };
        self.leases.rewritten(lease, claim, set(&done, 0)?);
        Ok(Some(ReleaseOutcome {
            kept: ending.keep_for,
            ..Released::Ended(ending.cause).into()
        }))
    }

    /// Rewrites a holder at the version that is known. None if that has changed.
    pub async fn rewrite(&self, lease: &Lease, claim: Claim) -> Result<Option<Lease>, Failure> {
        let path = self.child(&lease.lock, &lease.child.name);
        let write = Op::set(path, claim.encode(), lease.version);
        let step = self.step(&lease.lock, vec![write], Some(lease.read_over)).await;
        let Some(done) = changed(step)? else {
            self.leases.mark_outdated(lease);
            return Ok(None);
        };
        Ok(Some(self.leases.rewritten(lease, claim, set(&done, 0)?)))
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
            && let Some(grant) = self.grant_next(lease, &ends, next).await?
        {
            return Ok(Some(ReleaseOutcome {
                next: Some(grant),
                ..Released::Ended(ending.cause).into()
            }));
        }
        let delete = Op::delete(self.child(lock, &lease.child.name), lease.version);
        let node = self.is_alone(lease).then(|| Op::delete(self.paths.lock(lock), ANY));
        if self.send_end(lease, delete, (ends, node)).await?.is_none() {
            return Ok(None);
        }
        self.note_ended(lease);
        Ok(Some(Released::Ended(ending.cause).into()))
    }

    /// Whether a lock has no other claim, as far as this replica knows: its node is deleted with the holder.
    fn is_alone(&self, lease: &Lease) -> bool {
        lease.claim.terms.mode == Mode::Exclusive && !self.table.has_waiters(&lease.lock)
    }

    pub fn note_ended(&self, lease: &Lease) {
        self.leases.forget(&lease.lock, &lease.child.name, lease.read_over);
        self.table.ended(&lease.lock, &lease.child.name);
    }

    /// Sends the end of holds, with the records of the ends and the deletion of the lock's node. Neither keeps a hold from
    /// ending. None if the holder has changed.
    async fn send_end(
        &self,
        lease: &Lease,
        end: Op,
        (mut ends, mut node): (Vec<Op>, Option<Op>),
    ) -> Result<Option<StepDone>, Failure> {
        loop {
            let mut ops = vec![end.clone()];
            ops.extend_from_slice(&ends);
            ops.extend(node.clone());
            match self.step(&lease.lock, ops, Some(lease.read_over)).await {
                Ok(done) => {
                    self.history.ended(&ends, (&done, 1), lease.claim.finished_limit);
                    return Ok(Some(done));
                }
                Err(Failure::Refused { index, .. }) if index > ends.len() => node = None,
                Err(Failure::Refused { index, .. }) if index > 0 => repair(&mut ends, index - 1),
                refused => return changed(refused),
            }
        }
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
