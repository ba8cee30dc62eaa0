//! Runs a batch of verbs on a copy of a lock's record: what the next commit writes, and what its verbs are answered.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::Core;
use super::ends::{Ended, MissingParts, Sought};
use super::locks::{Cached, EntryState};
use super::root::{LockRecord, Resolved, Waiter, micros, waiters};
use super::store::LockTime;
use super::verb::{Answer, Pending, Verb};
use crate::backend::MARKS_KEPT;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LockName};
use crate::queue::{
    AcquireOutcome, Change, Claim, EndedHold, EndedKey, Expiry, IncomingClaim, InspectLimit, LockState, NewClaim,
    OwnedReleaseTarget, Refusal, Released, ReplicaId, StepContext, UpdateOutcome,
};

/// For how long an eligible claim of another server may not be promoted: longer than a session that breaks off keeps a place.
const STALLED_FOR: Duration = Duration::from_secs(15);
/// A root that is larger takes no more claims, and no longer metadata.
const LARGEST: usize = 1 << 19;
/// What a claim adds to a root besides its owner, identity and metadata.
const CLAIM_BYTES: usize = 160;
/// The maximum number of holders, and of waiters, in a watcher's full state.
const WATCH_LIMIT: usize = 1000;
/// For how long a server is told the changes of a lock that it watches, and when it says so again.
const WATCHED_FOR: Duration = Duration::from_secs(60);
const WATCHED_AGAIN: Duration = Duration::from_secs(40);

mod answers;

/// What a batch runs on.
pub struct Input<'a> {
    pub core: &'a Core,
    pub lock: &'a LockName,
    pub cached: &'a Cached,
    pub state: &'a EntryState,
    pub batch: &'a [Pending],
}

/// See the module.
#[derive(Debug)]
pub struct Draft {
    pub record: LockRecord,
    /// The answer to each verb, with the end of the lease that it grants.
    answers: Vec<(Answer, Option<Expiry>)>,
    /// Between these times of the lock's clock, the batch is what the verbs do.
    pub not_before: LockTime,
    pub not_after: LockTime,
    pub changed: bool,
    /// Whether it grants the lock, or adds to its queue.
    pub grants: bool,
    /// Whether it grants or extends a lease, or changes what a holder shows.
    pub extends: bool,
    /// Whether it changes only places in the queue.
    pub soft: bool,
    /// Why the commit may be lost, if too few replicas have confirmed it.
    pub unconfirmed: Option<String>,
    /// The parts that it deletes; those that it writes are in the record.
    pub deleted: Range<u64>,
    effects: Effects,
    /// What the stamp decided; absent before.
    resolved: Option<Resolved>,
}

/// Who is told of what.
#[derive(Debug, Default)]
struct Effects {
    next: Vec<(ReplicaId, ClaimId)>,
    /// How long a lease lives that ends before all that others know of.
    ends: Option<Duration>,
    forced: Vec<FencingToken>,
    changes: Vec<Change>,
    /// The number of the change before the first, and of the last.
    after: u64,
    upto: u64,
}

/// Runs a batch.
///
/// # Errors
/// [`MissingParts`] if a verb must know of ends that this server has not loaded.
pub fn run(input: &Input<'_>) -> Result<Draft, MissingParts> {
    let mut step = Step::new(input);
    let mut queue = std::mem::take(&mut step.record.queue);
    let deleted = step.record.ends.tidy(step.now);
    let (not_before, not_after) = step.end_expired(&mut queue);
    step.end_lost(&mut queue);
    let mut answers: Vec<_> = input
        .batch
        .iter()
        .map(|pending| step.verb(&mut queue, pending))
        .collect();
    for (answer, _) in &mut answers {
        if let Answer::Watching(state, _) = answer {
            // At the end of the batch: its changes are not told to this watcher.
            *state = queue.inspect(step.now, InspectLimit::of_each(WATCH_LIMIT));
            step.watches = true;
        }
    }
    step.watch();
    if step.missing {
        return Err(MissingParts);
    }
    step.effects.ends = step.earlier_end(&queue);
    step.record.changes += step.effects.changes.len() as u64;
    step.effects.upto = step.record.changes;
    step.record.queue = queue;
    Ok(Draft {
        not_before: LockTime(micros(not_before)),
        not_after: LockTime(micros(not_after)),
        changed: step.places || step.more,
        grants: step.grants,
        extends: answers.iter().any(|(answer, _)| answer.extends()),
        unconfirmed: None,
        soft: step.places && !step.more,
        deleted,
        effects: step.effects,
        answers,
        record: step.record,
        resolved: None,
    })
}

