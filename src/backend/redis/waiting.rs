//! This replica's waiting claims, and the beat that keeps them alive.
//!
//! A beat is one short call per lock, however many wait for it, and the only poll. It answers when the
//! lock's hash was born; a claim that was entered under another birth has been lost with the data. It
//! shows whose turn has come, and which waiters were taken from their calls (adopted by a retry or
//! taken out): a call whose message was lost asks for itself then. All calls of the lock ask where the
//! store did not answer or its data went back, and a few at each beat where more waiters were taken
//! than the store remembers. One more beat comes
//! shortly after the next holder's TTL, for expiry wakes nobody unless somebody calls, and one at once
//! where a purge is not done yet.
//!
//! Data that went back, as in a failover, brings back waiters of this replica whose calls have
//! ended. As they would be kept alive, they are disowned as soon as their turn shows them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use redis::{Value, from_redis_value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::WaiterState;
use super::{Core, scripts};
use crate::backend::redis_server::script::StepRequirements;
use crate::backend::{BackendError, NewClaim, Notification, QueuePosition};
use crate::name::{CallId, ClaimId, LockName};

/// How often a lock with waiters here is told; `BEAT` in `prelude.lua`.
const BEAT: Duration = Duration::from_millis(1_500);
/// How long after a holder's TTL the lock is told: its first waiter asks before.
const PAST_THE_END: Duration = Duration::from_millis(20);
/// How many of a lock's first waiters a beat names, for the store to say whether their turn has come.
const FIRST: usize = 16;
/// How many claims ask at one beat because the store does not remember which waiters were taken.
const ASKING: usize = 64;
/// How many locks are told at once.
const AT_ONCE: usize = 64;

/// The waiting claims.
#[derive(Debug, Default)]
pub struct Waiting {
    lines: Mutex<AllWaiters>,
    /// Those that may be in the store, and whose answer is not there yet.
    entering: Mutex<HashMap<ClaimId, AcquiresInFlight>>,
    sooner: Notify,
}

/// The calls that are entering one claim.
#[derive(Debug, Default)]
struct AcquiresInFlight {
    calls: u32,
    /// Whether the store has said meanwhile that the claim is gone.
    gone: bool,
}

/// The lines, and when the first of them is due as far as the beat knows.
#[derive(Debug, Default)]
struct AllWaiters {
    by_lock: HashMap<LockName, LockWaiters>,
    planned: Option<Instant>,
}

/// A claim on its way into the store, until this is dropped.
#[derive(Debug)]
pub struct AcquireGuard<'a> {
    waiting: &'a Waiting,
    id: ClaimId,
}

impl Drop for AcquireGuard<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut times) = self.waiting.all_entering().entry(self.id) {
            times.get_mut().calls -= 1;
            if times.get().calls == 0 {
                times.remove();
            }
        }
    }
}

/// Those of one lock, and when it is told next.
#[derive(Debug)]
struct LockWaiters {
    /// By claim and call: a retry enters a claim that an older call here still waits for.
    claims: BTreeMap<(ClaimId, CallId), WaitingClaim>,
    next: Instant,
    /// Whether a beat was not answered: another server may serve since, without the last waiters.
    in_doubt: bool,
    /// How many waiters taken from their calls all claims here have seen.
    taken: u64,
}

impl Default for LockWaiters {
    fn default() -> Self {
        Self {
            claims: BTreeMap::new(),
            next: Instant::now() + BEAT,
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

    /// The ids of the first claims in the queue's order, some of them.
    fn first(&self) -> Vec<ClaimId> {
        let mut all: Vec<_> = self.claims.iter().map(|((id, _), one)| (one.turn, *id)).collect();
        if all.len() > FIRST {
            all.select_nth_unstable(FIRST);
            all.truncate(FIRST);
        }
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    fn no_later_than(&mut self, frees_in: Option<Duration>) {
        let freed = frees_in.map(|left| Instant::now() + left + PAST_THE_END);
        self.next = freed.map_or(self.next, |freed| freed.min(self.next));
    }
}

#[derive(Debug, Clone, Copy)]
struct WaitingClaim {
    born: u64,
    turn: u64,
    at: Instant,
    /// Whether it may have been taken from its call, and has not asked yet.
    unsure: bool,
}

impl Waiting {
    fn lines(&self) -> MutexGuard<'_, AllWaiters> {
        self.lines.lock()
    }

    fn all_entering(&self) -> MutexGuard<'_, HashMap<ClaimId, AcquiresInFlight>> {
        self.entering.lock()
    }

    /// A claim is about to be entered.
    pub fn entering(&self, id: ClaimId) -> AcquireGuard<'_> {
        self.all_entering().entry(id).or_default().calls += 1;
        AcquireGuard { waiting: self, id }
    }

