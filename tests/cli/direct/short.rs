//! What commands leave in a store that live for moments.

#[cfg(feature = "postgres")]
use common::postgres;
#[cfg(feature = "redis")]
use common::redis;

use super::said;
use crate::cli::server::until;

// G236
#[cfg(feature = "postgres")]
#[test]
fn short_commands_on_postgres_leave_no_servers_and_remove_idle_locks() {
    common::skip_unless!(postgres::available());
    let server = postgres::Postgres::started(&[]);
    let url = format!("postgres://fencepost@{}/fencepost", server.address());
    let rows = |table: &str| -> usize {
        let count = server.sql(&format!("SELECT count(*) FROM fencepost_{table}"));
        count.trim().parse().expect("a number")
    };
    let last = (0..20).map(|number| {
        said(
            &url,
            &["lock", &format!("l{number}"), "--", "sh", "-c", "echo $FENCEPOST_TOKEN"],
        )
    });
    // Each one runs as it comes.
    let last = last.fold(None, |_, token| Some(token)).expect("a token");
    let last: u64 = last.trim().parse().expect("a token");
    assert_eq!(rows("lock"), 20);
    // A store that does not answer within a second keeps one.
    assert!(rows("server") <= 2, "{}", rows("server"));
    // An hour passes.
    server.sql("UPDATE fencepost_lock SET time = time - 3600000000");
    until("idle locks are removed", || {
        said(&url, &["lock", "other", "--", "true"]);
        (rows("lock") <= 1).then_some(())
    });
    let token = said(&url, &["lock", "l19", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
    assert!(token.trim().parse::<u64>().expect("a token") > last, "{token}");
}

// G236
#[cfg(feature = "redis")]
#[test]
fn short_commands_on_redis_leave_no_servers_and_remove_idle_locks() {
    common::skip_unless!(redis::available());
    let mut server = redis::RedisServer::with_clock(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    said(&url, &["admit", "default"]);
    let token = || -> u64 {
        let said = said(&url, &["lock", "a", "--", "sh", "-c", "echo $FENCEPOST_TOKEN"]);
        said.trim().parse().expect("a token")
    };
    let first = token();
    let names = |server: &redis::RedisServer| server.cli(&["ZRANGE", "fencepost:default:names", "0", "-1"]);
    let servers = |server: &redis::RedisServer| server.cli(&["EXISTS", "fencepost:default:servers"]);
    assert_eq!((names(&server).as_str(), servers(&server).as_str()), ("a", "0"));
    server.shift_clock(3_600);
    until("idle locks are removed", || {
        said(&url, &["lock", "other", "--", "true"]);
        (names(&server) == "other").then_some(())
    });
    assert!(token() > first);
    assert_eq!(servers(&server), "0");
}
