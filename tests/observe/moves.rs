//! A namespace whose configuration names another store than the one that this server served it from.

use std::fs;

use tempfile::TempDir;

use crate::calls::Calls;
use crate::fixture::{ask, channel, eventually};
use crate::server::Server;

/// A server with this namespace `jobs`, and its calls.
async fn serve(home: &TempDir, jobs: &str) -> (Server, Calls) {
    let text = format!("data_dir = 'data'\n[namespaces.jobs]\n{jobs}\n");
    fs::write(home.path().join("f.toml"), text).expect("a file");
    let server = Server::start_with(home, &["--listen", "127.0.0.1:0", "--config", "f.toml"]);
    let calls = Calls(channel(&server.address).await);
    (server, calls)
}

/// Takes a lock of its own, once the store serves.
async fn granted(calls: &Calls, name: &str) {
    loop {
        match calls.try_acquire(ask("jobs", name, "tester")).await {
            Ok(_) => return,
            Err(status) if status.message().contains("connect") => {}
            Err(status) => panic!("{name}: {status:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// The lock is not granted, because the namespace has moved.
async fn quarantined(server: &Server, calls: &Calls) {
    eventually("it says so", || {
        server.said("namespace jobs grants nothing for another")
    })
    .await;
    assert!(server.said("it was served from another store before"), "the reason");
    let refused = calls
        .try_acquire(ask("jobs", "deploy", "other"))
        .await
        .expect_err("two holders");
    assert!(
        refused.message().contains("backend quarantined for another"),
        "{refused:?}"
    );
}

/// Moves a namespace from one store to another and back.
async fn moves(first: &str, second: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let (mut server, calls) = serve(&home, first).await;
    granted(&calls, "deploy").await;
    server.stop();
    server.end();

    // The quarantine begins anew with each start, because the time without a server is not known.
    for _ in 0..2 {
        let (mut server, calls) = serve(&home, second).await;
        quarantined(&server, &calls).await;
        server.stop();
        server.end();
    }

    // The other store has granted nothing.
    let (mut server, calls) = serve(&home, first).await;
    granted(&calls, "free").await;
    calls
        .try_acquire(ask("jobs", "deploy", "other"))
        .await
        .expect_err("held");
    server.stop();
    server.end();

    let (mut server, calls) = serve(&home, second).await;
    quarantined(&server, &calls).await;
    admit(&server);
    granted(&calls, "deploy").await;
    server.stop();
    server.end();
    let (server, calls) = serve(&home, first).await;
    quarantined(&server, &calls).await;
}

fn admit(server: &Server) {
    let program = crate::server::program();
    let admitted = std::process::Command::new(program)
        .args(["admit", "jobs", "--addr", &server.address])
        .env_clear()
        .status();
    assert!(admitted.expect("the program runs").success());
}

// G181
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_file_begins_with_a_quarantine() {
    moves("embedded.path = 'a.redb'", "embedded.path = 'b.redb'").await;
}

// G181
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_between_a_redis_and_a_file_begins_with_a_quarantine() {
    if !crate::redis_servers::available() {
        return;
    }
    let redis = crate::redis_servers::RedisServer::start(&[]);
    let table = format!(
        "backend = 'redis'\nredis = {{urls = ['{}'], on_empty_store = 'admit'}}",
        redis.url()
    );
    moves(&table, "embedded.path = 'jobs.redb'").await;
}

// G181
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_prefix_begins_with_a_quarantine() {
    if !crate::redis_servers::available() {
        return;
    }
    let redis = crate::redis_servers::RedisServer::start(&[]);
    let table = |prefix: &str| {
        let keys = format!(
            "urls = ['{}'], prefix = '{prefix}', on_empty_store = 'admit'",
            redis.url()
        );
        format!("backend = 'redis'\nredis = {{{keys}}}")
    };
    moves(&table("one"), &table("two")).await;
}

// G181
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_schema_begins_with_a_quarantine() {
    if !crate::postgres_servers::available() {
        return;
    }
    let postgres = crate::postgres_servers::Postgres::started(&[]);
    postgres.sql("CREATE SCHEMA other AUTHORIZATION fencepost");
    let table = |schema: &str| {
        format!(
            "backend = 'postgres'\npostgres = {{servers = ['{}'], schema = '{schema}'}}",
            postgres.address()
        )
    };
    moves(&table("public"), &table("other")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_of_the_stores_is_a_failure_that_names_it() {
    let home = tempfile::tempdir().expect("a directory");
    fs::create_dir(home.path().join("data")).expect("a directory");
    fs::write(home.path().join("data/served-stores.json"), "{").expect("a file");
    let refused = std::process::Command::new(crate::server::program())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"])
        .current_dir(home.path())
        .env_clear()
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("data/served-stores.json: ") && said.contains("remove the file"),
        "{said}"
    );
}
