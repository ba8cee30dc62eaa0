//! This replica's waiters: one line per lock, of which only the first contends.
//!
//! A waiter is known to this replica alone: the nodes only know that somebody wants to hear when the
//! lock is free. An alarm goes off at the moment at which a holder's time is over, for no node calls
//! by itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Core;
use super::answer::{asked, granted};
use crate::backend::redis_server::notifications::NotificationSender;
use crate::backend::{QueuePosition, CLAIM_LIMIT, Grant, NewClaim, AcquireOutcome, Refusal, Notification};
use crate::claim::{Queue, Waiter};
use crate::name::{CallId, ClaimId, LockName, Mode};

#[cfg(test)]
mod tests;

/// How long after a holder's time the first waiter is told.
const PAST_THE_END: Duration = Duration::from_millis(5);

/// The least that a waiter is told to wait.
const SOON: Duration = Duration::from_millis(1);

/// One waiting call.
#[derive(Debug)]
struct WaitingCall {
    claim: NewClaim,
    /// The number of its last attempt.
    round: u32,
    /// Whether a node may have heard of it.
    contended: bool,
    since: SystemTime,
}

/// The waiters of one lock, by turn.
#[derive(Debug, Default)]
struct LockWaiters {
    queue: BTreeMap<u64, WaitingCall>,
    /// Who contends now; the others of this replica let it.
    contends: Option<CallId>,
    /// Whether the lock may have been freed since that began.
    missed: bool,
    /// The last token of this replica while somebody waits here.
    granted: u64,
    frees_at: Option<Instant>,
}

impl LockWaiters {
    fn begin(&mut self, call: CallId) {
        (self.contends, self.missed) = (Some(call), false);
    }

    fn first(&self) -> Option<ClaimId> {
        self.queue.values().next().map(|first| first.claim.id)
    }

    fn turn_of(&self, call: CallId) -> Option<u64> {
        self.queue
            .iter()
            .find(|(_, entry)| entry.claim.call == call)
            .map(|(turn, _)| *turn)
    }

    fn ahead(&self, turn: u64) -> QueuePosition {
        QueuePosition {
            position: turn,
            // No more than the lease shows of itself.
            frees_in: self
                .frees_at
                .map(|at| granted(at.saturating_duration_since(Instant::now())).max(SOON)),
        }
    }
}

#[derive(Debug, Default)]
struct AllWaiters {
    by_lock: HashMap<LockName, LockWaiters>,
    turns: u64,
    waiting: u32,
}

/// All lines of a namespace.
#[derive(Debug)]
pub struct Waiting {
    lines: Mutex<AllWaiters>,
    notifications: Arc<NotificationSender>,
    sooner: Notify,
}

/// What a newcomer, or one that asks again, may do.
pub enum NextAction<'a> {
    /// Contend, as nobody else does here.
    Contend(AttemptPermit<'a>),
    /// Wait behind others of this replica.
    Wait(QueuePosition),
    /// Not even that.
    Refused(Refusal),
    /// It is not in the line.
    Unknown,
}

/// The one of a line that contends, until this is dropped.
pub struct AttemptPermit<'a> {
    waiting: &'a Waiting,
    lock: LockName,
    call: CallId,
    turn: u64,
    /// The number of the attempt that is due.
    pub round: u32,
    /// It was never in the line.
    newcomer: bool,
    /// Whether the nodes were told that others wait behind it.
    awaited: bool,
    over: bool,
}

impl Waiting {
    /// Nobody waits.
    pub fn new(notifications: Arc<NotificationSender>) -> Self {
        Self {
            lines: Mutex::default(),
            notifications,
            sooner: Notify::new(),
        }
    }

