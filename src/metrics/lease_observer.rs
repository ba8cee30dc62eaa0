//! What a namespace's steps showed: which leases are held, which token each lock granted last, and
//! when it was last released. Bounded, and only for the figures: nothing here decides anything.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tokio::time::Instant;

use crate::name::{CallId, FencingToken, LockName, Secret};

/// How many leases are followed; the gauge stays at this where there are more.
const LEASES: usize = 200_000;
/// How many locks are remembered in each of two generations: when the younger is full, the older goes.
const LOCKS: usize = 10_000;

/// A lease that was granted or renewed here.
#[derive(Debug)]
struct Held {
    /// The hash of its lock's name, which may be long.
    lock: u64,
    token: FencingToken,
    until: Instant,
    /// Which call was answered with it last, if that was here.
    call: Option<CallId>,
}

/// What a lock showed last.
#[derive(Debug, Clone, Copy)]
struct LastToken {
    token: FencingToken,
    secret: Secret,
    /// When the answer with that token was here.
    seen: Instant,
    /// When its last release over this server was sent, until somebody was granted.
    released: Option<Instant>,
}

/// A grant that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Granted<'a> {
    /// On which lock.
    pub lock: &'a LockName,
    /// To which call.
    pub call: CallId,
    /// The secret of its hold.
    pub secret: Secret,
    /// Its token.
    pub token: FencingToken,
    /// When its step was sent.
    pub sent: Instant,
    /// When its call arrived.
    pub arrived: Instant,
    /// When it ends unless it is renewed.
    pub until: Instant,
    /// Whether it holds the lock alone, so that no token above its own can have been granted yet.
    pub alone: bool,
}

/// What a grant showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedGrant {
    /// Whether the lease was not known yet.
    pub new: bool,
    /// Whether its token was not above the last one.
    pub regression: bool,
    /// When the lock was released for it, if that was over this server and while it waited.
    pub released: Option<Instant>,
}

/// All of it. A lease goes by its secret: that of a hold is drawn for it alone, whereas the id of its claim may
/// be used again.
#[derive(Debug, Default)]
pub struct LeaseObserver {
    leases: HashMap<Secret, Held>,
    /// Who undoes a call knows no secret.
    by_call: HashMap<CallId, Secret>,
    hasher: RandomState,
    young: HashMap<LockName, LastToken>,
    old: HashMap<LockName, LastToken>,
}

impl LeaseObserver {
    /// A grant was answered `now`.
    pub fn granted(&mut self, grant: &Granted<'_>, now: Instant) -> ObservedGrant {
        let known = self.leases.contains_key(&grant.secret);
        self.hold(grant.lock, grant.secret, grant.token, grant.until);
        self.answered(grant.call, grant.secret);
        let last = self.last(grant.lock);
        let is_last = last.is_some_and(|last| last.secret == grant.secret);
        let new = !known && !is_last;
        // Only a step that was sent after a higher token was known can have been granted later.
        let regression =
            new && grant.alone && last.is_some_and(|last| grant.token <= last.token && grant.sent > last.seen);
        let released = last.and_then(|last| last.released).filter(|at| grant.arrived <= *at);
        let next = match last {
            Some(last) if last.token > grant.token => LastToken { released: None, ..last },
            _ => LastToken {
                token: grant.token,
                secret: grant.secret,
                seen: now,
                released: None,
            },
        };
        self.note(grant.lock, next);
        ObservedGrant {
            new,
            regression,
            released: released.filter(|_| new),
        }
    }

    /// A lease was renewed.
    pub fn hold(&mut self, lock: &LockName, secret: Secret, token: FencingToken, until: Instant) {
        if let Some(held) = self.leases.get_mut(&secret) {
            held.until = until;
        } else if self.leases.len() < LEASES {
            let held = Held {
                lock: self.hashed(lock),
                token,
                until,
                call: None,
            };
            self.leases.insert(secret, held);
        }
    }

    /// A lease was this call's answer.
    fn answered(&mut self, call: CallId, secret: Secret) {
        let Some(held) = self.leases.get_mut(&secret) else {
            return;
        };
        if let Some(before) = held.call.replace(call) {
            self.by_call.remove(&before);
        }
        self.by_call.insert(call, secret);
    }

    /// A lease is over.
    pub fn ended(&mut self, secret: &Secret) {
        if let Some(Held { call: Some(call), .. }) = self.leases.remove(secret) {
            self.by_call.remove(&call);
        }
    }

    /// A call was undone, and with it the lease that it got, if it did.
    pub fn undone(&mut self, call: CallId) {
        if let Some(secret) = self.by_call.remove(&call) {
            self.leases.remove(&secret);
        }
    }

    /// A token of a lock was forced: all holds of its claim are over. Another lock may have the same token.
    pub fn forced(&mut self, lock: &LockName, token: FencingToken) {
        let lock = self.hashed(lock);
        self.keep(|held| (held.lock, held.token) != (lock, token));
    }

    fn keep(&mut self, keep: impl Fn(&Held) -> bool) {
        let Self { leases, by_call, .. } = self;
        leases.retain(|_, held| {
            let kept = keep(held);
            if let Some(call) = held.call.filter(|_| !kept) {
                by_call.remove(&call);
            }
            kept
        });
    }

    /// A release that ended a lease was sent at `sent`.
    pub fn released(&mut self, lock: &LockName, sent: Instant) {
        if let Some(last) = self.last(lock) {
            let released = Some(sent);
            self.note(lock, LastToken { released, ..last });
        }
    }

