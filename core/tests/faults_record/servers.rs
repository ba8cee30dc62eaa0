//! Servers that die, hang and miss messages; and a store that does not answer or grant.

use std::time::Duration;

use fencepost_core::backend::{
    AcquireOutcome, BackendError, Grant, InspectLimit, NewClaim, Notification, PageRequest, ReleaseTarget, Released,
    RenewOutcome,
};
use fencepost_core::claim::Cause;
use fencepost_core::limits::Limits;
use fencepost_core::locks::Locks;
use fencepost_core::name::Namespace;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::record_store::{Database, Fate, Faults};
use crate::server::{Server, again, claim, lease, living, lock, server, server_on, trying};
use crate::short_leases::their_ends_are_noticed;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MILLI: Duration = Duration::from_millis(1);

/// Messages are lost.
pub fn deaf() -> Faults {
    Faults {
        deaf: 1_000,
        ..Faults::default()
    }
}

/// Takes the lock at one server for long, and queues for it at another one.
pub async fn queued(a: &Server, b: &Server) -> (Grant, NewClaim) {
    let (grant, waiter) = (a.hold(&living(3600 * SECOND)).await, claim());
    b.queue(&waiter).await;
    (grant, waiter)
}

/// Asserts that the next thing a server is told is that this claim is next, within this time.
pub async fn is_told(told: &mut (impl Stream<Item = Notification> + Unpin), next: &NewClaim, within: Duration) {
    let told = timeout(within, told.next()).await;
    assert_eq!(told, Ok(Some(Notification::Next(lock(), next.id))));
}

