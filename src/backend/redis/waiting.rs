//! This replica's waiting claims, and the heartbeat that keeps them alive.
//!
//! A heartbeat is one short script call per lock, independent of the number of waiters. It is the only
//! poll. The reply contains:
//!
//! - the time when the lock's hash was created. A claim that was enqueued in another hash has been
//!   lost with the data;
//! - the waiters of this replica that are eligible;
//! - the waiters that were taken from their calls, because a retry adopted them or because they were
//!   removed. Their calls then ask the store, in case the notification was lost.
//!
//! All calls of a lock ask if a heartbeat was not answered or if the data went back to an earlier
//! state. If more waiters were taken than the store remembers, [`ASKING_PER_HEARTBEAT`] calls ask at
//! each heartbeat. A further heartbeat follows [`AFTER_EXPIRY`] after the next lease expires, because
//! Redis notifies nobody of an expiry without a call, and immediately if a purge is not finished.
//!
//! After data went back, as in a failover, the queue may contain waiters of this replica whose calls
//! have ended. The heartbeat would keep them alive, so they are removed when they become eligible.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use redis::{Value, from_redis_value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::WaiterState;
use super::{Core, scripts};
use crate::backend::redis_server::script::StepRequirements;
use crate::backend::{BackendError, NewClaim, Notification, QueuePosition};
use crate::name::{CallId, ClaimId, LockName};

/// The interval of the heartbeats of a lock with waiters here; equals `HEARTBEAT` in `prelude.lua`.
const INTERVAL: Duration = Duration::from_millis(1_500);
/// How long after the expiry of a lease the heartbeat is sent. The first waiter asks before that.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
/// How many of a lock's first waiters a heartbeat contains. The store returns those that are eligible.
const FIRST_WAITERS: usize = 16;
/// How many claims ask after one heartbeat if the store does not remember which waiters were taken.
const ASKING_PER_HEARTBEAT: usize = 64;
/// How many heartbeats are in flight at once.
const CONCURRENCY: usize = 64;

/// The waiting claims of this replica in one namespace.
#[derive(Debug, Default)]
pub struct Waiting {
    all: Mutex<AllWaiters>,
    /// The claims that may be in the store, but whose acquire has not been answered yet.
    acquires: Mutex<HashMap<ClaimId, AcquiresInFlight>>,
    /// Notified when a heartbeat is due earlier than planned.
    rescheduled: Notify,
}

/// The calls in flight that acquire one claim.
#[derive(Debug, Default)]
struct AcquiresInFlight {
    calls: u32,
    /// Whether the store has notified meanwhile that the claim is gone.
    gone: bool,
}

/// The waiters by lock, and when the next heartbeat is planned.
#[derive(Debug, Default)]
struct AllWaiters {
    by_lock: HashMap<LockName, LockWaiters>,
    planned: Option<Instant>,
}

/// Marks an acquire of a claim as in flight until it is dropped.
#[derive(Debug)]
pub struct AcquireGuard<'a> {
    waiting: &'a Waiting,
    id: ClaimId,
}

impl Drop for AcquireGuard<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut acquires) = self.waiting.acquires.lock().entry(self.id) {
            acquires.get_mut().calls -= 1;
            if acquires.get().calls == 0 {
                acquires.remove();
            }
        }
    }
}

/// The waiters of one lock, and the state of its heartbeat.
#[derive(Debug)]
struct LockWaiters {
    /// By claim and call, because a retry may acquire a claim that an older call here still waits for.
    claims: BTreeMap<(ClaimId, CallId), WaitingClaim>,
    next: Instant,
    /// Whether a heartbeat was not answered. Another server may have become master since, without the
    /// latest waiters.
    in_doubt: bool,
    /// The lowest count of taken waiters that any claim here has observed.
    taken: u64,
}

impl Default for LockWaiters {
    fn default() -> Self {
        Self {
            claims: BTreeMap::new(),
            next: Instant::now() + INTERVAL,
            in_doubt: false,
            taken: u64::MAX,
        }
    }
}

