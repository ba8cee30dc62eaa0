//! The verbs on one lock, in a context that commits a batch at its end, as a store with records does: tokens and ends
//! are placeholders until then.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::*;
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, FencingToken, LeaseKey, LockKey, LockName, Metadata, Mode, Namespace, Secret, Ttl};

mod kept;
mod long_queue;
mod resumed;
mod retries;

const OWN: ReplicaId = ReplicaId(1);
const OTHER: ReplicaId = ReplicaId(2);
const TTL: Duration = Duration::from_secs(60);

/// A store with one lock, whose batches begin at an estimate of the time.
#[derive(Debug, Default)]
struct Store {
    now: Duration,
    replica: ReplicaId,
    last_token: u64,
    new_tokens: u32,
    limit: Option<u32>,
    marks: HashSet<CallId>,
    ended: Vec<EndedHold>,
    notified: Vec<(ReplicaId, ClaimId)>,
    is_watched: bool,
    changes: Vec<Change>,
    answered: Vec<Expiry>,
    /// The positions that changed.
    touched: Vec<(u64, &'static str)>,
}

impl StepContext for Store {
    fn now(&self) -> Duration {
        self.now
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn replica(&self) -> ReplicaId {
        self.replica
    }

    fn next_token(&mut self) -> Option<FencingToken> {
        self.new_tokens += 1;
        Some(FencingToken::placeholder(self.new_tokens))
    }

    fn expiry(&self, ttl: Duration) -> Expiry {
        Expiry::from_stamp(ttl)
    }

    fn answer_ttl(&mut self, ends: Expiry) -> Duration {
        self.answered.push(ends);
        ends.remaining(self.now)
    }

    fn store_limit_reached(&self) -> Option<Refusal> {
        self.limit.map(|limit| Refusal::StoreFull { limit })
    }

    fn is_cancelled(&self, call: &CallId) -> bool {
        self.marks.contains(call)
    }

    fn cancel(&mut self, call: CallId) {
        self.marks.insert(call);
    }

    fn ended(&mut self, key: EndedKey<'_>) -> Option<Cause> {
        let mut ended = self.ended.iter();
        let found = ended.find(|ended| match key {
            EndedKey::Request(claim) => ended.id == Some(claim.id),
            EndedKey::Waiter(claim) => ended.secret == claim.secret,
            EndedKey::Lease(lease) => ended.secret == lease.secret && ended.token == lease.token,
            EndedKey::Token(token) => ended.token == token,
        });
        found.map(|ended| ended.cause)
    }

    fn remember(&mut self, ended: EndedHold) {
        self.ended.push(ended);
    }

    fn notify(&mut self, replica: ReplicaId, claim: ClaimId) {
        self.notified.push((replica, claim));
    }

    fn is_watched(&self) -> bool {
        self.is_watched
    }

    fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }

    fn saved(&mut self, position: u64, _claim: &Claim) {
        self.touched.push((position, "saved"));
    }

    fn expiry_moved(&mut self, position: u64, _before: Option<Expiry>, _after: Expiry) {
        self.touched.push((position, "end"));
    }

    fn removed(&mut self, position: u64, _claim: &Claim) {
        self.touched.push((position, "removed"));
    }
}

impl Store {
    /// The token of a placeholder.
    fn token(&self, placeholder: FencingToken) -> FencingToken {
        let ordinal = placeholder.ordinal().expect("a placeholder");
        FencingToken::new(self.last_token + u64::from(ordinal)).unwrap()
    }

