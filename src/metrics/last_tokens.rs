//! The last known token and release of each lock. Its memory is bounded. It only feeds metrics; no decision depends on
//! it.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::name::{FencingToken, LockName, Secret};

/// The number of locks in each of two generations. When the younger one is full, it replaces the older one.
const LOCKS: usize = 10_000;

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
    /// The secret of the hold.
    pub secret: Secret,
    /// The fencing token.
    pub token: FencingToken,
    /// When the operation was sent.
    pub sent: Instant,
    /// When the call arrived.
    pub arrived: Instant,
    /// Whether the hold is exclusive, so that no larger token was granted before it ended.
    pub alone: bool,
    /// Whether the lease was known before.
    pub is_known: bool,
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

/// The last tokens by lock.
#[derive(Debug, Default)]
pub struct LastTokens {
    recent: HashMap<LockName, LastToken>,
    older: HashMap<LockName, LastToken>,
}

impl LastTokens {
    /// Records a grant that was returned at `now`.
    pub fn granted(&mut self, grant: &Granted<'_>, now: Instant) -> ObservedGrant {
        let last = self.last(grant.lock);
        let is_last = last.is_some_and(|last| last.secret == grant.secret);
        let new = !grant.is_known && !is_last;
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

    /// Records that a release which ended a lease was sent at `sent`.
    pub fn released(&mut self, lock: &LockName, sent: Instant) {
        if let Some(last) = self.last(lock) {
            let released = Some(sent);
            self.set_last(lock, LastToken { released, ..last });
        }
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

    /// A grant to a claim whose call arrived, and whose operation was sent, at `sent`.
    fn grant(lock: &LockName, claim: u8, number: u64, sent: Instant) -> Granted<'_> {
        Granted {
            lock,
            secret: Secret::from_bytes([claim; 16]),
            token: FencingToken::new(number).expect("a token"),
            sent,
            arrived: sent,
            alone: true,
            is_known: false,
        }
    }

    #[test]
    fn a_token_that_does_not_increase_is_a_regression() {
        let (mut tokens, name, start) = (LastTokens::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!tokens.granted(&grant(&name, 1, 7, start), later(1)).regression);
        assert!(
            tokens.granted(&grant(&name, 2, 7, later(2)), later(3)).regression,
            "the same token"
        );
        assert!(
            tokens.granted(&grant(&name, 3, 6, later(4)), later(5)).regression,
            "a smaller token"
        );
        assert!(!tokens.granted(&grant(&name, 4, 8, later(6)), later(7)).regression);
    }

    #[test]
    fn reordered_responses_and_retries_are_no_regression() {
        let (mut tokens, name, start) = (LastTokens::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        assert!(!tokens.granted(&grant(&name, 1, 8, later(1)), later(5)).regression);
        assert!(
            !tokens.granted(&grant(&name, 2, 7, start), later(6)).regression,
            "sent before 8 was observed"
        );
        assert!(
            !tokens.granted(&grant(&name, 1, 8, later(7)), later(8)).new,
            "a retry of the last one"
        );
        let known = Granted {
            is_known: true,
            ..grant(&name, 4, 3, later(9))
        };
        let observed = tokens.granted(&known, later(10));
        assert!(!observed.new && !observed.regression, "a retry of an earlier one");
        let shared = Granted {
            alone: false,
            ..grant(&name, 3, 5, later(9))
        };
        assert!(
            !tokens.granted(&shared, later(10)).regression,
            "an older holder that shares the lock"
        );
    }

    #[test]
    fn a_hand_off_begins_with_the_release_during_the_wait() {
        let (mut tokens, name, start) = (LastTokens::default(), lock("a"), Instant::now());
        let later = |ms| start + Duration::from_millis(ms);
        tokens.granted(&grant(&name, 1, 1, start), later(1));
        tokens.released(&name, later(5));
        let waiter = Granted {
            arrived: later(2),
            ..grant(&name, 2, 2, later(5))
        };
        assert_eq!(tokens.granted(&waiter, later(6)).released, Some(later(5)));
        tokens.released(&name, later(7));
        let later_call = grant(&name, 3, 3, later(100));
        assert_eq!(
            tokens.granted(&later_call, later(101)).released,
            None,
            "the call did not wait"
        );
    }

    #[test]
    fn each_hold_of_a_claim_is_a_lease() {
        let (mut tokens, name, start) = (LastTokens::default(), lock("a"), Instant::now());
        for hold in [1, 2] {
            let reentered = Granted {
                alone: false,
                ..grant(&name, hold, 1, start)
            };
            let observed = tokens.granted(&reentered, start);
            assert!(observed.new && !observed.regression);
        }
    }

    #[test]
    fn the_observed_state_is_bounded() {
        let (mut tokens, start) = (LastTokens::default(), Instant::now());
        for number in 0..3 * LOCKS {
            let name = lock(&format!("lock-{number}"));
            tokens.granted(&grant(&name, 1, number as u64 + 1, start), start);
        }
        assert!(tokens.recent.len() + tokens.older.len() <= 2 * LOCKS);
    }
}