/// The context of the verbs.
struct Step<'a> {
    input: &'a Input<'a>,
    /// The record without its queue.
    record: LockRecord,
    now: Duration,
    wall: SystemTime,
    size: usize,
    /// Whether the verb that runs undoes a call: a call that it does not find is kept out of this server. Any other verb
    /// that cancels a call may have taken its claim from another server.
    undoes: bool,
    /// The end of the lease in the last grant.
    granted: Option<Expiry>,
    is_watched: bool,
    watches: bool,
    missing: bool,
    /// Whether places in the queue changed, and whether anything else did.
    places: bool,
    more: bool,
    grants: bool,
    effects: Effects,
}

impl<'a> Step<'a> {
    fn new(input: &'a Input<'a>) -> Self {
        let cached = input.cached;
        let mut record = cached.record.clone();
        let now = cached.clock();
        record.marks.retain(|(_, until)| *until > now);
        record.watchers.retain(|(_, until)| *until > now);
        let watches = input.core.watchers.any(input.lock);
        Self {
            input,
            now,
            wall: UNIX_EPOCH + Duration::from_micros(cached.seen.time.0) + cached.seen_at.elapsed(),
            size: cached.size,
            undoes: false,
            granted: None,
            is_watched: watches || !record.watchers.is_empty(),
            watches,
            missing: false,
            places: false,
            more: false,
            grants: false,
            effects: Effects {
                after: record.changes,
                ..Effects::default()
            },
            record,
        }
    }

    /// Ends the leases that have expired. Returns the times of the lock's clock between which that is what has expired.
    fn end_expired(&mut self, queue: &mut LockState) -> (Duration, Duration) {
        let (mut not_before, mut not_after) = (Duration::ZERO, Duration::from_micros(u64::MAX >> 1));
        let mut expired = Vec::new();
        for (position, claim) in queue.iter() {
            let Some(ends) = claim.holding().map(|holding| holding.ends.known()) else {
                continue;
            };
            if ends <= self.now {
                expired.push(position);
                not_before = not_before.max(ends);
            } else {
                not_after = not_after.min(ends);
            }
        }
        for position in expired {
            queue.end(self, position, Cause::Expired);
        }
        (not_before, not_after)
    }

    /// Ends the waiting claims of dead servers, eligible ones of this server for which no call waits here, and those that
    /// another server does not promote: data that went back may have brought a claim back, or its call ended while its
    /// commit was unsettled.
    fn end_lost(&mut self, queue: &mut LockState) {
        if queue.waiters() == 0 {
            return;
        }
        let (own, state) = (self.replica(), self.input.state);
        let mut servers: HashMap<ReplicaId, bool> = HashMap::new();
        let mut is_lost = |waiter: &Waiter| match waiter.replica == own {
            true => {
                let runs = |pending: &Pending| pending.verb.call() == Some(waiter.call);
                waiter.is_eligible && !state.waiters.contains_key(&waiter.call) && !self.input.batch.iter().any(runs)
            }
            false => {
                let is_stalled = state
                    .stalled
                    .get(&waiter.call)
                    .is_some_and(|since| since.elapsed() > STALLED_FOR);
                let is_gone = || self.input.core.is_lost(waiter.replica);
                is_stalled || *servers.entry(waiter.replica).or_insert_with(is_gone)
            }
        };
        let lost: Vec<_> = waiters(queue).filter(|waiter| is_lost(waiter)).collect();
        for waiter in lost {
            queue.end(self, waiter.position, Cause::Cancelled);
        }
    }

