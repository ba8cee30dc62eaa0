//! The names that claims have in etcd, where they are used again.
//!
//! Etcd looks for a range in the whole history of its keys: it walks past every key that was there since its
//! last compaction. So a claim that nobody looks for by its id, as it comes from no request id, goes by the name
//! of an earlier one, once that one is over and this replica has the answer that says so. Nothing that was sent
//! for the earlier claim is on its way then. What comes late all the same names a revision, a call, a secret or
//! a token of that one, and none of them is used again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::view::Entry;
use crate::backend::{NewClaim, AcquireOutcome, Notification};
use crate::name::ClaimId;

/// How many names are kept for others.
const KEPT: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct KeyPool(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last one first, so that few are in use.
    free: Vec<ClaimId>,
    /// By a call's claim; only while that call may wait, or what became of it is unknown.
    name_of: HashMap<ClaimId, ClaimId>,
    claim_of: HashMap<ClaimId, ClaimId>,
}

impl KeyPool {
    /// A claim as etcd is to know it. Given once, a name stays until the claim is [`Self::resolve`] or over.
    pub fn acquire<'a>(&self, claim: &'a NewClaim) -> Cow<'a, NewClaim> {
        if claim.retryable || claim.reentrant {
            return Cow::Borrowed(claim);
        }
        let mut state = self.lock();
        let name = match state.name_of.get(&claim.id) {
            Some(name) => *name,
            None => match state.free.pop() {
                Some(name) => {
                    state.name_of.insert(claim.id, name);
                    state.claim_of.insert(name, claim.id);
                    name
                }
                None => return Cow::Borrowed(claim),
            },
        };
        drop(state);
        Cow::Owned(NewClaim {
            id: name,
            ..claim.clone()
        })
    }

    /// A claim as etcd knows it.
    pub fn of<'a>(&self, claim: &'a NewClaim) -> Cow<'a, NewClaim> {
        match self.of_id(&claim.id) {
            name if name == claim.id => Cow::Borrowed(claim),
            id => Cow::Owned(NewClaim { id, ..claim.clone() }),
        }
    }

    /// The name of a call's claim.
    pub fn of_id(&self, claim: &ClaimId) -> ClaimId {
        self.lock().name_of.get(claim).copied().unwrap_or(*claim)
    }

    /// A wake for the claim that it is about.
    pub fn wake(&self, wake: Notification) -> Notification {
        let claim = |name: ClaimId| self.lock().claim_of.get(&name).copied().unwrap_or(name);
        match wake {
            Notification::Next(lock, name) => Notification::Next(lock, claim(name)),
            Notification::Gone(lock, name) => {
                let claim = claim(name);
                self.release(&claim);
                Notification::Gone(lock, claim)
            }
            other => other,
        }
    }

    /// A claim has its place.
    pub fn resolve(&self, claim: &NewClaim, name: ClaimId, place: &AcquireOutcome) {
        match place {
            AcquireOutcome::Waiting(_) => {}
            AcquireOutcome::Busy(_) | AcquireOutcome::Refused(_) => {
                self.release(&claim.id);
                // It was put nowhere.
                if !claim.retryable && !claim.reentrant {
                    self.free(name);
                }
            }
            _ => self.release(&claim.id),
        }
    }

    /// A call is over, or is found by what it holds.
    pub fn release(&self, claim: &ClaimId) {
        let mut state = self.lock();
        if let Some(name) = state.name_of.remove(claim) {
            state.claim_of.remove(&name);
        }
    }

    /// A holder was released, and this replica has the answer that says so.
    pub fn released(&self, holder: &Entry) {
        if let [hold] = &holder.claim.holds[..]
            && !(hold.retryable || holder.claim.reentrant)
            && hold.id == holder.id
        {
            self.free(holder.id);
        }
    }

    /// Forgets all names that are kept: keys may have them again.
    pub fn abandon(&self) {
        self.lock().free.clear();
    }

    fn free(&self, name: ClaimId) {
        let free = &mut self.lock().free;
        if free.len() < KEPT {
            free.push(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Refusal;
    use crate::name::LockName;

    fn claim(number: u8) -> NewClaim {
        NewClaim::numbered(number)
    }

    fn full() -> AcquireOutcome {
        AcquireOutcome::Refused(Refusal::Full { limit: 1 })
    }

    #[test]
    fn a_name_is_given_again_once_its_claim_is_over_and_to_one_claim_at_a_time() {
        let (names, first, second, third) = (KeyPool::default(), claim(1), claim(2), claim(3));
        let name = names.acquire(&first).id;
        assert_eq!(name, first.id);
        names.resolve(&first, name, &full());
        assert_eq!(names.acquire(&second).id, name);
        assert_eq!(names.acquire(&second).id, name, "it stays");
        assert_eq!(names.acquire(&third).id, third.id);
        let lock = LockName::new("a").unwrap();
        let woken = names.wake(Notification::Next(lock, name));
        assert!(matches!(woken, Notification::Next(_, claim) if claim == second.id));
        names.release(&second.id);
        assert_eq!(names.of_id(&second.id), second.id);
        // What became of it is not known to be over.
        assert_eq!(names.acquire(&claim(4)).id, claim(4).id);
    }

    #[test]
    fn a_claim_of_a_request_id_or_of_reentry_keeps_its_own() {
        let names = KeyPool::default();
        names.resolve(&claim(1), claim(1).id, &full());
        for (retryable, reentrant) in [(true, false), (false, true)] {
            let own = NewClaim {
                retryable,
                reentrant,
                ..claim(2)
            };
            assert_eq!(names.acquire(&own).id, own.id);
            names.resolve(&own, own.id, &full());
        }
        assert_eq!(names.acquire(&claim(3)).id, claim(1).id);
        assert_eq!(names.acquire(&claim(4)).id, claim(4).id);
    }

    #[test]
    fn names_of_an_old_connection_are_forgotten() {
        let names = KeyPool::default();
        names.resolve(&claim(1), claim(1).id, &full());
        names.abandon();
        assert_eq!(names.acquire(&claim(2)).id, claim(2).id);
    }
}
