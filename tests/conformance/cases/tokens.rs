//! Fencing tokens: they rise with every grant of a lock, and name one claim.

use std::collections::BTreeSet;

use fencepost::backend::Found;
use fencepost::claim::Cause;
use fencepost::name::FencingToken;

use crate::bed::Bed;
use crate::claims::{Asking, claim};

/// Microseconds since 1970 in September 2001: what is below it lies on another scale.
const A_BILLION_SECONDS: u64 = 1_000_000_000_000_000;

#[track_caller]
fn rises(last: &mut FencingToken, token: FencingToken) {
    assert!(token > *last, "{token} does not rise above {last}");
    *last = token;
}

pub async fn tokens_lie_on_a_scale_of_microseconds(bed: &Bed) {
    for name in ["a", "b", "c"] {
        let token = bed.here().on(name).hold(claim("a")).await.token().get();
        assert!((A_BILLION_SECONDS..1 << 53).contains(&token), "{token}");
    }
}

pub async fn tokens_rise_across_every_end(bed: &Bed) {
    let (here, there) = (bed.here(), bed.there());
    let a = here.hold(claim("a")).await;
    let mut last = a.token();
    assert_eq!(here.release(&a).await, Found::Ended(Cause::Released));
    let b = there.hold(claim("b")).await;
    rises(&mut last, b.token());
    assert_eq!(there.force(b.token()).await, Found::Ended(Cause::Forced));
    let c = here.hold(claim("c").living(bed.short())).await;
    rises(&mut last, c.token());
    bed.outlive(bed.short()).await;
    let d = there.hold(claim("d")).await;
    rises(&mut last, d.token());
    assert_eq!(there.undo(&d.claim).await, Found::Ended(Cause::TakenBack));
    rises(&mut last, here.hold(claim("e")).await.token());
}

pub async fn tokens_rise_from_waiter_to_waiter(bed: &Bed) {
    let here = bed.here();
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

pub async fn tokens_of_holders_together_differ(bed: &Bed) {
    let mut tokens = BTreeSet::new();
    let mut last = FencingToken::new(1).expect("a token");
    for _ in 0..5 {
        for (name, asking) in [
            ("readers", claim("a").shared()),
            ("permits", claim("a").semaphore(1, 9)),
        ] {
            let token = bed.here().on(name).hold(asking).await.token();
            assert!(tokens.insert((name, token)), "{token} twice");
            if name == "readers" {
                rises(&mut last, token);
            }
        }
    }
    assert_eq!(bed.here().on("readers").look().await.holder_count, 5);
}

pub async fn tokens_rise_through_many_quick_grants(bed: &Bed) {
    let mut last = FencingToken::new(1).expect("a token");
    for _ in 0..50 {
        let a = bed.here().hold(claim("a")).await;
        rises(&mut last, a.token());
        bed.here().release(&a).await;
    }
}

pub async fn a_failed_try_takes_no_token_from_its_holder(bed: &Bed) {
    let a = bed.here().hold(claim("a")).await;
    for _ in 0..3 {
        bed.here().enter(&claim("b").trying()).await;
    }
    assert_eq!(bed.here().tokens().await, [a.token()]);
    assert_eq!(bed.here().renewed(&a, None).await.token, a.token());
}
