//! How long Redis keeps the record of a lock: a token that falls with it could come again.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, Backend, Grant, NewClaim, ReleaseTarget, RenewOutcome};
use fencepost::name::{LockKey, LockName, Namespace, Owner, Ttl};

use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// For how long the record is kept if nobody uses the lock.
fn kept(server: &RedisServer) -> Duration {
    let left = server.cli(&["PTTL", "fencepost:long:l:a"]);
    Duration::from_millis(left.parse().unwrap())
}

async fn hold(backend: &dyn Backend, claim: &NewClaim) -> Grant {
    match backend.acquire(&lock(), claim).await.unwrap() {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_kept_for_days_after_its_last_lease() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let days = |number, days| NewClaim {
        ttl: Ttl::new(days * DAY).unwrap(),
        reentrant: true,
        owner: Owner::new("owner").unwrap(),
        ..claim(number)
    };
    let held = hold(&*backend, &days(1, 10)).await;
    assert!(kept(&server) > 13 * DAY, "{:?}", kept(&server));
    let lease = held.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let renewed = backend.renew(&lease, Some(Ttl::new(20 * DAY).unwrap())).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
    assert!(kept(&server) > 23 * DAY, "{:?}", kept(&server));
    assert_eq!(hold(&*backend, &days(2, 30)).await.holds, 2);
    assert!(kept(&server) > 33 * DAY, "{:?}", kept(&server));
    let short = RedisServer::start(&[]);
    let backend = open(&short).await;
    let held = claim(3);
    hold(&*backend, &held).await;
    let left = backend
        .release(&lock(), ReleaseTarget::Call(&held.id, held.call), None)
        .await;
    left.unwrap();
    assert!(kept(&short) > 3 * DAY, "{:?}", kept(&short));
}