    fn lines(&self) -> MutexGuard<'_, AllWaiters> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A newcomer that would wait.
    pub fn acquire(&self, lock: &LockName, claim: &NewClaim) -> NextAction<'_> {
        let mut lines = self.lines();
        if lines.waiting >= CLAIM_LIMIT {
            return NextAction::Refused(Refusal::StoreFull { limit: CLAIM_LIMIT });
        }
        lines.turns += 1;
        let turn = lines.turns;
        let line = lines.by_lock.entry(lock.clone()).or_default();
        if line.queue.is_empty() && line.contends.is_none() {
            line.begin(claim.call);
            return NextAction::Contend(self.contending(lock, claim.call, turn, None));
        }
        // Whoever holds counts too.
        let limit = claim.limits.queue;
        let there = line.queue.len() + 1;
        if u32::try_from(there).is_ok_and(|there| there >= limit) {
            return NextAction::Refused(Refusal::Full { limit });
        }
        line.queue.insert(turn, entry(claim, false));
        let ahead = line.ahead(turn);
        lines.waiting += 1;
        NextAction::Wait(ahead)
    }

    /// A newcomer that would not wait: nothing where others of this replica come before it.
    pub fn try_once(&self, lock: &LockName, claim: &NewClaim) -> Option<AttemptPermit<'_>> {
        let mut lines = self.lines();
        lines.turns += 1;
        let turn = lines.turns;
        let line = lines.by_lock.entry(lock.clone()).or_default();
        if !line.queue.is_empty() || line.contends.is_some() {
            return None;
        }
        line.begin(claim.call);
        Some(self.contending(lock, claim.call, turn, None))
    }

    /// One that asks again.
    pub fn again(&self, lock: &LockName, call: CallId) -> NextAction<'_> {
        let mut lines = self.lines();
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return NextAction::Unknown;
        };
        let Some(turn) = line.turn_of(call) else {
            return NextAction::Unknown;
        };
        let first = line.queue.first_entry().filter(|first| *first.key() == turn);
        match first {
            Some(mut first) if line.contends.is_none() => {
                let entry = first.get_mut();
                entry.round += 1;
                entry.contended = true;
                let round = entry.round;
                line.begin(call);
                NextAction::Contend(self.contending(lock, call, turn, Some(round)))
            }
            _ => NextAction::Wait(line.ahead(turn)),
        }
    }

    /// `round`: of one in the line.
    fn contending(&self, lock: &LockName, call: CallId, turn: u64, round: Option<u32>) -> AttemptPermit<'_> {
        AttemptPermit {
            waiting: self,
            lock: lock.clone(),
            call,
            turn,
            round: round.unwrap_or(0),
            newcomer: round.is_none(),
            awaited: false,
            over: false,
        }
    }

    fn tell(&self, lock: &LockName, next: Option<ClaimId>) {
        if let Some(next) = next {
            self.notifications.send(Notification::Next(lock.clone(), next));
        }
    }

    /// Takes a waiting call out; whether it was in the line, and has contended before.
    pub fn release(&self, lock: &LockName, call: CallId) -> Option<bool> {
        let mut lines = self.lines();
        let line = lines.by_lock.get_mut(lock)?;
        let turn = line.turn_of(call)?;
        let was_first = line.queue.keys().next() == Some(&turn);
        let gone = line.queue.remove(&turn)?;
        let next = line.first().filter(|_| was_first);
        tidy(&mut lines, lock);
        lines.waiting = lines.waiting.saturating_sub(1);
        drop(lines);
        self.tell(lock, next);
        Some(gone.contended)
    }

    /// The lock may be free, as a lease ended with this number at a node, or in general: its first waiter
    /// here is told.
    pub fn freed(&self, lock: &LockName, number: Option<u64>) {
        let mut lines = self.lines();
        let Some(line) = lines.by_lock.get_mut(lock) else {
            return;
        };
        // Somebody of this replica has had it since.
        if number.is_some_and(|number| number < line.granted) {
            return;
        }
        line.frees_at = None;
        // Who contends may have its answers from before.
        line.missed = true;
        self.tell(lock, line.first());
    }

    /// Everybody who waits may have missed something.
    pub fn gap(&self) {
        let mut lines = self.lines();
        for line in lines.by_lock.values_mut() {
            line.missed = true;
        }
        if lines.waiting > 0 {
            self.notifications.send(Notification::Gap);
        }
    }

    /// Whether somebody waits for a lock here.
    pub fn is_waited_for(&self, lock: &LockName) -> bool {
        self.lines()
            .by_lock
            .get(lock)
            .is_some_and(|line| !line.queue.is_empty())
    }

    /// Adds this replica's waiters to a queue.
    pub fn show(&self, lock: &LockName, most: usize, queue: &mut Queue) {
        let lines = self.lines();
        let Some(line) = lines.by_lock.get(lock) else { return };
        queue.waiter_count = line.queue.len();
        queue.waiters = line.queue.values().take(most).map(shown).collect();
    }

    /// The locks with waiters here whose names begin so.
    pub fn names(&self, prefix: &str) -> Vec<LockName> {
        let lines = self.lines();
        let waited = lines.by_lock.iter().filter(|(_, line)| !line.queue.is_empty());
        waited
            .map(|(lock, _)| lock)
            .filter(|lock| lock.as_str().starts_with(prefix))
            .cloned()
            .collect()
    }

    /// The next moment at which a holder's time is over; whoever is due is told.
    fn ring(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut lines = self.lines();
        let mut next = None;
        for (lock, line) in &mut lines.by_lock {
            let Some(at) = line.frees_at.map(|at| at + PAST_THE_END) else {
                continue;
            };
            if at > now {
                next = Some(next.map_or(at, |next: Instant| next.min(at)));
                continue;
            }
            line.frees_at = None;
            self.tell(lock, line.first());
        }
        next
    }
}

