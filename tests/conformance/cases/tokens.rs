//! Fencing tokens: they rise with every grant of a lock, and name one claim.

use std::collections::BTreeSet;

use fencepost::backend::Released;
use fencepost::claim::Cause;
use fencepost::name::FencingToken;

use crate::claims::{Asking, claim};
use crate::fixture::Fixture;

/// Microseconds since 1970 in September 2001: what is below it lies on another scale.
const A_BILLION_SECONDS: u64 = 1_000_000_000_000_000;

#[track_caller]
fn rises(last: &mut FencingToken, token: FencingToken) {
    assert!(token > *last, "{token} does not rise above {last}");
    *last = token;
}

// G6
pub async fn tokens_lie_on_a_scale_of_microseconds(fixture: &Fixture) {
    for name in ["a", "b", "c"] {
        let token = fixture.here().on(name).hold(claim("a")).await.token().get();
        assert!((A_BILLION_SECONDS..1 << 53).contains(&token), "{token}");
    }
}

// G5
pub async fn tokens_rise_across_every_end(fixture: &Fixture) {
    let (here, there) = (fixture.here(), fixture.there());
    let a = here.hold(claim("a")).await;
    let mut last = a.token();
    assert_eq!(here.release(&a).await, Released::Ended(Cause::Released));
    let b = there.hold(claim("b")).await;
    rises(&mut last, b.token());
    assert_eq!(there.force(b.token()).await, Released::Ended(Cause::Forced));
    let c = here.hold(claim("c").living(fixture.short())).await;
    rises(&mut last, c.token());
    fixture.outlive(fixture.short()).await;
    let d = there.hold(claim("d")).await;
    rises(&mut last, d.token());
    assert_eq!(there.undo(&d.claim).await, Released::Ended(Cause::Undone));
    rises(&mut last, here.hold(claim("e")).await.token());
}

// G5
pub async fn tokens_rise_from_waiter_to_waiter(fixture: &Fixture) {
    let here = fixture.here();
    let mut holder = here.hold(claim("a")).await;
    let mut last = holder.token();
    for n in 0..5 {
        let next = here.queue(claim(&format!("w{n}"))).await;
        here.release(&holder).await;
        holder = here.take(&next).await;
        rises(&mut last, holder.token());
        let handed = here.queue(claim(&format!("h{n}"))).await;
        let grant = here.release_to(&holder, &handed).await.next.expect("handed over");
        rises(&mut last, grant.token);
        holder = here.known(handed, grant);
    }
}

// G6
pub async fn tokens_of_holders_together_differ(fixture: &Fixture) {
    let mut tokens = BTreeSet::new();
    let mut last = FencingToken::new(1).expect("a token");
    for _ in 0..5 {
        for (name, asking) in [
            ("readers", claim("a").shared()),
            ("permits", claim("a").semaphore(1, 9)),
        ] {
            let token = fixture.here().on(name).hold(asking).await.token();
            assert!(tokens.insert((name, token)), "{token} twice");
            if name == "readers" {
                rises(&mut last, token);
            }
        }
    }
    assert_eq!(fixture.here().on("readers").inspect().await.holder_count, 5);
}

// G5
pub async fn tokens_rise_through_many_quick_grants(fixture: &Fixture) {
    let mut last = FencingToken::new(1).expect("a token");
    for _ in 0..50 {
        let a = fixture.here().hold(claim("a")).await;
        rises(&mut last, a.token());
        fixture.here().release(&a).await;
    }
}

pub async fn a_failed_try_takes_no_token_from_its_holder(fixture: &Fixture) {
    let a = fixture.here().hold(claim("a")).await;
    for _ in 0..3 {
        fixture.here().acquire(&claim("b").trying()).await;
    }
    assert_eq!(fixture.here().tokens().await, [a.token()]);
    assert_eq!(fixture.here().renewed(&a, None).await.token, a.token());
}
