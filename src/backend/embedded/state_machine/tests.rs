use std::time::SystemTime;

use super::*;
use crate::backend::embedded::lock::Claim;
use crate::backend::embedded::namespace_state::IncomingClaim;
use crate::backend::{ClaimLimits, Released, ReleaseTarget, NewClaim, WaitPolicy, AcquireOutcome};
use crate::name::{CallId, ClaimId, Identity, LeaseKey, LockKey, LockName, Metadata, Mode, Owner, Secret, Ttl};

/// A clock that stands where it is put.
#[derive(Debug, Clone, Default)]
struct TestCaller(Arc<std::sync::Mutex<Duration>>);

impl Clock for TestCaller {
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

struct Fixture {
    machine: StateMachine,
    clock: TestCaller,
    id: NamespaceId,
    name: LockName,
}

fn fixture() -> Fixture {
    let clock = TestCaller::default();
    let mut machine = StateMachine::new(Arc::new(clock.clone()), true);
    let id = machine.namespace_id(&Namespace::new("n").unwrap());
    Fixture {
        machine,
        clock,
        id,
        name: LockName::new("a").unwrap(),
    }
}

fn claim(number: u8) -> NewClaim {
    NewClaim {
        id: ClaimId::from_bytes([number; 16]),
        call: CallId::from_bytes([number; 16]),
        secret: Secret::from_bytes([number; 16]),
        retryable: true,
        owner: Owner::new("o").unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        reentrant: false,
        ttl: Ttl::new(Duration::from_secs(60)).unwrap(),
        metadata: Metadata::default(),
        wait_policy: WaitPolicy::Wait,
        limits: ClaimLimits {
            queue: 100,
            finished: 100,
            holds: 10,
        },
        arrived: tokio::time::Instant::now(),
    }
}

impl Fixture {
    fn acquire(&mut self, claim: &NewClaim) -> AcquireOutcome {
        let coming = IncomingClaim {
            claim,
            waited: Duration::ZERO,
        };
        let (space, ctx) = self.machine.at(self.id);
        space.acquire(ctx, &self.name, &coming, 1000)
    }

    /// The lease of a claim that must be granted.
    fn take(&mut self, claim: &NewClaim) -> LeaseKey {
        let AcquireOutcome::Held(grant) = self.acquire(claim) else {
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

    fn release(&mut self, who: ReleaseTarget<'_>) -> Released {
        let (space, ctx) = self.machine.at(self.id);
        space.release(ctx, &self.name, who, None).found
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
    let mut fixture = fixture();
    // A lock in use for a while: its places have counted on.
    let mut held = fixture.take(&claim(0));
    for number in 1..6 {
        assert!(matches!(fixture.acquire(&claim(number)), AcquireOutcome::Waiting(_)));
        fixture.release(ReleaseTarget::Hold(&held));
        held = fixture.take(&claim(number));
    }
    let file = fixture.written();
    fixture.machine.take_writes();
    // In one turn it falls free, and the places count from the start again.
    assert!(matches!(fixture.release(ReleaseTarget::Hold(&held)), Released::Ended(_)));
    fixture.take(&claim(10));
    assert!(matches!(fixture.acquire(&claim(11)), AcquireOutcome::Waiting(_)));
    assert!(matches!(fixture.acquire(&claim(12)), AcquireOutcome::Waiting(_)));
    fixture.lose_turn(file);
    for number in [11, 12] {
        let retry = NewClaim {
            call: CallId::from_bytes([100 + number; 16]),
            ..claim(number)
        };
        assert!(matches!(fixture.acquire(&retry), AcquireOutcome::Waiting(_)), "{number}");
    }
    let (space, _) = fixture.machine.at(fixture.id);
    assert_eq!(
        (space.locks[&fixture.name].holders(), space.locks[&fixture.name].waiters()),
        (1, 2)
    );
    // And in their order behind it.
    fixture.release(ReleaseTarget::Hold(&held));
    fixture.take(&claim(11));
}

#[test]
fn a_waiter_at_the_place_of_a_holder_that_comes_back_is_not_lost() {
    let mut fixture = fixture();
    let held = fixture.take(&claim(0));
    fixture.acquire(&claim(1));
    fixture.release(ReleaseTarget::Hold(&held));
    let held = fixture.take(&claim(1));
    let file = fixture.written();
    assert_eq!(file.0, 1);
    fixture.release(ReleaseTarget::Hold(&held));
    fixture.take(&claim(10));
    fixture.acquire(&claim(11));
    fixture.lose_turn(file);
    let (space, _) = fixture.machine.at(fixture.id);
    assert_eq!(space.locks[&fixture.name].waiters(), 1);
    fixture.release(ReleaseTarget::Hold(&held));
    fixture.take(&claim(11));
}

#[test]
fn what_is_due_is_done_by_the_turn_that_it_causes() {
    let mut fixture = fixture();
    let held = fixture.take(&claim(0));
    // A cancel mark, and no finished call beside it.
    let unknown = ReleaseTarget::Call(&ClaimId::from_bytes([9; 16]), CallId::from_bytes([9; 16]));
    assert_eq!(fixture.release(unknown), Released::Nothing);
    let mut turns = 0;
    while let Some(due) = fixture.machine.due() {
        *fixture.clock.0.lock().unwrap() = due;
        fixture.machine.begin();
        turns += 1;
        assert!(turns < 10, "a turn that is due at {due:?} does nothing");
    }
    // The mark, the lease and the memory of it are gone.
    assert_eq!(fixture.release(ReleaseTarget::Hold(&held)), Released::Nothing);
}