    /// Forgets the leases whose time is over, and gives back the memory of many: how many there were,
    /// and how many are left.
    pub fn sweep(&mut self, now: Instant) -> (usize, usize) {
        let before = self.leases.len();
        self.keep(|held| held.until > now);
        if self.leases.len() < self.leases.capacity() / 4 {
            self.leases.shrink_to_fit();
            self.by_call.shrink_to_fit();
        }
        (before - self.leases.len(), self.leases.len())
    }

    fn hashed(&self, lock: &LockName) -> u64 {
        self.hasher.hash_one(lock)
    }

    fn last(&self, lock: &LockName) -> Option<LastToken> {
        self.young.get(lock).or_else(|| self.old.get(lock)).copied()
    }

    fn note(&mut self, lock: &LockName, last: LastToken) {
        if let Some(known) = self.young.get_mut(lock) {
            *known = last;
            return;
        }
        if self.young.len() >= LOCKS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(lock.clone(), last);
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

    /// The grant of a claim whose call arrived, and whose step was sent, at `sent`.
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
    fn a_token_that_does_not_rise_is_noticed() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!seen.granted(&grant(&name, 1, 7, start), later(1)).regression);
        assert!(
            seen.granted(&grant(&name, 2, 7, later(2)), later(3)).regression,
            "the same again"
        );
        assert!(
            seen.granted(&grant(&name, 3, 6, later(4)), later(5)).regression,
            "a lower one"
        );
        assert!(!seen.granted(&grant(&name, 4, 8, later(6)), later(7)).regression);
    }

    #[test]
    fn answers_that_overtake_each_other_and_retries_are_no_regression() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!seen.granted(&grant(&name, 1, 8, later(1)), later(5)).regression);
        assert!(
            !seen.granted(&grant(&name, 2, 7, start), later(6)).regression,
            "sent before 8 was seen"
        );
        assert!(!seen.granted(&grant(&name, 1, 8, later(7)), later(8)).new, "a retry");
        let shared = Granted {
            alone: false,
            ..grant(&name, 3, 5, later(9))
        };
        assert!(
            !seen.granted(&shared, later(10)).regression,
            "an older holder beside others"
        );
    }

    #[test]
    fn a_hand_off_begins_with_the_release_that_a_waiter_waited_for() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        seen.granted(&grant(&name, 1, 1, start), later(1));
        seen.released(&name, later(5));
        let waiter = Granted {
            arrived: later(2),
            ..grant(&name, 2, 2, later(5))
        };
        assert_eq!(seen.granted(&waiter, later(6)).released, Some(later(5)));
        seen.released(&name, later(7));
        let newcomer = grant(&name, 3, 3, later(100));
        assert_eq!(seen.granted(&newcomer, later(101)).released, None, "nobody waited");
    }

    #[test]
    fn leases_are_held_until_they_end_or_run_out() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        for claim in 1..=4 {
            seen.granted(&grant(&name, claim, u64::from(claim), start), start);
        }
        seen.ended(&secret(1));
        seen.forced(&lock("b"), token(3));
        seen.forced(&name, token(2));
        assert_eq!(seen.sweep(start), (0, 2));
        seen.hold(&name, secret(3), token(3), start + Duration::from_secs(20));
        assert_eq!(seen.sweep(start + Duration::from_secs(10)), (1, 1));
        assert_eq!(seen.sweep(start + Duration::from_secs(20)), (1, 0));
        assert!(seen.by_call.is_empty());
    }

    #[test]
    fn a_lease_that_is_taken_back_is_held_no_more_whatever_name_its_claim_had() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let until = start + Duration::from_secs(10);
        seen.granted(&grant(&name, 1, 1, start), start);
        seen.undone(CallId::from_bytes([1; 16]));
        assert_eq!(seen.sweep(start), (0, 0));
        // A retry found it: the older call is not its owner any more.
        let (first, retry) = (grant(&name, 2, 2, start), CallId::from_bytes([9; 16]));
        seen.granted(&first, start);
        assert!(!seen.granted(&Granted { call: retry, ..first }, start).new);
        seen.undone(CallId::from_bytes([2; 16]));
        assert_eq!(seen.sweep(start), (0, 1));
        seen.undone(retry);
        assert_eq!(seen.sweep(start), (0, 0));
        // One that another server granted and this one renewed belongs to no call here.
        seen.hold(&name, secret(3), token(3), until);
        seen.ended(&secret(1));
        assert_eq!(seen.sweep(start), (0, 1));
        assert!(seen.by_call.is_empty());
    }

    #[test]
    fn each_hold_of_a_claim_is_a_lease() {
        let (mut seen, name, start) = (LeaseObserver::default(), lock("a"), Instant::now());
        let reentered = |hold| Granted {
            alone: false,
            ..grant(&name, hold, 1, start)
        };
        for hold in [1, 2] {
            let shown = seen.granted(&reentered(hold), start);
            assert!(shown.new && !shown.regression);
        }
        seen.ended(&secret(1));
        assert_eq!(seen.sweep(start), (0, 1));
        seen.forced(&name, token(1));
        assert_eq!(seen.sweep(start), (0, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut seen, start) = (LeaseObserver::default(), Instant::now());
        for number in 0..3 * LOCKS {
            let name = lock(&format!("lock-{number}"));
            seen.granted(&grant(&name, 1, number as u64 + 1, start), start);
        }
        assert!(seen.young.len() + seen.old.len() <= 2 * LOCKS);
        assert_eq!(seen.leases.len(), 1, "one claim");
    }
}
