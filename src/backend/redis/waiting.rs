//! This replica's waiting claims, and the beat that keeps them alive.
//!
//! A beat is one short call per lock, however many wait for it. It answers when the lock's hash was
//! born; a claim that was entered under another birth has been lost with the data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use redis::from_redis_value;
use tokio::time::{MissedTickBehavior, interval};

use super::{Core, scripts};
use crate::backend::redis_server::topology::Needs;
use crate::backend::{NewClaim, Wake};
use crate::name::{CallId, ClaimId, LockName};

/// How often a lock with waiters here is told; `BEAT` in `prelude.lua`.
const BEAT: Duration = Duration::from_millis(1_500);
/// How many locks are told at once.
const AT_ONCE: usize = 64;

/// The waiting claims.
#[derive(Debug, Default)]
pub struct Waiting {
    by_lock: Mutex<HashMap<LockName, HashMap<ClaimId, Entered>>>,
}

#[derive(Debug, Clone, Copy)]
struct Entered {
    call: CallId,
    born: u64,
}

impl Waiting {
    fn by_lock(&self) -> MutexGuard<'_, HashMap<LockName, HashMap<ClaimId, Entered>>> {
        self.by_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim waits, in a hash of this birth.
    pub fn add(&self, lock: &LockName, claim: &NewClaim, born: u64) {
        let call = claim.call;
        let mut by_lock = self.by_lock();
        by_lock.entry(lock.clone()).or_default().insert(claim.id, Entered { call, born });
    }

    /// A call does not wait any more.
    pub fn remove(&self, lock: &LockName, id: &ClaimId, call: CallId) {
        let mut by_lock = self.by_lock();
        let Some(claims) = by_lock.get_mut(lock) else {
            return;
        };
        if claims.get(id).is_some_and(|entered| entered.call == call) {
            claims.remove(id);
        }
        if claims.is_empty() {
            by_lock.remove(lock);
        }
    }

    fn locks(&self) -> Vec<LockName> {
        self.by_lock().keys().cloned().collect()
    }

    /// Takes out the claims that a hash of this birth does not have.
    fn lost(&self, lock: &LockName, born: u64) -> Vec<ClaimId> {
        let mut by_lock = self.by_lock();
        let Some(claims) = by_lock.get_mut(lock) else {
            return Vec::new();
        };
        let lost: Vec<ClaimId> = claims.iter().filter(|(_, one)| one.born != born).map(|(id, _)| *id).collect();
        lost.iter().for_each(|id| {
            claims.remove(id);
        });
        if claims.is_empty() {
            by_lock.remove(lock);
        }
        lost
    }
}

/// Beats until the namespace is closed.
pub async fn beat(core: Weak<Core>) {
    let mut ticks = interval(BEAT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else {
            return;
        };
        let told = futures::stream::iter(core.waiting.locks()).for_each_concurrent(AT_ONCE, |lock| tell(&core, lock));
        told.await;
    }
}

async fn tell(core: &Arc<Core>, lock: LockName) {
    let args = core.space.beat(&lock);
    let answer = core.call(&scripts::BEAT, &lock, &args, Needs::Nothing).await;
    // While the store is away there is nobody to tell; the waiters ride that out by themselves.
    let Some(born) = answer.ok().and_then(|born| from_redis_value(born).ok()) else {
        return;
    };
    for id in core.waiting.lost(&lock, born) {
        core.wakes.send(Wake::Gone(lock.clone(), id));
    }
}
