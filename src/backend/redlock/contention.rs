//! Contending: attempts until it is clear who holds, and where a call stands then.

use std::time::Duration;

use tokio::time::sleep;

use super::Core;
use super::attempt::{AttemptOutcome, Conflict};
use super::waiting::{AttemptPermit, NextAction};
use crate::backend::redis_server::node::jitter;
use crate::backend::{BackendError, Grant, NewClaim, WaitPolicy, AcquireOutcome};
use crate::name::LockName;

/// How often attempts that are in each other's way are repeated at once, and the pause between.
const REPEATS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(12);

/// What contending came to.
enum ContentionOutcome {
    Held(Grant),
    Busy(Conflict),
    Left,
}

impl Core {
    /// Contends until somebody is seen to hold, or attempts have been in each other's way too often.
    async fn contend(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        contending: &mut AttemptPermit<'_>,
    ) -> Result<ContentionOutcome, BackendError> {
        let mut repeats = 0;
        loop {
            let awaited = contending.is_awaited();
            let in_the_way = match self.attempt(lock, claim, contending.round, awaited).await? {
                AttemptOutcome::Held(grant) => return Ok(ContentionOutcome::Held(grant)),
                AttemptOutcome::Left => return Ok(ContentionOutcome::Left),
                AttemptOutcome::Busy(in_the_way) => in_the_way,
            };
            repeats += 1;
            if in_the_way.holder.is_some() || repeats > REPEATS {
                return Ok(ContentionOutcome::Busy(in_the_way));
            }
            sleep(jitter(PAUSE * repeats)).await;
            contending.next_round();
        }
    }

    /// Lets the one whose turn it is contend, and says where it stands then.
    pub async fn settle(
        &self,
        lock: &LockName,
        claim: &NewClaim,
        mut contending: AttemptPermit<'_>,
    ) -> Result<AcquireOutcome, BackendError> {
        let place = match self.contend(lock, claim, &mut contending).await? {
            ContentionOutcome::Held(grant) => {
                contending.is_over(Some(&grant));
                AcquireOutcome::Held(grant)
            }
            ContentionOutcome::Left => {
                contending.is_over(None);
                AcquireOutcome::Cancelled
            }
            ContentionOutcome::Busy(in_the_way) if claim.wait_policy == WaitPolicy::Wait => {
                // Where nobody holds, it is somebody's attempt that ends at once.
                let frees_in = in_the_way.frees_in.filter(|_| in_the_way.holder.is_some());
                contending.waits(claim, Some(frees_in.unwrap_or_else(|| jitter(2 * PAUSE))))
            }
            ContentionOutcome::Busy(in_the_way) => {
                contending.is_over(None);
                AcquireOutcome::Busy(in_the_way.holder.map(Box::new))
            }
        };
        self.watchers.changed(lock);
        Ok(place)
    }

    /// The grant of a call that holds already.
    pub async fn held_by(&self, lock: &LockName, claim: &NewClaim) -> Result<Option<Grant>, BackendError> {
        let look = self.inspect(lock, Duration::ZERO).await?;
        let mine = look.holder.filter(|(_, call)| *call == claim.call);
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

    /// Lets the next of this replica contend for what was just freed.
    pub async fn hand_over(&self, lock: &LockName, next: &NewClaim) -> Option<Grant> {
        let NextAction::Contend(contending) = self.waiting.again(lock, next.call) else {
            return None;
        };
        match self.settle(lock, next, contending).await {
            Ok(AcquireOutcome::Held(grant)) => Some(grant),
            _ => None,
        }
    }
}