    fn verb(&mut self, queue: &mut LockState, pending: &Pending) -> (Answer, Option<Expiry>) {
        self.granted = None;
        self.undoes = false;
        let answer = match &pending.verb {
            Verb::Acquire(claim) => Answer::Acquired(self.acquire(queue, claim)),
            Verb::Promote(claim) => Answer::Acquired(queue.promote(self, &incoming(claim))),
            Verb::Release(target, next) => {
                self.undoes = matches!(target, OwnedReleaseTarget::Call(..));
                let released = queue.release(self, target.as_target(), next.as_deref().map(incoming));
                if let (OwnedReleaseTarget::Forced(token), Released::Ended(_)) = (target, released.released) {
                    self.effects.forced.push(*token);
                }
                // The commit of the first release, at any server, may not be confirmed.
                self.more |= released.kept.is_some() && self.input.core.store.confirms();
                Answer::Released(released)
            }
            Verb::Renew(lease, ttl) => Answer::Renewed(queue.renew(self, lease, *ttl)),
            Verb::Update(lease, metadata, stream) => {
                let updated = queue.update_metadata(self, lease, metadata, *stream);
                // Another server's commit of the same metadata may not be confirmed.
                self.more |= updated == UpdateOutcome::Updated && self.input.core.store.confirms();
                Answer::Updated(updated)
            }
            Verb::Inspect(limit) => Answer::Queue(queue.inspect(self.now, *limit)),
            Verb::Owns(claim, call) => Answer::Owns(queue.owns(claim, *call)),
            Verb::Holder(token) => Answer::Holder(queue.holder(self.now, *token)),
            Verb::Watch => Answer::Watching(queue.inspect(self.now, InspectLimit::of_each(0)), None),
            Verb::Recheck => Answer::Rechecked,
        };
        (answer, self.granted)
    }

    fn acquire(&mut self, queue: &mut LockState, claim: &NewClaim) -> AcquireOutcome {
        let is_known = queue.find(&claim.id).is_some();
        let outcome = queue.acquire(self, &incoming(claim));
        match outcome {
            // Also a re-entry, or a hold that a retry finds.
            AcquireOutcome::Held(_) => self.grants = true,
            // Were it lost that this call has taken the claim over, the older call would own it again.
            AcquireOutcome::Waiting(_) => self.more |= is_known,
            _ => {}
        }
        outcome
    }

    /// How long the lease lives that ends first, if it was granted now and ends before all others that there were. Other
    /// servers know those: they look at the lock when one of them ends. Those that poll in time are not told.
    fn earlier_end(&self, queue: &LockState) -> Option<Duration> {
        let holders = queue.iter().filter_map(|(_, claim)| claim.holding());
        let left = holders.map(|holding| holding.ends.remaining(self.now)).min()?;
        let before = self.input.cached.record.first_end();
        let is_earlier = before.is_none_or(|before| self.now + left < before);
        (is_earlier && left <= 2 * self.input.core.locks.longest_poll()).then_some(left)
    }

    /// Says in the record that this server watches the lock.
    fn watch(&mut self) {
        let own = self.input.core.server;
        let until = self
            .record
            .watchers
            .iter_mut()
            .find(|(server, _)| *server == own)
            .map(|(_, until)| until);
        if !self.watches || until.as_ref().is_some_and(|until| **until > self.now + WATCHED_AGAIN) {
            return;
        }
        match until {
            Some(until) => *until = self.now + WATCHED_FOR,
            None => self.record.watchers.push((own, self.now + WATCHED_FOR)),
        }
        self.places = true;
    }

