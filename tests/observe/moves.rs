//! A namespace whose configuration names another store than the one that this server served it from.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tempfile::TempDir;
use tonic::Code;

use crate::observe::calls::Calls;
use crate::observe::fixture::{ask, channel, eventually};
use crate::observe::server::Server;

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
            Err(status) if status.code() == Code::Unavailable && !status.message().contains("quarantined") => {}
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
    let program = crate::observe::server::program();
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
    common::skip_unless!(crate::observe::redis_servers::available());
    let redis = crate::observe::redis_servers::RedisServer::start(&[]);
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
    common::skip_unless!(crate::observe::redis_servers::available());
    let redis = crate::observe::redis_servers::RedisServer::start(&[]);
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
    common::skip_unless!(crate::observe::postgres_servers::available());
    let postgres = crate::observe::postgres_servers::Postgres::started(&[]);
    postgres.sql("CREATE SCHEMA other AUTHORIZATION fencepost");
    let table = |schema: &str| {
        format!(
            "backend = 'postgres'\npostgres = {{servers = ['{}'], schema = '{schema}'}}",
            postgres.address()
        )
    };
    moves(&table("public"), &table("other")).await;
}

// G181
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_database_of_mysql_begins_with_a_quarantine() {
    use common::mysql::{MariaDb, NAME, available};
    common::skip_unless!(available());
    let server = MariaDb::started(&[]);
    server.sql(&format!(
        "CREATE DATABASE other; GRANT ALL ON other.* TO {NAME}@'127.0.0.1'"
    ));
    let table = |database: &str| {
        format!(
            "backend = 'mysql'\nmysql = {{servers = ['{}'], database = '{database}'}}",
            server.address()
        )
    };
    moves(&table(NAME), &table("other")).await;
}

// G181
#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_root_of_etcd_begins_with_a_quarantine() {
    use crate::observe::etcd_servers::{Cluster, available};
    common::skip_unless!(available());
    let cluster = Cluster::start(1);
    let table = |root: &str| {
        format!(
            "backend = 'etcd'\netcd = {{endpoints = {:?}, root = '{root}'}}",
            cluster.urls()
        )
    };
    moves(&table("/one"), &table("/two")).await;
}

// G181
#[cfg(feature = "zookeeper")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_root_of_zookeeper_begins_with_a_quarantine() {
    use common::zookeeper::{Ensemble, found, program};
    let ensemble = found(program()).map(|_| Ensemble::start(1));
    let Some(ensemble) = ensemble else { return };
    let table = |root: &str| {
        format!(
            "backend = 'zookeeper'\nzookeeper = {{servers = {:?}, root = '{root}'}}",
            ensemble.addresses()
        )
    };
    moves(&table("/one"), &table("/two")).await;
}

// G181
#[cfg(feature = "redlock")]
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_moves_to_another_prefix_of_redlock_begins_with_a_quarantine() {
    use crate::observe::redis_servers::{RedisServer, available};
    common::skip_unless!(available());
    let nodes: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start(&[]));
    let urls = nodes.each_ref().map(RedisServer::url);
    let table = |prefix: &str| {
        format!("backend = 'redlock'\nredlock = {{nodes = {urls:?}, prefix = '{prefix}', on_empty_store = 'admit'}}")
    };
    moves(&table("one"), &table("two")).await;
}

/// A server whose `data_dir` has this file does not start, and names the file.
fn is_refused(file: &str, content: &str, mode: u32) {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("data").join(file);
    fs::create_dir(home.path().join("data")).expect("a directory");
    fs::write(&path, content).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is this user's");
    let jobs = "backend = 'postgres'\npostgres.servers = ['127.0.0.1:1']";
    let text = format!("data_dir = 'data'\n[namespaces.jobs]\n{jobs}\n");
    fs::write(home.path().join("f.toml"), text).expect("a file");
    let mut command = Command::new("timeout");
    command.arg("20");
    // Root would read every file.
    if rustix::process::geteuid().is_root() {
        command.args(["setpriv", "--bounding-set=-dac_override,-dac_read_search"]);
    }
    let serve = ["serve", "--listen", "127.0.0.1:0", "--config", "f.toml"];
    let refused = command
        .arg(crate::observe::server::program())
        .args(serve)
        .current_dir(home.path());
    let refused = refused.output().expect("the program runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("data/{file}: ")), "{said}");
}

// G181, G201
#[test]
fn a_server_does_not_start_with_a_record_that_is_damaged_or_may_not_be_read() {
    for file in ["served-stores.json", "used-databases.json"] {
        is_refused(file, "{", 0o600);
        // As one that the server wrote as another user.
        is_refused(file, if file == "served-stores.json" { "{}" } else { "[]" }, 0o000);
    }
}
