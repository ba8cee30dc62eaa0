//! Calls that find an existing claim: the one of their own request, or one that they join.

use std::time::Duration;

use super::acquire::{Attempt, ListedLock};
use super::{Replica, changed, grant_of, set};
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::record::{Claim, Hold, Memory};
use crate::backend::tree::group_commit::Step;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::{ANY, Failure, Op};
use crate::backend::{AcquireOutcome, NewClaim, Refusal, WaitPolicy};
use crate::name::LockName;

impl Replica {
    /// Looks for the claim of a call's request. None if there is none.
    pub async fn find_request(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
    ) -> Result<Option<Attempt>, Failure> {
        let claim = match &snapshot.memory {
            Some(Memory::Ended(end)) => return Ok(Some(AcquireOutcome::Finished(end.cause).into())),
            Some(Memory::Live { claim, .. }) => *claim,
            Some(Memory::Forgotten) | None => new.id,
        };
        if let Some(holder) = snapshot.view.holders().iter().find(|holder| holder.claim == claim)
            && let Some(attempt) = self.adopt_hold(lock, new, snapshot, holder).await?
        {
            return Ok(Some(attempt));
        }
        match snapshot.view.waiters().iter().find(|waiter| waiter.claim == new.id) {
            Some(waiter) => self.adopt_waiter(lock, new, snapshot, waiter).await.map(Some),
            None => Ok(None),
        }
    }

    /// Adopts a waiting claim of the same request.
    async fn adopt_waiter(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
        waiter: &Child,
    ) -> Result<Attempt, Failure> {
        let path = self.child(lock, &waiter.name);
        let Some((data, _)) = self.tree.get(snapshot.connection.generation, &path).await? else {
            return Ok(Attempt::Changed);
        };
        let known = Claim::decode(&data)?;
        if known.holds.iter().any(|hold| hold.callers.supersede(new.stream)) {
            return Ok(AcquireOutcome::Superseded.into());
        }
        if let Some(field) = known.terms.differs(new) {
            return Ok(AcquireOutcome::Refused(Refusal::OtherParameters { field }).into());
        }
        let mut more = vec![Op::delete(path, ANY)];
        more.extend(self.history.begin(lock, new, new.id, snapshot.request_write));
        if snapshot.view.is_next(&waiter.name, None) {
            let granted = self
                .grant(lock, new, (Claim::of(new).after(&known), more), &snapshot.connection)
                .await?;
            return Ok(granted.map_or(Attempt::Changed, |grant| AcquireOutcome::Held(grant).into()));
        }
        if new.wait_policy == WaitPolicy::NoWait {
            // It cannot be granted now, so a try takes it out.
            if !self.withdraw(lock, new, &waiter.name).await? {
                return Ok(Attempt::Changed);
            }
            let first = self.first_holder(&snapshot.connection, lock, &snapshot.view).await?;
            return Ok(AcquireOutcome::Busy(first).into());
        }
        let claim = Claim::of_waiter(new, &known);
        let read_over = Some(snapshot.connection.generation);
        let adopted = self
            .put_waiter(lock, new, (&claim, waiter.place()), (more, read_over), &mut None)
            .await?;
        if adopted.is_none() {
            return Ok(Attempt::Changed);
        }
        let connection = self.connections.ready().await?;
        let view = self.table.list(lock, &connection).await?;
        Ok(self.promote_from_view(lock, new, connection, view).await?.into())
    }