impl LockWaiters {
    fn has(&self, id: &ClaimId) -> bool {
        let first = (*id, CallId::from_bytes([0; 16]));
        self.claims
            .range(first..)
            .next()
            .is_some_and(|((next, _), _)| next == id)
    }

    /// The ids of the first [`FIRST_WAITERS`] claims in queue order.
    fn first(&self) -> Vec<ClaimId> {
        let mut all: Vec<_> = self
            .claims
            .iter()
            .map(|((id, _), claim)| (claim.position, *id))
            .collect();
        if all.len() > FIRST_WAITERS {
            all.select_nth_unstable(FIRST_WAITERS);
            all.truncate(FIRST_WAITERS);
        }
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    fn no_later_than(&mut self, frees_in: Option<Duration>) {
        let due = frees_in.map(|left| Instant::now() + left + AFTER_EXPIRY);
        self.next = due.map_or(self.next, |due| due.min(self.next));
    }
}

#[derive(Debug, Clone, Copy)]
struct WaitingClaim {
    born: u64,
    position: u64,
    added: Instant,
    /// Whether the claim may have been taken from its call, and the call has not asked since.
    must_ask: bool,
}

impl Waiting {
    /// Marks an acquire of this claim as in flight.
    pub fn start_acquire(&self, id: ClaimId) -> AcquireGuard<'_> {
        self.acquires.lock().entry(id).or_default().calls += 1;
        AcquireGuard { waiting: self, id }
    }

    /// Whether a call of this replica waits with this claim or is acquiring it.
    pub fn knows(&self, lock: &LockName, id: &ClaimId) -> bool {
        // The order matters: a claim is added to the waiters before its acquire guard is dropped.
        self.acquires.lock().contains_key(id)
            || self.all.lock().by_lock.get(lock).is_some_and(|waiters| waiters.has(id))
    }

    /// Whether no claim waits.
    pub fn is_empty(&self) -> bool {
        self.all.lock().by_lock.is_empty()
    }

    /// Adds a claim that waits in the store, with the state of its hash. A claim that is gone by now is
    /// not added, because its call has been notified.
    pub fn add(&self, lock: &LockName, claim: &NewClaim, position: QueuePosition, state: WaiterState) {
        let added = Instant::now();
        let acquires = self.acquires.lock();
        if acquires.get(&claim.id).is_some_and(|in_flight| in_flight.gone) {
            return;
        }
        let mut all = self.all.lock();
        drop(acquires);
        let waiters = all.by_lock.entry(lock.clone()).or_default();
        let waiting = WaitingClaim {
            born: state.born,
            position: position.position,
            added,
            must_ask: false,
        };
        waiters.claims.insert((claim.id, claim.call), waiting);
        waiters.taken = waiters.taken.min(state.lost);
        waiters.no_later_than(position.frees_in);
        let next = waiters.next;
        self.plan(&mut all, next);
    }

    /// Wakes the heartbeat task if `next` is earlier than planned. The task scans all locks each time,
    /// so it is not woken for each claim.
    fn plan(&self, all: &mut AllWaiters, next: Instant) {
        if all.planned.is_none_or(|planned| next < planned) {
            all.planned = Some(next);
            self.rescheduled.notify_one();
        }
    }

    /// Removes the claim of a call that no longer waits.
    pub fn remove(&self, lock: &LockName, id: &ClaimId, call: CallId) {
        let mut all = self.all.lock();
        let Some(waiters) = all.by_lock.get_mut(lock) else {
            return;
        };
        waiters.claims.remove(&(*id, call));
        if waiters.claims.is_empty() {
            all.by_lock.remove(lock);
        }
    }

