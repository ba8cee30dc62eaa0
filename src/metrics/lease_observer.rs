//! Observes the operations of a namespace: which leases are held, and the last token and release of each lock. Its
//! memory is bounded. It only feeds metrics; no decision depends on it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tokio::time::Instant;

use crate::name::{CallId, FencingToken, LockName, Secret};

/// The maximum number of observed leases; the gauge does not exceed it.
const LEASES: usize = 200_000;
/// The number of locks in each of two generations. When the younger one is full, it replaces the older one.
const LOCKS: usize = 10_000;

/// A lease that was granted or renewed through this server.
#[derive(Debug)]
struct Held {
    /// The hash of the lock's name, which uses less memory than the name.
    lock: u64,
    token: FencingToken,
    until: Instant,
    /// The last call that received this lease from this server, if any.
    call: Option<CallId>,
}

/// The last known state of a lock.
#[derive(Debug, Clone, Copy)]
struct LastToken {
    token: FencingToken,
    secret: Secret,
    /// When the grant of that token was observed.
    observed: Instant,
    /// When its last release through this server was sent, unless a grant has followed.
    released: Option<Instant>,
}

/// A grant that the store returned.
#[derive(Debug, Clone, Copy)]
pub struct Granted<'a> {
    /// The lock.
    pub lock: &'a LockName,
    /// The call that it was granted to.
    pub call: CallId,
    /// The secret of the hold.
    pub secret: Secret,
    /// The fencing token.
    pub token: FencingToken,
    /// When the operation was sent.
    pub sent: Instant,
    /// When the call arrived.
    pub arrived: Instant,
    /// When the lease expires without a renewal.
    pub until: Instant,
    /// Whether the hold is exclusive, so that no larger token was granted before it ended.
    pub alone: bool,
}

/// The properties of a grant that metrics need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedGrant {
    /// Whether the lease was unknown before.
    pub new: bool,
    /// Whether its token was not larger than the last one.
    pub regression: bool,
    /// When the lock was released, if that was through this server and while the call waited.
    pub released: Option<Instant>,
}

/// The observed state of a namespace. Leases are keyed by secret, because each hold has a new one, whereas a claim id
/// may be reused.
#[derive(Debug, Default)]
pub struct LeaseObserver {
    leases: HashMap<Secret, Held>,
    /// By call id, because an undo does not know the secret.
    by_call: HashMap<CallId, Secret>,
    hasher: RandomState,
    recent: HashMap<LockName, LastToken>,
    older: HashMap<LockName, LastToken>,
}

impl LeaseObserver {
    /// Records a grant that was returned at `now`.
    pub fn granted(&mut self, grant: &Granted<'_>, now: Instant) -> ObservedGrant {
        let is_known = self.leases.contains_key(&grant.secret);
        self.hold(grant.lock, grant.secret, grant.token, grant.until);
        self.answered(grant.call, grant.secret);
        let last = self.last(grant.lock);
        let is_last = last.is_some_and(|last| last.secret == grant.secret);
        let new = !is_known && !is_last;
        // Only an operation that was sent after a larger token was known can have been granted after it.
        let regression =
            new && grant.alone && last.is_some_and(|last| grant.token <= last.token && grant.sent > last.observed);
        let released = last.and_then(|last| last.released).filter(|at| grant.arrived <= *at);
        let next = match last {
            Some(last) if last.token > grant.token => LastToken { released: None, ..last },
            _ => LastToken {
                token: grant.token,
                secret: grant.secret,
                observed: now,
                released: None,
            },
        };
        self.set_last(grant.lock, next);
        ObservedGrant {
            new,
            regression,
            released: released.filter(|_| new),
        }
    }

    /// Records a renewal.
    pub fn hold(&mut self, lock: &LockName, secret: Secret, token: FencingToken, until: Instant) {
        if let Some(held) = self.leases.get_mut(&secret) {
            held.until = until;
        } else if self.leases.len() < LEASES {
            let held = Held {
                lock: self.hash_of(lock),
                token,
                until,
                call: None,
            };
            self.leases.insert(secret, held);
        }
    }