    /// Adopts a hold of the same request: its record notes that two calls know it, and is written before a TTL is
    /// answered, so that watchers count from then. None if the holder has no such hold.
    async fn adopt_hold(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
        holder: &Child,
    ) -> Result<Option<Attempt>, Failure> {
        let Some(lease) = self.read_holder(&snapshot.connection, lock, holder).await? else {
            return Ok(Some(Attempt::Changed));
        };
        let Some(hold) = lease.claim.hold(&new.id) else {
            return Ok(None);
        };
        if hold.callers.supersede(new.stream) {
            return Ok(Some(AcquireOutcome::Superseded.into()));
        }
        if let Some(field) = lease.claim.terms.differs(new) {
            let refused = AcquireOutcome::Refused(Refusal::OtherParameters { field });
            return Ok(Some(refused.into()));
        }
        let life = self.leases.remaining(&lease);
        if life.is_zero() {
            self.expire(&lease).await?;
            return Ok(Some(Attempt::Changed));
        }
        let mut claim = self.leases.claim_living(&lease, life).with_new_lease()?;
        let adopted = claim.holds.iter_mut().find(|hold| hold.id == new.id);
        let Some(hold) = adopted.map(|hold| {
            if hold.call != new.call && hold.callers.found(new.stream) {
                hold.call = new.call;
            }
            hold.clone()
        }) else {
            return Ok(None);
        };
        let read_over = snapshot.connection.generation;
        self.rewrite_for(lock, new, (&lease, claim), &hold, (None, read_over))
            .await
            .map(Some)
    }

    /// Joins a reentrant holder of the same owner. None if there is none.
    pub async fn join(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
    ) -> Result<Option<Attempt>, Failure> {
        let reentrant = snapshot.view.holders().iter().filter(|holder| holder.reentrant);
        for holder in reentrant {
            let Some(lease) = self.read_holder(&snapshot.connection, lock, holder).await? else {
                return Ok(Some(Attempt::Changed));
            };
            if !lease.claim.holds.is_empty() && lease.claim.terms.is_joined_by(new) {
                return self.reenter(lock, new, snapshot, &lease).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Adds a hold to a claim of the same owner.
    async fn reenter(
        &self,
        lock: &LockName,
        new: &NewClaim,
        snapshot: &ListedLock,
        lease: &Lease,
    ) -> Result<Attempt, Failure> {
        if let Some(field) = lease.claim.terms.differs(new) {
            return Ok(AcquireOutcome::Refused(Refusal::OtherParameters { field }).into());
        }
        let limit = new.limits.holds;
        if lease.claim.holds.len() >= limit as usize {
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }).into());
        }
        let life = self.leases.remaining(lease).max(new.ttl.get());
        let mut claim = self.leases.claim_living(lease, life).with_new_lease()?;
        let hold = Hold::of(new);
        claim.holds.push(hold.clone());
        // It is rewritten as a whole by each renewal.
        if claim.size() > self.batcher.max_request / 2 {
            let limit = u32::try_from(lease.claim.holds.len()).unwrap_or(u32::MAX);
            return Ok(AcquireOutcome::Refused(Refusal::Full { limit }).into());
        }
        let request = self.history.begin(lock, new, claim.id, snapshot.request_write);
        let more = (request, snapshot.connection.generation);
        self.rewrite_for(lock, new, (lease, claim), &hold, more).await
    }

    /// Rewrites a holder for a call, at the version and over the connection at which it was read, with its record of the
    /// request.
    async fn rewrite_for(
        &self,
        lock: &LockName,
        new: &NewClaim,
        (lease, claim): (&Lease, Claim),
        hold: &Hold,
        (request, read_over): (Option<Op>, u64),
    ) -> Result<Attempt, Failure> {
        let path = self.child(lock, &lease.child.name);
        let mut ops = vec![Op::set(path, claim.encode(), lease.version)];
        ops.extend(request);
        let step = Step {
            read_over: Some(read_over),
            ..self.step_of(lock, new, ops)?
        };
        let Some(done) = changed(self.batcher.send(step).await)? else {
            self.leases.mark_outdated(lease);
            return Ok(Attempt::Changed);
        };
        let lease = self.leases.rewritten(lease, claim, set(&done, 0)?);
        let grant = grant_of(&lease, hold, lease.claim.life, Duration::ZERO);
        Ok(AcquireOutcome::Held(grant).into())
    }
}
