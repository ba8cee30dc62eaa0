//! The names of claims' keys, which are used again.
//!
//! Etcd evaluates a range over the whole history of its keys: it walks past every key that existed since the last
//! compaction. Names that are used again keep the number of such keys small. So a claim's keys are named by a slot of the
//! server that made the claim, and the record of its request says which slot that is.
//!
//! A slot is free once this server knows that nothing is there and that no step which makes a claim there is in flight:
//! its own answered step deleted the key, or each of the call's steps was answered and wrote nothing. Late steps of other
//! servers compare a revision of an earlier key, so they cannot touch the slot's next claim.

use std::collections::HashMap;
use std::fmt;

use parking_lot::{Mutex, MutexGuard};

use crate::name::{CallId, ClaimId};

/// How many free slots are kept.
const KEPT: usize = 4096;

/// The name of a claim's keys: the session of the server that made the claim, and a number. Releases before used the
/// claim's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u128);

impl Slot {
    fn new(session: i64, number: u64) -> Self {
        Self(u128::from(session.cast_unsigned()) << 64 | u128::from(number))
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The slot that a lease names if its claim has no request id, or is of a release before.
    pub fn of_lease(claim: ClaimId) -> Self {
        Self::from_bytes(*claim.as_bytes())
    }

    /// The slot as the claim of a lease.
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
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({self})")
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct SlotPool(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    session: i64,
    /// The last number that was given. It never falls, so that no slot is given twice unless it was freed.
    last: u64,
    /// A stack, so that few slots are in use.
    free: Vec<Slot>,
    of_calls: HashMap<CallId, CallSlots>,
}

/// Where a call's claim may be, until the outcome of the call is known.
#[derive(Debug, Default)]
struct CallSlots {
    own: Option<Slot>,
    /// A step that makes a claim at its own slot was sent, and was not refused.
    made: bool,
    /// The slot of another call's claim, which it may have adopted.
    adopted: Option<Slot>,
}

impl SlotPool {
    /// The slot of a claim that a call may make, in this session. It stays the same until the call ends.
    pub fn own(&self, call: CallId, session: i64) -> Slot {
        let mut state = self.lock();
        if state.session != session {
            state.session = session;
            state.free.clear();
        }
        let known = state.of_calls.get(&call).and_then(|slots| slots.own);
        let slot = known.or_else(|| state.free.pop()).unwrap_or_else(|| {
            state.last += 1;
            Slot::new(session, state.last)
        });
        state.of_calls.entry(call).or_default().own = Some(slot);
        slot
    }

    /// Notes that a step which makes a call's claim at this slot is about to be sent.
    pub fn sending(&self, call: CallId, slot: Slot) {
        let mut state = self.lock();
        let slots = state.of_calls.entry(call).or_default();
        (slots.own, slots.made) = (Some(slot), true);
    }

    /// Notes that such a step wrote nothing.
    pub fn not_made(&self, call: CallId) {
        if let Some(slots) = self.lock().of_calls.get_mut(&call) {
            slots.made = false;
        }
    }

    /// Notes that a call is about to adopt the claim at this slot.
    pub fn adopt(&self, call: CallId, slot: Slot) {
        self.lock().of_calls.entry(call).or_default().adopted = Some(slot);
    }

    /// The slots at which a call's claim may wait.
    pub fn of(&self, call: CallId) -> Vec<Slot> {
        let state = self.lock();
        let slots = state.of_calls.get(&call);
        slots.map_or_else(Vec::new, |slots| slots.own.into_iter().chain(slots.adopted).collect())
    }

    /// Forgets a call whose outcome is known. Its own slot is free if no claim was made there.
    pub fn end(&self, call: CallId) {
        let mut state = self.lock();
        let own = state.of_calls.remove(&call).filter(|slots| !slots.made);
        if let Some(slot) = own.and_then(|slots| slots.own) {
            state.free(slot);
        }
    }

    /// Frees the slot of a claim whose key an answered step of this server deleted.
    pub fn deleted(&self, slot: Slot) {
        self.lock().free(slot);
    }

    /// Forgets all free slots, because a restored store may have keys there.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.free.clear();
        for slots in state.of_calls.values_mut().filter(|slots| !slots.made) {
            slots.own = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn free(&mut self, slot: Slot) {
        if slot.session() == self.session.cast_unsigned() && self.free.len() < KEPT {
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u8) -> CallId {
        CallId::from_bytes([number; 16])
    }

    #[test]
    fn a_slot_is_used_again_after_its_claim_was_deleted_or_was_never_made() {
        let slots = SlotPool::default();
        let first = slots.own(call(1), 7);
        assert_eq!(slots.own(call(1), 7), first, "it stays");
        assert_ne!(slots.own(call(2), 7), first);
        slots.sending(call(1), first);
        slots.end(call(1));
        assert!(slots.of(call(1)).is_empty());
        let third = slots.own(call(3), 7);
        assert_ne!(third, first, "its claim may be there");
        slots.deleted(first);
        assert_eq!(slots.own(call(4), 7), first);
        slots.sending(call(3), third);
        slots.not_made(call(3));
        assert_eq!(slots.of(call(3)), [third]);
        slots.end(call(3));
        slots.end(call(3));
        assert_eq!(slots.own(call(5), 7), third);
        assert_ne!(slots.own(call(6), 7), third, "it was freed once");
    }

    #[test]
    fn another_session_begins_without_free_slots_and_no_number_is_given_twice() {
        let slots = SlotPool::default();
        let first = slots.own(call(1), 7);
        slots.deleted(first);
        let other = slots.own(call(2), 8);
        assert_ne!(other.session(), first.session());
        slots.deleted(first);
        assert_ne!(slots.own(call(3), 8), first, "it is of the session before");
        assert_ne!(slots.own(call(4), 7), first);
    }

    #[test]
    fn abandoned_slots_are_not_used_again_also_by_a_call_that_has_made_nothing_yet() {
        let slots = SlotPool::default();
        let [free, allotted, sent] = [1, 2, 9].map(|number| slots.own(call(number), 7));
        slots.deleted(free);
        slots.sending(call(9), sent);
        slots.abandon();
        assert_eq!(slots.of(call(9)), [sent]);
        let next = [2, 3, 4].map(|number| slots.own(call(number), 7));
        assert!(!next.contains(&free) && !next.contains(&allotted));
    }

    #[test]
    fn a_calls_claim_may_be_at_its_own_slot_or_at_the_one_that_it_adopted() {
        let slots = SlotPool::default();
        let own = slots.own(call(1), 7);
        let other = slots.own(call(2), 7);
        slots.adopt(call(1), other);
        assert_eq!(slots.of(call(1)), [own, other]);
    }
}