    fn find(&mut self, sought: Sought<'_>) -> Option<Ended> {
        match self.record.ends.find(&self.input.state.parts, sought, self.now) {
            Ok(ended) => ended.cloned(),
            Err(MissingParts) => {
                self.missing = true;
                None
            }
        }
    }
}

fn incoming(claim: &NewClaim) -> IncomingClaim<'_> {
    // Counted to the sending of this commit: if the same bytes are sent again later, still to the first sending, because
    // the first copy may be the one that takes effect.
    IncomingClaim {
        claim,
        waited: claim.arrived.elapsed(),
    }
}

impl StepContext for Step<'_> {
    fn now(&self) -> Duration {
        self.now
    }

    fn wall(&self) -> SystemTime {
        self.wall
    }

    fn replica(&self) -> ReplicaId {
        ReplicaId(self.input.core.server.0.get())
    }

    fn next_token(&mut self) -> Option<FencingToken> {
        self.grants = true;
        self.record.next_token()
    }

    fn expiry(&self, ttl: Duration) -> Expiry {
        Expiry::from_stamp(ttl)
    }

    fn answer_ttl(&mut self, ends: Expiry) -> Duration {
        self.granted = Some(ends);
        ends.remaining(self.now)
    }

    fn store_limit_reached(&self) -> Option<Refusal> {
        (self.size >= LARGEST).then_some(Refusal::LockFull { limit: LARGEST })
    }

    fn is_cancelled(&self, call: &CallId) -> bool {
        self.input.core.marks.lock().contains(call) || self.record.marks.iter().any(|(marked, _)| marked == call)
    }

    fn cancel(&mut self, call: CallId) {
        if self.undoes {
            self.input.core.marks.lock().insert(call, Instant::now());
        } else {
            self.record.marks.push((call, self.now + MARKS_KEPT));
            self.more = true;
        }
    }

    fn ended(&mut self, key: EndedKey<'_>) -> Option<Cause> {
        let found = match key {
            EndedKey::Request(claim) if !claim.retryable => None,
            EndedKey::Request(claim) => self.find(Sought::Id(&claim.id)),
            EndedKey::Waiter(claim) => self.find(Sought::Secret(&claim.secret)),
            EndedKey::Lease(lease) => {
                let found = self.find(Sought::Secret(&lease.secret));
                found.filter(|ended| ended.token == lease.token)
            }
            EndedKey::Token(token) => self.find(Sought::Token(token)),
        };
        found.map(|ended| ended.cause)
    }

    fn remember(&mut self, ended: EndedHold) {
        let limit = ended.limit;
        let ended = Ended {
            secret: ended.secret,
            id: ended.id,
            token: ended.token,
            cause: ended.cause,
            at: self.now,
        };
        self.record.ends.remember(ended, limit);
        self.more = true;
    }

    fn notify(&mut self, replica: ReplicaId, claim: ClaimId) {
        // That a claim is eligible was told is part of the record.
        self.places = true;
        self.effects.next.push((replica, claim));
    }

    fn is_watched(&self) -> bool {
        self.is_watched
    }

    fn changed(&mut self, change: Change) {
        self.effects.changes.push(change);
    }

    fn saved(&mut self, position: u64, claim: &Claim) {
        self.record.written.remove(&position);
        // Too much rather than too little: what was there before stays counted until the next batch.
        let terms = &claim.terms;
        self.size += CLAIM_BYTES + terms.owner.as_str().len() + terms.identity.as_str().len() + terms.metadata.bytes();
        if claim.holding().is_some() {
            self.more = true;
        } else {
            self.places = true;
            self.grants = true;
        }
    }

    fn expiry_moved(&mut self, position: u64, before: Option<Expiry>, after: Expiry) {
        self.record.written.remove(&position);
        self.more |= before != Some(after);
    }

    fn removed(&mut self, position: u64, claim: &Claim) {
        self.record.written.remove(&position);
        self.places = true;
        self.more |= claim.holding().is_some();
    }
}
