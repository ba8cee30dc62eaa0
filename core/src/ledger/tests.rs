//! Tests of the ledger. How quotas and metrics read it is tested there.

use std::time::Duration;

use super::*;
use crate::name::{LockKey, Namespace, Owner};

const TTL: Duration = Duration::from_secs(10);

fn lock(name: &str) -> LockName {
    LockName::new(name).expect("a name")
}

fn lease(number: u8) -> LeaseKey {
    LeaseKey {
        lock: LockKey {
            namespace: Namespace::new("jobs").expect("a name"),
            name: lock("a"),
        },
        kind: Kind::Exclusive,
        claim: ClaimId::from_bytes([number; 16]),
        token: FencingToken::new(u64::from(number)).expect("a token"),
        secret: Secret::from_bytes([number; 16]),
    }
}

fn call(number: u8) -> CallId {
    CallId::from_bytes([number; 16])
}

/// Records that a call received this lease. Returns whether the lease was known.
fn grant(ledger: &Ledger, lease: &LeaseKey, call: CallId) -> bool {
    let grant = Grant {
        claim: lease.claim,
        kind: lease.kind,
        secret: lease.secret,
        token: lease.token,
        owner: Owner::new("tester").expect("an owner"),
        ttl: TTL,
        waited: Duration::ZERO,
        holds: 1,
    };
    ledger.granted(&lease.lock.name, &grant, call, Instant::now() + TTL)
}

fn held(ledger: &Ledger) -> usize {
    ledger.counts().1
}

#[tokio::test(start_paused = true)]
async fn the_oldest_lease_is_the_one_that_is_held_for_longest() {
    let ledger = Ledger::new(true);
    assert_eq!(ledger.oldest(), Duration::ZERO);
    let second = Duration::from_secs(1);
    grant(&ledger, &lease(1), call(1));
    tokio::time::advance(second).await;
    grant(&ledger, &lease(2), call(2));
    tokio::time::advance(second).await;
    ledger.renewed(&lease(1), Instant::now() + TTL);
    assert_eq!(ledger.oldest(), 2 * second, "a renewal begins nothing");
    ledger.ended(&lease(1), None);
    assert_eq!(ledger.oldest(), second);
}

#[tokio::test(start_paused = true)]
async fn leases_are_held_until_they_end_or_expire() {
    let ledger = Ledger::new(true);
    for number in 1..=4 {
        assert!(!grant(&ledger, &lease(number), call(number)));
    }
    ledger.ended(&lease(1), None);
    assert!(!grant(&ledger, &lease(5), call(5)));
    ledger.cancelled(lease(5).secret);
    ledger.forced(&lock("b"), lease(3).token);
    ledger.forced(&lock("a"), lease(2).token);
    assert_eq!(ledger.counts(), (0, 2));
    ledger.renewed(&lease(3), Instant::now() + 2 * TTL);
    tokio::time::advance(TTL).await;
    assert_eq!(ledger.counts(), (1, 1));
    tokio::time::advance(TTL).await;
    assert_eq!(ledger.counts(), (1, 0));
    assert!(ledger.entries.lock().by_call.is_empty());
}

#[tokio::test]
async fn an_undone_lease_is_not_held_any_more() {
    let ledger = Ledger::new(true);
    grant(&ledger, &lease(1), call(1));
    ledger.undone(call(1));
    assert_eq!(held(&ledger), 0);
    // A retry adopted it: the undo of the older call does not end the lease.
    grant(&ledger, &lease(2), call(2));
    assert!(grant(&ledger, &lease(2), call(9)), "a retry");
    ledger.undone(call(2));
    assert_eq!(held(&ledger), 1);
    ledger.undone(call(9));
    assert_eq!(held(&ledger), 0);
    // A lease that another server granted and this one renewed belongs to no call here.
    ledger.renewed(&lease(3), Instant::now() + TTL);
    assert_eq!(held(&ledger), 1);
    assert!(ledger.entries.lock().by_call.is_empty());
}

