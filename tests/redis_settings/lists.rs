//! What a list makes of records that it cannot read.

use fencepost::backend::{AcquireOutcome, PageRequest};
use fencepost::name::LockName;

use crate::long_queues::{claim, open};
use crate::servers::{RedisServer, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_hides_no_other_lock() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    for (number, lock) in (1..).zip(["a", "b", "c", "d", "e"]) {
        let held = backend
            .acquire(&LockName::new(lock).unwrap(), &claim(number))
            .await
            .unwrap();
        assert!(matches!(held, AcquireOutcome::Held(_)), "{held:?}");
    }
    // No record at all, one of another release, a damaged one, and a name that no lock has.
    assert_eq!(server.cli(&["SET", "fencepost:long:l:b", "x"]), "OK");
    let another = "return redis.call('HSET', KEYS[1], 'm', cmsgpack.pack(9) .. 'new')";
    assert_eq!(server.cli(&["EVAL", another, "1", "fencepost:long:l:c"]), "0");
    assert_eq!(server.cli(&["HSET", "fencepost:long:l:d", "m", "x"]), "0");
    assert_eq!(server.cli(&["ZADD", "fencepost:long:names", "0", "c\u{7}"]), "1");
    let mut page = PageRequest { after: None, size: 1 };
    let mut listed = Vec::new();
    for _ in 0..10 {
        let listing = backend.list("", page.clone()).await.unwrap();
        listed.extend(listing.locks.iter().map(|summary| summary.lock.to_string()));
        page.after = listing.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["a", "e"]);
}
