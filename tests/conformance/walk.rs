//! Random walks: any sequence of steps, compared after each with a model of a few lines, the rule
//! of `claim::prefix_len` over a plain list.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, FINISHED_KEPT, NewClaim, PageRequest, Refusal, Released, WaitPolicy};
use fencepost::claim::{Cause, prefix_len};
use fencepost::name::{FencingToken, Mode};
use proptest::prelude::*;

use crate::claims::{Asking, claim, semaphore};
use crate::fixture::Fixture;
use crate::replica::Held;

/// One step of a walk; the numbers choose among the claims that the walk has seen.
#[derive(Debug, Clone)]
enum Step {
    Acquire(Mode, WaitPolicy, Duration),
    Promote(prop::sample::Index),
    Release(prop::sample::Index),
    ReleaseTo(prop::sample::Index, prop::sample::Index),
    Undo(prop::sample::Index),
    Force(prop::sample::Index),
    Retry(prop::sample::Index, WaitPolicy),
    Renew(prop::sample::Index),
    Pass,
}

/// How long [`Step::Pass`] takes: even, while TTLs are odd, so that no end falls on a step.
const PASS: Duration = Duration::from_secs(2);

fn step() -> impl Strategy<Value = Step> {
    let at = || any::<prop::sample::Index>();
    let wait_policy = || prop_oneof![Just(WaitPolicy::Wait), Just(WaitPolicy::NoWait)];
    let mode = prop_oneof![
        4 => Just(Mode::Exclusive),
        4 => Just(Mode::Shared),
        6 => (1u32..4, 3u32..7).prop_map(|(permits, limit)| semaphore(permits, limit)),
    ];
    let ttl = prop_oneof![Just(Duration::from_secs(5)), Just(Duration::from_secs(61))];
    prop_oneof![
        6 => (mode, wait_policy(), ttl).prop_map(|(mode, wait_policy, ttl)| Step::Acquire(mode, wait_policy, ttl)),
        5 => at().prop_map(Step::Promote),
        4 => at().prop_map(Step::Release),
        2 => (at(), at()).prop_map(|(who, next)| Step::ReleaseTo(who, next)),
        2 => at().prop_map(Step::Undo),
        1 => at().prop_map(Step::Force),
        2 => (at(), wait_policy()).prop_map(|(who, wait_policy)| Step::Retry(who, wait_policy)),
        1 => at().prop_map(Step::Renew),
        2 => Just(Step::Pass),
    ]
}

/// A claim in the model's queue.
#[derive(Debug, Clone)]
struct Placed {
    claim: NewClaim,
    held: Option<Holds>,
}

#[derive(Debug, Clone)]
struct Holds {
    held: Held,
    adopted: bool,
    ends: Duration,
}

/// A request that was granted and has ended.
#[derive(Debug, Clone)]
struct Over {
    claim: NewClaim,
    cause: Cause,
    at: Duration,
}

/// What the lock must look like: holders first, then waiters, each in their order.
#[derive(Debug, Default)]
struct Model {
    queue: Vec<Placed>,
    over: Vec<Over>,
    last: Option<FencingToken>,
    now: Duration,
}

impl Model {
    fn holders(&self) -> impl Iterator<Item = &Holds> {
        self.queue.iter().filter_map(|placed| placed.held.as_ref())
    }

    fn held_at(&self, at: prop::sample::Index) -> Option<(usize, Holds)> {
        let held = self.holders().count();
        let index = (held > 0).then(|| at.index(held))?;
        Some((index, self.queue[index].held.clone()?))
    }

    fn waiting_at(&self, at: prop::sample::Index) -> Option<usize> {
        let held = self.holders().count();
        let waiting = self.queue.len() - held;
        (waiting > 0).then(|| held + at.index(waiting))
    }

    fn eligible(&self, index: usize) -> bool {
        index < prefix_len(self.queue.iter().map(|placed| placed.claim.mode))
    }

    fn mismatch(&self, mode: Mode) -> bool {
        self.queue.iter().any(|placed| !placed.claim.mode.mixes(mode))
    }

    /// Notes a grant, which needs a token above all before, and moves it behind the other holders.
    fn grant(&mut self, index: usize, held: Held) {
        assert!(self.eligible(index), "granted out of turn");
        assert!(
            self.last.is_none_or(|last| held.token() > last),
            "the token does not rise"
        );
        self.last = Some(held.token());
        let mut placed = self.queue.remove(index);
        placed.claim = held.claim.clone();
        placed.held = Some(Holds {
            ends: self.now + held.claim.ttl.get(),
            held,
            adopted: false,
        });
        let holders = self.holders().count();
        self.queue.insert(holders, placed);
    }

