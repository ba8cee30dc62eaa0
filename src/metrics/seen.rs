//! What a namespace's steps showed: which leases are held, which token each lock granted last, and
//! when it was last released. Bounded, and only for the figures: nothing here decides anything.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use tokio::time::Instant;

use crate::name::{ClaimId, FencingToken, LockName};

/// How many leases are followed; the gauge stays at this where there are more.
const LEASES: usize = 200_000;
/// How many locks are remembered in each of two generations: when the younger is full, the older goes.
const LOCKS: usize = 10_000;

/// A lease that was granted or renewed here.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// The hash of its lock's name, which may be long.
    lock: u64,
    token: FencingToken,
    until: Instant,
}

/// What a lock showed last.
#[derive(Debug, Clone, Copy)]
struct Last {
    token: FencingToken,
    claim: ClaimId,
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
    /// To which claim or hold.
    pub claim: ClaimId,
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
pub struct Shown {
    /// Whether the lease was not known yet.
    pub new: bool,
    /// Whether its token was not above the last one.
    pub regression: bool,
    /// When the lock was released for it, if that was over this server and while it waited.
    pub released: Option<Instant>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Seen {
    leases: HashMap<ClaimId, Held>,
    hasher: RandomState,
    young: HashMap<LockName, Last>,
    old: HashMap<LockName, Last>,
}

impl Seen {
    /// A grant was answered `now`.
    pub fn granted(&mut self, grant: &Granted<'_>, now: Instant) -> Shown {
        let known = self.leases.get(&grant.claim).map(|held| held.token);
        self.hold(grant.lock, grant.claim, grant.token, grant.until);
        let last = self.last(grant.lock);
        let is_last = last.is_some_and(|last| (last.claim, last.token) == (grant.claim, grant.token));
        let new = known != Some(grant.token) && !is_last;
        // Only a step that was sent after a higher token was known can have been granted later.
        let regression =
            new && grant.alone && last.is_some_and(|last| grant.token <= last.token && grant.sent > last.seen);
        let released = last.and_then(|last| last.released).filter(|at| grant.arrived <= *at);
        let next = match last {
            Some(last) if last.token > grant.token => Last { released: None, ..last },
            _ => Last {
                token: grant.token,
                claim: grant.claim,
                seen: now,
                released: None,
            },
        };
        self.note(grant.lock, next);
        Shown {
            new,
            regression,
            released: released.filter(|_| new),
        }
    }

    /// A lease was renewed.
    pub fn hold(&mut self, lock: &LockName, claim: ClaimId, token: FencingToken, until: Instant) {
        let lock = self.hashed(lock);
        if self.leases.len() < LEASES || self.leases.contains_key(&claim) {
            self.leases.insert(claim, Held { lock, token, until });
        }
    }

    /// A lease is over.
    pub fn ended(&mut self, claim: ClaimId) {
        self.leases.remove(&claim);
    }

    /// A token of a lock was forced: all holds of its claim are over. Another lock may have the same token.
    pub fn forced(&mut self, lock: &LockName, token: FencingToken) {
        let lock = self.hashed(lock);
        self.leases.retain(|_, held| (held.lock, held.token) != (lock, token));
    }

    /// A release that ended a lease was sent at `sent`.
    pub fn released(&mut self, lock: &LockName, sent: Instant) {
        if let Some(last) = self.last(lock) {
            let released = Some(sent);
            self.note(lock, Last { released, ..last });
        }
    }

    /// Forgets the leases whose time is over, and gives back the memory of many: how many there were,
    /// and how many are left.
    pub fn sweep(&mut self, now: Instant) -> (usize, usize) {
        let before = self.leases.len();
        self.leases.retain(|_, held| held.until > now);
        if self.leases.len() < self.leases.capacity() / 4 {
            self.leases.shrink_to_fit();
        }
        (before - self.leases.len(), self.leases.len())
    }

    fn hashed(&self, lock: &LockName) -> u64 {
        self.hasher.hash_one(lock)
    }

    fn last(&self, lock: &LockName) -> Option<Last> {
        self.young.get(lock).or_else(|| self.old.get(lock)).copied()
    }

    fn note(&mut self, lock: &LockName, last: Last) {
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

    /// The grant of a claim whose call arrived, and whose step was sent, at `sent`.
    fn grant(lock: &LockName, claim: u8, number: u64, sent: Instant) -> Granted<'_> {
        Granted {
            lock,
            claim: ClaimId::from_bytes([claim; 16]),
            token: token(number),
            sent,
            arrived: sent,
            until: sent + Duration::from_secs(10),
            alone: true,
        }
    }

    #[test]
    fn a_token_that_does_not_rise_is_noticed() {
        let (mut seen, name, start) = (Seen::default(), lock("a"), Instant::now());
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
        let (mut seen, name, start) = (Seen::default(), lock("a"), Instant::now());
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
        let (mut seen, name, start) = (Seen::default(), lock("a"), Instant::now());
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
        let (mut seen, name, start) = (Seen::default(), lock("a"), Instant::now());
        for claim in 1..=4 {
            seen.granted(&grant(&name, claim, u64::from(claim), start), start);
        }
        seen.ended(ClaimId::from_bytes([1; 16]));
        seen.forced(&name, token(2));
        assert_eq!(seen.sweep(start), (0, 2));
        seen.forced(&lock("b"), token(3));
        assert_eq!(seen.sweep(start), (0, 2), "the same token of another lock");
        let later = start + Duration::from_secs(20);
        seen.hold(&name, ClaimId::from_bytes([3; 16]), token(3), later);
        assert_eq!(seen.sweep(start + Duration::from_secs(10)), (1, 1));
        assert_eq!(seen.sweep(start + Duration::from_secs(20)), (1, 0));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        for number in 0..3 * LOCKS {
            let name = lock(&format!("lock-{number}"));
            seen.granted(&grant(&name, 1, number as u64 + 1, start), start);
        }
        assert!(seen.young.len() + seen.old.len() <= 2 * LOCKS);
        assert_eq!(seen.leases.len(), 1, "one claim");
    }
}
