//! The last segments of claims' keys, which are used again.
//!
//! Etcd evaluates a range over the whole history of its keys: it walks past every key that existed since the last
//! compaction. Keys that are used again keep their number small. So a claim's keys (`q/<suffix>` while it waits,
//! `h/<kind>/<suffix>` while it holds) end in a suffix that the server which made the claim uses again, and the record
//! of its request says which suffix that is.
//!
//! A suffix is free once this server knows that no key has it and that no step which makes a claim under it is in
//! flight: its own answered step deleted the key, or each of the call's steps was answered and wrote nothing. Late steps
//! of other servers compare a revision of an earlier key, so they cannot touch the next claim under the suffix.
//!
//! The hash of a lock's name says where the search for a free suffix begins, so a lock mostly gets the same one. With
//! arbitrary suffixes, each of 64 locks in use soon had 64 keys, and walking past them took a sixth of etcd's CPU time.
//!
//! With a new key for each claim, a lock that was used 20,000 times cost etcd 12 ms a cycle.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use crate::name::{CallId, ClaimId, LockName};

/// How many suffixes a session begins with.
const BEGUN: u64 = 4096;
/// With fewer free ones a lock would seldom find the same, so new ones are made. That replaces those of expired leases,
/// which are never freed.
const SPARE_SUFFIXES: usize = 2048;
/// How many free ones are kept.
const KEPT: usize = 8192;

/// The last segment of a claim's keys: the session of the server that made the claim, and a number. Releases before used the
/// claim's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeySuffix(u128);

