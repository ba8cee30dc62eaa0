//! What a list makes of records that it cannot read.

use std::time::Duration;

use fencepost::backend::{AcquireOutcome, PageRequest};
use fencepost::name::LockName;

use crate::redis_settings::kept::open_records;
use crate::redis_settings::opened::{claim, open};
use crate::redis_settings::record_contract::{applied, commit};
use crate::redis_settings::scripts::calls;
use crate::redis_settings::servers::{RedisServer, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_read_in_pages_although_most_have_no_root() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let records = open_records(&server).await;
    for number in 0..64 {
        let lock = format!("{:03}", number * 10);
        applied(&*records, commit(&lock, None, 1)).await;
    }
    let names: Vec<String> = (0..640).map(|number| format!("{number:03}")).collect();
    let mut add = vec!["ZADD", "fencepost:long:names"];
    add.extend(names.iter().flat_map(|name| ["0", name.as_str()]));
    assert_eq!(server.cli(&add), "576");
    for limit in [64, 63] {
        let before = calls(&server, "zrangebylex");
        let listed = records.list("", None, limit).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|(lock, ..)| lock.as_str()).collect();
        let expected: Vec<_> = names.iter().step_by(10).take(limit).collect();
        assert_eq!(listed, expected);
        let pages = calls(&server, "zrangebylex") - before;
        assert!(pages <= 11, "{pages}");
    }
    // Names without a root are removed on the way: what is asked for is never fewer than before.
    let before = calls(&server, "zrangebylex");
    assert_eq!(records.idle(Duration::ZERO, None, 64).await.unwrap().len(), 64);
    let pages = calls(&server, "zrangebylex") - before;
    assert!(pages <= 11, "{pages}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_hides_no_other_lock() {
    common::skip_unless!(available());
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
