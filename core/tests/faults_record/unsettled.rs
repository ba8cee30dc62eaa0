//! Commits that were not answered: what their verbs are told, and that the others go on.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{AcquireOutcome, BackendError, Released, RenewOutcome};
use fencepost_core::claim::Cause;
use tokio::time::{Instant, sleep};

use crate::record_store::{Database, Fate};
use crate::server::{claim, held, lease, lock, server};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

fn is_unknown<T>(outcome: &Result<T, BackendError>) -> bool {
    matches!(outcome, Err(BackendError::Unavailable { .. }))
}

// G132
#[tokio::test(start_paused = true)]
async fn a_lock_goes_on_if_a_quarantine_begins_while_a_claim_is_unsettled() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    a.connection.set_distance(50 * MILLI);
    database.plan([Fate::Lost]);
    let (name, next, target) = (lock(), claim(), lease(&grant));
    let (acquired, renewed) = tokio::join!(a.backend.acquire(&name, &next), async {
        sleep(120 * MILLI).await;
        assert_eq!(database.planned(), 0);
        database.quarantine(true);
        a.backend.renew(&target, None).await
    });
    assert!(is_unknown(&acquired), "{acquired:?}");
    assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
    assert_eq!(a.undo(&next).await, Ok(Released::Nothing));
}

#[tokio::test(start_paused = true)]
async fn what_grants_nothing_goes_on_without_the_grants_that_the_store_refuses() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    a.connection.set_distance(50 * MILLI);
    // The two verbs that come while the first one is on its way share a commit.
    database.plan([Fate::Answered, Fate::NotSent]);
    let (name, next, target) = (lock(), claim(), lease(&grant));
    let (first, acquired, renewed) = tokio::join!(
        a.backend.renew(&target, None),
        async {
            sleep(10 * MILLI).await;
            a.backend.acquire(&name, &next).await
        },
        async {
            sleep(20 * MILLI).await;
            a.backend.renew(&target, None).await
        }
    );
    assert!(matches!(first, Ok(RenewOutcome::Renewed(_))), "{first:?}");
    assert!(matches!(acquired, Err(BackendError::NotSent { .. })), "{acquired:?}");
    assert!(matches!(renewed, Ok(RenewOutcome::Renewed(_))), "{renewed:?}");
}

// G132
#[tokio::test(start_paused = true)]
async fn a_commit_that_is_never_answered_is_sent_seldom_and_verbs_behind_it_fail_soon() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    database.plan([Fate::Lost; 1_000]);
    let (name, next, target) = (lock(), claim(), lease(&grant));
    let (acquired, (renewed, took)) = tokio::join!(a.backend.acquire(&name, &next), async {
        // After the acquire was sent, which waits 5 ms for the next step.
        sleep(10 * MILLI).await;
        let began = Instant::now();
        (a.backend.renew(&target, None).await, began.elapsed())
    });
    assert!(is_unknown(&acquired), "{acquired:?}");
    assert!(matches!(renewed, Err(BackendError::NotSent { .. })), "{renewed:?}");
    assert!(took < 3 * SECOND, "{took:?}");
    assert!(database.planned() > 980, "{}", database.planned());
}

// G132
#[tokio::test(start_paused = true)]
async fn a_verb_that_may_have_taken_effect_is_never_said_to_have_had_none() {
    // The log of a root has the last eight versions.
    for others in [1, 10] {
        let database = Database::default();
        let (a, b) = (server(&database), server(&database));
        let grant = a.hold(&claim()).await;
        a.release(&grant).await;
        a.connection.set_distance(100 * MILLI);
        database.plan([Fate::Unanswered]);
        let (name, first, next) = (lock(), claim(), claim());
        let (acquired, ()) = tokio::join!(a.backend.acquire(&name, &first), async {
            sleep(110 * MILLI).await;
            assert_eq!(b.inspect().await.holder_count, 1);
            b.queue(&next).await;
            for _ in 1..others {
                b.queue(&claim()).await;
            }
            database.plan([Fate::NotSent]);
        });
        assert_eq!(database.planned(), 0);
        assert!(is_unknown(&acquired), "{others}: {acquired:?}");
        assert_eq!(a.undo(&first).await, Ok(Released::Ended(Cause::Undone)), "{others}");
        held(b.promote(&next).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_closed_leaves_no_task_behind() {
    let database = Database::default();
    let a = server(&database);
    a.hold(&claim()).await;
    a.connection.set_distance(50 * MILLI);
    database.plan([Fate::Lost]);
    let (name, next) = (lock(), claim());
    let (acquired, ()) = tokio::join!(a.backend.acquire(&name, &next), async {
        sleep(70 * MILLI).await;
        database.set_down(true);
    });
    assert!(is_unknown(&acquired), "{acquired:?}");
    let connection = Arc::downgrade(&a.connection);
    a.backend.close().await;
    drop(a);
    sleep(SECOND).await;
    assert!(connection.upgrade().is_none(), "a task still uses the store");
}

// G132
#[tokio::test(start_paused = true)]
async fn a_lock_goes_on_after_a_panic_in_its_task() {
    let database = Database::default();
    let a = server(&database);
    let grant = a.hold(&claim()).await;
    a.release(&grant).await;
    a.connection.set_distance(50 * MILLI);
    database.plan([Fate::Panic]);
    let (name, first, next, began) = (lock(), claim(), claim(), Instant::now());
    let (acquired, behind) = tokio::join!(a.backend.acquire(&name, &first), async {
        sleep(10 * MILLI).await;
        a.backend.acquire(&name, &next).await
    });
    assert!(is_unknown(&acquired), "{acquired:?}");
    assert!(matches!(behind, Err(BackendError::NotSent { .. })), "{behind:?}");
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    // Its commit may come late.
    assert_eq!(a.undo(&first).await, Ok(Released::Nothing));
    assert_eq!(database.deliver(), 0, "it took effect after its undo");
    assert!(matches!(a.acquire(&next).await, AcquireOutcome::Held(_)));
}