    /// Removes a claim that the store has removed from the queue. All its calls are notified and acquire
    /// anew, so none of them waits with it any more.
    pub fn gone(&self, lock: &LockName, id: &ClaimId) {
        let mut acquires = self.acquires.lock();
        if let Some(in_flight) = acquires.get_mut(id) {
            in_flight.gone = true;
        }
        let mut all = self.all.lock();
        drop(acquires);
        let Some(waiters) = all.by_lock.get_mut(lock) else {
            return;
        };
        waiters.claims.retain(|(claim, _), _| claim != id);
        if waiters.claims.is_empty() {
            all.by_lock.remove(lock);
        }
    }

    /// The locks whose heartbeat is due, and when the next one is.
    fn due(&self) -> (Vec<LockName>, Instant) {
        let now = Instant::now();
        let mut all = self.all.lock();
        let (mut due, mut next) = (Vec::new(), now + INTERVAL);
        for (lock, waiters) in &mut all.by_lock {
            if waiters.next <= now {
                waiters.next = now + INTERVAL;
                due.push(lock.clone());
            }
            next = next.min(waiters.next);
        }
        all.planned = Some(next);
        (due, next)
    }

    /// Records that a heartbeat was not answered.
    fn doubt(&self, lock: &LockName) {
        if let Some(waiters) = self.all.lock().by_lock.get_mut(lock) {
            waiters.in_doubt = true;
        }
    }

    /// The next heartbeat of a lock; `None` if no claim waits for it any more.
    fn heartbeat(&self, lock: &LockName) -> Option<Heartbeat> {
        let all = self.all.lock();
        let waiters = all.by_lock.get(lock)?;
        Some(Heartbeat {
            taken: waiters.taken,
            first: waiters.first(),
            sent: Instant::now(),
        })
    }

    /// Applies the reply to a heartbeat, and removes the claims that the lock's hash does not contain.
    /// The reply says nothing about claims that were enqueued after the heartbeat was sent.
    fn apply(&self, lock: &LockName, heartbeat: &Heartbeat, answer: &HeartbeatAnswer) -> ClaimsToNotify {
        let (mut all, mut to_notify) = (self.all.lock(), ClaimsToNotify::default());
        let Some(waiters) = all.by_lock.get_mut(lock) else {
            return to_notify;
        };
        waiters.no_later_than(answer.frees_in);
        if answer.more {
            waiters.next = Instant::now();
        }
        // A lower count than before means that the data went back to an earlier state.
        let in_doubt = std::mem::take(&mut waiters.in_doubt) || answer.state.lost < heartbeat.taken;
        // A claim that was added since may have observed a lower count than the heartbeat contained.
        if waiters.taken >= heartbeat.taken {
            waiters.taken = answer.state.lost;
        }
        let mut asking = if in_doubt { usize::MAX } else { ASKING_PER_HEARTBEAT };
        waiters.claims.retain(|(id, _), claim| {
            let is_lost = claim.born != answer.state.born && claim.added < heartbeat.sent;
            if is_lost {
                to_notify.lost.push(*id);
                return false;
            }
            claim.must_ask |= in_doubt || answer.missed;
            let is_taken = answer.taken.contains(id);
            if is_taken || (claim.must_ask && asking > 0) {
                asking -= usize::from(!is_taken);
                claim.must_ask = false;
                to_notify.doubtful.push(*id);
            }
            true
        });
        let (next, is_empty) = (waiters.next, waiters.claims.is_empty());
        if is_empty {
            all.by_lock.remove(lock);
        }
        self.plan(&mut all, next);
        to_notify
    }
}

/// What a heartbeat contains, and when it was sent.
#[derive(Debug)]
struct Heartbeat {
    taken: u64,
    first: Vec<ClaimId>,
    sent: Instant,
}

/// The claims whose calls are notified after a heartbeat.
#[derive(Debug, Default)]
struct ClaimsToNotify {
    /// The claims that were lost with the data.
    lost: Vec<ClaimId>,
    /// The claims that may have been taken from their calls.
    doubtful: Vec<ClaimId>,
}