    /// Notes an end; only finished requests are remembered.
    fn end(&mut self, index: usize, cause: Cause) {
        let placed = self.queue.remove(index);
        if matches!(cause, Cause::Released | Cause::Expired | Cause::Forced) {
            let (claim, at) = (placed.claim, self.now);
            self.over.push(Over { claim, cause, at });
        }
    }

    fn pass(&mut self) {
        self.now += PASS;
        let now = self.now;
        let ran_out = |placed: &Placed| placed.held.as_ref().is_some_and(|held| held.ends <= now);
        while let Some(index) = self.queue.iter().position(ran_out) {
            self.end(index, Cause::Expired);
        }
        // An end within the last pass may be two seconds older than the model knows.
        self.over.retain(|over| now < over.at + FINISHED_KEPT - PASS);
    }
}

/// A store and the model beside it.
struct Walk {
    fixture: Fixture,
    model: Model,
}

impl Walk {
    async fn step(&mut self, step: Step) {
        match step {
            Step::Acquire(mode, wait_policy, ttl) => self.acquire(mode, wait_policy, ttl).await,
            Step::Promote(at) => self.promote(at).await,
            Step::Release(at) => self.release(at).await,
            Step::ReleaseTo(at, next) => self.release_to(at, next).await,
            Step::Undo(at) => self.undo(at).await,
            Step::Force(at) => self.force(at).await,
            Step::Retry(at, wait_policy) => self.retry(at, wait_policy).await,
            Step::Renew(at) => self.renew(at).await,
            Step::Pass => {
                self.fixture.sleep(PASS).await;
                self.model.pass();
            }
        }
        self.compare().await;
    }

    async fn acquire(&mut self, mode: Mode, wait_policy: WaitPolicy, ttl: Duration) {
        let asking = NewClaim {
            mode,
            wait_policy,
            ..claim("walker").living(ttl)
        };
        let place = self.fixture.here().acquire(&asking).await;
        if self.model.mismatch(mode) {
            assert!(
                matches!(place, AcquireOutcome::Refused(Refusal::LimitMismatch { .. })),
                "{place:?}"
            );
            return;
        }
        self.model.queue.push(Placed {
            claim: asking.clone(),
            held: None,
        });
        self.placed(self.model.queue.len() - 1, asking, place);
    }

    /// What the model expects of a claim of the queue after its `acquire`.
    fn placed(&mut self, index: usize, asking: NewClaim, place: AcquireOutcome) {
        self.model.queue[index].claim = asking.clone();
        match (self.model.eligible(index), asking.wait_policy, place) {
            (true, _, AcquireOutcome::Held(grant)) => {
                let held = self.fixture.here().known(asking, grant);
                self.model.grant(index, held);
            }
            (false, WaitPolicy::Wait, AcquireOutcome::Waiting(_)) => {}
            (false, WaitPolicy::NoWait, AcquireOutcome::Busy(_)) => {
                self.model.queue.remove(index);
            }
            (eligible, wait_policy, other) => panic!("eligible {eligible}, {wait_policy:?}: {other:?}"),
        }
    }

    async fn promote(&mut self, at: prop::sample::Index) {
        let Some(index) = self.model.waiting_at(at) else { return };
        let asking = self.model.queue[index].claim.clone();
        match (self.model.eligible(index), self.fixture.here().promote(&asking).await) {
            (true, AcquireOutcome::Held(grant)) => {
                let held = self.fixture.here().known(asking, grant);
                self.model.grant(index, held);
            }
            (false, AcquireOutcome::Waiting(_)) => {}
            (eligible, other) => panic!("eligible {eligible}: {other:?}"),
        }
    }

    async fn release(&mut self, at: prop::sample::Index) {
        let Some((index, holds)) = self.model.held_at(at) else {
            return;
        };
        assert_eq!(
            self.fixture.here().release(&holds.held).await,
            Released::Ended(Cause::Released)
        );
        self.model.end(index, Cause::Released);
    }

