//! Grants: the only steps that create a holder.
//!
//! Each is one commit that also checks the fence of its session and the base of the tokens
//! ([`crate::backend::tree::group_commit`]), and whose other operations apply only while the claim may hold:
//!
//! - A lock that nobody uses has no node, so it is created; or the node has no children, so it is deleted and created.
//! - Where steps are independent, a reader is granted while the lock has only readers: it would fit at each place among
//!   them, and whoever comes later is behind it.
//! - A waiter that fits behind all that is ahead of it goes on to fit, because nobody gets ahead of it. So only the waiter
//!   itself is named: it is deleted.
//! - A waiter that fits once a holder is gone is granted with the deletion of that holder, at the version that was read.
//! - A holder whose token may be of an old copy of the store is deleted, at the version that was read, and created anew.

use std::sync::Arc;

use super::{Replica, changed, created, grant_of, name_in};
use crate::backend::tree::data::child::Child;
use crate::backend::tree::data::paths::Paths;
use crate::backend::tree::data::record::Claim;
use crate::backend::tree::fenced_connection::FencedConnection;
use crate::backend::tree::group_commit::{Class, Step, StepDone};
use crate::backend::tree::history::RequestWrite;
use crate::backend::tree::leases::Lease;
use crate::backend::tree::store::{ANY, Failure, Op, Reason, Stat};
use crate::backend::tree::table::state::OwnWaiter;
use crate::backend::{Grant, NewClaim};
use crate::name::{LockName, Mode};

/// The outcome of a step that grants a free lock.
pub enum FreeAttempt {
    Held(Grant),
    /// The lock is in use; its node is there, as far as the refusal says.
    Refused {
        is_there: bool,
    },
}

impl Replica {
    /// Grants a lock that nobody uses: its node is absent, or there without children. To a reader also one that only readers
    /// use or wait for, if the store knows that.
    pub async fn grant_free(
        &self,
        lock: &LockName,
        new: &NewClaim,
        request_write: RequestWrite,
        is_there: bool,
    ) -> Result<FreeAttempt, Failure> {
        let path = self.paths.lock(lock);
        // No commit counts claims, so each server grants up to half of the limit uncounted. A reentrant call must look for
        // a holder to join first.
        let most = new.limits.queue as usize / 2;
        let among_readers = self.reads(new).then(|| self.leases.begin_reader(lock, most)).flatten();
        let before = match (&among_readers, is_there) {
            (Some(_), _) => vec![Op::Readers { path }],
            // The deletion fails while it has a child.
            (None, true) => vec![Op::delete(path.clone(), ANY), Op::create(path, Vec::new())],
            (None, false) => vec![Op::create(path, Vec::new())],
        };
        let request = self.history.begin(lock, new, new.id, request_write);
        let step = self.granting_step(lock, new, Claim::of(new), (before, request.into_iter().collect()))?;
        let class = if among_readers.is_some() {
            Class::Reader
        } else {
            step.class
        };
        let read_over = request_write.read_over();
        let step = Step {
            class,
            read_over,
            ..step
        };
        let failure = match self.send_grant(new, step).await {
            Ok((grant, _)) => return Ok(FreeAttempt::Held(grant)),
            Err(failure) => failure,
        };
        let (is_there, has_no_bucket) = match &failure {
            Failure::Refused { index: 0, reason } => (
                matches!(reason, Reason::NodeExists | Reason::NotEmpty),
                !is_there && *reason == Reason::NoNode,
            ),
            failure => (is_there, failure.is_no_node()),
        };
        changed(Err::<(), _>(failure))?;
        if has_no_bucket {
            // It was deleted by hand, or an old copy of the store was put back.
            self.buckets.lock().remove(&Paths::bucket_of(lock));
            self.ensure_bucket(lock).await?;
        }
        Ok(FreeAttempt::Refused { is_there })
    }

    /// Whether a claim is granted while the lock has only readers.
    pub fn reads(&self, new: &NewClaim) -> bool {
        self.batcher.bounds.independent && new.mode == Mode::Shared && !new.reentrant
    }

    /// Makes a waiter a holder. None if the lock has changed.
    pub async fn grant_waiter(
        &self,
        lock: &LockName,
        new: &NewClaim,
        waiter: &str,
        read_over: &FencedConnection,
    ) -> Result<Option<Grant>, Failure> {
        let more = vec![Op::delete(self.child(lock, waiter), ANY)];
        let callers = self.table.own(lock, new.call).map(|own| own.callers);
        let claim = Claim::of(new).called_by(callers.unwrap_or_default());
        self.grant(lock, new, (claim, more), read_over).await
    }