// G54b
#[tokio::test(start_paused = true)]
async fn the_waiters_of_a_dead_server_leave_and_the_next_is_told() {
    let database = Database::default();
    let (a, b, c) = (server(&database), server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    let (dead, next) = (claim(), claim());
    b.queue(&dead).await;
    c.queue(&next).await;
    sleep(3 * SECOND).await;
    b.connection.kill();
    let died = Instant::now();
    a.release(&grant).await;
    let mut told = c.backend.notifications();
    let told = timeout(20 * SECOND, async {
        while told.next().await != Some(Notification::Next(lock(), next.id)) {}
    });
    told.await.expect("it is told");
    assert!(died.elapsed() < 10 * SECOND, "{:?}", died.elapsed());
    crate::server::held(c.promote(&next).await);
}

// G54a
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_dead_server_lives_for_its_whole_time() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let (ttl, next) = (20 * SECOND, claim());
    let mut told = b.backend.notifications();
    a.hold(&living(ttl)).await;
    let granted = Instant::now();
    a.connection.kill();
    b.queue(&next).await;
    is_told(&mut told, &next, 2 * ttl).await;
    let lived = granted.elapsed();
    assert!(lived >= ttl && lived < ttl + SECOND, "{lived:?}");
    crate::server::held(b.promote(&next).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_dead_server_stays_on_a_lock_that_nobody_uses() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    b.hold(&living(20 * SECOND)).await;
    b.queue(&claim()).await;
    b.connection.kill();
    sleep(3600 * SECOND).await;
    assert!(database.roots().is_empty(), "{:?}", database.roots());
    assert!(a.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_no_waiter_of_a_dead_server() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = b.hold(&living(20 * SECOND)).await;
    b.queue(&claim()).await;
    b.connection.kill();
    sleep(10 * SECOND).await;
    let page = PageRequest { after: None, size: 9 };
    let locks = a.backend.list("", page.clone()).await.expect("it answers").locks;
    assert_eq!((locks[0].holders, locks[0].waiters), (1, 0));
    assert_eq!(locks[0].first.as_ref().map(|first| first.token), Some(grant.token));
    sleep(15 * SECOND).await;
    assert!(a.backend.list("", page).await.expect("it answers").locks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hung_for_a_minute_learns_that_its_waiters_have_lost_their_places() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let mut told = b.backend.notifications();
    let (_, waiter) = queued(&a, &b).await;
    sleep(3 * SECOND).await;
    b.connection.cut_off(true);
    sleep(60 * SECOND).await;
    assert_eq!(a.inspect().await.waiter_count, 0);
    b.connection.cut_off(false);
    is_told(&mut told, &waiter, 5 * SECOND).await;
    assert!(matches!(b.promote(&waiter).await, AcquireOutcome::Gone));
}

// G39
#[tokio::test(start_paused = true)]
async fn every_server_hears_of_a_forced_release() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let streams = [a.backend.forced(), b.backend.forced()];
    let grant = a.hold(&claim()).await;
    sleep(4 * SECOND).await;
    let forced = b
        .backend
        .release(&lock(), ReleaseTarget::Forced(grant.token), None)
        .await;
    assert_eq!(forced.expect("it answers").released, Released::Ended(Cause::Forced));
    for stream in streams {
        let heard = timeout(SECOND, stream.expect("it tells").next())
            .await
            .expect("in time");
        assert_eq!(
            heard.map(|forced| (forced.lock, forced.token)),
            Some((lock(), grant.token))
        );
    }
}

// G57
#[tokio::test(start_paused = true)]
async fn a_server_whose_answer_was_lost_hears_of_its_forced_release_too() {
    for confirms in [false, true] {
        let database = Database::default();
        database.set_confirms(confirms);
        let (a, b) = (server(&database), server(&database));
        let heard = a.backend.forced();
        let grant = a.hold(&claim()).await;
        a.connection.set_distance(50 * MILLI);
        database.plan([Fate::Unanswered]);
        let (name, target) = (lock(), ReleaseTarget::Forced(grant.token));
        let (released, ()) = tokio::join!(a.backend.release(&name, target, None), async {
            sleep(60 * MILLI).await;
            // Somebody writes before the outcome is known.
            b.hold(&claim()).await;
        });
        assert_eq!(released.expect("it answers").released, Released::Ended(Cause::Forced));
        let heard = timeout(SECOND, heard.expect("it tells").next()).await;
        let heard = heard.expect("in time").map(|forced| (forced.lock, forced.token));
        assert_eq!(heard, Some((lock(), grant.token)), "confirms: {confirms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_fails_calls_at_once_and_one_that_hangs_within_ten_seconds() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    database.set_down(true);
    let began = Instant::now();
    let outcome = a.backend.acquire(&lock(), &claim()).await;
    assert!(matches!(outcome, Err(BackendError::NotSent { .. })), "{outcome:?}");
    let outcome = a.backend.renew(&lease(&grant), None).await;
    assert!(matches!(outcome, Err(BackendError::NotSent { .. })), "{outcome:?}");
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    database.set_down(false);
    a.connection.cut_off(true);
    let (name, first, second) = (lock(), claim(), claim());
    let (first, second) = tokio::join!(a.backend.acquire(&name, &first), async {
        sleep(SECOND).await;
        a.backend.acquire(&name, &second).await
    });
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
    assert!(matches!(first, Err(BackendError::Unavailable { .. })), "{first:?}");
    assert!(matches!(second, Err(BackendError::NotSent { .. })), "{second:?}");
    a.connection.cut_off(false);
    a.release(&grant).await;
}

// G135
#[tokio::test(start_paused = true)]
async fn what_grants_nothing_goes_on_in_a_quarantine() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    let (next, other) = (claim(), trying(claim()));
    a.queue(&next).await;
    database.quarantine(true);
    let target = lease(&grant);
    let name = lock();
    // In one batch.
    let released = a.backend.release(&name, ReleaseTarget::Hold(&target), Some(&next));
    let acquired = a.backend.acquire(&name, &other);
    let (released, acquired) = tokio::join!(released, acquired);
    let released = released.expect("it answers");
    assert_eq!(
        (released.released, released.next),
        (Released::Ended(Cause::Released), None)
    );
    assert!(
        matches!(acquired, Err(BackendError::Quarantined { .. })),
        "{acquired:?}"
    );
    let outcome = b.backend.acquire(&name, &trying(claim())).await;
    assert!(!matches!(outcome, Ok(AcquireOutcome::Held(_))), "{outcome:?}");
    assert!(matches!(
        a.backend.promote(&name, &next).await,
        Err(BackendError::Quarantined { .. })
    ));
    a.backend.admit(None).await.expect("it ends");
    crate::server::held(a.promote(&next).await);
}

// G135
#[tokio::test(start_paused = true)]
async fn a_reentry_and_a_retry_are_not_granted_in_a_quarantine() {
    let database = Database::default();
    let a = server(&database);
    let reentrant = || NewClaim {
        reentrant: true,
        ..claim()
    };
    let first = reentrant();
    let grant = a.hold(&first).await;
    database.quarantine(true);
    for claim in [reentrant(), again(&first)] {
        let outcome = a.backend.acquire(&lock(), &claim).await;
        assert!(matches!(outcome, Err(BackendError::Quarantined { .. })), "{outcome:?}");
    }
    let renewed = a.backend.renew(&lease(&grant), None).await;
    assert!(
        matches!(&renewed, Ok(RenewOutcome::Renewed(renewed)) if renewed.holds == 1),
        "{renewed:?}"
    );
}

// G133
#[tokio::test(start_paused = true)]
async fn a_waiting_claim_that_another_call_took_over_is_still_its_after_a_crash() {
    let database = Database::default();
    let (a, b, c) = (server(&database), server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    let older = claim();
    b.queue(&older).await;
    // A renewal is never lost, nor what came before it.
    a.backend.renew(&lease(&grant), None).await.expect("it answers");
    let newer = again(&older);
    c.queue(&newer).await;
    // Only a place in the queue.
    b.queue(&claim()).await;
    database.crash();
    assert_eq!(a.inspect().await.waiter_count, 1);
    a.release(&grant).await;
    let outcome = b.promote(&older).await;
    assert!(matches!(outcome, AcquireOutcome::Superseded), "{outcome:?}");
    crate::server::held(c.promote(&newer).await);
}

// G134
#[tokio::test(start_paused = true)]
async fn tokens_rise_after_an_idle_root_was_removed_and_the_clock_went_back() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let first = a.hold(&claim()).await;
    a.release(&first).await;
    while !database.roots().is_empty() {
        sleep(10 * SECOND).await;
    }
    database.step_clock(-10 * 3_600_000_000);
    let second = b.hold(&claim()).await;
    assert!(second.token > first.token, "{} {}", second.token, first.token);
    assert_eq!(
        a.backend
            .inspect(&lock(), InspectLimit::of_each(1))
            .await
            .expect("it answers")
            .holder_count,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_came_before_the_clock_stepped_back_gets_its_turn() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&living(5 * SECOND)).await;
    let (granted, waiter) = (Instant::now(), claim());
    b.queue(&waiter).await;
    let mut told = b.backend.notifications();
    sleep(SECOND).await;
    database.step_clock(-3_600_000_000);
    is_told(&mut told, &waiter, 60 * SECOND).await;
    let lived = granted.elapsed();
    assert!(lived >= 5 * SECOND && lived < 10 * SECOND, "{lived:?}");
    assert!(crate::server::held(b.promote(&waiter).await).token > grant.token);
}

#[tokio::test(start_paused = true)]
async fn an_eligible_claim_that_its_living_server_does_not_promote_loses_its_place() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    let (first, second) = (claim(), claim());
    b.queue(&first).await;
    a.queue(&second).await;
    let mut told = a.backend.notifications();
    a.release(&grant).await;
    let began = Instant::now();
    is_told(&mut told, &second, 20 * SECOND).await;
    assert!(began.elapsed() > 10 * SECOND, "{:?}", began.elapsed());
    crate::server::held(a.promote(&second).await);
    assert!(matches!(b.promote(&first).await, AcquireOutcome::Gone));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_comes_back_with_old_data_is_ended_by_its_own_server() {
    let database = Database::default();
    let (a, b) = (server(&database), server(&database));
    let grant = a.hold(&claim()).await;
    let (gone, next) = (claim(), claim());
    b.queue(&gone).await;
    a.queue(&next).await;
    let old = database.copy(&lock());
    b.undo(&gone).await.expect("it answers");
    database.restore(&lock(), old);
    let mut told = a.backend.notifications();
    a.release(&grant).await;
    is_told(&mut told, &next, 3 * SECOND).await;
    crate::server::held(a.promote(&next).await);
}

// G12, G13, G36b
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lease_of_another_server_is_noticed_at_once() {
    for poll in [1, 5, 20] {
        let database = Database::default();
        let open = async || {
            let server = server_on(database.connect_polling(Duration::from_secs(poll)));
            Locks::new(
                Namespace::new("test").expect("a name"),
                Limits::default(),
                server.backend,
            )
        };
        their_ends_are_noticed(open, Duration::from_millis(50)).await;
    }
}

/// A far server queues behind a lease of an hour and one of a second, which a near server grants so long after `begin` says
/// that the far one has sent a step: what the step finds is older than the grant, of which the far server was told.
async fn is_told_of_the_end(begin: impl AsyncFn(&Server, &NewClaim), after: Duration) {
    let database = Database::default();
    let far = server_on(database.connect_polling(5 * SECOND));
    far.connection.set_distance(40 * MILLI);
    let near = server_on(database.connect_polling(5 * SECOND));
    let mut told = far.backend.notifications();
    let (held, short, waiter) = (near.hold(&living(3600 * SECOND)).await, living(SECOND), claim());
    near.queue(&short).await;
    let grant = async {
        sleep(after).await;
        near.release(&held).await;
        assert!(matches!(near.promote(&short).await, AcquireOutcome::Held(_)));
    };
    tokio::join!(begin(&far, &waiter), grant);
    is_told(&mut told, &waiter, SECOND + 500 * MILLI).await;
}

// G13
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_on_its_way_into_the_queue_learns_the_end_of_a_lease_that_is_granted_meanwhile() {
    is_told_of_the_end(async |far, waiter| far.queue(waiter).await, 130 * MILLI).await;
}

// G13
#[tokio::test(start_paused = true)]
async fn a_read_that_is_older_than_a_grant_does_not_hide_its_end() {
    let queues = async |far: &Server, waiter: &NewClaim| {
        let began = Instant::now();
        far.queue(waiter).await;
        assert_eq!(began.elapsed(), 80 * MILLI * 2, "a read, and the commit");
    };
    // It reads the lock 5 s after it was answered, and is answered after the grant.
    is_told_of_the_end(queues, 160 * MILLI + 5 * SECOND + 50 * MILLI).await;
}