impl AttemptPermit<'_> {
    /// The attempt failed: its call waits, and is told when somebody may be gone. One that has left the line
    /// meanwhile stays out of it.
    pub fn waits(mut self, claim: &NewClaim, frees_in: Option<Duration>) -> AcquireOutcome {
        self.over = true;
        let mut lines = self.waiting.lines();
        let Some(line) = lines.by_lock.get_mut(&self.lock) else {
            return AcquireOutcome::Gone;
        };
        line.contends = None;
        let frees_in = if line.missed { Some(SOON) } else { frees_in };
        line.frees_at = frees_in.map(|left| Instant::now() + left);
        let known = line.queue.contains_key(&self.turn);
        if !known && !self.newcomer {
            let next = line.first();
            tidy(&mut lines, &self.lock);
            drop(lines);
            self.waiting.tell(&self.lock, next);
            return AcquireOutcome::Cancelled;
        }
        let limit = claim.limits.queue;
        if !known && u32::try_from(line.queue.len() + 1).is_ok_and(|there| there >= limit) {
            tidy(&mut lines, &self.lock);
            return AcquireOutcome::Refused(Refusal::Full { limit });
        }
        line.queue.entry(self.turn).or_insert_with(|| entry(claim, true));
        if let Some(entry) = line.queue.get_mut(&self.turn) {
            entry.round = entry.round.max(self.round);
        }
        let ahead = line.ahead(self.turn);
        lines.waiting += u32::from(!known);
        drop(lines);
        self.waiting.sooner.notify_one();
        AcquireOutcome::Waiting(ahead)
    }

    /// Whether others of this replica wait behind it: the nodes are to be told with its attempt.
    pub fn is_awaited(&mut self) -> bool {
        let lines = self.waiting.lines();
        let line = lines.by_lock.get(&self.lock);
        self.awaited = line.is_some_and(|line| line.queue.keys().any(|turn| *turn != self.turn));
        self.awaited
    }

    /// The call holds, or is over: it leaves the line. The others wait for the end of its lease.
    pub fn is_over(mut self, held: Option<&Grant>) {
        self.over = true;
        let mut lines = self.waiting.lines();
        let Some(line) = lines.by_lock.get_mut(&self.lock) else {
            return;
        };
        line.contends = None;
        line.frees_at = held.map(|grant| Instant::now() + asked(grant.ttl));
        line.granted = held.map_or(line.granted, |grant| grant.token.get());
        let known = line.queue.remove(&self.turn).is_some();
        let next = line.first();
        tidy(&mut lines, &self.lock);
        lines.waiting = lines.waiting.saturating_sub(u32::from(known));
        drop(lines);
        if next.is_some() {
            self.waiting.sooner.notify_one();
        }
        // Who came after the nodes were asked tells them by an attempt of its own that it waits.
        let next = next.filter(|_| held.is_none() || !self.awaited);
        self.waiting.tell(&self.lock, next);
    }

    /// One more attempt of the same call.
    pub fn next_round(&mut self) -> u32 {
        self.round += 1;
        if let Some(line) = self.waiting.lines().by_lock.get_mut(&self.lock)
            && let Some(entry) = line.queue.get_mut(&self.turn)
        {
            entry.round = self.round;
        }
        self.round
    }
}

impl Drop for AttemptPermit<'_> {
    /// The attempt was dropped, or failed with the store: the first of the line may contend. Where that is
    /// its own call, the call asks again in its own time, as the store is in trouble.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut lines = self.waiting.lines();
        let Some(line) = lines.by_lock.get_mut(&self.lock) else {
            return;
        };
        if line.contends == Some(self.call) {
            line.contends = None;
        }
        let first = line.queue.values().next();
        let next = first
            .filter(|first| first.claim.call != self.call)
            .map(|first| first.claim.id);
        tidy(&mut lines, &self.lock);
        drop(lines);
        self.waiting.tell(&self.lock, next);
    }
}

fn entry(claim: &NewClaim, contended: bool) -> WaitingCall {
    WaitingCall {
        claim: claim.clone(),
        round: 0,
        contended,
        since: super::clock::date(),
    }
}

fn shown(entry: &WaitingCall) -> Waiter {
    let claim = &entry.claim;
    Waiter {
        claim: claim.id,
        owner: claim.owner.clone(),
        identity: claim.identity.clone(),
        mode: Mode::Exclusive,
        metadata: claim.metadata.clone(),
        since: entry.since,
    }
}

fn tidy(lines: &mut AllWaiters, lock: &LockName) {
    let idle = |line: &LockWaiters| line.queue.is_empty() && line.contends.is_none();
    if lines.by_lock.get(lock).is_some_and(idle) {
        lines.by_lock.remove(lock);
    }
}

/// Tells first waiters that a holder's time is over, until the namespace is closed.
pub async fn alarm(core: Weak<Core>) {
    while let Some(core) = core.upgrade() {
        let next = core.waiting.ring();
        // The core is not kept alive by one who sleeps.
        let far = Instant::now() + Duration::from_secs(1);
        tokio::select! {
            () = sleep_until(next.map_or(far, |next| next.min(far))) => {}
            () = core.waiting.sooner.notified() => {}
        }
    }
}