    /// Whether a claim in the store's queue is this replica's to serve.
    pub fn knows(&self, lock: &LockName, id: &ClaimId) -> bool {
        // In this order: a claim that has been entered waits before it stops entering.
        self.all_entering().contains_key(id) || self.lines().by_lock.get(lock).is_some_and(|line| line.has(id))
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lines().by_lock.is_empty()
    }

    /// A claim waits, in a hash that was seen so. One that is gone by now was told so, and does not.
    pub fn add(&self, lock: &LockName, claim: &NewClaim, ahead: QueuePosition, seen: WaiterState) {
        let at = Instant::now();
        let entering = self.all_entering();
        if entering.get(&claim.id).is_some_and(|one| one.gone) {
            return;
        }
        let mut lines = self.lines();
        drop(entering);
        let line = lines.by_lock.entry(lock.clone()).or_default();
        let entered = WaitingClaim {
            born: seen.born,
            turn: ahead.position,
            at,
            unsure: false,
        };
        line.claims.insert((claim.id, claim.call), entered);
        line.taken = line.taken.min(seen.lost);
        line.no_later_than(ahead.frees_in);
        let next = line.next;
        self.plan(&mut lines, next);
    }

    /// Wakes the beat if it would come too late. Each time would be once a claim, and each time all
    /// lines are looked through.
    fn plan(&self, lines: &mut AllWaiters, next: Instant) {
        if lines.planned.is_none_or(|planned| next < planned) {
            lines.planned = Some(next);
            self.sooner.notify_one();
        }
    }

    /// A call does not wait any more.
    pub fn remove(&self, lock: &LockName, id: &ClaimId, call: CallId) {
        let mut lines = self.lines();
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return;
        };
        line.claims.remove(&(*id, call));
        if line.claims.is_empty() {
            lines.by_lock.remove(lock);
        }
    }

    /// The store has taken a claim out: no call waits with it any more, for each is told and enters anew.
    pub fn gone(&self, lock: &LockName, id: &ClaimId) {
        let mut entering = self.all_entering();
        if let Some(one) = entering.get_mut(id) {
            one.gone = true;
        }
        let mut lines = self.lines();
        drop(entering);
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return;
        };
        line.claims.retain(|(claim, _), _| claim != id);
        if line.claims.is_empty() {
            lines.by_lock.remove(lock);
        }
    }

    /// The locks to tell now, and when to come again.
    fn due(&self) -> (Vec<LockName>, Instant) {
        let now = Instant::now();
        let mut lines = self.lines();
        let (mut due, mut next) = (Vec::new(), now + BEAT);
        for (lock, line) in &mut lines.by_lock {
            if line.next <= now {
                line.next = now + BEAT;
                due.push(lock.clone());
            }
            next = next.min(line.next);
        }
        lines.planned = Some(next);
        (due, next)
    }

    /// A beat was not answered.
    fn doubt(&self, lock: &LockName) {
        if let Some(line) = self.lines().by_lock.get_mut(lock) {
            line.in_doubt = true;
        }
    }

    /// What a beat is to ask for; nothing where nobody waits any more.
    fn asked(&self, lock: &LockName) -> Option<Asked> {
        let lines = self.lines();
        let line = lines.by_lock.get(lock)?;
        Some(Asked {
            taken: line.taken,
            first: line.first(),
            sent: Instant::now(),
        })
    }

    /// Takes in the answer to a beat that asked so, and takes out the claims that the lock's hash
    /// does not have. Of those that were entered later the answer tells nothing.
    fn told(&self, lock: &LockName, beat: &HeartbeatAnswer, asked: &Asked) -> HeartbeatMessage {
        let (mut lines, mut told) = (self.lines(), HeartbeatMessage::default());
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return told;
        };
        line.no_later_than(beat.frees_in);
        if beat.more {
            line.next = Instant::now();
        }
        // Data that went back has counted fewer.
        let in_doubt = std::mem::take(&mut line.in_doubt) || beat.seen.lost < asked.taken;
        // A claim that was added meanwhile may have seen fewer than were asked for.
        if line.taken >= asked.taken {
            line.taken = beat.seen.lost;
        }
        let mut asking = if in_doubt { usize::MAX } else { ASKING };
        line.claims.retain(|(id, _), one| {
            let is_lost = one.born != beat.seen.born && one.at < asked.sent;
            if is_lost {
                told.lost.push(*id);
                return false;
            }
            one.unsure |= in_doubt || beat.missed;
            let is_taken = beat.taken.contains(id);
            if is_taken || (one.unsure && asking > 0) {
                asking -= usize::from(!is_taken);
                one.unsure = false;
                told.doubtful.push(*id);
            }
            true
        });
        let (next, nobody) = (line.next, line.claims.is_empty());
        if nobody {
            lines.by_lock.remove(lock);
        }
        self.plan(&mut lines, next);
        told
    }
}

