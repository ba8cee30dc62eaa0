//! Many large locks that are read at once.

use std::time::Duration;

use futures::future::join_all;

use crate::harness::{Settings, records, settings};
use crate::record_steps::{name, serves};
use crate::servers::{MariaDb, available};

/// How many, each with the longest root: one answer with all of them would be more than a server may send.
const MANY: usize = 75;

// G177
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_that_are_large_are_read_in_several_answers() {
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    // They are read in one step, which a busy machine does not do within the usual 3 s.
    let patient = Settings {
        timeout: Duration::from_secs(60),
        ..settings(&server)
    };
    let records = records(patient).await;
    server.sql(&format!(
        "INSERT INTO fencepost_lock (id, version, replaced, time, ahead, body)
         SELECT CONCAT(x'6661756c747300', seq), 1, 0, 0, 0, REPEAT('x', 1048576) FROM seq_1000_to_{}",
        999 + MANY
    ));
    let listed = records.list("", None, MANY).await.expect("they are listed");
    assert_eq!(listed.len(), MANY);
    drop(listed);
    let names: Vec<_> = (1000..1000 + MANY).map(|number| name(&number.to_string())).collect();
    for read in join_all(names.iter().map(|name| records.read(name, None))).await {
        read.expect("it is read");
    }
    serves(&*records).await;
}
