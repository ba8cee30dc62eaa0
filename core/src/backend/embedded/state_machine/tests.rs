use std::time::SystemTime;

use super::*;
use crate::backend::embedded::record;
use crate::backend::embedded::txn_context::RecordKey;
use crate::backend::{AcquireOutcome, FINISHED_KEPT, NewClaim, ReleaseTarget, Released};
use crate::claim::Cause;
use crate::name::{CallId, ClaimId, LeaseKey, LockKey, LockName, Ttl};
use crate::queue::IncomingClaim;

/// A clock that only the test moves.
#[derive(Debug, Clone, Default)]
struct ManualClock(Arc<std::sync::Mutex<Duration>>);

impl Clock for ManualClock {
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
    clock: ManualClock,
    id: NamespaceId,
    name: LockName,
}

fn fixture() -> Fixture {
    let clock = ManualClock::default();
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
        retryable: true,
        ..NewClaim::numbered(number)
    }
}

impl Fixture {
    fn acquire(&mut self, claim: &NewClaim) -> AcquireOutcome {
        let incoming = IncomingClaim {
            claim,
            waited: Duration::ZERO,
        };
        let (state, ctx) = self.machine.at(self.id);
        state.run(ctx, &self.name, 1000, |lock, ctx| lock.acquire(ctx, &incoming))
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

    /// Lets time pass, and begins the batch that follows.
    fn pass(&mut self, time: Duration) {
        *self.clock.0.lock().unwrap() += time;
        self.machine.begin();
    }

    fn release(&mut self, who: ReleaseTarget<'_>) -> Released {
        let (state, ctx) = self.machine.at(self.id);
        state
            .run(ctx, &self.name, 1000, |lock, ctx| lock.release(ctx, who, None))
            .released
    }

    /// The only holder, as the file has it, with its position.
    fn written(&self) -> (u64, Claim) {
        let lock = &self.machine.namespaces[self.id].locks[&self.name];
        let mut holders = lock.iter().filter(|(_, claim)| claim.holding().is_some());
        let (position, claim) = holders.next().unwrap();
        assert!(holders.next().is_none());
        (position, claim.clone())
    }

    /// Simulates a batch that could not be written: the file still contains the earlier holder.
    fn lose_batch(&mut self, (position, claim): (u64, Claim)) {
        let namespace = Namespace::new("n").unwrap();
        let holders = vec![(namespace, self.name.clone(), position, claim)];
        self.machine.rebuild(Loaded::of(holders), false);
    }
}

#[test]
fn waiters_queue_behind_a_holder_that_a_lost_batch_restores() {
    let mut fixture = fixture();
    // A lock that has been in use for a while: its positions have grown.
    let mut held = fixture.take(&claim(0));
    for number in 1..6 {
        assert!(matches!(fixture.acquire(&claim(number)), AcquireOutcome::Waiting(_)));
        fixture.release(ReleaseTarget::Hold(&held));
        held = fixture.take(&claim(number));
    }
    let file = fixture.written();
    fixture.machine.take_writes();
    // In one batch the lock becomes free, and its positions count from 0 again.
    assert!(matches!(
        fixture.release(ReleaseTarget::Hold(&held)),
        Released::Ended(_)
    ));
    fixture.take(&claim(10));
    assert!(matches!(fixture.acquire(&claim(11)), AcquireOutcome::Waiting(_)));
    assert!(matches!(fixture.acquire(&claim(12)), AcquireOutcome::Waiting(_)));
    fixture.lose_batch(file);
    for number in [11, 12] {
        let retry = NewClaim {
            call: CallId::from_bytes([100 + number; 16]),
            ..claim(number)
        };
        assert!(
            matches!(fixture.acquire(&retry), AcquireOutcome::Waiting(_)),
            "{number}"
        );
    }
    let (state, _) = fixture.machine.at(fixture.id);
    assert_eq!(
        (
            state.locks[&fixture.name].holders(),
            state.locks[&fixture.name].waiters()
        ),
        (1, 2)
    );
    // The waiters keep their order behind the holder.
    fixture.release(ReleaseTarget::Hold(&held));
    fixture.take(&claim(11));
}

#[test]
fn a_waiter_at_the_position_of_a_restored_holder_is_kept() {
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
    fixture.lose_batch(file);
    let (state, _) = fixture.machine.at(fixture.id);
    assert_eq!(state.locks[&fixture.name].waiters(), 1);
    fixture.release(ReleaseTarget::Hold(&held));
    fixture.take(&claim(11));
}

#[test]
fn a_batch_at_the_due_time_ends_what_has_expired() {
    let mut fixture = fixture();
    let held = fixture.take(&claim(0));
    // A cancel mark without a finished call.
    let unknown = ReleaseTarget::Call(&ClaimId::from_bytes([9; 16]), CallId::from_bytes([9; 16]));
    assert_eq!(fixture.release(unknown), Released::Nothing);
    let mut batches = 0;
    while let Some(due) = fixture.machine.due() {
        *fixture.clock.0.lock().unwrap() = due;
        fixture.machine.begin();
        batches += 1;
        assert!(batches < 10, "a batch that is due at {due:?} does nothing");
    }
    // The mark, the lease and its finished call are forgotten.
    assert_eq!(fixture.release(ReleaseTarget::Hold(&held)), Released::Nothing);
}

#[test]
fn a_grant_that_the_file_has_although_its_batch_failed_does_not_wait_too() {
    let mut fixture = fixture();
    let held = fixture.take(&claim(0));
    fixture.acquire(&claim(1));
    fixture.release(ReleaseTarget::Hold(&held));
    let held = fixture.take(&claim(1));
    fixture.lose_batch(fixture.written());
    let (state, _) = fixture.machine.at(fixture.id);
    let lock = &state.locks[&fixture.name];
    assert_eq!((lock.holders(), lock.waiters()), (1, 0));
    assert_eq!(
        fixture.release(ReleaseTarget::Hold(&held)),
        Released::Ended(Cause::Released)
    );
}

#[test]
fn the_ttl_of_a_lost_grant_does_not_end_a_restored_lease() {
    let mut fixture = fixture();
    let held = fixture.take(&claim(0));
    let file = fixture.written();
    fixture.release(ReleaseTarget::Hold(&held));
    let short = Duration::from_millis(10);
    fixture.take(&NewClaim {
        ttl: Ttl::new(short).unwrap(),
        ..claim(1)
    });
    fixture.lose_batch(file);
    fixture.pass(short);
    assert_eq!(
        fixture.release(ReleaseTarget::Hold(&held)),
        Released::Ended(Cause::Released)
    );
}

#[test]
fn an_end_is_remembered_for_its_time_while_older_ones_are_forgotten() {
    let mut fixture = fixture();
    for number in [0, 1] {
        let held = fixture.take(&claim(number));
        fixture.release(ReleaseTarget::Hold(&held));
        fixture.pass(FINISHED_KEPT / 2);
    }
    fixture.pass(FORGET_EVERY);
    assert!(matches!(fixture.acquire(&claim(1)), AcquireOutcome::Finished(_)));
    assert!(matches!(fixture.acquire(&claim(0)), AcquireOutcome::Held(_)));
}

#[test]
fn that_a_retry_has_found_a_hold_is_written() {
    let mut fixture = fixture();
    fixture.take(&claim(0));
    fixture.machine.take_writes();
    let retry = NewClaim {
        call: CallId::from_bytes([100; 16]),
        ..claim(0)
    };
    fixture.take(&retry);
    let writes = fixture.machine.take_writes();
    let [Some(record)] = writes.records.values().collect::<Vec<_>>()[..] else {
        panic!("{writes:?}")
    };
    let claim = record::read_holder(record).unwrap();
    assert!(claim.holding().unwrap().holds[0].callers.adopted);
}

#[test]
fn an_end_past_the_limit_leaves_the_file_too() {
    let mut fixture = fixture();
    for number in [0, 1] {
        fixture.machine.take_writes();
        let mut one = claim(number);
        one.limits.finished = 1;
        let held = fixture.take(&one);
        fixture.release(ReleaseTarget::Hold(&held));
    }
    let writes = fixture.machine.take_writes();
    assert_eq!(writes.records.get(&RecordKey::Finished(fixture.id, 0)), Some(&None));
}