/// What a beat asks for.
#[derive(Debug)]
struct Asked {
    taken: u64,
    first: Vec<ClaimId>,
    sent: Instant,
}

/// What a beat tells of the claims that wait.
#[derive(Debug, Default)]
struct HeartbeatMessage {
    /// They were lost with the data.
    lost: Vec<ClaimId>,
    /// They may have been taken out since the last beat.
    doubtful: Vec<ClaimId>,
}

/// What `beat.lua` returns.
#[derive(Debug)]
struct HeartbeatAnswer {
    seen: WaiterState,
    frees_in: Option<Duration>,
    turns: Vec<ClaimId>,
    more: bool,
    /// The waiters that were taken from their calls since, as far as they are remembered.
    taken: Vec<ClaimId>,
    /// Whether there were more.
    missed: bool,
}

impl HeartbeatAnswer {
    fn read(answer: Value) -> Option<Self> {
        type Ids = Vec<Vec<u8>>;
        let (born, frees_in, turns, lost, more, taken, missed): (u64, i64, Ids, u64, u8, Ids, u8) =
            from_redis_value(answer).ok()?;
        let ids = |ids: Ids| -> Option<Vec<ClaimId>> {
            let ids = ids.into_iter().map(|id| id.try_into().ok().map(ClaimId::from_bytes));
            ids.collect()
        };
        Some(Self {
            seen: WaiterState { born, lost },
            frees_in: u64::try_from(frees_in).ok().map(Duration::from_micros),
            turns: ids(turns)?,
            more: more == 1,
            taken: ids(taken)?,
            missed: missed == 1,
        })
    }
}

/// Beats until the namespace is closed.
pub async fn beat(core: Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let (due, next) = core.waiting.due();
        let told = futures::stream::iter(due).for_each_concurrent(AT_ONCE, |lock| tell(&core, lock));
        told.await;
        tokio::select! {
            () = sleep_until(next) => {}
            () = core.waiting.sooner.notified() => {}
        }
    }
}

async fn tell(core: &Arc<Core>, lock: LockName) {
    let Some(asked) = core.waiting.asked(&lock) else {
        return;
    };
    // A store that is away the waiters ride out by themselves, once the first has asked.
    let Ok(Some(beat)) = ask(core, &lock, &asked).await else {
        core.waiting.doubt(&lock);
        core.notifications.send(Notification::Changed(lock));
        return;
    };
    let told = core.waiting.told(&lock, &beat, &asked);
    for id in told.lost {
        core.notifications.send(Notification::Gone(lock.clone(), id));
    }
    for id in told.doubtful.iter().chain(&beat.turns) {
        core.notifications.send(Notification::Next(lock.clone(), *id));
    }
    let disown = async {
        for id in &beat.turns {
            disown_unknown(core, &lock, id).await?;
        }
        Ok::<_, BackendError>(())
    };
    // What is not answered in time is tried again with the next beat: the other locks' cannot wait.
    let _ = timeout(BEAT, disown).await;
}

/// Takes a waiter of this replica out of the queue if no call of it waits there.
///
/// # Errors
/// Those of the store; the waiter is still shown by the next beat then, or buried in the end.
pub async fn disown_unknown(core: &Core, lock: &LockName, id: &ClaimId) -> Result<(), BackendError> {
    if core.waiting.knows(lock, id) {
        return Ok(());
    }
    let args = core.space.disown(lock, id);
    core.call(&scripts::LEAVE, lock, &args, StepRequirements::Nothing)
        .await
        .map(drop)
}

async fn ask(core: &Core, lock: &LockName, asked: &Asked) -> Result<Option<HeartbeatAnswer>, BackendError> {
    let args = core.space.beat(lock, asked.taken, &asked.first);
    let asked = core.call(&scripts::BEAT, lock, &args, StepRequirements::Nothing);
    let answer = timeout(BEAT, asked).await.ok().transpose()?;
    Ok(answer.and_then(|answer| HeartbeatAnswer::read(answer.value)))
}

#[cfg(test)]
mod tests;