    /// Ends a holder, with the records of its `ends`, and grants a waiter of this replica if it may hold then. None if it
    /// may not, or the lock has changed.
    pub async fn grant_next(&self, gone: &Lease, ends: &[Op], next: &NewClaim) -> Result<Option<Grant>, Failure> {
        let lock = &gone.lock;
        let Some((own, connection)) = self.next_without(gone, next).await? else {
            return Ok(None);
        };
        let before = vec![Op::delete(self.child(lock, &gone.child.name), gone.version)];
        let mut after = vec![Op::delete(self.child(lock, &own.name), ANY)];
        after.extend_from_slice(ends);
        // A waiter whose call was cancelled leaves the queue by itself.
        let claim = Claim::of(next).called_by(own.callers);
        let Ok(step) = self.granting_step(lock, next, claim, (before, after)) else {
            return Ok(None);
        };
        let read_over = Some(connection.generation);
        let step = Step { read_over, ..step };
        self.table.suppress_notification(lock, next.call);
        let granted = match self.send_grant(next, step).await {
            Err(Failure::CallEnded) => Ok(None),
            sent => changed(sent),
        };
        if let Ok(Some((_, done))) = &granted {
            self.history.ended(ends, (done, 3), gone.claim.finished_limit);
            self.note_ended(gone);
        }
        // It asks for itself again, if it was not granted.
        self.table.allow_notification(lock, next.call);
        Ok(granted?.map(|(grant, _)| grant))
    }

    /// The waiter of this call, if it may hold once a holder is gone, and the connection over which that was read.
    async fn next_without(
        &self,
        gone: &Lease,
        next: &NewClaim,
    ) -> Result<Option<(OwnWaiter, Arc<FencedConnection>)>, Failure> {
        let lock = &gone.lock;
        let Some(own) = self.table.own(lock, next.call) else {
            return Ok(None);
        };
        let connection = self.connections.ready().await?;
        if gone.read_over != connection.generation {
            return Ok(None);
        }
        let gone = gone.child.name.as_str();
        let known = self.table.ask(lock, &connection, |view| {
            (view.has(&own.name) && view.has(gone)).then(|| view.is_next(&own.name, Some(gone)))
        });
        let is_next = match known.flatten() {
            Some(is_next) => is_next,
            None => self.table.list(lock, &connection).await?.is_next(&own.name, Some(gone)),
        };
        Ok(is_next.then_some((own, connection)))
    }

    /// Grants a call anew whose granting answer was lost: the connection broke under it, so its token was perhaps
    /// made before the connection was fenced.
    pub async fn grant_with_new_token(
        &self,
        lock: &LockName,
        new: &NewClaim,
        lease: &Lease,
        read_over: &FencedConnection,
    ) -> Result<Option<Grant>, Failure> {
        let life = new.ttl.get().max(self.leases.remaining(lease));
        let claim = self.leases.claim_living(lease, life);
        let old = Op::delete(self.child(lock, &lease.child.name), lease.version);
        let granted = self.grant(lock, new, (claim, vec![old]), read_over).await?;
        if granted.is_some() {
            self.note_ended(lease);
        }
        Ok(granted)
    }

    /// Creates the holder of a call together with other operations, which must say that it may hold by a list of the lock.
    /// None if they were refused.
    pub async fn grant(
        &self,
        lock: &LockName,
        new: &NewClaim,
        (claim, more): (Claim, Vec<Op>),
        read_over: &FencedConnection,
    ) -> Result<Option<Grant>, Failure> {
        // The holder appears before its waiter disappears: who follows the events never sees neither.
        let step = self.granting_step(lock, new, claim, (Vec::new(), more))?;
        let read_over = Some(read_over.generation);
        let step = Step { read_over, ..step };
        Ok(changed(self.send_grant(new, step).await)?.map(|(grant, _)| grant))
    }

    /// A step that creates the holder of a call between other operations.
    fn granting_step(
        &self,
        lock: &LockName,
        new: &NewClaim,
        claim: Claim,
        (mut ops, after): (Vec<Op>, Vec<Op>),
    ) -> Result<Step, Failure> {
        let grant = Some((ops.len(), Arc::new(claim.with_new_lease()?)));
        ops.push(Op::create(self.new_holder(lock, new), Vec::new()));
        ops.extend(after);
        let step = self.step_of(lock, new, ops)?;
        Ok(Step { grant, ..step })
    }

    /// Sends a granting step of a call, and notes the holder. If the answer is lost, that is remembered.
    async fn send_grant(&self, new: &NewClaim, step: Step) -> Result<(Grant, StepDone), Failure> {
        let (lock, grant) = (step.lock.clone(), step.grant.clone());
        let sent = self.batcher.send(step).await;
        if let Err(Failure::Unavailable(_) | Failure::NoQuorum(_)) = &sent {
            self.calls.mark_unknown(new.call);
        }
        let done = sent?;
        self.calls.note_settled(new.call);
        let ((index, claim), number) = grant.zip(done.granted).ok_or_else(Failure::malformed)?;
        let (path, version) = created(&done, index)?;
        let child = Child::parse(name_in(path)).ok_or_else(Failure::malformed)?;
        let claim = Claim {
            base: done.connection.base,
            ..Claim::clone(&claim)
        };
        let granted = self.leases.seen_now(
            (&lock, &child),
            claim,
            &Stat::of_new(number, version),
            done.connection.generation,
        )?;
        let lease = self.leases.note(Lease {
            is_own: true,
            ..granted
        });
        self.connections.saw(lease.token);
        self.table.granted(&lock, &child);
        self.table.remove_own_waiter(&lock, new.call);
        let (waited, claim) = (done.sent.saturating_duration_since(new.arrived), &lease.claim);
        Ok((grant_of(&lease, &claim.holds[0], claim.life, waited), done))
    }
}
