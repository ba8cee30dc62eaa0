//! What costs Redis nothing: who only asks, who is refused, who waits.

use fencepost::backend::{
    AcquireOutcome, InspectLimit, NewClaim, PageRequest, ReleaseTarget, Released, RenewOutcome, WaitPolicy,
};
use fencepost::name::{LockKey, LockName, Namespace};

use crate::redis_settings::opened::{claim, open};
use crate::redis_settings::servers::{RedisServer, available};

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

fn page() -> PageRequest {
    PageRequest { size: 10, after: None }
}

fn trying(number: u128) -> NewClaim {
    NewClaim {
        wait_policy: WaitPolicy::NoWait,
        ..claim(number)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_and_reads_write_nothing() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let key = LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    };
    let AcquireOutcome::Held(gone) = backend.acquire(&lock(), &claim(1)).await.unwrap() else {
        panic!("not held")
    };
    let gone = gone.lease(key);
    backend
        .release(&lock(), ReleaseTarget::Hold(&gone), None)
        .await
        .unwrap();
    let held = backend.acquire(&lock(), &claim(2)).await.unwrap();
    assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    // Each kind of call is made 100 times a round; the marker of the store is written once in a while, however slow the calls.
    let mut written = Vec::new();
    for _ in 0..3 {
        let before = server.info("persistence", "rdb_changes_since_last_save");
        for number in 0..100 {
            let busy = backend.acquire(&lock(), &trying(100 + number)).await.unwrap();
            assert!(matches!(busy, AcquireOutcome::Busy(_)), "{busy:?}");
            let renewed = backend.renew(&gone, None).await.unwrap();
            assert!(matches!(renewed, RenewOutcome::Gone(_)), "{renewed:?}");
            let left = backend
                .release(&lock(), ReleaseTarget::Hold(&gone), None)
                .await
                .unwrap();
            assert!(matches!(left.released, Released::EndedBefore(_)), "{left:?}");
            let place = backend.promote(&lock(), &claim(50)).await.unwrap();
            assert!(matches!(place, AcquireOutcome::Gone), "{place:?}");
            assert_eq!(
                backend
                    .inspect(&lock(), InspectLimit::of_each(10))
                    .await
                    .unwrap()
                    .holder_count,
                1
            );
            assert_eq!(backend.list("", page()).await.unwrap().locks.len(), 1);
        }
        written.push(server.info("persistence", "rdb_changes_since_last_save") - before);
    }
    assert!(
        written.iter().any(|changes| *changes < 50),
        "{written:?} for 600 calls each"
    );
}
