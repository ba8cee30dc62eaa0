//! Who holds: strict order, nobody beside an exclusive holder, every name a lock of its own.

use std::collections::BTreeSet;

use fencepost::backend::{ClaimLimits, Released};
use fencepost::claim::Cause;
use futures::future::join_all;
use tokio::task::unconstrained;

use crate::claims::{Asking, ROOMY, claim};
use crate::fixture::{Fixture, LONG};
use crate::replica::{busy, held, waiting};

/// How many come in one moment.
const CROWD: usize = 40;

/// Names that a careless key or path would mix up.
const ODD_NAMES: [&str; 22] = [
    "a",
    "ab",
    "a/b",
    "a/",
    "/a",
    "A",
    "{a}",
    "a{b}",
    "../a",
    "..",
    ".",
    "a%2Fb",
    "%61",
    "a*",
    "a?",
    "[a]",
    "a:b",
    "a b",
    " a",
    "a\u{301}",
    "\u{e1}",
    "ö€𝄞",
];

// G1
pub async fn a_new_claim_that_fits_is_held_at_once(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    assert_eq!(a.grant.claim, a.claim.id);
    assert_eq!(a.grant.secret, a.claim.secret);
    assert_eq!(a.grant.owner, a.claim.owner);
    assert_eq!(a.grant.kind, a.claim.mode.into());
    assert_eq!(a.grant.holds, 1);
    assert!(a.grant.ttl >= LONG, "{:?}", a.grant.ttl);
    assert_eq!(fixture.there().tokens().await, [a.token()]);
}

pub async fn a_try_that_fits_is_held_at_once(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a").trying()).await;
    assert_eq!(fixture.here().tokens().await, [a.token()]);
}

// G1
pub async fn a_claim_that_does_not_fit_waits_behind_the_others(fixture: &Fixture) {
    fixture.here().hold(claim("a")).await;
    fixture.here().queue(claim("b")).await;
    fixture.here().queue(claim("c")).await;
    let (holders, waiters) = fixture.here().owners().await;
    assert_eq!((holders, waiters), (vec!["a".into()], vec!["b".into(), "c".into()]));
}

// G10
pub async fn a_try_finds_the_first_holder_and_leaves_nothing_behind(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let found = busy(fixture.there().acquire(&claim("b").trying()).await).expect("somebody holds");
    assert_eq!((found.owner, found.token), (a.grant.owner.clone(), a.token()));
    assert!(found.remaining <= a.grant.ttl && !found.remaining.is_zero());
    assert!(fixture.here().waiters().await.is_empty());
    assert_eq!(fixture.here().release(&a).await, Released::Ended(Cause::Released));
    assert!(fixture.here().is_free().await);
}

pub async fn a_try_does_not_overtake_a_waiter(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    assert_eq!(busy(fixture.here().acquire(&claim("c").trying()).await), None);
    fixture.here().take(&b).await;
}

// G2
pub async fn a_newcomer_does_not_overtake_a_waiter(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    fixture.here().release(&a).await;
    let c = fixture.here().queue(claim("c")).await;
    waiting(fixture.here().promote(&c).await);
    let b = fixture.here().take(&b).await;
    waiting(fixture.here().promote(&c).await);
    fixture.here().release(&b).await;
    fixture.here().take(&c).await;
}

// G2
pub async fn waiters_are_granted_in_the_order_of_their_arrival(fixture: &Fixture) {
    in_order(fixture, |_| fixture.here()).await;
}

pub async fn waiters_that_come_in_one_moment_are_granted_in_the_order_of_their_arrival(fixture: &Fixture) {
    let lock = fixture.here();
    let mut holder = lock.hold(claim("first")).await;
    let crowd: Vec<_> = (0..CROWD).map(|n| claim(&format!("w{n}")).unrepeated()).collect();
    // The calls are begun one after another, and none waits for the answer to the one before. (Tokio makes
    // a task that does much in one go put off the rest, in whatever order.)
    let calls = crowd.iter().map(|next| lock.acquire(next));
    for acquired in unconstrained(join_all(calls)).await {
        waiting(acquired);
    }
    for (n, next) in crowd.iter().enumerate() {
        lock.release(&holder).await;
        if let Some(later) = crowd.get(n + 1) {
            waiting(lock.promote(later).await);
        }
        holder = lock.take(next).await;
    }
}