    /// Records which call received the lease.
    fn answered(&mut self, call: CallId, secret: Secret) {
        let Some(held) = self.leases.get_mut(&secret) else {
            return;
        };
        if let Some(before) = held.call.replace(call) {
            self.by_call.remove(&before);
        }
        self.by_call.insert(call, secret);
    }

    /// Records the end of a lease.
    pub fn ended(&mut self, secret: &Secret) {
        if let Some(Held { call: Some(call), .. }) = self.leases.remove(secret) {
            self.by_call.remove(&call);
        }
    }

    /// Records the undo of a call and the end of the lease that it received, if any.
    pub fn undone(&mut self, call: CallId) {
        if let Some(secret) = self.by_call.remove(&call) {
            self.leases.remove(&secret);
        }
    }

    /// Records a force-release: all holds with this token have ended. Another lock may have the same token.
    pub fn forced(&mut self, lock: &LockName, token: FencingToken) {
        let lock = self.hash_of(lock);
        self.retain(|held| (held.lock, held.token) != (lock, token));
    }

    fn retain(&mut self, retain: impl Fn(&Held) -> bool) {
        let Self { leases, by_call, .. } = self;
        leases.retain(|_, held| {
            let retained = retain(held);
            if let Some(call) = held.call.filter(|_| !retained) {
                by_call.remove(&call);
            }
            retained
        });
    }

    /// Records that a release which ended a lease was sent at `sent`.
    pub fn released(&mut self, lock: &LockName, sent: Instant) {
        if let Some(last) = self.last(lock) {
            let released = Some(sent);
            self.set_last(lock, LastToken { released, ..last });
        }
    }

    /// Forgets expired leases and shrinks the tables. Returns how many leases expired and how many are left.
    pub fn sweep(&mut self, now: Instant) -> (usize, usize) {
        let before = self.leases.len();
        self.retain(|held| held.until > now);
        if self.leases.len() < self.leases.capacity() / 4 {
            self.leases.shrink_to_fit();
            self.by_call.shrink_to_fit();
        }
        (before - self.leases.len(), self.leases.len())
    }

    fn hash_of(&self, lock: &LockName) -> u64 {
        self.hasher.hash_one(lock)
    }

    fn last(&self, lock: &LockName) -> Option<LastToken> {
        self.recent.get(lock).or_else(|| self.older.get(lock)).copied()
    }

    fn set_last(&mut self, lock: &LockName, last: LastToken) {
        if let Some(recorded) = self.recent.get_mut(lock) {
            *recorded = last;
            return;
        }
        if self.recent.len() >= LOCKS {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(lock.clone(), last);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lock(name: &str) -> LockName {
        LockName::new(name).expect("a name")
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).expect("a token")
    }

    fn secret(claim: u8) -> Secret {
        Secret::from_bytes([claim; 16])
    }

    /// A grant to a claim whose call arrived, and whose operation was sent, at `sent`.
    fn grant(lock: &LockName, claim: u8, number: u64, sent: Instant) -> Granted<'_> {
        Granted {
            lock,
            call: CallId::from_bytes([claim; 16]),
            secret: secret(claim),
            token: token(number),
            sent,
            arrived: sent,
            until: sent + Duration::from_secs(10),
            alone: true,
        }
    }

