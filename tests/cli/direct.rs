//! Direct mode: the commands on each store without a server, against real stores.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

#[cfg(feature = "etcd")]
use common::etcd;
#[cfg(feature = "mysql")]
use common::mysql;
#[cfg(feature = "postgres")]
use common::postgres;
#[cfg(feature = "redis")]
use common::redis;
#[cfg(feature = "zookeeper")]
use common::zookeeper;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::program::{PROGRAM, Running, content, run, text, until_written};
use crate::cli::server::{Server, until};

#[cfg(any(feature = "postgres", feature = "redis"))]
mod short;

/// The program, without a server, in an environment of its own.
fn direct(store: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_clear().env("FENCEPOST_STORE", store);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("USER", "me").env("HOME", "/");
    command
}

/// Runs it to its end.
fn ran(store: &str, arguments: &[&str]) -> Output {
    run(direct(store, arguments))
}

/// Its exit code and what it says.
fn told(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// What it prints when all is well.
fn said(store: &str, arguments: &[&str]) -> String {
    let output = ran(store, arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{store} {arguments:?}: {}",
        told(&output).1
    );
    text(&output.stdout)
}

fn json(store: &str, arguments: &[&str]) -> Value {
    let said = said(store, &[arguments, &["--output", "json"]].concat());
    serde_json::from_str(&said).expect("one answer in JSON")
}

/// A lock of this store with a command that ends once a file is there.
fn holding(store: &str, flags: &[&str], folder: &TempDir, name: &str) -> Running {
    let (started, end) = (
        folder.path().join(format!("{name}-started")),
        folder.path().join(format!("{name}-end")),
    );
    let line = format!(
        "echo $FENCEPOST_TOKEN >{}; while [ ! -e {} ]; do sleep 0.05; done",
        started.display(),
        end.display()
    );
    let running = Running::new(direct(
        store,
        &[&["lock", "a"], flags, &["--", "sh", "-c", &line]].concat(),
    ));
    until_written(&started);
    running
}

fn end(folder: &TempDir, name: &str) {
    std::fs::write(folder.path().join(format!("{name}-end")), "").expect("a file");
}

/// What every store must do: the commands work, two processes exclude each other and a running server, and a lock whose
/// holder was killed is free after its TTL.
fn keeps_its_promises(store: &str, table: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    // Its first step makes what a store needs.
    let line = "echo $FENCEPOST_NAMESPACE/$FENCEPOST_LOCK $FENCEPOST_ADDR";
    assert_eq!(said(store, &["lock", "a", "--", "sh", "-c", line]), "default/a\n");
    let lease = json(store, &["acquire", "jobs/b", "--ttl", "1h", "--owner", "o"]);
    let (id, token) = (
        lease["leaseId"].as_str().expect("an id"),
        lease["fencingToken"].as_str().expect("a token"),
    );
    assert_eq!(json(store, &["get", "jobs/b"])["holders"][0]["owner"], "o");
    assert!(said(store, &["list", "jobs"]).contains(" o "));
    said(store, &["renew", id]);
    said(store, &["check-token", "jobs/b", token]);
    said(store, &["release", id]);
    let again = json(store, &["acquire", "jobs/b", "--ttl", "1h"]);
    let forced = again["fencingToken"].as_str().expect("a token");
    assert!(
        forced.parse::<u64>().expect("a number") > token.parse().expect("a number"),
        "tokens rise over processes"
    );
    said(store, &["force-release", "jobs/b", forced]);
    assert_eq!(json(store, &["get", "jobs/b"])["holderCount"], 0);

    // Another process, and a server.
    let home = tempfile::tempdir().expect("a folder");
    let config = home.path().join("f.toml");
    std::fs::write(&config, format!("[namespaces.default]\n{table}\n")).expect("a file");
    let server = Server::start_with(&home, &["--listen", "127.0.0.1:0", "--config", "f.toml"]);
    let at_server = |arguments: &[&str]| run(crate::cli::program::asking(&server.address, arguments));
    until("the server serves", || {
        at_server(&["get", "default/a"]).status.success().then_some(())
    });
    let mut first = holding(store, &["--ttl", "5s"], &folder, "first");
    for refused in [
        ran(store, &["lock", "a", "--", "true"]),
        at_server(&["lock", "default/a", "--", "true"]),
    ] {
        assert_eq!(refused.status.code(), Some(120), "{store}: {}", told(&refused).1);
    }
    // A store on a busy machine may not confirm in time that the call has left the queue.
    until("the wait runs out", || {
        let code = ran(store, &["acquire", "a", "--wait", "300ms"]).status.code();
        (code == Some(121)).then_some(())
    });
    let waits = || {
        let state: Value = serde_json::from_slice(&at_server(&["get", "default/a", "-o", "json"]).stdout).ok()?;
        (state["waiterCount"] == 1).then_some(())
    };
    let mut ended = Running::new(direct(store, &["acquire", "a", "--wait", "60s"]));
    until("it waits", waits);
    ended.signal("INT");
    assert_eq!(ended.end(), Some(130), "{store}: it leaves the queue");
    let mut waiting = Running::new(direct(store, &["lock", "a", "--wait", "60s", "--", "true"]));
    until("it waits, alone", waits);
    end(&folder, "first");
    assert_eq!(
        (first.end(), waiting.end()),
        (Some(0), Some(0)),
        "{store}: the lock is handed on"
    );
    // A command within it asks the server that the lock is held at.
    let within = [
        "lock",
        "default/b",
        "--addr",
        &server.address,
        "--",
        PROGRAM,
        "get",
        "default/b",
    ];
    assert_eq!(ran(store, &within).status.code(), Some(0), "{store}");
    let by_server = at_server(&["acquire", "default/a", "--ttl", "1h", "-q"]);
    assert_eq!(ran(store, &["lock", "a", "--", "true"]).status.code(), Some(120));
    let released = ran(store, &["release", text(&by_server.stdout).trim()]);
    assert_eq!(released.status.code(), Some(0), "{store}: {}", told(&released).1);

    // Killed while it holds.
    let mut killed = holding(store, &["--ttl", "3s"], &folder, "killed");
    killed.signal("KILL");
    killed.end_signal();
    said(store, &["lock", "a", "--wait", "60s", "--", "true"]);
    // A configuration names the same stores.
    let mut configured = direct("", &["lock", "default/a", "--config"]);
    let output = configured
        .env("HOME", home.path())
        .arg(&config)
        .args(["--", "echo", "held"])
        .output()
        .expect("it runs");
    assert_eq!(told(&output), (Some(0), "held\n".to_owned()), "{store}");
}

// G232
#[cfg(feature = "postgres")]
#[test]
fn commands_work_on_postgres_without_a_server() {
    common::skip_unless!(postgres::available());
    let server = postgres::Postgres::started(&[]);
    let table = format!("backend = 'postgres'\npostgres.servers = ['{}']", server.address());
    keeps_its_promises(&format!("postgres://fencepost@{}/fencepost", server.address()), &table);
}

// G142
#[cfg(feature = "redis")]
#[test]
fn an_emptied_redis_is_quarantined_by_commands_too() {
    common::skip_unless!(redis::available());
    let (server, home) = (redis::RedisServer::start(&[]), tempfile::tempdir().expect("a folder"));
    let url = format!("redis://127.0.0.1:{}", server.port());
    let config = home.path().join("f.toml");
    let text =
        format!("[namespaces.default]\nbackend = 'redis'\nredis.urls = ['{url}']\nredis.on_empty_store = 'admit'\n");
    std::fs::write(&config, text).expect("a file");
    let lock = || {
        let mut lock = direct("", &["lock", "a", "--config"]);
        lock.arg(&config).env("XDG_DATA_HOME", home.path()).args(["--", "true"]);
        run(lock)
    };
    assert_eq!(lock().status.code(), Some(0));
    assert_eq!(server.cli(&["FLUSHALL"]), "OK");
    let refused = lock();
    assert_eq!(refused.status.code(), Some(123), "unsafe: {}", told(&refused).1);
    // A URL says nothing of what was there before.
    let refused = ran(&format!("{url}?on_empty_store=admit"), &["lock", "a", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", told(&refused).1);
}

// G232
#[cfg(feature = "mysql")]
#[test]
fn commands_work_on_mysql_without_a_server() {
    common::skip_unless!(mysql::available());
    let server = mysql::MariaDb::started(&[]);
    let table = format!("backend = 'mysql'\nmysql.servers = ['{}']", server.address());
    keeps_its_promises(&format!("mysql://{}", server.address()), &table);
}

// G232
#[cfg(feature = "etcd")]
#[test]
fn commands_work_on_etcd_without_a_server() {
    common::skip_unless!(etcd::available());
    let cluster = etcd::Cluster::start(1);
    let url = &cluster.urls()[0];
    let table = format!("backend = 'etcd'\netcd.endpoints = ['{url}']");
    keeps_its_promises(&url.replace("http://", "etcd://"), &table);
}

// G232
#[cfg(feature = "zookeeper")]
#[test]
fn commands_work_on_zookeeper_without_a_server() {
    common::skip_unless!(common::is_there(zookeeper::program().is_some(), "ZooKeeper"));
    let ensemble = zookeeper::Ensemble::start(1);
    let table = format!(
        "backend = 'zookeeper'\nzookeeper.servers = ['{}']",
        ensemble.connect_string()
    );
    keeps_its_promises(&format!("zookeeper://{}", ensemble.connect_string()), &table);
}

// G232, G235
#[cfg(feature = "redis")]
#[test]
fn commands_work_on_redis_without_a_server_and_a_fresh_one_says_what_to_do() {
    common::skip_unless!(redis::available());
    let server = redis::RedisServer::durable();
    let url = server.url();
    let (code, told) = told(&ran(&url, &["lock", "a", "--", "true"]));
    assert_eq!(code, Some(123), "{told}");
    let command = format!("fencepost admit default --store '{url}'");
    assert!(
        told.lines().next().is_some_and(|line| line.contains(&command)),
        "{told}"
    );
    said(&url, &["admit", "default"]);
    keeps_its_promises(&url, &format!("backend = 'redis'\nredis.urls = ['{url}']"));
}

// G232
#[test]
fn a_second_process_waits_for_the_file_and_a_killed_ones_lock_is_free_after_its_ttl() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("file:{}", folder.path().join("locks").display());
    let line = "echo $FENCEPOST_NAMESPACE/$FENCEPOST_LOCK";
    assert_eq!(said(&store, &["lock", "a", "--", "sh", "-c", line]), "default/a\n");
    let mut first = holding(&store, &[], &folder, "first");
    let (code, at_once) = told(&ran(&store, &["lock", "other", "--", "true"]));
    assert!(
        code == Some(123) && at_once.contains("in use by another process"),
        "{code:?} {at_once}"
    );
    assert_eq!(
        ran(&store, &["acquire", "a", "--wait", "300ms"]).status.code(),
        Some(121)
    );
    let mut waiting = Running::new(direct(&store, &["lock", "a", "--wait", "60s", "--", "true"]));
    end(&folder, "first");
    assert_eq!((first.end(), waiting.end()), (Some(0), Some(0)));
    let mut killed = holding(&store, &["--ttl", "3s"], &folder, "killed");
    killed.signal("KILL");
    killed.end_signal();
    let since = Instant::now();
    // Short processes in turn do not put it off.
    until("it is free", || {
        let tried = ran(&store, &["lock", "a", "--", "true"]);
        assert!(
            [Some(0), Some(120)].contains(&tried.status.code()),
            "{}",
            told(&tried).1
        );
        tried.status.success().then_some(())
    });
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
    let lease = text(&ran(&store, &["acquire", "b", "--ttl", "2s", "-q"]).stdout);
    assert_eq!(
        ran(&store, &["lock", "b", "--", "true"]).status.code(),
        Some(120),
        "{lease}"
    );
    said(&store, &["lock", "b", "--wait", "30s", "--", "true"]);
}

// G233
#[cfg(feature = "postgres")]
#[test]
fn a_password_is_in_a_variable_or_a_file_and_never_shown() {
    common::skip_unless!(postgres::available());
    let mut server = postgres::Postgres::started(&[]);
    server.sql("ALTER ROLE fencepost PASSWORD 'seCret'");
    let rules = server.folder().join("rules");
    let lines = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&rules, lines).expect("a file");
    postgres::give(&rules, 0o600);
    server.stop();
    server.set("hba_file", rules.to_str().expect("text"));
    server.start();
    let (at, arguments) = (server.address(), ["lock", "a", "--", "echo", "held"]);
    let url = format!("postgres://fencepost@{at}/fencepost");
    let mut with_variable = direct(&url, &arguments);
    let output = run({
        with_variable.env("FENCEPOST_POSTGRES_PASSWORD", "seCret");
        with_variable
    });
    assert_eq!(told(&output), (Some(0), "held\n".to_owned()));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("password");
    std::fs::write(&file, "seCret\n").expect("a file");
    assert_eq!(
        said(&format!("{url}?password_file={}", file.display()), &arguments),
        "held\n"
    );
    // What is wrong is told without it.
    std::fs::write(&file, "seCretly-wrong\n").expect("a file");
    for (store, code, expected) in [
        (
            format!("{url}?password_file={}", file.display()),
            123,
            "password authentication failed",
        ),
        (
            format!("postgres://fencepost:seCret@{at}/fencepost"),
            2,
            "FENCEPOST_POSTGRES_PASSWORD",
        ),
        (
            format!("postgres://fencepost@{at}/fencepost?password=seCret"),
            2,
            "FENCEPOST_POSTGRES_PASSWORD",
        ),
        (
            format!("postgre://fencepost:seCret@{at}/fencepost"),
            2,
            "write postgres://",
        ),
    ] {
        let (found, told) = told(&ran(&store, &arguments));
        assert_eq!(found, Some(code), "{told}");
        assert!(told.contains(expected) && !told.contains("seCret"), "{told}");
        let mut by_argument = direct("", &["get", "a", "--store", &store]);
        by_argument.env("FENCEPOST_ADDR", "127.0.0.1:1");
        let output = run(by_argument);
        assert!(!text(&output.stderr).contains("seCret"), "{}", text(&output.stderr));
    }
    let help = run(direct(
        &format!("postgres://fencepost:seCret@{at}"),
        &["lock", "--help"],
    ));
    assert!(!text(&help.stdout).contains("seCret"));
}

// G234
#[cfg(feature = "postgres")]
#[test]
fn a_process_whose_bounds_differ_from_those_of_the_store_is_refused_and_told_both() {
    common::skip_unless!(postgres::available());
    let server = postgres::Postgres::started(&[]);
    let url = format!("postgres://fencepost@{}/fencepost", server.address());
    said(&url, &["lock", "a", "--", "true"]);
    let (code, told) = told(&ran(
        &format!("{url}?replication=asynchronous"),
        &["lock", "a", "--", "true"],
    ));
    assert_eq!(code, Some(123), "{told}");
    for value in ["\"single\"", "\"asynchronous\"", "CP", "AP"] {
        assert!(told.contains(value), "{value}: {told}");
    }
}

#[test]
fn what_names_a_server_and_a_store_is_refused_and_an_argument_counts_more_than_a_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("file:{}", folder.path().join("locks").display());
    let both = told(&ran("", &["get", "a", "--addr", "127.0.0.1:1", "--store", &store]));
    assert!(both.0 == Some(2) && both.1.contains("cannot be used with"), "{both:?}");
    assert_eq!(
        ran(&store, &["get", "a", "--addr", "127.0.0.1:1"]).status.code(),
        Some(123)
    );
    let mut variable = direct("", &["get", "a", "--store", &store]);
    variable.env("FENCEPOST_ADDR", "127.0.0.1:1");
    assert_eq!(run(variable).status.code(), Some(0));
    let status = told(&ran(&store, &["status"]));
    assert!(status.0 == Some(2) && status.1.contains("--addr"), "{status:?}");
}

#[test]
fn the_program_copies_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = |path: &Path| {
        run(direct("", &["copy-to", path.to_str().expect("text")]))
            .status
            .code()
    };
    let (inside, named) = (folder.path().join("fencepost"), folder.path().join("lock"));
    for (path, file) in [(folder.path(), &inside), (&named, &named), (&named, &named)] {
        assert_eq!(copy(path), Some(0));
        let output = Command::new(file).arg("--version").output().expect("it runs");
        assert!(text(&output.stdout).starts_with("fencepost "));
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2);
    let nowhere = folder.path().join("none/fencepost");
    assert_eq!((copy(&nowhere), content(&nowhere)), (Some(1), String::new()));
}
