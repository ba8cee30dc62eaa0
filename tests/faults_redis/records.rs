//! Names that the service did not write.

use std::time::Duration;

use common::faults::records::Records;
use fencepost::backend::PageRequest;

use crate::faults_redis::harness::{replica, standalone, take};
use crate::faults_redis::servers::{RedisServer, available};
use crate::faults_redis::store::Redis;

const TTL: Duration = Duration::from_secs(60);

// G205
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_no_utf_8_hide_no_other_lock_and_stop_no_sweep() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    for name in ["a", "\u{e9}", "z"] {
        take(&locks, name, TTL).await;
    }
    let connection = redis::Client::open(server.url()).expect("an address");
    let mut connection = connection.get_multiplexed_async_connection().await.expect("it serves");
    // More than a page of them, before and between the locks, and one last.
    let mut add = redis::cmd("ZADD");
    add.arg("fencepost:faults:names");
    for number in 0..300 {
        add.arg(0).arg(
            format!("b{number}")
                .into_bytes()
                .iter()
                .copied()
                .chain([0xe9])
                .collect::<Vec<u8>>(),
        );
    }
    add.arg(0).arg([0x01_u8].as_slice()).arg(0).arg([0xff_u8].as_slice());
    let added: usize = add.query_async(&mut connection).await.expect("they are added");
    assert_eq!(added, 302);
    for size in [1, 2, 100] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = PageRequest { after, size };
            let page = locks.list("", page).await.expect("a page");
            listed.extend(page.locks.iter().map(|lock| lock.lock.as_str().to_owned()));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(listed, ["a", "z", "\u{e9}"], "pages of {size}");
    }
    let records = Redis::records_at(format!("127.0.0.1:{}", server.port())).await;
    records.idle(Duration::ZERO, None, 100).await.expect("a sweep");
}
