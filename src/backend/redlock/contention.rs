//! Contention: repeats attempts until the holder is known, and determines the outcome of the call.
//!
//! Attempts of which none got a majority pause for a random time.

use std::time::Duration;

use tokio::time::sleep;

use super::Core;
use super::attempt::AttemptOutcome;
use super::waiting::{AttemptPermit, NextAction};
use crate::backend::{AcquireOutcome, BackendError, Grant, NewClaim, WaitPolicy};
use crate::backoff::jitter;
use crate::name::LockName;

/// How often attempts that split the votes are repeated at once, and the pause between them.
const REPEATS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(12);

impl Core {
    /// Repeats the attempt until the call or another one holds, or the votes were split too often.
    async fn contend(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        permit: &mut AttemptPermit<'_>,
    ) -> Result<AttemptOutcome, BackendError> {
        let mut repeats = 0;
        loop {
            let awaited = permit.is_awaited();
            let conflict = match self.attempt(lock, claim, permit.round, awaited).await? {
                AttemptOutcome::Busy(conflict) => conflict,
                outcome => return Ok(outcome),
            };
            repeats += 1;
            if conflict.holder.is_some() || repeats > REPEATS {
                return Ok(AttemptOutcome::Busy(conflict));
            }
            sleep(jitter(PAUSE * repeats)).await;
            permit.next_round();
        }
    }

    /// Lets the permitted call contend, and returns its outcome.
    pub async fn settle(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        mut permit: AttemptPermit<'_>,
    ) -> Result<AcquireOutcome, BackendError> {
        let outcome = match self.contend(lock, claim, &mut permit).await? {
            AttemptOutcome::Held(grant) => {
                permit.finish(Some(&grant));
                AcquireOutcome::Held(grant)
            }
            AttemptOutcome::Cancelled => {
                permit.finish(None);
                AcquireOutcome::Cancelled
            }
            AttemptOutcome::Busy(conflict) if claim.wait_policy == WaitPolicy::Wait => {
                // If no call holds, another attempt splits the votes; it ends soon.
                let frees_in = conflict.frees_in.filter(|_| conflict.holder.is_some());
                permit.enqueue(claim, Some(frees_in.unwrap_or_else(|| jitter(2 * PAUSE))))
            }
            AttemptOutcome::Busy(conflict) => {
                permit.finish(None);
                AcquireOutcome::Busy(conflict.holder.map(Box::new))
            }
        };
        self.watchers.changed(lock);
        Ok(outcome)
    }

    /// The grant of a call that already holds.
    pub async fn held_by(&self, lock: &LockName, claim: &NewClaim) -> Result<Option<Grant>, BackendError> {
        let view = self.inspect(lock, Duration::ZERO).await?;
        let mine = view.holder.filter(|(_, call)| *call == claim.call);
        Ok(mine.map(|(holder, _)| Grant {
            claim: claim.id,
            kind: claim.mode.into(),
            secret: claim.secret,
            token: holder.token,
            owner: holder.owner,
            ttl: holder.remaining,
            waited: Duration::ZERO,
            holds: 1,
        }))
    }

    /// Lets the next waiter of this replica contend for a lock that was just released.
    pub async fn promote_next(&self, lock: &LockName, next: &NewClaim) -> Option<Grant> {
        let NextAction::Contend(permit) = self.waiting.retry(lock, next.call) else {
            return None;
        };
        match self.settle(lock, next, permit).await {
            Ok(AcquireOutcome::Held(grant)) => Some(grant),
            _ => None,
        }
    }
}
