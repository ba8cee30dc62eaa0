//! This replica's waiting claims, and the beat that keeps them alive.
//!
//! A beat is one short call per lock, however many wait for it, and the only poll. It answers when the
//! lock's hash was born; a claim that was entered under another birth has been lost with the data. It
//! shows whose turn has come, and whether waiters were taken out by others: those whose messages were
//! lost ask for themselves then, as they do where the store does not answer. One more beat comes
//! shortly after the next holder's TTL, for expiry wakes nobody unless somebody calls, and one at once
//! where a purge is not done yet.
//!
//! Data that went back, as in a failover, brings back waiters of this replica whose calls have
//! ended. As they would be kept alive, they are disowned as soon as their turn shows them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::StreamExt;
use redis::{Value, from_redis_value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::answer::WaiterState;
use super::{Core, scripts};
use crate::backend::redis_server::topology::StepRequirements;
use crate::backend::{QueuePosition, BackendError, NewClaim, Notification};
use crate::name::{CallId, ClaimId, LockName};

/// How often a lock with waiters here is told; `BEAT` in `prelude.lua`.
const BEAT: Duration = Duration::from_millis(1_500);
/// How long after a holder's TTL the lock is told: its first waiter asks before.
const PAST_THE_END: Duration = Duration::from_millis(20);
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
}

impl Default for LockWaiters {
    fn default() -> Self {
        Self {
            claims: BTreeMap::new(),
            next: Instant::now() + BEAT,
            in_doubt: false,
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

    fn no_later_than(&mut self, frees_in: Option<Duration>) {
        let freed = frees_in.map(|left| Instant::now() + left + PAST_THE_END);
        self.next = freed.map_or(self.next, |freed| freed.min(self.next));
    }
}

#[derive(Debug, Clone, Copy)]
struct WaitingClaim {
    seen: WaiterState,
    at: Instant,
}

impl Waiting {
    fn lines(&self) -> MutexGuard<'_, AllWaiters> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all_entering(&self) -> MutexGuard<'_, HashMap<ClaimId, AcquiresInFlight>> {
        self.entering.lock().unwrap_or_else(PoisonError::into_inner)
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
        line.claims.insert((claim.id, claim.call), WaitingClaim { seen, at });
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

    /// Takes in the answer to a beat that was sent then, and takes out the claims that the lock's hash
    /// does not have. Of those that were entered later the answer tells nothing.
    fn told(&self, lock: &LockName, beat: &HeartbeatAnswer, sent: Instant) -> HeartbeatMessage {
        let (mut lines, mut told) = (self.lines(), HeartbeatMessage::default());
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return told;
        };
        line.no_later_than(beat.frees_in);
        if beat.more {
            line.next = Instant::now();
        }
        let in_doubt = std::mem::take(&mut line.in_doubt);
        line.claims.retain(|(id, _), one| {
            let is_lost = one.seen.born != beat.seen.born && one.at < sent;
            if is_lost {
                told.lost.push(*id);
            // Data that went back has counted fewer.
            } else if in_doubt || one.seen.lost != beat.seen.lost {
                one.seen.lost = beat.seen.lost;
                told.doubtful.push(*id);
            }
            !is_lost
        });
        let (next, nobody) = (line.next, line.claims.is_empty());
        if nobody {
            lines.by_lock.remove(lock);
        }
        self.plan(&mut lines, next);
        told
    }
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
}

impl HeartbeatAnswer {
    fn read(answer: Value) -> Option<Self> {
        let (born, frees_in, turns, lost, more): (u64, i64, Vec<Vec<u8>>, u64, u8) = from_redis_value(answer).ok()?;
        let frees_in = u64::try_from(frees_in).ok().map(Duration::from_micros);
        let turns = turns.into_iter().map(|id| id.try_into().ok().map(ClaimId::from_bytes));
        Some(Self {
            seen: WaiterState { born, lost },
            frees_in,
            turns: turns.collect::<Option<_>>()?,
            more: more == 1,
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
    let sent = Instant::now();
    // A store that is away the waiters ride out by themselves, once the first has asked.
    let Ok(Some(beat)) = ask(core, &lock).await else {
        core.waiting.doubt(&lock);
        core.notifications.send(Notification::Changed(lock));
        return;
    };
    let told = core.waiting.told(&lock, &beat, sent);
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
    core.call(&scripts::LEAVE, lock, &args, StepRequirements::Nothing).await.map(drop)
}

async fn ask(core: &Core, lock: &LockName) -> Result<Option<HeartbeatAnswer>, BackendError> {
    let args = core.space.beat(lock);
    let asked = core.call(&scripts::BEAT, lock, &args, StepRequirements::Nothing);
    let answer = timeout(BEAT, asked).await.ok().transpose()?;
    Ok(answer.and_then(|answer| HeartbeatAnswer::read(answer.value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: WaiterState = WaiterState { born: 1, lost: 0 };

    #[tokio::test]
    async fn a_claim_that_is_gone_before_its_entry_is_answered_does_not_wait() {
        let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
        let claim = NewClaim::numbered(1);
        let ahead = QueuePosition {
            position: 1,
            frees_in: None,
        };
        let entering = waiting.entering(claim.id);
        waiting.gone(&lock, &claim.id);
        waiting.add(&lock, &claim, ahead, SEEN);
        drop(entering);
        assert!(waiting.is_empty() && !waiting.knows(&lock, &claim.id));
        // A later entry of the same claim is another matter.
        let entering = waiting.entering(claim.id);
        waiting.add(&lock, &claim, ahead, SEEN);
        drop(entering);
        assert!(waiting.knows(&lock, &claim.id));
    }

    #[tokio::test]
    async fn every_waiter_asks_after_a_beat_without_an_answer_and_where_data_went_back() {
        let (waiting, lock) = (Waiting::default(), LockName::new("a").unwrap());
        for number in 1..=3 {
            let ahead = QueuePosition {
                position: number,
                frees_in: None,
            };
            let seen = WaiterState { lost: 5, ..SEEN };
            waiting.add(&lock, &NewClaim::numbered(number as u8), ahead, seen);
        }
        let told = |lost| {
            let beat = HeartbeatAnswer {
                seen: WaiterState { lost, ..SEEN },
                frees_in: None,
                turns: Vec::new(),
                more: false,
            };
            waiting.told(&lock, &beat, Instant::now()).doubtful.len()
        };
        assert_eq!(told(5), 0, "all is as it was");
        waiting.doubt(&lock);
        assert_eq!((told(5), told(5)), (3, 0), "once after a beat that nobody answered");
        assert_eq!(
            (told(3), told(3)),
            (3, 0),
            "once where the store knows less than before"
        );
    }
}
