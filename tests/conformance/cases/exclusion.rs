//! Who holds: strict order, nobody beside an exclusive holder, every name a lock of its own.

use std::collections::BTreeSet;

use fencepost::backend::{ClaimLimits, Found};
use fencepost::claim::Cause;
use futures::future::join_all;
use tokio::task::unconstrained;

use crate::bed::{Bed, LONG};
use crate::claims::{Asking, ROOMY, claim};
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

pub async fn a_new_claim_that_fits_is_held_at_once(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    assert_eq!(a.grant.claim, a.claim.id);
    assert_eq!(a.grant.secret, a.claim.secret);
    assert_eq!(a.grant.owner, a.claim.owner);
    assert_eq!(a.grant.kind, a.claim.mode.into());
    assert_eq!(a.grant.holds, 1);
    assert!(a.grant.ttl >= LONG, "{:?}", a.grant.ttl);
    assert_eq!(bed.there().tokens().await, [a.token()]);
}

pub async fn a_try_that_fits_is_held_at_once(bed: &Bed) {
    let a = bed.here().hold(claim("a").trying()).await;
    assert_eq!(bed.here().tokens().await, [a.token()]);
}

pub async fn a_claim_that_does_not_fit_waits_behind_the_others(bed: &Bed) {
    bed.here().hold(claim("a")).await;
    bed.here().queue(claim("b")).await;
    bed.here().queue(claim("c")).await;
    let (holders, waiters) = bed.here().owners().await;
    assert_eq!((holders, waiters), (vec!["a".into()], vec!["b".into(), "c".into()]));
}

pub async fn a_try_finds_the_first_holder_and_leaves_nothing_behind(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let found = busy(bed.there().enter(&claim("b").trying()).await).expect("somebody holds");
    assert_eq!((found.owner, found.token), (a.grant.owner.clone(), a.token()));
    assert!(found.remaining <= a.grant.ttl && !found.remaining.is_zero());
    assert!(bed.here().waiters().await.is_empty());
    assert_eq!(bed.here().release(&a).await, Found::Ended(Cause::Released));
    assert!(bed.here().is_free().await);
}

pub async fn a_try_does_not_overtake_a_waiter(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    assert_eq!(busy(bed.here().enter(&claim("c").trying()).await), None);
    bed.here().take(&b).await;
}

pub async fn a_newcomer_does_not_overtake_a_waiter(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    bed.here().release(&a).await;
    let c = bed.here().queue(claim("c")).await;
    waiting(bed.here().take_up(&c).await);
    let b = bed.here().take(&b).await;
    waiting(bed.here().take_up(&c).await);
    bed.here().release(&b).await;
    bed.here().take(&c).await;
}

pub async fn waiters_are_granted_in_the_order_of_their_arrival(bed: &Bed) {
    in_order(bed, |_| bed.here()).await;
}

pub async fn waiters_that_come_in_one_moment_are_granted_in_the_order_of_their_arrival(bed: &Bed) {
    let lock = bed.here();
    let mut holder = lock.hold(claim("first")).await;
    let crowd: Vec<_> = (0..CROWD).map(|n| claim(&format!("w{n}")).unrepeated()).collect();
    // The calls are begun one after another, and none waits for the answer to the one before. (Tokio makes
    // a task that does much in one go put off the rest, in whatever order.)
    let calls = crowd.iter().map(|next| lock.enter(next));
    for entered in unconstrained(join_all(calls)).await {
        waiting(entered);
    }
    for (n, next) in crowd.iter().enumerate() {
        lock.release(&holder).await;
        if let Some(later) = crowd.get(n + 1) {
            waiting(lock.take_up(later).await);
        }
        holder = lock.take(next).await;
    }
}

pub async fn waiters_of_several_replicas_keep_one_order(bed: &Bed) {
    in_order(bed, |n| if n % 2 == 0 { bed.here() } else { bed.there() }).await;
}