/// The reply of `heartbeat.lua`.
#[derive(Debug)]
struct HeartbeatAnswer {
    state: WaiterState,
    frees_in: Option<Duration>,
    /// This replica's waiters that are eligible or no longer in the queue.
    eligible: Vec<ClaimId>,
    /// Whether another heartbeat should follow immediately because more is left to purge.
    more: bool,
    /// The waiters that were taken from their calls since the count in the heartbeat, as far as the store
    /// remembers them.
    taken: Vec<ClaimId>,
    /// Whether more waiters were taken than the store remembers.
    missed: bool,
}

impl HeartbeatAnswer {
    fn read(answer: Value) -> Option<Self> {
        type Ids = Vec<Vec<u8>>;
        let (born, frees_in, eligible, lost, more, taken, missed): (u64, i64, Ids, u64, u8, Ids, u8) =
            from_redis_value(answer).ok()?;
        let ids = |ids: Ids| -> Option<Vec<ClaimId>> {
            let ids = ids.into_iter().map(|id| id.try_into().ok().map(ClaimId::from_bytes));
            ids.collect()
        };
        Some(Self {
            state: WaiterState { born, lost },
            frees_in: u64::try_from(frees_in).ok().map(Duration::from_micros),
            eligible: ids(eligible)?,
            more: more == 1,
            taken: ids(taken)?,
            missed: missed == 1,
        })
    }
}

/// Sends the heartbeats of all locks with waiters until the namespace is closed.
pub async fn send_heartbeats(core: Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let (due, next) = core.waiting.due();
        let sent = futures::stream::iter(due).for_each_concurrent(CONCURRENCY, |lock| send_heartbeat(&core, lock));
        sent.await;
        tokio::select! {
            () = sleep_until(next) => {}
            () = core.waiting.rescheduled.notified() => {}
        }
    }
}

async fn send_heartbeat(core: &Arc<Core>, lock: LockName) {
    let Some(heartbeat) = core.waiting.heartbeat(&lock) else {
        return;
    };
    // If the store is unavailable, the notified waiter finds that out, and the waiters retry by themselves.
    let Ok(Some(answer)) = call(core, &lock, &heartbeat).await else {
        core.waiting.doubt(&lock);
        core.notifications.send(Notification::Changed(lock));
        return;
    };
    let to_notify = core.waiting.apply(&lock, &heartbeat, &answer);
    for id in to_notify.lost {
        core.notifications.send(Notification::Gone(lock.clone(), id));
    }
    for id in to_notify.doubtful.iter().chain(&answer.eligible) {
        core.notifications.send(Notification::Next(lock.clone(), *id));
    }
    let disown = async {
        for id in &answer.eligible {
            disown_unknown(core, &lock, id).await?;
        }
        Ok::<_, BackendError>(())
    };
    // A removal that takes too long is retried with the next heartbeat, so that other locks are not delayed.
    let _ = timeout(INTERVAL, disown).await;
}

/// Removes a waiter of this replica from the queue if no call waits with it.
///
/// # Errors
/// Those of the store. The next heartbeat then returns the waiter again, or another call evicts it.
pub async fn disown_unknown(core: &Core, lock: &LockName, id: &ClaimId) -> Result<(), BackendError> {
    if core.waiting.knows(lock, id) {
        return Ok(());
    }
    let args = core.space.disown(lock, id);
    core.call(&scripts::RELEASE, lock, &args, StepRequirements::Nothing)
        .await
        .map(drop)
}

async fn call(core: &Core, lock: &LockName, heartbeat: &Heartbeat) -> Result<Option<HeartbeatAnswer>, BackendError> {
    let args = core.space.heartbeat(lock, heartbeat.taken, &heartbeat.first);
    let call = core.call(&scripts::HEARTBEAT, lock, &args, StepRequirements::Nothing);
    let answer = timeout(INTERVAL, call).await.ok().transpose()?;
    Ok(answer.and_then(|answer| HeartbeatAnswer::read(answer.value)))
}

#[cfg(test)]
mod tests;
