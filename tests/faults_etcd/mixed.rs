//! Requests with steps of several token bases or sessions: some were decided before a change, others after it.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;
use fencepost::backend::{AcquireOutcome, BackendError, NewClaim};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::claims::{Asking, claim};
use crate::fixture::{BASE, Fixture, lock, step};
use crate::proxy::{Caught, Fate};
use crate::replica::held;

/// How often a test tries to bring the steps into one request: nothing shows when a step waits for its batch.
const ROUNDS: usize = 20;
/// How long a step may take to its batch.
const MOMENT: Duration = Duration::from_millis(50);
/// By how much another replica raises the token base.
const RAISED: u64 = 1_000_000;

/// An acquire at the first replica, of the lock that is named like its owner.
struct Acquiring {
    claim: NewClaim,
    call: AbortOnDropHandle<Result<AcquireOutcome, BackendError>>,
}

impl Acquiring {
    fn begin(fixture: &Fixture, owner: &str) -> Self {
        Self::with(fixture, claim(owner))
    }

    fn with(fixture: &Fixture, claim: NewClaim) -> Self {
        let (backend, asked) = (Arc::clone(&fixture.first), claim.clone());
        let name = lock(asked.owner.as_str());
        let call = tokio::spawn(async move { backend.acquire(&name, &asked).await });
        Self {
            claim,
            call: AbortOnDropHandle::new(call),
        }
    }

    /// The same; its step is held before etcd.
    async fn held(fixture: &Fixture, owner: &str) -> (Self, Caught) {
        let claim = claim(owner);
        let mut caught = fixture.proxy.catch(Fate::Held, &step(&claim, "h/x/"));
        let acquiring = Self::with(fixture, claim);
        caught.is_here().await;
        (acquiring, caught)
    }

    fn owner(&self) -> String {
        self.claim.owner.to_string()
    }

    /// Asserts that it holds its lock alone; its token.
    async fn holds(self, fixture: &Fixture) -> u64 {
        let outcome = self.call.await.expect("no panic");
        let token = held(outcome.expect("the store answers")).token;
        let there = fixture.there().on(self.claim.owner.as_str());
        assert_eq!(there.tokens().await, [token]);
        token.get()
    }

    /// Asserts that its outcome is unknown.
    async fn lacks_answer(self) -> NewClaim {
        let outcome = self.call.await.expect("no panic");
        assert!(matches!(outcome, Err(BackendError::Unavailable { .. })), "{outcome:?}");
        self.claim
    }
}

/// Acquires of which further steps wait for the next batch.
struct Busy {
    /// Its step was sent alone.
    first: (Acquiring, Caught),
    /// The steps of these are the batches in flight.
    in_flight: Vec<(Acquiring, Caught)>,
    /// The steps of these wait.
    old: Vec<Acquiring>,
}

impl Busy {
    async fn begin(fixture: &Fixture, round: usize) -> Self {
        // A step is sent alone if the one before it was alone.
        let quiet = fixture.here().on("quiet").hold(claim("quiet")).await;
        fixture.here().on("quiet").release(&quiet).await;
        let first = Acquiring::held(fixture, &format!("first-{round:02}")).await;
        let mut in_flight = Vec::new();
        for number in 0..2 {
            in_flight.push(Acquiring::held(fixture, &format!("busy{number}-{round:02}")).await);
        }
        let old = [0, 1].map(|number| Acquiring::begin(fixture, &format!("old{number}-{round:02}")));
        sleep(MOMENT).await;
        Self {
            first,
            in_flight,
            old: old.into(),
        }
    }
}

/// A request with steps of before a change and of after it, which is held.
struct Mixed {
    caught: Caught,
    /// What it contains, and no other request does.
    parts: Vec<String>,
    /// Decided before the change.
    old: Vec<Acquiring>,
    /// Decided after it.
    new: Acquiring,
    /// The others of its round.
    others: Vec<Acquiring>,
}

impl Mixed {
    /// Lets the batches in flight go. None if the next one has not all of these parts.
    async fn next(
        fixture: &Fixture,
        parts: Vec<String>,
        in_flight: Vec<(Acquiring, Caught)>,
        old: Vec<Acquiring>,
        new: Acquiring,
    ) -> Option<Self> {
        sleep(MOMENT).await;
        let owners = old.iter().chain([&new]).map(Acquiring::owner);
        let parts: Vec<String> = ["KV/Txn".to_owned()].into_iter().chain(parts).chain(owners).collect();
        let mut caught = fixture.proxy.catch(Fate::Held, &parts);
        let mut others = Vec::new();
        for (acquiring, caught) in in_flight {
            others.push(acquiring);
            caught.let_go().await;
        }
        timeout(20 * MOMENT, caught.is_here()).await.ok()?;
        Some(Self {
            caught,
            parts,
            old,
            new,
            others,
        })
    }