impl KeySuffix {
    fn new(session: i64, number: u64) -> Self {
        Self(u128::from(session.cast_unsigned()) << 64 | u128::from(number))
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The key suffix that a lease names if its claim has no request id.
    pub fn of_lease(claim: ClaimId) -> Self {
        Self::from_bytes(*claim.as_bytes())
    }

    /// The key suffix as the claim of a lease.
    pub fn to_claim(self) -> ClaimId {
        ClaimId::from_bytes(self.to_bytes())
    }

    /// Parses the end of a key.
    pub fn parse(text: &str) -> Option<Self> {
        u128::from_str_radix(text, 16).ok().map(Self)
    }

    fn session(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn number(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for KeySuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for KeySuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySuffix({self})")
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct KeySuffixPool {
    state: Mutex<PoolState>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct PoolState {
    session: i64,
    /// The last number of any suffix. It never falls, so that no key suffix is given twice unless it was freed.
    last: u64,
    /// The first number that the session began with.
    first: u64,
    /// The numbers of the free suffixes.
    free: BTreeSet<u64>,
    of_calls: HashMap<CallId, CallSuffixes>,
}

/// Where a call's claim may be, until the outcome of the call is known.
#[derive(Debug, Default)]
struct CallSuffixes {
    own: Option<KeySuffix>,
    /// A step that makes a claim under its own key suffix was sent, and was not refused.
    made: bool,
    /// The key suffix of another call's claim, which it may have adopted.
    adopted: Option<KeySuffix>,
}

impl KeySuffixPool {
    /// The key suffix of a claim that a call may make on a lock, in this session. It stays the same until the call ends.
    pub fn own(&self, call: CallId, lock: &LockName, session: i64) -> KeySuffix {
        let mut state = self.state.lock();
        if state.session != session {
            state.session = session;
            state.begin();
        }
        if let Some(known) = state.of_calls.get(&call).and_then(|suffixes| suffixes.own) {
            return known;
        }
        let suffix = KeySuffix::new(session, state.take(self.hasher.hash_one(lock)));
        state.of_calls.entry(call).or_default().own = Some(suffix);
        suffix
    }

    /// Notes that a step which makes a call's claim under this key suffix is about to be sent.
    pub fn sending(&self, call: CallId, suffix: KeySuffix) {
        let mut state = self.state.lock();
        let suffixes = state.of_calls.entry(call).or_default();
        (suffixes.own, suffixes.made) = (Some(suffix), true);
    }

    /// Notes that such a step wrote nothing.
    pub fn not_made(&self, call: CallId) {
        if let Some(suffixes) = self.state.lock().of_calls.get_mut(&call) {
            suffixes.made = false;
        }
    }

    /// Notes that a call is about to adopt the claim under this key suffix.
    pub fn adopt(&self, call: CallId, suffix: KeySuffix) {
        self.state.lock().of_calls.entry(call).or_default().adopted = Some(suffix);
    }

    /// The key suffixes under which a call's claim may wait.
    pub fn of(&self, call: CallId) -> Vec<KeySuffix> {
        let state = self.state.lock();
        let suffixes = state.of_calls.get(&call);
        suffixes.map_or_else(Vec::new, |suffixes| {
            suffixes.own.into_iter().chain(suffixes.adopted).collect()
        })
    }

    /// Forgets a call whose outcome is known. Its own key suffix is free if no claim was made under it.
    pub fn end(&self, call: CallId) {
        let mut state = self.state.lock();
        let own = state.of_calls.remove(&call).filter(|suffixes| !suffixes.made);
        if let Some(suffix) = own.and_then(|suffixes| suffixes.own) {
            state.free(suffix);
        }
    }

    /// Frees the key suffix of a claim whose key an answered step of this server deleted.
    pub fn deleted(&self, suffix: KeySuffix) {
        self.state.lock().free(suffix);
    }

    /// Forgets all free key suffixes, because a restored store may have keys with them.
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.begin();
        for suffixes in state.of_calls.values_mut().filter(|suffixes| !suffixes.made) {
            suffixes.own = None;
        }
    }
}

impl PoolState {
    /// Begins with suffixes that nobody had.
    fn begin(&mut self) {
        self.first = self.last + 1;
        self.last += BEGUN;
        self.free = (self.first..=self.last).collect();
    }

    /// Takes a free number, for a lock with this hash.
    fn take(&mut self, lock: u64) -> u64 {
        let place = self.first + lock % BEGUN;
        let free = self.free.range(place..).next().or_else(|| self.free.first());
        match free.copied() {
            Some(number) if self.free.len() >= SPARE_SUFFIXES => {
                self.free.remove(&number);
                number
            }
            _ => {
                self.last += 1;
                self.last
            }
        }
    }

    fn free(&mut self, suffix: KeySuffix) {
        if suffix.session() == self.session.cast_unsigned() && self.free.len() < KEPT {
            self.free.insert(suffix.number());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn call(number: u8) -> CallId {
        CallId::from_bytes([number; 16])
    }

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    #[test]
    fn a_suffix_is_used_again_after_its_claim_was_deleted_or_was_never_made() {
        let suffixes = KeySuffixPool::default();
        let first = suffixes.own(call(1), &lock("l"), 7);
        assert_eq!(suffixes.own(call(1), &lock("l"), 7), first, "it stays");
        assert_ne!(suffixes.own(call(2), &lock("l"), 7), first);
        suffixes.sending(call(1), first);
        suffixes.end(call(1));
        assert!(suffixes.of(call(1)).is_empty());
        let third = suffixes.own(call(3), &lock("l"), 7);
        assert_ne!(third, first, "its claim may be there");
        suffixes.deleted(first);
        assert_eq!(suffixes.own(call(4), &lock("l"), 7), first);
        suffixes.sending(call(3), third);
        suffixes.not_made(call(3));
        assert_eq!(suffixes.of(call(3)), [third]);
        suffixes.end(call(3));
        suffixes.end(call(3));
        assert_eq!(suffixes.own(call(5), &lock("l"), 7), third);
        assert_ne!(suffixes.own(call(6), &lock("l"), 7), third, "it was freed once");
    }

    #[test]
    fn a_lock_keeps_its_suffix_beside_more_locks_than_there_are_suffixes() {
        let suffixes = KeySuffixPool::default();
        let pairs: Vec<_> = (0..2 * KEPT)
            .map(|n| ["a", "b"].map(|half| lock(&format!("{half}{n}"))))
            .collect();
        // Two locks at once, so that one of them may have the place of the other.
        let use_all = || -> Vec<_> {
            let both = |[a, b]: &[LockName; 2]| {
                let both = [suffixes.own(call(1), a, 7), suffixes.own(call(2), b, 7)];
                for number in [1, 2] {
                    suffixes.end(call(number));
                }
                both
            };
            pairs.iter().map(both).collect()
        };
        let first = use_all();
        assert!(first.iter().all(|[a, b]| a != b));
        assert!(use_all() == first);
    }

    #[test]
    fn locks_keep_their_suffixes_after_many_leases_expired_and_nothing_is_given_twice() {
        let suffixes = KeySuffixPool::default();
        let id = |n: u64| CallId::from_bytes(u128::from(n).to_be_bytes());
        let own = |n: u64| suffixes.own(id(n), &lock(&format!("l{n}")), 7);
        let lost: HashSet<_> = (0..2 * BEGUN).map(own).collect();
        assert_eq!(lost.len() as u64, 2 * BEGUN);
        let of_calls = |calls: Vec<u64>| -> HashMap<u64, KeySuffix> {
            let all = calls.iter().map(|n| (*n, own(*n))).collect();
            for n in calls {
                suffixes.end(id(n));
            }
            all
        };
        let calls: Vec<_> = (2 * BEGUN..2 * BEGUN + 64).collect();
        assert!(of_calls(calls.clone()).values().all(|suffix| !lost.contains(suffix)));
        let before = of_calls(calls.clone());
        let after = of_calls(calls.into_iter().rev().collect());
        let same = before.iter().filter(|(call, suffix)| after[call] == **suffix).count();
        assert!(same > 48, "{same} of 64");
    }

    #[test]
    fn another_session_begins_without_free_suffixes_and_no_number_is_given_twice() {
        let suffixes = KeySuffixPool::default();
        let first = suffixes.own(call(1), &lock("l"), 7);
        suffixes.deleted(first);
        let other = suffixes.own(call(2), &lock("l"), 8);
        assert_ne!(other.session(), first.session());
        suffixes.deleted(first);
        assert_ne!(
            suffixes.own(call(3), &lock("l"), 8),
            first,
            "it is of the session before"
        );
        assert_ne!(suffixes.own(call(4), &lock("l"), 7), first);
    }

    #[test]
    fn abandoned_suffixes_are_not_used_again_also_by_a_call_that_has_made_nothing_yet() {
        let suffixes = KeySuffixPool::default();
        let [free, allotted, sent] = [1, 2, 9].map(|number| suffixes.own(call(number), &lock("l"), 7));
        suffixes.deleted(free);
        suffixes.sending(call(9), sent);
        suffixes.abandon();
        assert_eq!(suffixes.of(call(9)), [sent]);
        let next = [2, 3, 4].map(|number| suffixes.own(call(number), &lock("l"), 7));
        assert!(!next.contains(&free) && !next.contains(&allotted));
    }

    #[test]
    fn a_calls_claim_may_be_under_its_own_suffix_or_under_the_one_that_it_adopted() {
        let suffixes = KeySuffixPool::default();
        let own = suffixes.own(call(1), &lock("l"), 7);
        let other = suffixes.own(call(2), &lock("l"), 7);
        suffixes.adopt(call(1), other);
        assert_eq!(suffixes.of(call(1)), [own, other]);
    }
}