#[tokio::test(start_paused = true)]
async fn leases_for_the_metrics_are_bounded_and_those_with_a_share_are_not() {
    let ledger = Arc::new(Ledger {
        limit: 1,
        ..Ledger::new(true)
    });
    grant(&ledger, &lease(1), call(1));
    grant(&ledger, &lease(2), call(2));
    assert_eq!(held(&ledger), 1);
    let delivery = ledger.watch_delivery(&lease(2));
    ledger.attach(&lease(2), Instant::now() + TTL, Box::new(()), &delivery);
    assert_eq!(held(&ledger), 2);
    assert!(ledger.has_share(lease(2).claim) && !ledger.has_share(lease(1).claim));
    // A retry attaches its share in place of the first one.
    ledger.attach(&lease(2), Instant::now() + TTL, Box::new(()), &delivery);
    tokio::time::advance(TTL).await;
    grant(&ledger, &lease(3), call(3));
    assert_eq!(ledger.counts(), (2, 1), "expired leases make room");
    assert!(!ledger.has_share(lease(2).claim));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_before_its_delivery_is_not_held() {
    type End = fn(&Ledger, u8);
    let ends: [(End, usize); 4] = [
        (|ledger, number| ledger.ended(&lease(number), None), 0),
        (|ledger, number| ledger.forced(&lock("a"), lease(number).token), 0),
        (
            |ledger, number| ledger.forced_elsewhere(&lock("a"), lease(number).token),
            0,
        ),
        (|ledger, number| ledger.ended(&lease(number + 1), None), 1),
    ];
    for (number, (end, expected)) in (1..).zip(ends) {
        let ledger = Arc::new(Ledger::new(false));
        grant(&ledger, &lease(number), call(number));
        let delivery = ledger.watch_delivery(&lease(number));
        end(&ledger, number);
        ledger.attach(&lease(number), Instant::now() + TTL, Box::new(()), &delivery);
        assert_eq!(held(&ledger), expected, "{number}");
    }
    let ledger = Arc::new(Ledger::new(true));
    grant(&ledger, &lease(1), call(1));
    let (delivery, end) = (ledger.watch_delivery(&lease(1)), Instant::now() + TTL);
    tokio::time::advance(TTL).await;
    assert_eq!(ledger.counts(), (1, 0));
    ledger.attach(&lease(1), end, Box::new(()), &delivery);
    assert_eq!(ledger.counts(), (0, 0), "it expired before");
    drop(delivery);
    assert!(ledger.entries.lock().watches.is_empty());
    assert!(!*ledger.is_watched().borrow(), "nobody is to be told");
}

#[tokio::test]
async fn without_metrics_only_leases_with_a_share_are_recorded() {
    let ledger = Ledger::new(false);
    grant(&ledger, &lease(1), call(1));
    ledger.renewed(&lease(2), Instant::now() + TTL);
    assert_eq!(held(&ledger), 0);
}

#[test]
fn who_watches_a_lease_is_told_its_end_once() {
    let ledger = Arc::new(Ledger::new(false));
    let (to, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let watch = |number| ledger.watch_end(&lease(number), to.clone());
    let _first = [watch(1), watch(1), watch(2)];
    drop(watch(1));
    // A key that a caller altered names no lease.
    let altered = LeaseKey {
        claim: ClaimId::from_bytes([9; 16]),
        ..lease(1)
    };
    ledger.ended(&altered, None);
    assert!(ends.try_recv().is_err());
    let told = |number: u8, cause| LeaseEnded {
        secret: lease(number).secret,
        cause,
    };
    ledger.ended(&lease(1), Some(Cause::Released));
    ledger.ended(&lease(1), None);
    let released = told(1, Some(Cause::Released));
    assert_eq!([ends.try_recv(), ends.try_recv()], [Ok(released), Ok(released)]);
    assert!(ends.try_recv().is_err(), "told once");
    ledger.forced(&lock("b"), lease(2).token);
    ledger.forced_elsewhere(&lock("b"), lease(2).token);
    assert!(ends.try_recv().is_err(), "another lock");
    ledger.forced(&lock("a"), lease(2).token);
    assert_eq!(ends.try_recv(), Ok(told(2, Some(Cause::Forced))));
    ledger.forced_elsewhere(&lock("a"), lease(2).token);
    assert!(ends.try_recv().is_err(), "told once");
    let _third = watch(3);
    ledger.forced_elsewhere(&lock("a"), lease(4).token);
    assert!(ends.try_recv().is_err(), "another token");
    ledger.forced_elsewhere(&lock("a"), lease(3).token);
    assert_eq!(ends.try_recv(), Ok(told(3, Some(Cause::Forced))));
}

#[test]
fn a_ledger_knows_whether_a_lease_is_watched() {
    let ledger = Arc::new(Ledger::new(false));
    let is_watched = ledger.is_watched();
    let (to, _ends) = tokio::sync::mpsc::unbounded_channel();
    assert!(!*is_watched.borrow());
    let watches = [1, 2].map(|number| ledger.watch_end(&lease(number), to.clone()));
    assert!(*is_watched.borrow());
    let [first, second] = watches;
    drop(first);
    assert!(*is_watched.borrow());
    ledger.forced(&lock("a"), lease(2).token);
    drop(second);
    assert!(!*is_watched.borrow());
}

#[test]
fn many_watches_of_one_lease_end_quickly() {
    let ledger = Arc::new(Ledger::new(false));
    let (to, _ends) = tokio::sync::mpsc::unbounded_channel();
    let watches: Vec<EndWatch> = (0..100_000).map(|_| ledger.watch_end(&lease(1), to.clone())).collect();
    let began = std::time::Instant::now();
    drop(watches);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(ledger.entries.lock().watches.is_empty());
}

// G210
#[tokio::test(start_paused = true)]
async fn a_lease_whose_lock_is_kept_uses_its_share_until_the_end_of_that_and_does_not_expire() {
    let ledger = Arc::new(Ledger::new(true));
    let delivery = ledger.watch_delivery(&lease(1));
    grant(&ledger, &lease(1), call(1));
    ledger.attach(&lease(1), Instant::now() + TTL, Box::new(()), &delivery);
    let (to, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let _watch = ledger.watch_end(&lease(1), to);
    ledger.kept(&lease(1), Cause::Released, Instant::now() + 3 * TTL);
    assert_eq!(ends.try_recv().expect("it is told").cause, Some(Cause::Released));
    // A repeated release gives nothing back.
    ledger.ended(&lease(1), Some(Cause::Released));
    tokio::time::advance(2 * TTL).await;
    assert_eq!((ledger.counts(), ledger.has_share(lease(1).claim)), ((0, 1), true));
    tokio::time::advance(TTL).await;
    assert_eq!((ledger.counts(), ledger.has_share(lease(1).claim)), ((0, 0), false));
}
