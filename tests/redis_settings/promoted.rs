//! Which servers are believed to remember what was granted, as their marker and what they say of themselves show.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost::backend::redis_server::handshake::ServerInfo;
use fencepost::backend::redis_server::marker::{Marker, Trust};
use fencepost::backend::redis_server::settings::OnEmptyStore;
use redis::aio::MultiplexedConnection;

use crate::redis_settings::servers::{RedisServer, available, eventually};

const TTL: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(30);
/// The keys of the markers, one for each case: who has judged a server writes that down.
const KEYS: [&str; 4] = ["at-once", "behind", "long-after", "known"];

async fn connection(server: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn trusts(marker: &Marker, server: &RedisServer) -> bool {
    let mut connection = connection(server).await;
    let server_info = ServerInfo::ask(&mut connection).await.unwrap();
    marker.check(&mut connection, &server_info).await.unwrap() == Trust::Admitted
}

fn marker(key: &str, on_empty_store: OnEmptyStore) -> Marker {
    Marker::new(key.as_bytes().to_vec(), on_empty_store, TTL)
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_copy_is_believed_only_if_it_was_not_behind() {
    common::skip_unless!(available());
    let mut master = RedisServer::with_clock(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let mut copy = RedisServer::with_clock(&["--replicaof", &format!("127.0.0.1 {port}")]);
    // It is older than the markers' last writing, as one is that did not restart with less.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let known = KEYS.map(|key| marker(key, OnEmptyStore::Admit));
    for marker in &known {
        assert!(trusts(marker, &master).await);
    }
    tokio::task::block_in_place(|| {
        eventually("the copy has all markers", LIMIT, || {
            (copy.cli(&["DBSIZE"]) == "4").then_some(())
        });
    });
    assert_eq!(copy.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let newcomer = |key| marker(key, OnEmptyStore::Quarantine);
    assert!(trusts(&newcomer(KEYS[0]), &copy).await, "promoted at once");
    // Ten seconds of grants that it does not have.
    master.shift_clock_ms(10_000);
    assert!(trusts(&known[1], &master).await);
    assert!(!trusts(&known[1], &copy).await, "promoted without the last ten seconds");
    // What came in a hundred seconds is not known to who comes now.
    copy.shift_clock_ms(100_000);
    assert!(
        !trusts(&newcomer(KEYS[2]), &copy).await,
        "promoted long after the last writing"
    );
    assert!(trusts(&known[3], &copy).await, "it has what was written last");
}

/// Markers of servers that trust this Redis, of which all but the first go on until after its data was copied.
async fn three_that_trust(server: &RedisServer, copy: impl AsyncFnOnce()) -> [Marker; 3] {
    let [first, second, third] = [OnEmptyStore::Admit; 3].map(|empty| marker("key", empty));
    assert!(trusts(&first, server).await);
    copy().await;
    assert!(trusts(&second, server).await);
    assert!(trusts(&third, server).await);
    [first, second, third]
}

/// Gives a Redis the data of another one.
fn follow(server: &RedisServer, other: &RedisServer) {
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]), "OK");
    tokio::task::block_in_place(|| {
        eventually("it has the data", LIMIT, || {
            let info = server.cli(&["INFO", "replication"]);
            info.contains("master_link_status:up").then_some(())
        });
    });
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
}

/// Asserts that older data is noticed by those that saw newer, and by others once one of them has, and that it is trusted
/// by all when an operator says so.
async fn is_noticed_to_be_older(markers: [Marker; 3], server: &RedisServer) {
    let [first, second, third] = markers;
    assert!(!trusts(&second, server).await, "it has seen more than there is");
    assert!(!trusts(&first, server).await);
    let newcomer = marker("key", OnEmptyStore::Admit);
    assert!(!trusts(&newcomer, server).await);
    let server_info = ServerInfo::ask(&mut connection(server).await).await.unwrap();
    second.admit(&server_info.run_id);
    for marker in [&second, &third, &first, &newcomer, &second] {
        assert!(trusts(marker, server).await);
    }
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_runs_on_with_an_older_snapshot_is_not_trusted() {
    common::skip_unless!(available());
    let server = RedisServer::start(&["--enable-debug-command", "yes"]);
    let markers = three_that_trust(&server, async || assert_eq!(server.cli(&["SAVE"]), "OK")).await;
    assert_eq!(server.cli(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    is_noticed_to_be_older(markers, &server).await;
    // The snapshot of another store, in which other servers have granted, later than these in theirs.
    let server = RedisServer::start(&["--enable-debug-command", "yes"]);
    let other = RedisServer::start(&[]);
    let markers = three_that_trust(&server, async || {}).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(trusts(&marker("key", OnEmptyStore::Admit), &other).await);
    assert_eq!(other.cli(&["SAVE"]), "OK");
    std::fs::copy(other.dir().join("dump.rdb"), server.dir().join("dump.rdb")).unwrap();
    assert_eq!(server.cli(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    is_noticed_to_be_older(markers, &server).await;
    // A newcomer cannot know, and hides it from nobody, however often it looks.
    let markers = three_that_trust(&server, async || assert_eq!(server.cli(&["SAVE"]), "OK")).await;
    assert_eq!(server.cli(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    let newcomer = marker("key", OnEmptyStore::Quarantine);
    for _ in 0..5 {
        assert!(trusts(&newcomer, &server).await);
    }
    is_noticed_to_be_older(markers, &server).await;
    assert!(!server.cli(&["HKEYS", "key"]).is_empty());
    // Nothing went back: all of it was saved.
    assert_eq!(server.cli(&["DEBUG", "RELOAD"]), "OK");
    assert!(trusts(&marker("key", OnEmptyStore::Quarantine), &server).await);
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_took_over_the_data_of_an_older_copy_is_not_trusted() {
    common::skip_unless!(available());
    let fast = ["--repl-diskless-sync-delay", "0"];
    let (server, copy) = (RedisServer::start(&fast), RedisServer::start(&fast));
    let markers = three_that_trust(&server, async || follow(&copy, &server)).await;
    follow(&server, &copy);
    is_noticed_to_be_older(markers, &server).await;
}

// G94
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_files_of_a_durable_redis_are_noticed_also_after_a_newcomer_trusted_them() {
    common::skip_unless!(available());
    let mut server = RedisServer::durable();
    let folder = server.dir().to_owned();
    // A newcomer cannot know, and looks as often as the others did.
    for looks in [0, 3] {
        let kept = tempfile::tempdir().unwrap();
        let markers = three_that_trust(&server, async || copy(&folder, kept.path())).await;
        server.kill9();
        copy(kept.path(), &folder);
        server.restart();
        let newcomer = marker("key", OnEmptyStore::Quarantine);
        for _ in 0..looks {
            assert!(trusts(&newcomer, &server).await);
        }
        is_noticed_to_be_older(markers, &server).await;
    }
    // Nothing went back: who looks first after a restart does not matter.
    let [first, second, _] = three_that_trust(&server, async || {}).await;
    server.kill9();
    server.restart();
    for marker in [marker("key", OnEmptyStore::Quarantine), second, first] {
        assert!(trusts(&marker, &server).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_copy_of_a_redis_that_was_noticed_to_be_older_is_not_trusted() {
    common::skip_unless!(available());
    let server = RedisServer::start(&["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
    let copies = [0; 2].map(|_| RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]));
    // They are older than the marker's last writing, as those are that did not restart with less.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let [_first, second, _third] = three_that_trust(&server, async || assert_eq!(server.cli(&["SAVE"]), "OK")).await;
    assert_eq!(server.cli(&["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    assert!(!trusts(&second, &server).await);
    tokio::task::block_in_place(|| {
        eventually("the copies have it", LIMIT, || {
            let has_it = |copy: &RedisServer| copy.cli(&["HEXISTS", "key", "older"]) == "1";
            copies.iter().all(has_it).then_some(())
        });
    });
    for (copy, is_older) in copies.iter().zip([true, false]) {
        assert_eq!(copy.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
        if !is_older {
            assert_eq!(copy.cli(&["HDEL", "key", "older"]), "1");
        }
        assert_eq!(!trusts(&marker("key", OnEmptyStore::Quarantine), copy).await, is_older);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_forgets_those_who_are_gone() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let own = marker("key", OnEmptyStore::Admit);
    assert!(trusts(&own, &server).await);
    let fields = || {
        server
            .cli(&["HKEYS", "key"])
            .lines()
            .filter(|field| field.starts_with("by:"))
            .count()
    };
    let gone: Vec<_> = (0..300).flat_map(|gone| [format!("by:{gone}"), "1".into()]).collect();
    let gone = gone.iter().map(String::as_str);
    server.cli(&["HSET", "key"].into_iter().chain(gone).collect::<Vec<_>>());
    assert!(trusts(&own, &server).await);
    assert_eq!(fields(), 1, "many are forgotten once a day has passed");
    server.cli(&["HSET", "key", "by:gone", "1", "run_id", "another"]);
    let server_info = ServerInfo::ask(&mut connection(&server).await).await.unwrap();
    own.admit(&server_info.run_id);
    assert!(trusts(&own, &server).await);
    assert_eq!(fields(), 1, "all are behind an admission");
}

/// Copies all files of a folder into another one.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status();
    assert!(copied.unwrap().success());
}

// G93
#[tokio::test]
async fn writes_are_durable_only_if_synced_during_a_rewrite_too() {
    common::skip_unless!(available());
    let always = ["--appendonly", "yes", "--appendfsync", "always"];
    let durable = RedisServer::start(&always);
    assert!(ServerInfo::ask(&mut connection(&durable).await).await.unwrap().durable);
    let unsynced = [always.as_slice(), &["--no-appendfsync-on-rewrite", "yes"]].concat();
    let server = RedisServer::start(&unsynced);
    assert!(!ServerInfo::ask(&mut connection(&server).await).await.unwrap().durable);
}
