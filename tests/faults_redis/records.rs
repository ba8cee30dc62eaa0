//! Commits while the network or Redis fails.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::PageRequest;
use fencepost::backend::record::store::RecordStore;
use fencepost::backend::redis::Store;
use fencepost::name::Namespace;

use crate::harness::{replica, standalone, take};
use crate::record_faults::{
    a_commit_without_its_answer_is_unknown, late_commits_take_effect_until_settled, what_was_answered_outlives_crashes,
};
use crate::record_steps::serves;
use crate::servers::{RedisServer, available};

const TTL: Duration = Duration::from_secs(60);

/// The records of one server, whose calls soon have no answer.
async fn open(address: String) -> Arc<dyn RecordStore> {
    let mut settings = standalone(&format!("redis://{address}"));
    settings.response_timeout = Duration::from_secs(2);
    let store = Store::open(settings).expect("random numbers");
    let records = store.records(&Namespace::new("faults").expect("a good name"));
    serves(&*records).await;
    records
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_commit_takes_effect_unless_a_settling_write_came_before_it() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    late_commits_take_effect_until_settled(server.port(), open, b"held").await;
}

// G17, G132
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_unknown() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    a_commit_without_its_answer_is_unknown(server.port(), open).await;
}

// G93
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_there_after_a_crash_under_load() {
    if !available() {
        return;
    }
    let mut server = RedisServer::durable();
    let records = open(format!("127.0.0.1:{}", server.port())).await;
    let power = |is_on| if is_on { server.restart() } else { server.kill9() };
    what_was_answered_outlives_crashes(records, power).await;
}

// G205
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_no_utf_8_hide_no_other_lock_and_stop_no_sweep() {
    if !available() {
        return;
    }
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
    let records = open(format!("127.0.0.1:{}", server.port())).await;
    records.idle(Duration::ZERO, None, 100).await.expect("a sweep");
}
