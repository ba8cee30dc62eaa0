//! How long Redis keeps the record of a lock: a token that falls with it could come again.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::record::store::{Commit, FoundRoot, RecordStore};
use fencepost::backend::redis::Store;
use fencepost::backend::{AcquireOutcome, Backend, Grant, Health, NewClaim, ReleaseTarget};
use fencepost::name::{LockName, Namespace, Ttl};

use crate::redis_settings::forwarder::Forwarder;
use crate::redis_settings::harness::standalone;
use crate::redis_settings::opened::{claim, open};
use crate::redis_settings::record_contract::{applied, commit};
use crate::redis_settings::scripts::calls;
use crate::redis_settings::servers::{RedisServer, available};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// For how many days the record is kept if nobody uses the lock.
fn days_kept(server: &RedisServer) -> u32 {
    let left: i64 = server.cli(&["PTTL", "fencepost:long:l:a"]).parse().unwrap();
    let left = u64::try_from(left).expect("it is not kept for ever");
    Duration::from_millis(left).div_duration_f64(DAY).ceil() as u32
}

pub async fn open_records(server: &RedisServer) -> Arc<dyn RecordStore> {
    records_at(&server.url()).await
}

async fn records_at(url: &str) -> Arc<dyn RecordStore> {
    let records = Store::open(standalone(url))
        .unwrap()
        .records(&Namespace::new("long").unwrap());
    let mut health = records.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    records
}

async fn hold(backend: &dyn Backend, claim: &NewClaim) -> Grant {
    match backend.acquire(&lock(), claim).await.unwrap() {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_outlives_its_leases_and_its_tokens_for_days() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let long = NewClaim {
        ttl: Ttl::new(30 * DAY).unwrap(),
        ..claim(1)
    };
    let held = hold(&*backend, &long).await;
    let call = ReleaseTarget::Call(&long.id, long.call);
    assert_eq!(days_kept(&server), 35);
    backend.release(&lock(), call, None).await.unwrap();
    assert_eq!(days_kept(&server), 35, "it is not renewed without need");
    let three_days = (3 * DAY).as_millis().to_string();
    server.cli(&["PEXPIRE", "fencepost:long:l:a", &three_days]);
    hold(&*backend, &claim(3)).await;
    assert_eq!(days_kept(&server), 6);
    let call = ReleaseTarget::Call(&claim(3).id, claim(3).call);
    backend.release(&lock(), call, None).await.unwrap();
    // As when it has been idle for long.
    let records = open_records(&server).await;
    let idle = records.idle(Duration::ZERO, None, 10).await.unwrap();
    let [(name, root)] = &idle[..] else { panic!("{idle:?}") };
    let far = held.token.get() + 3_600_000_000;
    records.remove(&[(name.clone(), root.version)], far).await.unwrap();
    assert_eq!(server.cli(&["ZCARD", "fencepost:long:names"]), "0");
    let left = records.read(&lock(), None).await.unwrap();
    assert_eq!((left.root, left.floor), (FoundRoot::Absent, far));
    assert_eq!(days_kept(&server), 4);
    // A server that knows nothing of it makes a larger token.
    let other = open(&server).await;
    assert!(hold(&*other, &claim(2)).await.token.get() > far);
    assert_eq!(days_kept(&server), 6);
    assert_eq!(server.cli(&["ZCARD", "fencepost:long:names"]), "1");
}

// G71
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_locks_that_were_used_once_go() {
    common::skip_unless!(available());
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
    let records = open_records(&server).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_lock_that_is_used_while_it_is_removed_comes_back() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let forwarder = Forwarder::before(server.port()).await;
    let (sweeper, other) = (records_at(&forwarder.url()).await, open_records(&server).await);
    assert_eq!(server.cli(&["ZADD", "fencepost:long:names", "0", "a"]), "1");
    forwarder.holds(|part| part.windows(4).any(|bytes| bytes == b"ZREM"));
    let (idle, ()) = tokio::join!(sweeper.idle(DAY, None, 10), async {
        forwarder.is_holding().await;
        applied(&*other, commit("a", None, 1)).await;
        forwarder.go_on();
    });
    assert_eq!(idle, Ok(Vec::new()));
    assert_eq!(server.cli(&["ZSCORE", "fencepost:long:names", "a"]), "0");
    assert!(calls(&server, "zrem") == 1, "nothing was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_goes_on_where_the_last_one_has_stopped() {
    common::skip_unless!(available());
    let mut server = RedisServer::with_clock(&[]);
    let records = open_records(&server).await;
    applied(&*records, commit("z", None, 1)).await;
    server.shift_clock(3_600);
    // More roots that are young than one sweep looks at.
    let young = (0..2_100).map(|number| commit(&format!("young{number}"), None, 1));
    let commits = young.map(|young| applied(&*records, young));
    futures::future::join_all(commits).await;
    for expected in [0, 1, 0, 1] {
        let idle = records.idle(Duration::from_secs(600), None, 100).await.unwrap();
        assert_eq!(idle.len(), expected, "{idle:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_reads_the_bodies_of_idle_roots_alone() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let records = open_records(&server).await;
    for number in 0..8 {
        let large = Commit {
            body: vec![7; 500_000],
            ..commit(&format!("large{number}"), None, 1)
        };
        records.commit(large).await.unwrap();
    }
    let before = server.info("stats", "total_net_output_bytes");
    let idle = records.idle(Duration::from_secs(600), None, 100).await.unwrap();
    assert_eq!(idle.len(), 0);
    let read = server.info("stats", "total_net_output_bytes") - before;
    assert!(read < 100_000, "{read} bytes");
    let idle = records.idle(Duration::ZERO, None, 100).await.unwrap();
    assert!(idle.len() == 8 && idle.iter().all(|(_, root)| root.body.len() == 500_000));
}
