//! Sessions whose answers come late, or that are ended by hand.

use std::time::Duration;

use fencepost::backend::BackendError;
use fencepost::backend::postgres::settings::Settings;

use crate::forwarder::{Answers, Forwarder};
use crate::harness::{applied, eventually_read, first, records, serves, settings, settings_of};
use crate::servers::{NAME, Postgres, available};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_answer_comes_late_is_used_again() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let way = Forwarder::before(server.port()).await;
    let alone = Settings {
        connections: 1,
        ..settings_of(vec![way.address()])
    };
    let late = Answers::Late(alone.timeout + Duration::from_millis(50));
    let records = records(alone).await;
    let session =
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost' AND query LIKE 'INSERT INTO%_lock%'";
    // A look at the database that was not answered either may close it before.
    for attempt in 0..9 {
        eventually_read(&*records, "a").await;
        applied(records.commit(first(&format!("before {attempt}"))).await);
        let before = server.sql(session);
        way.answers(late);
        let result = records.commit(first(&format!("late {attempt}"))).await;
        assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
        way.answers(Answers::Pass);
        eventually_read(&*records, "a").await;
        applied(records.commit(first(&format!("after {attempt}"))).await);
        if server.sql(session) == before {
            return;
        }
    }
    panic!("each was closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_ended_by_hand_is_replaced() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let records = records(settings(&server)).await;
    applied(records.commit(first("a")).await);
    let all = format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{NAME}'");
    assert!(server.sql(&all).parse::<u32>().expect("a number") >= 2);
    eventually_read(&*records, "a").await;
    serves(&*records).await;
    applied(records.commit(first("b")).await);
}