    /// Commits the batch with this stamp.
    fn commit(&mut self, lock: &mut LockState, stamp: Duration) {
        lock.resolve(stamp, |placeholder| self.token(placeholder));
        self.last_token += u64::from(self.new_tokens);
        (self.new_tokens, self.now) = (0, stamp);
        self.touched.clear();
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn claim(number: u8) -> NewClaim {
    NewClaim {
        retryable: true,
        ..NewClaim::numbered(number)
    }
}

/// Another call of the same request.
fn retry(claim: &NewClaim) -> NewClaim {
    NewClaim {
        call: CallId::from_bytes([200; 16]),
        secret: Secret::from_bytes([200; 16]),
        ..claim.clone()
    }
}

fn shared(number: u8) -> NewClaim {
    NewClaim {
        mode: Mode::Shared,
        ..claim(number)
    }
}

fn incoming(claim: &NewClaim) -> IncomingClaim<'_> {
    let waited = secs(0);
    IncomingClaim { claim, waited }
}

fn acquire(lock: &mut LockState, store: &mut Store, claim: &NewClaim) -> AcquireOutcome {
    lock.acquire(store, &incoming(claim))
}

/// The grant of a claim that is granted, in a batch of its own.
fn take(lock: &mut LockState, store: &mut Store, claim: &NewClaim) -> LeaseKey {
    let AcquireOutcome::Held(mut grant) = acquire(lock, store, claim) else {
        panic!("not granted")
    };
    if grant.token.ordinal().is_some() {
        grant.token = store.token(grant.token);
    }
    store.commit(lock, store.now);
    grant.lease(LockKey {
        namespace: Namespace::new("n").unwrap(),
        name: LockName::new("a").unwrap(),
    })
}

fn queue_behind(lock: &mut LockState, store: &mut Store, number: u8, replica: ReplicaId) -> NewClaim {
    let (waiter, own) = (claim(number), store.replica);
    store.replica = replica;
    assert!(matches!(acquire(lock, store, &waiter), AcquireOutcome::Waiting(_)));
    store.replica = own;
    waiter
}

fn start() -> (LockState, Store) {
    let store = Store {
        replica: OWN,
        now: secs(10),
        last_token: 100,
        ..Store::default()
    };
    (LockState::default(), store)
}

#[test]
fn placeholders_are_replaced_by_what_the_stamp_says() {
    let (mut lock, mut store) = start();
    let AcquireOutcome::Held(first) = acquire(&mut lock, &mut store, &shared(1)) else {
        panic!("not granted")
    };
    acquire(&mut lock, &mut store, &shared(2));
    assert_eq!((first.token.ordinal(), first.ttl), (Some(1), TTL));
    assert_eq!(store.answered, [Expiry::from_stamp(TTL); 2]);
    // The estimate was 2 s late.
    store.commit(&mut lock, secs(12));
    let tokens = [101, 102].map(|number| FencingToken::new(number).unwrap());
    for token in tokens {
        assert_eq!(lock.holder(secs(12), token).unwrap().remaining, TTL);
    }
    assert_eq!(lock.holder(secs(12), first.token), None);
    let remaining = lock.holder(secs(20), tokens[0]).unwrap().remaining;
    assert_eq!(remaining, TTL - secs(8), "it ends");
}

#[test]
fn a_renewal_before_its_stamp_keeps_the_later_end() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    for (ttl, left) in [(5, TTL), (90, secs(90)), (1, secs(90))] {
        let RenewOutcome::Renewed(grant) = lock.renew(&mut store, &lease, Some(Ttl::new(secs(ttl)).unwrap())) else {
            panic!("gone")
        };
        assert_eq!(grant.ttl, left);
    }
    assert!(store.touched.contains(&(0, "end")));
    store.commit(&mut lock, secs(11));
    assert_eq!(lock.holder(secs(11), lease.token).unwrap().remaining, secs(90));
}

#[test]
fn a_renewal_saves_more_than_the_end_only_if_more_changed() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let span = |lock: &LockState| lock.get(0).unwrap().holding().unwrap().span;
    store.now += secs(5);
    for (ttl, is_saved, expected) in [(60, false, TTL), (90, true, secs(90)), (1, true, secs(90))] {
        lock.renew(&mut store, &lease, Some(Ttl::new(secs(ttl)).unwrap()));
        assert_eq!(store.touched.contains(&(0, "saved")), is_saved, "{ttl}");
        assert_eq!(span(&lock), expected);
        let now = store.now;
        store.commit(&mut lock, now);
    }
    store.now += secs(85);
    lock.renew(&mut store, &lease, Some(Ttl::new(secs(2)).unwrap()));
    assert_eq!(span(&lock), secs(5), "of the end that is left");
    let now = store.now;
    store.commit(&mut lock, now);
    store.now += secs(4);
    lock.renew(&mut store, &lease, Some(Ttl::new(secs(2)).unwrap()));
    assert_eq!(span(&lock), secs(5), "no end before it");
}

