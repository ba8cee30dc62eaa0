//! The nine rules of `fencepost_core::backend::record`, each by a history that needs it.

use std::time::Duration;

use fencepost_core::backend::record::store::{Commit, LockTime, RecordStore, ServerId, StoreTime, Version};
use fencepost_core::backend::{AcquireOutcome, InspectLimit, RenewOutcome};
use futures::StreamExt;
use std::num::NonZeroU64;
use tokio::time::{Instant, sleep, timeout};

use crate::record_store::{Database, Fate, Faults};
use crate::server::{again, claim, lease, living, lock, server, trying};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Lets the roots that are idle be removed.
async fn until_removed(database: &Database) {
    timeout(60 * MINUTE, async {
        while !database.roots().is_empty() {
            sleep(SECOND).await;
        }
    })
    .await
    .expect("an idle root is removed");
}

/// Answers come so much later.
fn slow(micros: u64) -> Faults {
    Faults {
        delay: micros..micros + 1,
        ..Faults::default()
    }
}

#[tokio::test(start_paused = true)]
async fn rule_1_no_version_is_used_for_two_commits() {
    let database = Database::default();
    let servers = [server(&database), server(&database)];
    for _ in 0..3 {
        for turn in 0..200 {
            let one = &servers[turn % 2];
            let grant = one.hold(&claim()).await;
            one.release(&grant).await;
        }
        until_removed(&database).await;
    }
    assert!(database.commits().0 > 1_000 && !database.has_repeated_versions());
}

