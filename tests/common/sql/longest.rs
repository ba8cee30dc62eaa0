//! A `ttl_max` that is raised while servers run.

use std::time::{Duration, SystemTime};

use fencepost::backend::record::store::RecordStore;
use fencepost::backend::{BackendError, Health};
use fencepost::name::Namespace;

use crate::harness::{Settings, Store, credentials, settings, started};
use crate::record_steps::{applied, first, healthy, serves};
use crate::servers::available;

const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3_600);

// G179
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_ttl_lengthens_the_quarantine_of_each_server_before_it_is_granted() {
    common::skip_unless!(available());
    let server = started();
    let of = || Settings {
        longest_ttl: SHORT,
        connections: 1,
        ..settings(&server)
    };
    let open = || Store::open(of(), credentials()).expect("random numbers");
    let namespace = Namespace::new("faults").expect("a good name");
    let (raising, other) = (open(), open());
    let (one, two) = (raising.records(&namespace), other.records(&namespace));
    serves(&*one).await;
    serves(&*two).await;
    applied(one.commit(first("a")).await);
    let longest = || server.sql("SELECT longest FROM fencepost_store");
    assert_eq!(longest(), SHORT.as_micros().to_string());
    raising.raise_longest_ttl(LONG);
    applied(one.commit(first("b")).await);
    assert_eq!(longest(), LONG.as_micros().to_string(), "a commit went before it");
    // As a promotion leaves it, longer ago than the shorter TTL.
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("a time after 1970");
    let since = (now - 2 * SHORT).as_micros();
    server.sql(&format!("UPDATE fencepost_store SET since = {since}"));
    let later = open().records(&namespace);
    for records in [one, two, later] {
        healthy(&*records, |health| matches!(health, Health::Quarantined { .. })).await;
        grants_nothing(&*records).await;
    }
}

async fn grants_nothing(records: &dyn RecordStore) {
    let refused = records.commit(first("c")).await;
    assert!(
        matches!(&refused, Err(BackendError::Quarantined { left, .. }) if *left > LONG / 2),
        "{refused:?}"
    );
}
