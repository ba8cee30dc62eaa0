//! Functions and scripts are known to a server before they are called, and sent again to one that forgot them.

use std::time::Duration;

use crate::redis_settings::access::{RIGHTS, with_user};
use crate::redis_settings::harness::{replica, standalone, take};
use crate::redis_settings::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(30);

/// How many calls the server refused because it did not know their script or function.
fn unknown(server: &RedisServer) -> u64 {
    let said = ["errorstats", "commandstats"].map(|section| server.cli(&["INFO", section]));
    let unknown = said[0]
        .lines()
        .find_map(|line| line.trim().strip_prefix("errorstat_NOSCRIPT:count="));
    let failed = said[1].lines().find(|line| line.starts_with("cmdstat_fcall:"));
    let failed = failed.and_then(|line| line.trim().rsplit_once("failed_calls="));
    let failed = failed.map_or(0, |(_, count)| count.parse::<u64>().unwrap());
    unknown.map_or(0, |count| count.parse::<u64>().unwrap()) + failed
}

/// How often a command was called.
pub fn calls(server: &RedisServer, command: &str) -> u64 {
    let text = server.cli(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = text
        .lines()
        .find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// The libraries that the server has.
fn libraries(server: &RedisServer) -> Vec<String> {
    let listed = server.cli(&["FUNCTION", "LIST"]);
    let mut lines = listed.lines();
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line == "library_name" {
            names.extend(lines.next().map(str::to_owned));
        }
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_meets_a_server_that_does_not_know_its_function_unless_it_forgot() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let locks = replica(&standalone(&server.url())).await;
    let (connected, functions) = (unknown(&server), calls(&server, "fcall"));
    let held = take(&locks, "a", TTL).await;
    locks.renew(&held.key, None).await.unwrap();
    assert!(
        locks
            .check(&held.key.lock.name, held.key.token)
            .await
            .unwrap()
            .is_some()
    );
    locks.release(&held.key).await.unwrap();
    assert_eq!(unknown(&server), connected);
    assert!(calls(&server, "fcall") >= functions + 4, "functions are not called");
    assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    assert_eq!(server.cli(&["FUNCTION", "FLUSH"]), "OK");
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.unwrap();
    assert!(unknown(&server) > connected, "the server has forgotten no function");
    let loaded = || (libraries(&server).len() == 1).then_some(());
    eventually("the functions are loaded again", Duration::from_secs(5), loaded);
    let functions = calls(&server, "fcall");
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.unwrap();
    assert!(
        calls(&server, "fcall") >= functions + 2,
        "functions are not called again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_functions_is_called_by_scripts() {
    common::skip_unless!(available());
    for refused in ["-function", "-fcall"] {
        let server = RedisServer::start(&[]);
        let rights: Vec<&str> = RIGHTS.iter().copied().chain([refused]).collect();
        with_user(&server, "scripts", "right", &rights);
        let url = server.url().replace("redis://", "redis://scripts:right@");
        let locks = replica(&standalone(&url)).await;
        let (connected, scripts) = (unknown(&server), calls(&server, "evalsha"));
        let held = take(&locks, "a", TTL).await;
        locks.release(&held.key).await.unwrap();
        assert_eq!((unknown(&server), calls(&server, "fcall")), (connected, 0), "{refused}");
        assert!(calls(&server, "evalsha") >= scripts + 2, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn libraries_of_other_versions_are_kept_until_there_are_many() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let load = |name: &str| {
        let text = format!("#!lua name={name}\nredis.register_function('{name}_f', function() return 1 end)");
        assert_eq!(server.cli(&["FUNCTION", "LOAD", &text]), name);
    };
    load("somebodys");
    (1..=7).for_each(|version| load(&format!("fencepost_{version}")));
    let first = replica(&standalone(&server.url())).await;
    assert_eq!(libraries(&server).len(), 9, "they are in use during an upgrade");
    let own = libraries(&server);
    let own = own.iter().find(|name| name.len() == "fencepost_".len() + 16).unwrap();
    load("fencepost_8");
    assert_eq!(server.cli(&["FUNCTION", "DELETE", own]), "OK");
    let held = take(&first, "a", TTL).await;
    let mut wanted = [own.clone(), "somebodys".to_owned()];
    wanted.sort();
    eventually("the others are deleted", Duration::from_secs(5), || {
        let mut left = libraries(&server);
        left.sort();
        (left == wanted).then_some(())
    });
    first.release(&held.key).await.unwrap();
}