    async fn release_to(&mut self, at: prop::sample::Index, next: prop::sample::Index) {
        let (Some((index, holds)), Some(next)) = (self.model.held_at(at), self.model.waiting_at(next)) else {
            return;
        };
        let asking = self.model.queue[next].claim.clone();
        let outcome = self.fixture.here().release_to(&holds.held, &asking).await;
        self.model.end(index, Cause::Released);
        match (self.model.eligible(next - 1), outcome.next) {
            (true, Some(grant)) => {
                let held = self.fixture.here().known(asking, grant);
                self.model.grant(next - 1, held);
            }
            (eligible, next) => assert!(!eligible && next.is_none(), "eligible {eligible}: {next:?}"),
        }
    }

    async fn undo(&mut self, at: prop::sample::Index) {
        if self.model.queue.is_empty() {
            return;
        }
        let index = at.index(self.model.queue.len());
        let placed = self.model.queue[index].clone();
        let found = self.fixture.here().undo(&placed.claim).await;
        let expected = match placed.held {
            Some(Holds { adopted: true, .. }) => Released::Adopted,
            Some(_) => Released::Ended(Cause::Undone),
            None => Released::Ended(Cause::Cancelled),
        };
        assert_eq!(found, expected);
        if let Released::Ended(cause) = found {
            self.model.end(index, cause);
        }
    }

    async fn force(&mut self, at: prop::sample::Index) {
        let Some((index, holds)) = self.model.held_at(at) else {
            return;
        };
        assert_eq!(
            self.fixture.here().force(holds.held.token()).await,
            Released::Ended(Cause::Forced)
        );
        self.model.end(index, Cause::Forced);
    }

    async fn retry(&mut self, at: prop::sample::Index, wait_policy: WaitPolicy) {
        let all = self.model.queue.len() + self.model.over.len();
        if all == 0 {
            return;
        }
        let index = at.index(all);
        if let Some(over) = index.checked_sub(self.model.queue.len()) {
            let Over { claim, cause, .. } = &self.model.over[over];
            let place = self.fixture.here().acquire(&claim.again()).await;
            assert!(
                matches!(place, AcquireOutcome::Finished(found) if found == *cause),
                "{cause}: {place:?}"
            );
            return;
        }
        let again = NewClaim {
            wait_policy,
            ..self.model.queue[index].claim.again()
        };
        let place = self.fixture.here().acquire(&again).await;
        match &mut self.model.queue[index].held {
            None => self.placed(index, again, place),
            Some(holds) => {
                holds.adopted = true;
                let grant = crate::replica::held(place);
                assert_eq!(
                    (grant.token, grant.secret),
                    (holds.held.token(), holds.held.grant.secret)
                );
            }
        }
    }

    async fn renew(&mut self, at: prop::sample::Index) {
        let Some((index, holds)) = self.model.held_at(at) else {
            return;
        };
        let grant = self.fixture.here().renewed(&holds.held, None).await;
        assert_eq!(grant.token, holds.held.token());
        let now = self.model.now;
        if let Some(holds) = &mut self.model.queue[index].held {
            holds.ends = holds.ends.max(now + holds.held.claim.ttl.get());
        }
    }

    /// The store shows what the model says: the same holders, the same waiters in the same order.
    async fn compare(&self) {
        let queue = self.fixture.here().inspect().await;
        let mut held: Vec<_> = queue.holders.iter().map(|holder| holder.token).collect();
        let mut expected: Vec<_> = self.model.holders().map(|holds| holds.held.token()).collect();
        held.sort();
        expected.sort();
        assert_eq!(held, expected);
        let waiting: Vec<_> = queue.waiters.iter().map(|waiter| waiter.claim).collect();
        let waiters = self.model.queue.iter().filter(|placed| placed.held.is_none());
        assert_eq!(waiting, waiters.map(|placed| placed.claim.id).collect::<Vec<_>>());
    }

    /// When all have left, nothing is left behind.
    async fn finish(self) {
        for placed in &self.model.queue {
            match &placed.held {
                Some(holds) => self.fixture.here().release(&holds.held).await,
                None => self.fixture.here().undo(&placed.claim).await,
            };
        }
        assert!(self.fixture.here().is_free().await);
        let page = PageRequest { after: None, size: 10 };
        let listing = self.fixture.first.list("", page).await.expect("the store answers");
        assert!(listing.locks.is_empty(), "{listing:?}");
    }
}

fn on_paused_time(steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let fixture = crate::fixtures::memory().await.expect("memory is never missing");
        let mut walk = Walk {
            fixture,
            model: Model::default(),
        };
        for step in steps {
            walk.step(step).await;
        }
        walk.finish().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(feature = "soak") { 20_000 } else { 300 }))]

    #[test]
    fn every_walk_agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        on_paused_time(steps);
    }
}
