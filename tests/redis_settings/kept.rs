//! How long Redis keeps the record of a lock: a token that falls with it could come again.

use std::time::Duration;

use fencepost::backend::record::store::FoundRoot;
use fencepost::backend::redis::Store;
use fencepost::backend::{AcquireOutcome, Backend, Grant, NewClaim, ReleaseTarget};
use fencepost::name::{LockName, Namespace, Ttl};

use crate::harness::standalone;
use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// For how long the record is kept if nobody uses the lock; `None` for ever.
fn kept(server: &RedisServer) -> Option<Duration> {
    let left: i64 = server.cli(&["PTTL", "fencepost:long:l:a"]).parse().unwrap();
    u64::try_from(left).ok().map(Duration::from_millis)
}

async fn hold(backend: &dyn Backend, claim: &NewClaim) -> Grant {
    match backend.acquire(&lock(), claim).await.unwrap() {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_outlives_its_leases_and_its_tokens_for_days() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let long = NewClaim {
        ttl: Ttl::new(30 * DAY).unwrap(),
        ..claim(1)
    };
    let held = hold(&*backend, &long).await;
    let call = ReleaseTarget::Call(&long.id, long.call);
    assert_eq!(kept(&server), None);
    backend.release(&lock(), call, None).await.unwrap();
    assert_eq!(kept(&server), None);
    // As when it has been idle for long.
    let store = Store::open(standalone(&server.url())).unwrap();
    let records = store.records(&Namespace::new("long").unwrap());
    let mut health = records.health();
    health
        .wait_for(|health| *health == fencepost::backend::Health::Serving)
        .await
        .unwrap();
    let idle = records.idle(Duration::ZERO, None, 10).await.unwrap();
    let [(name, root)] = &idle[..] else { panic!("{idle:?}") };
    let far = held.token.get() + 3_600_000_000;
    records.remove(&[(name.clone(), root.version)], far).await.unwrap();
    assert_eq!(server.cli(&["ZCARD", "fencepost:long:names"]), "0");
    let left = records.read(&lock(), None).await.unwrap();
    assert_eq!((left.root, left.floor), (FoundRoot::Absent, far));
    assert!(kept(&server).is_some_and(|kept| kept > 3 * DAY), "{:?}", kept(&server));
    // A server that knows nothing of it mints a larger token, and the record stays again.
    let other = open(&server).await;
    assert!(hold(&*other, &claim(2)).await.token.get() > far);
    assert_eq!(kept(&server), None);
    assert_eq!(server.cli(&["ZCARD", "fencepost:long:names"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_locks_that_were_used_once_go() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    for number in 0..600 {
        let (lock, claim) = (LockName::new(&format!("once{number:03}")).unwrap(), claim(number));
        backend.acquire(&lock, &claim).await.unwrap();
        let call = ReleaseTarget::Call(&claim.id, claim.call);
        backend.release(&lock, call, None).await.unwrap();
    }
    // One whose record is lost, and one that no lock has.
    assert_eq!(server.cli(&["DEL", "fencepost:long:l:once123"]), "1");
    assert_eq!(server.cli(&["ZADD", "fencepost:long:names", "0", "once\u{7}"]), "1");
    let store = Store::open(standalone(&server.url())).unwrap();
    let records = store.records(&Namespace::new("long").unwrap());
    let mut health = records.health();
    health
        .wait_for(|health| *health == fencepost::backend::Health::Serving)
        .await
        .unwrap();
    let (mut after, mut found) = (None::<String>, 0);
    loop {
        let idle = records.idle(Duration::ZERO, after.as_deref(), 100).await.unwrap();
        let roots: Vec<_> = idle.iter().map(|(lock, root)| (lock.clone(), root.version)).collect();
        records.remove(&roots, 1).await.unwrap();
        found += idle.len();
        match idle.last() {
            Some((lock, _)) if idle.len() == 100 => after = Some(lock.as_str().to_owned()),
            _ => break,
        }
    }
    assert_eq!(found, 599);
    assert_eq!(server.cli(&["ZRANGE", "fencepost:long:names", "0", "-1"]), "once\u{7}");
    // A removal that is late removes nothing that is in use.
    hold(&*backend, &claim(1_000)).await;
    let stale = records.read(&lock(), None).await.unwrap();
    let FoundRoot::Root(root) = stale.root else {
        panic!("{stale:?}")
    };
    let call = ReleaseTarget::Call(&claim(1_000).id, claim(1_000).call);
    backend.release(&lock(), call, None).await.unwrap();
    hold(&*backend, &claim(1_001)).await;
    records.remove(&[(lock(), root.version)], 1).await.unwrap();
    assert_eq!(server.cli(&["ZSCORE", "fencepost:long:names", "a"]), "0");
}
