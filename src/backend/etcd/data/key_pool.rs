//! Reuses the ids that claims have in etcd.
//!
//! Etcd evaluates a range over the whole history of its keys: it walks past every key that existed since the last
//! compaction. Reused ids keep the number of such keys small. A claim without a request id is never looked up by its
//! id, so it may have the id of an earlier claim, once that one has ended and this replica has the answer that confirms
//! the end. Then no step of the earlier claim is in flight. Any late request names a revision, a call, a secret or a
//! token of the earlier claim, and none of these is reused.
//!
//! A "name" is the id that a claim has in etcd.

use std::borrow::Cow;
use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};

use crate::backend::etcd::data::view::Entry;
use crate::backend::{AcquireOutcome, NewClaim, Notification};
use crate::name::ClaimId;

/// How many free names are kept.
const POOLED: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct KeyPool(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A stack, so that few names are in use.
    free: Vec<ClaimId>,
    /// By the id of a call's claim; only while the call may wait, or its outcome is unknown.
    name_of: HashMap<ClaimId, ClaimId>,
    claim_of: HashMap<ClaimId, ClaimId>,
}

impl KeyPool {
    /// A claim with the name that it is to have. The name stays the same until [`Self::resolve`] or [`Self::release`].
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

    /// A claim with the name that it has.
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

    /// Replaces the name in a notification by the claim's own id.
    pub fn wake(&self, notification: Notification) -> Notification {
        let claim = |name: ClaimId| self.lock().claim_of.get(&name).copied().unwrap_or(name);
        match notification {
            Notification::Next(lock, name) => Notification::Next(lock, claim(name)),
            Notification::Gone(lock, name) => {
                let claim = claim(name);
                self.release(&claim);
                Notification::Gone(lock, claim)
            }
            other => other,
        }
    }

    /// Notes the outcome of a claim. If it was neither granted nor enqueued, its name is free.
    pub fn resolve(&self, claim: &NewClaim, name: ClaimId, outcome: &AcquireOutcome) {
        match outcome {
            AcquireOutcome::Waiting(_) => {}
            AcquireOutcome::Busy(_) | AcquireOutcome::Refused(_) => {
                self.release(&claim.id);
                // It was not written.
                if !claim.retryable && !claim.reentrant {
                    self.free(name);
                }
            }
            _ => self.release(&claim.id),
        }
    }

    /// Forgets the name of a call that has ended, or that is identified by its hold from now on.
    pub fn release(&self, claim: &ClaimId) {
        let mut state = self.lock();
        if let Some(name) = state.name_of.remove(claim) {
            state.claim_of.remove(&name);
        }
    }

    /// Frees the name of a holder that was released by an answered step of this replica.
    pub fn released(&self, holder: &Entry) {
        if let [hold] = &holder.claim.holds[..]
            && !(hold.retryable || holder.claim.reentrant)
            && hold.id == holder.id
        {
            self.free(holder.id);
        }
    }

    /// Discards all free names, because a restored store may have keys with them.
    pub fn abandon(&self) {
        self.lock().free.clear();
    }

    fn free(&self, name: ClaimId) {
        let free = &mut self.lock().free;
        if free.len() < POOLED {
            free.push(name);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
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
    fn a_name_is_reused_after_its_claim_ended_and_by_one_claim_at_a_time() {
        let (names, first, second, third) = (KeyPool::default(), claim(1), claim(2), claim(3));
        let name = names.acquire(&first).id;
        assert_eq!(name, first.id);
        names.resolve(&first, name, &full());
        assert_eq!(names.acquire(&second).id, name);
        assert_eq!(names.acquire(&second).id, name, "it stays");
        assert_eq!(names.acquire(&third).id, third.id);
        let lock = LockName::new("a").unwrap();
        let notified = names.wake(Notification::Next(lock, name));
        assert!(matches!(notified, Notification::Next(_, claim) if claim == second.id));
        names.release(&second.id);
        assert_eq!(names.of_id(&second.id), second.id);
        // The second claim's outcome is unknown, so its name is not free.
        assert_eq!(names.acquire(&claim(4)).id, claim(4).id);
    }

    #[test]
    fn a_claim_with_a_request_id_or_of_a_reentrant_call_keeps_its_own_id() {
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
    fn abandoned_names_are_not_reused() {
        let names = KeyPool::default();
        names.resolve(&claim(1), claim(1).id, &full());
        names.abandon();
        assert_eq!(names.acquire(&claim(2)).id, claim(2).id);
    }
}