    #[test]
    fn a_token_that_does_not_increase_is_a_regression() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!observer.granted(&grant(&name, 1, 7, start), later(1)).regression);
        assert!(
            observer.granted(&grant(&name, 2, 7, later(2)), later(3)).regression,
            "the same token"
        );
        assert!(
            observer.granted(&grant(&name, 3, 6, later(4)), later(5)).regression,
            "a smaller token"
        );
        assert!(!observer.granted(&grant(&name, 4, 8, later(6)), later(7)).regression);
    }

    #[test]
    fn reordered_responses_and_retries_are_no_regression() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!observer.granted(&grant(&name, 1, 8, later(1)), later(5)).regression);
        assert!(
            !observer.granted(&grant(&name, 2, 7, start), later(6)).regression,
            "sent before 8 was observed"
        );
        assert!(
            !observer.granted(&grant(&name, 1, 8, later(7)), later(8)).new,
            "a retry"
        );
        let shared = Granted {
            alone: false,
            ..grant(&name, 3, 5, later(9))
        };
        assert!(
            !observer.granted(&shared, later(10)).regression,
            "an older holder that shares the lock"
        );
    }

    #[test]
    fn a_hand_off_begins_with_the_release_during_the_wait() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        observer.granted(&grant(&name, 1, 1, start), later(1));
        observer.released(&name, later(5));
        let waiter = Granted {
            arrived: later(2),
            ..grant(&name, 2, 2, later(5))
        };
        assert_eq!(observer.granted(&waiter, later(6)).released, Some(later(5)));
        observer.released(&name, later(7));
        let later_call = grant(&name, 3, 3, later(100));
        assert_eq!(
            observer.granted(&later_call, later(101)).released,
            None,
            "the call did not wait"
        );
    }

    #[test]
    fn leases_are_held_until_they_end_or_expire() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        for claim in 1..=4 {
            observer.granted(&grant(&name, claim, u64::from(claim), start), start);
        }
        observer.ended(&secret(1));
        observer.forced(&lock("b"), token(3));
        observer.forced(&name, token(2));
        assert_eq!(observer.sweep(start), (0, 2));
        observer.hold(&name, secret(3), token(3), start + Duration::from_secs(20));
        assert_eq!(observer.sweep(start + Duration::from_secs(10)), (1, 1));
        assert_eq!(observer.sweep(start + Duration::from_secs(20)), (1, 0));
        assert!(observer.by_call.is_empty());
    }

    #[test]
    fn an_undone_lease_is_not_held_any_more() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let until = start + Duration::from_secs(10);
        observer.granted(&grant(&name, 1, 1, start), start);
        observer.undone(CallId::from_bytes([1; 16]));
        assert_eq!(observer.sweep(start), (0, 0));
        // A retry adopted it: the undo of the older call does not end the lease.
        let (first, retry) = (grant(&name, 2, 2, start), CallId::from_bytes([9; 16]));
        observer.granted(&first, start);
        assert!(!observer.granted(&Granted { call: retry, ..first }, start).new);
        observer.undone(CallId::from_bytes([2; 16]));
        assert_eq!(observer.sweep(start), (0, 1));
        observer.undone(retry);
        assert_eq!(observer.sweep(start), (0, 0));
        // A lease that another server granted and this one renewed belongs to no call here.
        observer.hold(&name, secret(3), token(3), until);
        observer.ended(&secret(1));
        assert_eq!(observer.sweep(start), (0, 1));
        assert!(observer.by_call.is_empty());
    }

    #[test]
    fn each_hold_of_a_claim_is_a_lease() {
        let (mut observer, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let reentered = |hold| Granted {
            alone: false,
            ..grant(&name, hold, 1, start)
        };
        for hold in [1, 2] {
            let observed = observer.granted(&reentered(hold), start);
            assert!(observed.new && !observed.regression);
        }
        observer.ended(&secret(1));
        assert_eq!(observer.sweep(start), (0, 1));
        observer.forced(&name, token(1));
        assert_eq!(observer.sweep(start), (0, 0));
    }

    #[test]
    fn the_observed_state_is_bounded() {
        let (mut observer, start) = (LeaseObserver::default(), Instant::now());
        for number in 0..3 * LOCKS {
            let name = lock(&format!("lock-{number}"));
            observer.granted(&grant(&name, 1, number as u64 + 1, start), start);
        }
        assert!(observer.recent.len() + observer.older.len() <= 2 * LOCKS);
        assert_eq!(observer.leases.len(), 1, "one claim");
    }
}