async fn in_order<'a>(bed: &'a Bed, of: impl Fn(usize) -> crate::replica::Replica<'a>) {
    let mut holder = bed.here().hold(claim("first")).await;
    let mut queue = Vec::new();
    for n in 0..6 {
        queue.push(of(n).queue(claim(&format!("w{n}"))).await);
    }
    for (n, next) in queue.iter().enumerate() {
        for later in &queue[n..] {
            waiting(of(n).take_up(later).await);
        }
        bed.here().release(&holder).await;
        for later in &queue[n + 1..] {
            waiting(of(n).take_up(later).await);
        }
        holder = of(n).take(next).await;
    }
}

pub async fn a_waiter_that_leaves_lets_nobody_overtake(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let b = bed.here().queue(claim("b")).await;
    let c = bed.here().queue(claim("c")).await;
    let d = bed.here().queue(claim("d")).await;
    assert_eq!(bed.here().undo(&c).await, Found::Ended(Cause::Left));
    bed.here().release(&a).await;
    waiting(bed.here().take_up(&d).await);
    let b = bed.here().take(&b).await;
    bed.here().release(&b).await;
    bed.here().take(&d).await;
}

pub async fn two_claims_of_one_owner_exclude_each_other(bed: &Bed) {
    bed.here().hold(claim("same")).await;
    waiting(bed.here().enter(&claim("same")).await);
    busy(bed.here().enter(&claim("same").trying()).await);
    assert_eq!(bed.here().holders().await.len(), 1);
}

pub async fn odd_names_are_different_locks(bed: &Bed) {
    let long = ["x".repeat(512), "y".repeat(512), "é".repeat(256)];
    let names: Vec<&str> = ODD_NAMES.into_iter().chain(long.iter().map(String::as_str)).collect();
    let mut tokens = Vec::new();
    for name in &names {
        tokens.push((*name, bed.here().on(name).hold(claim("a").trying()).await));
    }
    for (name, held) in &tokens {
        assert_eq!(bed.there().on(name).tokens().await, [held.token()], "{name:?}");
        assert_eq!(
            bed.there().on(name).release(held).await,
            Found::Ended(Cause::Released),
            "{name:?}"
        );
    }
    assert_eq!(
        tokens.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(),
        names.len()
    );
}

pub async fn no_name_escapes_its_namespace(bed: &Bed) {
    for name in ["lock", "../elsewhere/lock", "../beds/lock", "elsewhere/lock", "/lock"] {
        let here = bed.here().on(name);
        let other = bed.elsewhere().on(name);
        let a = here.hold(claim("a")).await;
        assert!(other.is_free().await, "{name:?}");
        let b = other.hold(claim("b").trying()).await;
        assert_eq!(here.release(&a).await, Found::Ended(Cause::Released));
        assert_eq!(other.tokens().await, [b.token()], "{name:?}");
    }
}

pub async fn a_full_queue_refuses_the_next_and_counts_holders(bed: &Bed) {
    let narrow = ClaimLimits { queue: 3, ..ROOMY };
    let asking = |owner| claim(owner).within(narrow);
    bed.here().hold(asking("a")).await;
    let b = bed.here().queue(asking("b")).await;
    bed.here().queue(asking("c")).await;
    super::limits::is_full(bed.here().enter(&asking("d")).await, 3);
    assert_eq!(bed.here().look().await.waiter_count, 2);
    bed.here().undo(&b).await;
    bed.here().queue(asking("d")).await;
}

pub async fn a_lock_lives_on_while_its_neighbours_come_and_go(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    let neighbour = bed.here().on("neighbour");
    for _ in 0..3 {
        let b = neighbour.hold(claim("b")).await;
        neighbour.force(b.token()).await;
        assert!(neighbour.is_free().await);
    }
    assert_eq!(bed.here().tokens().await, [a.token()]);
    held(neighbour.enter(&claim("c")).await);
}