// G2
pub async fn waiters_of_several_replicas_keep_one_order(fixture: &Fixture) {
    in_order(fixture, |n| if n % 2 == 0 { fixture.here() } else { fixture.there() }).await;
}

async fn in_order<'a>(fixture: &'a Fixture, of: impl Fn(usize) -> crate::replica::Replica<'a>) {
    let mut holder = fixture.here().hold(claim("first")).await;
    let mut queue = Vec::new();
    for n in 0..6 {
        queue.push(of(n).queue(claim(&format!("w{n}"))).await);
    }
    for (n, next) in queue.iter().enumerate() {
        for later in &queue[n..] {
            waiting(of(n).promote(later).await);
        }
        fixture.here().release(&holder).await;
        for later in &queue[n + 1..] {
            waiting(of(n).promote(later).await);
        }
        holder = of(n).take(next).await;
    }
}

// G2
pub async fn a_waiter_that_leaves_lets_nobody_overtake(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    let c = fixture.here().queue(claim("c")).await;
    let d = fixture.here().queue(claim("d")).await;
    assert_eq!(fixture.here().undo(&c).await, Released::Ended(Cause::Cancelled));
    fixture.here().release(&a).await;
    waiting(fixture.here().promote(&d).await);
    let b = fixture.here().take(&b).await;
    fixture.here().release(&b).await;
    fixture.here().take(&d).await;
}

// G19
pub async fn two_claims_of_one_owner_exclude_each_other(fixture: &Fixture) {
    fixture.here().hold(claim("same")).await;
    waiting(fixture.here().acquire(&claim("same")).await);
    busy(fixture.here().acquire(&claim("same").trying()).await);
    assert_eq!(fixture.here().holders().await.len(), 1);
}

// G66
pub async fn odd_names_are_different_locks(fixture: &Fixture) {
    let long = ["x".repeat(512), "y".repeat(512), "é".repeat(256)];
    let names: Vec<&str> = ODD_NAMES.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut tokens = Vec::new();
    for name in &names {
        tokens.push((*name, fixture.here().on(name).hold(claim("a").trying()).await));
    }
    for (name, held) in &tokens {
        assert_eq!(fixture.there().on(name).tokens().await, [held.token()], "{name:?}");
        assert_eq!(
            fixture.there().on(name).release(held).await,
            Released::Ended(Cause::Released),
            "{name:?}"
        );
    }
    assert_eq!(
        tokens.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(),
        names.len()
    );
}

// G66
pub async fn no_name_escapes_its_namespace(fixture: &Fixture) {
    for name in ["lock", "../elsewhere/lock", "../beds/lock", "elsewhere/lock", "/lock"] {
        let here = fixture.here().on(name);
        let other = fixture.elsewhere().on(name);
        let a = here.hold(claim("a")).await;
        assert!(other.is_free().await, "{name:?}");
        let b = other.hold(claim("b").trying()).await;
        assert_eq!(here.release(&a).await, Released::Ended(Cause::Released));
        assert_eq!(other.tokens().await, [b.token()], "{name:?}");
    }
}

// G18a
pub async fn a_full_queue_refuses_the_next_and_counts_holders(fixture: &Fixture) {
    let narrow = ClaimLimits { queue: 3, ..ROOMY };
    let asking = |owner| claim(owner).within(narrow);
    fixture.here().hold(asking("a")).await;
    let b = fixture.here().queue(asking("b")).await;
    fixture.here().queue(asking("c")).await;
    super::limits::is_full(fixture.here().acquire(&asking("d")).await, 3);
    if fixture.capabilities().global_order {
        super::limits::is_full(fixture.there().acquire(&asking("e")).await, 3);
    }
    assert_eq!(fixture.here().inspect().await.waiter_count, 2);
    fixture.here().undo(&b).await;
    fixture.here().queue(asking("d")).await;
}

pub async fn a_lock_lives_on_while_its_neighbours_come_and_go(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    let neighbour = fixture.here().on("neighbour");
    for _ in 0..3 {
        let b = neighbour.hold(claim("b")).await;
        neighbour.force(b.token()).await;
        assert!(neighbour.is_free().await);
    }
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    held(neighbour.acquire(&claim("c")).await);
}