#[test]
fn only_an_eligible_waiter_is_promoted_and_a_try_does_not_wait() {
    let (mut lock, mut store) = start();
    take(&mut lock, &mut store, &claim(1));
    let waiter = queue_behind(&mut lock, &mut store, 2, OWN);
    let outcome = lock.promote(&mut store, &incoming(&waiter));
    assert!(matches!(outcome, AcquireOutcome::Waiting(_)), "{outcome:?}");
    let one_try = NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..claim(3)
    };
    let outcome = acquire(&mut lock, &mut store, &one_try);
    assert!(matches!(outcome, AcquireOutcome::Busy(Some(_))), "{outcome:?}");
    assert_eq!((lock.holders(), lock.waiters()), (1, 1));
}

#[test]
fn a_step_works_on_what_the_same_batch_granted() {
    let (mut lock, mut store) = start();
    let one = claim(1);
    acquire(&mut lock, &mut store, &one);
    let again = acquire(&mut lock, &mut store, &one);
    assert!(matches!(again, AcquireOutcome::Held(grant) if grant.token == FencingToken::placeholder(1)));
    let undo = ReleaseTarget::Call(&one.id, one.call);
    assert_eq!(
        lock.release(&mut store, undo, None).released,
        Released::Ended(Cause::Undone)
    );
    assert!(lock.is_empty());
    assert_eq!(store.ended, [], "nobody was given it");
}

#[test]
fn a_waiter_of_another_replica_is_notified_and_one_of_its_own_promoted() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    let second = queue_behind(&mut lock, &mut store, 2, OTHER);
    let third = queue_behind(&mut lock, &mut store, 3, OWN);
    let outcome = lock.release(&mut store, ReleaseTarget::Hold(&lease), Some(incoming(&third)));
    assert_eq!(outcome.next, None, "it is not its turn");
    assert_eq!(store.notified, [(OTHER, second.id)]);
    let lease = match lock.promote(&mut store, &incoming(&second)) {
        AcquireOutcome::Held(grant) => grant.secret,
        other => panic!("{other:?}"),
    };
    assert_eq!(lease, second.secret);
    store.commit(&mut lock, secs(10));
    store.notified.clear();
    let token = FencingToken::new(102).unwrap();
    let outcome = lock.release(&mut store, ReleaseTarget::Forced(token), Some(incoming(&third)));
    assert_eq!(outcome.released, Released::Ended(Cause::Forced));
    assert_eq!(outcome.next.map(|grant| grant.secret), Some(third.secret));
    assert_eq!(store.notified, [], "it was promoted in the same step");
}

