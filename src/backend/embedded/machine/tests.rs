use std::time::SystemTime;

use super::*;
use crate::backend::embedded::lock::Claim;
use crate::backend::embedded::space::Coming;
use crate::backend::{Found, Leaving, NewClaim, Place};
use crate::name::{CallId, ClaimId, LeaseKey, LockKey, LockName};

/// A clock that stands where it is put.
#[derive(Debug, Clone, Default)]
struct Hand(Arc<std::sync::Mutex<Duration>>);

impl Clock for Hand {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now()
    }

    fn sleep_until(&self, _due: Duration) -> futures::future::BoxFuture<'static, ()> {
        unreachable!("a machine does not sleep")
    }
}

struct Bed {
    machine: Machine,
    clock: Hand,
    id: SpaceId,
    name: LockName,
}

fn bed() -> Bed {
    let clock = Hand::default();
    let mut machine = Machine::new(Arc::new(clock.clone()), true);
    let id = machine.space_id(&Namespace::new("n").unwrap());
    Bed {
        machine,
        clock,
        id,
        name: LockName::new("a").unwrap(),
    }
}

fn claim(number: u8) -> NewClaim {
    NewClaim {
        retryable: true,
        ..NewClaim::numbered(number)
    }
}

impl Bed {
    fn enter(&mut self, claim: &NewClaim) -> Place {
        let coming = Coming {
            claim,
            waited: Duration::ZERO,
        };
        let (space, desk) = self.machine.at(self.id);
        space.enter(desk, &self.name, &coming, 1000)
    }

    /// The lease of a claim that must be granted.
    fn take(&mut self, claim: &NewClaim) -> LeaseKey {
        let Place::Held(grant) = self.enter(claim) else {
            panic!("not granted")
        };
        LeaseKey {
            lock: LockKey {
                namespace: Namespace::new("n").unwrap(),
                name: self.name.clone(),
            },
            claim: grant.claim,
            kind: grant.kind,
            token: grant.token,
            secret: grant.secret,
        }
    }

    fn leave(&mut self, who: Leaving<'_>) -> Found {
        let (space, desk) = self.machine.at(self.id);
        space.leave(desk, &self.name, who, None).found
    }

    /// The only holder as the file has it, with its place.
    fn written(&self) -> (u64, Claim) {
        let lock = &self.machine.spaces[self.id].locks[&self.name];
        let mut holders = lock.iter().filter(|(_, claim)| claim.holding().is_some());
        let (place, claim) = holders.next().unwrap();
        assert!(holders.next().is_none());
        (place, claim.clone())
    }

    /// A turn could not be written: the file still says who held before.
    fn lose_turn(&mut self, (place, claim): (u64, Claim)) {
        let namespace = Namespace::new("n").unwrap();
        let holders = vec![(namespace, self.name.clone(), place, claim)];
        self.machine.rebuild(Loaded::of(holders));
    }
}

#[test]
fn nobody_overtakes_the_holder_that_a_lost_turn_brings_back() {
    let mut bed = bed();
    // A lock in use for a while: its places have counted on.
    let mut held = bed.take(&claim(0));
    for number in 1..6 {
        assert!(matches!(bed.enter(&claim(number)), Place::Waiting(_)));
        bed.leave(Leaving::Hold(&held));
        held = bed.take(&claim(number));
    }
    let file = bed.written();
    bed.machine.take_writes();
    // In one turn it falls free, and the places count from the start again.
    assert!(matches!(bed.leave(Leaving::Hold(&held)), Found::Ended(_)));
    bed.take(&claim(10));
    assert!(matches!(bed.enter(&claim(11)), Place::Waiting(_)));
    assert!(matches!(bed.enter(&claim(12)), Place::Waiting(_)));
    bed.lose_turn(file);
    for number in [11, 12] {
        let retry = NewClaim {
            call: CallId::from_bytes([100 + number; 16]),
            ..claim(number)
        };
        assert!(matches!(bed.enter(&retry), Place::Waiting(_)), "{number}");
    }
    let (space, _) = bed.machine.at(bed.id);
    assert_eq!(
        (space.locks[&bed.name].holders(), space.locks[&bed.name].waiters()),
        (1, 2)
    );
    // And in their order behind it.
    bed.leave(Leaving::Hold(&held));
    bed.take(&claim(11));
}

#[test]
fn a_waiter_at_the_place_of_a_holder_that_comes_back_is_not_lost() {
    let mut bed = bed();
    let held = bed.take(&claim(0));
    bed.enter(&claim(1));
    bed.leave(Leaving::Hold(&held));
    let held = bed.take(&claim(1));
    let file = bed.written();
    assert_eq!(file.0, 1);
    bed.leave(Leaving::Hold(&held));
    bed.take(&claim(10));
    bed.enter(&claim(11));
    bed.lose_turn(file);
    let (space, _) = bed.machine.at(bed.id);
    assert_eq!(space.locks[&bed.name].waiters(), 1);
    bed.leave(Leaving::Hold(&held));
    bed.take(&claim(11));
}

#[test]
fn what_is_due_is_done_by_the_turn_that_it_causes() {
    let mut bed = bed();
    let held = bed.take(&claim(0));
    // A cancel mark, and no finished call beside it.
    let unknown = Leaving::Call(&ClaimId::from_bytes([9; 16]), CallId::from_bytes([9; 16]));
    assert_eq!(bed.leave(unknown), Found::Nothing);
    let mut turns = 0;
    while let Some(due) = bed.machine.due() {
        *bed.clock.0.lock().unwrap() = due;
        bed.machine.begin();
        turns += 1;
        assert!(turns < 10, "a turn that is due at {due:?} does nothing");
    }
    // The mark, the lease and the memory of it are gone.
    assert_eq!(bed.leave(Leaving::Hold(&held)), Found::Nothing);
}
