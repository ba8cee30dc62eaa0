//! Claims of this replica on their way to the tails of queues. The store shows none of them before it has
//! answered, so without this any number of calls at once would find room in a queue of which one place is left.
//! It counts for one replica: a queue that several fill at once may be longer by what the others send meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::name::{ClaimId, LockName};

/// The claims that are on their way to one queue, and how many calls bring each.
pub type Others = HashMap<ClaimId, usize>;

/// See the module.
#[derive(Debug, Default)]
pub struct InFlight(Mutex<HashMap<LockName, Others>>);

impl InFlight {
    /// Lets a claim on its way if there is room for it beside those that are; its place is kept until the
    /// answer is dropped.
    pub fn begin<'a>(
        &'a self,
        name: &'a LockName,
        claim: ClaimId,
        has_room: impl FnOnce(&Others) -> bool,
    ) -> Option<InFlightGuard<'a>> {
        let mut by_lock = self.lock();
        let room = match by_lock.get(name) {
            // Another call brings the same one, and it is put there once.
            Some(coming) if coming.contains_key(&claim) => true,
            Some(coming) => has_room(coming),
            None => has_room(&Others::new()),
        };
        room.then(|| {
            *by_lock.entry(name.clone()).or_default().entry(claim).or_default() += 1;
            InFlightGuard {
                under_way: self,
                name,
                claim,
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockName, Others>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`InFlight::begin`].
#[derive(Debug)]
pub struct InFlightGuard<'a> {
    under_way: &'a InFlight,
    name: &'a LockName,
    claim: ClaimId,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let mut by_lock = self.under_way.lock();
        let Some(coming) = by_lock.get_mut(self.name) else {
            return;
        };
        if let Some(calls) = coming.get_mut(&self.claim) {
            *calls -= 1;
            if *calls == 0 {
                coming.remove(&self.claim);
            }
        }
        if coming.is_empty() {
            by_lock.remove(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_for_a_claim_until_each_call_that_brings_it_is_answered() {
        let (under_way, name) = (InFlight::default(), LockName::new("a").unwrap());
        let claim = |number| ClaimId::from_bytes([number; 16]);
        let begin = |number| under_way.begin(&name, claim(number), |coming| coming.len() < 2);
        let (first, second) = (begin(1).unwrap(), begin(2).unwrap());
        assert!(begin(3).is_none());
        let again = begin(1).unwrap();
        drop(first);
        assert!(begin(3).is_none(), "another call still brings it");
        drop(again);
        assert!(begin(3).is_some());
        drop(second);
        assert!(under_way.lock().is_empty());
    }
}