    /// Of two token bases.
    async fn of_bases(fixture: &Fixture) -> Self {
        for round in 0..ROUNDS {
            let Busy { first, in_flight, old } = Busy::begin(fixture, round).await;
            let base = fixture.text(BASE).await;
            fixture.raise_base(RAISED).await;
            // It is refused, and sent again under the new base.
            let (new, caught) = first;
            caught.let_go().await;
            if let Some(mixed) = Self::next(fixture, vec![base], in_flight, old, new).await {
                return mixed;
            }
        }
        panic!("no request had steps of both bases");
    }

    /// Of two sessions.
    async fn of_sessions(fixture: &Fixture) -> Self {
        for round in 0..ROUNDS {
            let Busy {
                first,
                mut in_flight,
                old,
            } = Busy::begin(fixture, round).await;
            let (sent, before) = (fixture.proxy.transactions().0, sessions(fixture).await);
            let is_of_first = |(key, _): &&(String, i64)| sent.iter().any(|content| has(content, key));
            let (old_key, lease) = before.iter().find(is_of_first).expect("a session");
            fixture.revoke(*lease).await;
            fixture.proxy.break_signs_of_life();
            let new_key = loop {
                let mut after = sessions(fixture).await;
                after.retain(|session| !before.contains(session));
                if let Some((key, _)) = after.pop() {
                    break key;
                }
                sleep(MOMENT).await;
            };
            let new = Acquiring::begin(fixture, &format!("new-{round:02}"));
            in_flight.push(first);
            let keys = vec![old_key.clone(), new_key];
            if let Some(mixed) = Self::next(fixture, keys, in_flight, old, new).await {
                return mixed;
            }
        }
        panic!("no request had steps of both sessions");
    }

    /// Lets it go, and asserts that it was sent twice and then no step of it was lost.
    async fn let_go(self, fixture: &Fixture) -> Vec<u64> {
        fixture.proxy.transactions();
        self.caught.let_go().await;
        let mut tokens = Vec::new();
        for acquiring in self.old.into_iter().chain([self.new]).chain(self.others) {
            tokens.push(acquiring.holds(fixture).await);
        }
        let sent = fixture.proxy.transactions().0;
        let again = sent
            .iter()
            .filter(|content| self.parts[1..].iter().all(|part| has(content, part)));
        assert_eq!(again.count(), 1, "it was sent again, each step with its own conditions");
        tokens
    }
}

/// The keys of the sessions, with their leases.
async fn sessions(fixture: &Fixture) -> Vec<(String, i64)> {
    let prefix = Some(GetOptions::new().with_prefix());
    let read = fixture.etcd.clone().get(fixture.key("session/"), prefix).await;
    let read = read.expect("etcd answers");
    let sessions = read
        .kvs()
        .iter()
        .map(|kv| (kv.key_str().expect("text").to_owned(), kv.lease()));
    sessions.collect()
}

fn has(content: &[u8], part: &str) -> bool {
    content.windows(part.len()).any(|window| window == part.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_two_bases_in_one_request_are_each_answered() {
    let Some(fixture) = Fixture::new().await else { return };
    let mixed = Mixed::of_bases(&fixture).await;
    let raised = fixture.text(BASE).await.parse::<u64>().expect("a number");
    for token in mixed.let_go(&fixture).await {
        assert!(token > raised, "{token}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_two_sessions_in_one_request_are_each_answered() {
    let Some(fixture) = Fixture::new().await else { return };
    let mixed = Mixed::of_sessions(&fixture).await;
    mixed.let_go(&fixture).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_request_whose_second_answer_was_lost_is_found_as_it_is() {
    let Some(fixture) = Fixture::new().await else { return };
    let Mixed {
        caught,
        parts,
        old,
        new,
        others,
    } = Mixed::of_bases(&fixture).await;
    let mut second = fixture.proxy.catch(Fate::AnswerLost, &parts);
    caught.let_go().await;
    second.is_here().await;
    for other in others {
        other.holds(&fixture).await;
    }
    // The step of the new base was executed, and those of the old one were not.
    let new = new.lacks_answer().await;
    let here = fixture.here().on(new.owner.as_str());
    let tokens = here.tokens().await;
    assert_eq!(tokens.len(), 1);
    assert_eq!(held(here.acquire(&new.again()).await).token, tokens[0]);
    for old in old {
        let old = old.lacks_answer().await;
        let here = fixture.here().on(old.owner.as_str());
        assert!(here.is_free().await);
        let again = old.again();
        held(here.acquire(&again).await);
        here.undo(&old).await;
        assert_eq!(
            here.tokens().await.len(),
            1,
            "the undo of the first call leaves the retry's hold"
        );
        here.undo(&again).await;
        assert!(here.is_free().await);
    }
}
