//! Commits while the network or Redis fails.

use std::sync::Arc;
use std::time::Duration;

use fencepost::backend::record::store::RecordStore;
use fencepost::backend::redis::Store;
use fencepost::name::Namespace;

use crate::harness::standalone;
use crate::record_faults::{
    a_commit_without_its_answer_is_unknown, late_commits_take_effect_until_settled, what_was_answered_outlives_crashes,
};
use crate::record_steps::serves;
use crate::servers::{RedisServer, available};

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
