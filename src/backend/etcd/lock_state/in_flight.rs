//! Reserves a slot in the queue per claim that this replica is appending.
//!
//! An etcd transaction cannot check the queue's length while it appends. Without the reservations, any number of
//! concurrent calls would pass the check of a queue with one free slot. The reservations are per replica: a queue that
//! several replicas append to at once may exceed its limit by their appends in flight.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard};

use crate::name::{ClaimId, LockName};

/// The claims that are being appended to one queue, and how many calls append each.
pub type Others = HashMap<ClaimId, usize>;

/// See the module.
#[derive(Debug, Default)]
pub struct InFlight(Mutex<HashMap<LockName, Others>>);

impl InFlight {
    /// Reserves a slot for a claim, if `has_room` admits it in addition to the claims in flight. The slot is reserved
    /// until the guard is dropped.
    pub fn begin<'a>(
        &'a self,
        name: &'a LockName,
        claim: ClaimId,
        has_room: impl FnOnce(&Others) -> bool,
    ) -> Option<InFlightGuard<'a>> {
        let mut by_lock = self.lock();
        let room = match by_lock.get(name) {
            // Another call appends the same claim, which is written once.
            Some(others) if others.contains_key(&claim) => true,
            Some(others) => has_room(others),
            None => has_room(&Others::new()),
        };
        room.then(|| {
            *by_lock.entry(name.clone()).or_default().entry(claim).or_default() += 1;
            InFlightGuard {
                in_flight: self,
                name,
                claim,
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Others>> {
        self.0.lock()
    }
}

/// See [`InFlight::begin`].
#[derive(Debug)]
pub struct InFlightGuard<'a> {
    in_flight: &'a InFlight,
    name: &'a LockName,
    claim: ClaimId,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let mut by_lock = self.in_flight.lock();
        let Some(others) = by_lock.get_mut(self.name) else {
            return;
        };
        if let Some(calls) = others.get_mut(&self.claim) {
            *calls -= 1;
            if *calls == 0 {
                others.remove(&self.claim);
            }
        }
        if others.is_empty() {
            by_lock.remove(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_reserved_for_a_claim_until_each_call_that_appends_it_is_answered() {
        let (in_flight, name) = (InFlight::default(), LockName::new("a").unwrap());
        let claim = |number| ClaimId::from_bytes([number; 16]);
        let begin = |number| in_flight.begin(&name, claim(number), |others| others.len() < 2);
        let (first, second) = (begin(1).unwrap(), begin(2).unwrap());
        assert!(begin(3).is_none());
        let again = begin(1).unwrap();
        drop(first);
        assert!(begin(3).is_none(), "another call still appends it");
        drop(again);
        assert!(begin(3).is_some());
        drop(second);
        assert!(in_flight.lock().is_empty());
    }
}