#[tokio::test(start_paused = true)]
async fn rule_1_a_late_commit_does_not_fit_a_lock_that_was_made_anew() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    // A commit on the released root is late, and another copy of it is applied.
    database.plan([Fate::Kept]);
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    until_removed(&database).await;
    let grant = b.hold(&claim()).await;
    b.release(&grant).await;
    assert_eq!(database.deliver(), 0);
    assert!(b.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn rule_2_of_two_first_writes_one_takes_effect() {
    for _ in 0..20 {
        let database = Database::new(1, slow(300));
        let (a, b) = (server(&database), server(&database));
        // Both know the store's clock, and no root.
        let other = fencepost_core::name::LockName::new("other").expect("a name");
        for one in [&a, &b] {
            one.backend.acquire(&other, &trying(claim())).await.expect("it answers");
        }
        let (first, second) = (trying(claim()), trying(claim()));
        let both = tokio::join!(a.acquire(&first), b.acquire(&second));
        let holds = |outcome: &AcquireOutcome| matches!(outcome, AcquireOutcome::Held(_));
        assert!(holds(&both.0) != holds(&both.1), "{both:?}");
    }
}

/// A server whose call left while its first write was on the way, and which found a root without tokens then.
async fn late_first_write(database: &Database) -> crate::server::Server {
    let (a, b) = (server(database), server(database));
    // It knows the store's clock from another lock.
    let other = fencepost_core::name::LockName::new("other").expect("a name");
    let shown = a.backend.inspect(&other, InspectLimit::of_each(1)).await;
    shown.expect("it answers");
    // A root that has granted nothing raises no floor when it is removed.
    let mut watching = b.backend.watch(&lock());
    watching.next().await.expect("a state").expect("it answers");
    drop(watching);
    // It is idle soon.
    sleep(10 * MINUTE - SECOND).await;
    assert!(database.root(&lock()).is_some());
    database.set_faults(slow(400_000));
    database.plan([Fate::Kept]);
    let left = claim();
    // It leaves before the root is found.
    let given_up = timeout(Duration::from_millis(600), a.acquire(&left)).await;
    assert!(given_up.is_err() && database.planned() == 0);
    a.undo(&left).await.expect("it answers");
    database.set_faults(Faults::default());
    a
}

#[tokio::test(start_paused = true)]
async fn rule_3_a_first_write_that_is_too_late_is_refused() {
    let database = Database::default();
    let a = late_first_write(&database).await;
    sleep(15 * MINUTE).await;
    assert_eq!(database.root(&lock()), None);
    assert_eq!(database.deliver(), 0, "it found no root, as when it was computed");
    assert!(a.is_free().await);
}

/// Reserves the lock for a server that nobody hears of again.
async fn reserve(database: &Database, time: Duration) {
    let connection = database.connect();
    let number = |number| NonZeroU64::new(number).expect("not 0");
    let commit = Commit {
        lock: lock(),
        expected: Some(Version(number(1))),
        version: Version(number(2)),
        body: Vec::new(),
        not_before: LockTime(0),
        not_after: LockTime(u64::MAX),
        latest: StoreTime(u64::MAX),
        put: Vec::new(),
        delete: 0..0,
        floor: 0,
        messages: Vec::new(),
        server: ServerId(number(3)),
        reserve: Some(time),
        keep: Duration::ZERO,
        grants: false,
        extends: false,
        soft: false,
    };
    connection.commit(commit).await.expect("it is refused");
}

#[tokio::test(start_paused = true)]
async fn rule_4_an_undo_that_finds_nothing_writes_while_an_earlier_commit_may_come() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    reserve(&database, Duration::from_millis(900)).await;
    database.plan([Fate::Kept]);
    let left = claim();
    // The copy that is sent again is refused for the reservation; the first one is still on its way.
    let given_up = timeout(Duration::from_millis(400), a.acquire(&left)).await;
    assert!(given_up.is_err() && database.planned() == 0);
    a.undo(&left).await.expect("it answers");
    sleep(SECOND).await;
    assert_eq!(database.deliver(), 0, "it took effect after its undo");
    assert!(a.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn rule_5_a_root_that_is_found_does_not_settle_a_first_write() {
    let database = Database::default();
    let a = late_first_write(&database).await;
    // Whoever sweeps removes what is idle by now.
    sleep(2 * SECOND).await;
    let connection = database.connect();
    let idle = connection.idle(10 * MINUTE, None, 9).await.expect("it answers");
    let idle: Vec<_> = idle.into_iter().map(|(lock, root)| (lock, root.version)).collect();
    connection.remove(&idle, 0).await.expect("it answers");
    assert_eq!(database.deliver(), 0, "it took effect after its undo");
    assert!(a.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn rule_6_a_call_whose_claim_a_try_took_out_does_not_queue_again() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    b.hold(&claim()).await;
    let older = claim();
    a.queue(&older).await;
    let outcome = b.acquire(&trying(again(&older))).await;
    assert!(matches!(outcome, AcquireOutcome::Busy(_)), "{outcome:?}");
    let outcome = a.promote(&older).await;
    assert!(matches!(outcome, AcquireOutcome::Cancelled), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn rule_7_an_end_that_was_shown_is_final_although_the_clock_steps_back() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&living(5 * SECOND)).await;
    sleep(6 * SECOND).await;
    assert!(b.is_free().await);
    database.step_clock(-3_600_000_000);
    for one in [&a, &b] {
        assert_eq!(one.backend.holder(&lock(), grant.token).await, Ok(None));
        assert!(one.is_free().await);
        let renewed = one.backend.renew(&lease(&grant), None).await;
        assert!(matches!(renewed, Ok(RenewOutcome::Gone(_))), "{renewed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rule_8_waited_counts_to_the_first_sending() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    database.set_faults(slow(400_000));
    // The first copy takes effect a little before the second one is sent.
    database.plan([Fate::Late(Duration::from_millis(700))]);
    let mut claim = living(10 * SECOND);
    claim.arrived = Instant::now();
    let (arrived, grant) = (claim.arrived, a.hold(&claim).await);
    assert!(arrived.elapsed() > SECOND, "it was sent once");
    assert!(grant.waited < Duration::from_millis(10), "{:?}", grant.waited);
    // The lease does not end before its client stops to count on it, and not long after.
    let counts_until = arrived + grant.waited + grant.ttl;
    database.set_faults(Faults::default());
    tokio::time::sleep_until(counts_until - Duration::from_millis(1)).await;
    assert_eq!(a.inspect().await.holder_count, 1);
}

#[tokio::test(start_paused = true)]
async fn rule_9_one_commit_of_a_lock_is_in_flight() {
    let database = Database::new(3, slow(2_000));
    let a = server(&database);
    let calls: Vec<_> = (0..64).map(|_| claim()).collect();
    let acquires = calls.iter().enumerate().map(async |(number, claim)| {
        // Some come while a commit is in flight.
        sleep(Duration::from_micros(300 * number as u64)).await;
        a.acquire(claim).await;
        a.undo(claim).await.expect("it answers");
    });
    futures::future::join_all(acquires).await;
    assert!(a.is_free().await);
    assert_eq!(database.most_in_flight(), 1);
    assert!(database.commits().0 >= 10, "{:?}", database.commits());
}

#[tokio::test(start_paused = true)]
async fn an_append_to_a_busy_lock_shares_the_commit_of_the_next_step() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    let (target, waiting) = (lease(&grant), claim());
    // The second of them comes while the first one runs, and nobody takes its notification.
    let renewed = tokio::join!(a.backend.renew(&target, None), a.backend.renew(&target, None));
    assert!(renewed.0.is_ok() && renewed.1.is_ok(), "{renewed:?}");
    let before = database.commits().0;
    tokio::join!(a.acquire(&waiting), async {
        sleep(Duration::from_millis(2)).await;
        a.release(&grant).await;
    });
    assert_eq!(database.commits().0, before + 1);
    a.undo(&waiting).await.expect("it answers");
    // On a lock on which nothing has happened for long, it is sent at once.
    let _grant = a.hold(&claim()).await;
    sleep(SECOND).await;
    let began = Instant::now();
    a.acquire(&claim()).await;
    assert!(began.elapsed() < Duration::from_millis(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_arrives_after_the_end_of_a_lease_finds_it_ended() {
    for renews in [true, false] {
        let database = Database::default();
        let a = server(&database);
        let grant = a.hold(&living(SECOND)).await;
        database.set_faults(slow(700_000));
        sleep(SECOND / 2).await;
        if renews {
            let renewed = a.backend.renew(&lease(&grant), None).await;
            assert!(matches!(renewed, Ok(RenewOutcome::Gone(_))), "{renewed:?}");
        } else {
            assert_eq!(a.backend.holder(&lock(), grant.token).await, Ok(None));
        }
    }
}