#[test]
fn the_limits_refuse_new_claims_and_holds() {
    let (mut lock, mut store) = start();
    let mut one = NewClaim {
        reentrant: true,
        ..claim(1)
    };
    one.limits.queue = 1;
    one.limits.holds = 2;
    take(&mut lock, &mut store, &one);
    let again = |number| NewClaim {
        id: ClaimId::from_bytes([number; 16]),
        ..one.clone()
    };
    store.limit = Some(1);
    let full = acquire(&mut lock, &mut store, &again(2));
    assert!(matches!(full, AcquireOutcome::Refused(Refusal::StoreFull { limit: 1 })));
    store.limit = None;
    assert!(matches!(
        acquire(&mut lock, &mut store, &again(2)),
        AcquireOutcome::Held(_)
    ));
    assert_eq!((lock.len(), lock.places()), (1, 2));
    let full = acquire(&mut lock, &mut store, &again(3));
    assert!(matches!(full, AcquireOutcome::Refused(Refusal::Full { limit: 2 })));
    let other = NewClaim {
        reentrant: false,
        ..again(4)
    };
    let full = acquire(&mut lock, &mut store, &other);
    assert!(matches!(full, AcquireOutcome::Refused(Refusal::Full { limit: 1 })));
    let semaphore = NewClaim {
        mode: Mode::semaphore(1, 2).unwrap(),
        ..claim(5)
    };
    let (mut lock, mut store) = start();
    take(&mut lock, &mut store, &shared(1));
    let outcome = acquire(&mut lock, &mut store, &semaphore);
    let existing = Mode::Shared;
    assert!(matches!(outcome, AcquireOutcome::Refused(Refusal::LimitMismatch { existing: it }) if it == existing));
}

#[test]
fn changes_are_told_only_to_a_watched_lock() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &claim(1));
    assert_eq!(store.changes, []);
    store.is_watched = true;
    queue_behind(&mut lock, &mut store, 2, OWN);
    let metadata = Metadata::new(vec![("a".into(), "b".into())]).unwrap();
    for _ in 0..2 {
        lock.update_metadata(&mut store, &lease, &metadata, None);
    }
    lock.release(&mut store, ReleaseTarget::Hold(&lease), Some(incoming(&claim(2))));
    let kinds: Vec<_> = store
        .changes
        .iter()
        .map(|it| (it.kind, it.holders, it.waiters))
        .collect();
    let expected = [
        (ChangeKind::Queued, 1, 1),
        (ChangeKind::Updated, 1, 1),
        (ChangeKind::Ended(Cause::Released), 0, 1),
        (ChangeKind::Granted, 1, 0),
    ];
    assert_eq!(kinds, expected);
}

/// What tells two states apart.
fn shown(lock: &LockState) -> (u64, u64, usize, usize, usize, crate::claim::Queue) {
    let queue = lock.inspect(secs(10), InspectLimit::of_each(100));
    (
        lock.tail(),
        lock.notified(),
        lock.places(),
        lock.holders(),
        lock.waiters(),
        queue,
    )
}

#[test]
fn a_restored_queue_goes_on_as_the_original() {
    let (mut lock, mut store) = start();
    let lease = take(&mut lock, &mut store, &shared(1));
    take(&mut lock, &mut store, &shared(2));
    queue_behind(&mut lock, &mut store, 3, OTHER);
    acquire(&mut lock, &mut store, &shared(4));
    let last = queue_behind(&mut lock, &mut store, 5, OWN);
    lock.release(&mut store, ReleaseTarget::Hold(&lease), None);
    lock.release(&mut store, ReleaseTarget::Call(&last.id, last.call), None);
    let claims = lock.iter().map(|(position, claim)| (position, claim.clone()));
    let mut restored = LockState::restored(claims, lock.tail(), lock.notified());
    assert_eq!(shown(&restored), shown(&lock));
    let token = FencingToken::new(102).unwrap();
    store.notified.clear();
    for lock in [&mut lock, &mut restored] {
        lock.release(&mut store, ReleaseTarget::Forced(token), None);
    }
    let next = (OTHER, claim(3).id);
    assert_eq!(store.notified, [next, next]);
    assert_eq!(shown(&restored), shown(&lock));
    let (mut lock, mut store) = start();
    take(&mut lock, &mut store, &shared(1));
    let claims = lock.iter().map(|(position, claim)| (position, claim.clone()));
    let mut restored = LockState::restored(claims, lock.tail(), lock.notified());
    take(&mut restored, &mut store, &shared(2));
}
