//! Rows that VACUUM cannot remove.

use common::faults::stores::{Clocked, Store};
use fencepost::api::proto::ListNamespacesRequest;
use fencepost::api::proto::admin_service_client::AdminServiceClient;
use tonic::transport::Channel;

use crate::harness::{READY, namespace, run, session, snapshot};
use crate::process::{Server, until};
use crate::servers::{Postgres, available, eventually};
use crate::store::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_warns_of_many_dead_rows() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let (_home, process) = Server::of_namespace(&namespace(&server.address()));
    until("it serves", || process.said("the store serves").then_some(()));
    let mut other = session(&server).await;
    let snapshot = other
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.expect("it begins");
    snapshot
        .query_one("SELECT count(*) FROM fencepost_lock", &[])
        .await
        .expect("it reads");
    let warning = "the table of locks has many dead rows";
    server.sql(
        "INSERT INTO fencepost_lock (id, version, time, ahead, body) \
         SELECT convert_to('other' || n, 'UTF8'), 1, 0, 0, '' FROM generate_series(1, 30000) n",
    );
    assert!(!process.said(warning), "they live");
    server.sql("DELETE FROM fencepost_lock");
    until("it warns", || process.said(warning).then_some(()));
    drop(snapshot);
}

/// What a server says of the namespace although it serves.
async fn reason(server: &Server) -> String {
    let channel = Channel::from_shared(format!("http://{}", server.address)).expect("an address");
    let mut admin = AdminServiceClient::new(channel.connect().await.expect("it listens"));
    let told = admin
        .list_namespaces(ListNamespacesRequest {})
        .await
        .expect("it answers");
    let namespaces = told.into_inner().namespaces;
    let faults = namespaces.into_iter().find(|namespace| namespace.name == "faults");
    faults.expect("it is configured").reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_and_the_health_name_an_old_snapshot() {
    common::skip_unless!(available());
    let mut database = Database::with_clock();
    let (_home, process) = Server::of_namespace(&database.namespace());
    until("it serves", || process.said("the store serves").then_some(()));
    let mut old = snapshot(&database.server).await;
    let id = database
        .server
        .sql("SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'");
    let has_looked = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_stat_get_live_tuples%' \
                      AND query_start > (SELECT max(xact_start) FROM pg_stat_activity WHERE state = 'idle in transaction')";
    eventually("it looks", || database.server.sql(has_looked) != "0");
    assert_eq!(reason(&process).await, "", "it is young");
    let (warning, mut ahead) = ("keeps the rows that were replaced since it began", 0);
    until("it warns", || {
        ahead += 61;
        database.shift(ahead);
        process.said(warning).then_some(())
    });
    let told = reason(&process).await;
    assert!(
        told.contains(warning) && told.contains(&format!("process {id}, for ")),
        "{told}"
    );
    // Another one, which is young, does not count.
    let _young = snapshot(&database.server).await;
    run(&mut old, "ROLLBACK").await;
    let end = std::time::Instant::now() + READY;
    while !reason(&process).await.is_empty() {
        assert!(std::time::Instant::now() < end, "it is over");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[test]
fn the_log_tells_of_tables_of_others() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let warning = "the database has tables of others";
    for is_shared in [false, true] {
        let (_home, process) = Server::of_namespace(&namespace(&server.address()));
        until("it serves", || process.said("the store serves").then_some(()));
        assert_eq!(process.said(warning), is_shared);
        server.sql("CREATE TABLE IF NOT EXISTS orders (id bigint)");
    }
}
