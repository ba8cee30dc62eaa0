//! A store without room: a full disk, and a quota that is used up.

use std::process::Command;
use std::time::Duration;

use fencepost::error::Error;

use crate::clients::{acquire, take, token};
use crate::harness::{READY, ROOT, nothing_is_left, replica, serves, store};
use crate::raw::Connection;
use crate::servers::{Ensemble, Options, found, program};

const TTL: Duration = Duration::from_secs(60);

// G126
/// A server whose files cannot grow any more writes nothing, so it answers nothing: what was granted before is what
/// counts afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_grants_until_there_is_room() {
    let Some(mut ensemble) = store(1) else { return };
    let locks = replica(&ensemble).await;
    let held = take(&locks, "held", TTL).await;
    let server = ensemble.servers[0].process().to_string();
    let limited = Command::new("prlimit").args(["--pid", &server, "--fsize=1"]).status();
    assert!(limited.expect("prlimit runs").success());
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    // Room again: its process ends with the first write that fails, and its supervisor starts it.
    ensemble.kill_all();
    ensemble.servers[0].restart();
    serves(&locks).await;
    let again = async {
        loop {
            match acquire(&locks, "a", TTL, Duration::ZERO).await {
                Err(Error::Backend(_) | Error::LockHeld { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => return other.expect("it is free"),
            }
        }
    };
    let again = tokio::time::timeout(READY, again).await.expect("it is served again");
    assert!(token(&again) > token(&held));
    let other = acquire(&locks, "held", TTL, Duration::ZERO).await;
    assert!(matches!(other, Err(Error::LockHeld { .. })), "{other:?}");
    for lease in [&held, &again] {
        locks.release(&lease.key).await.expect("it is held");
    }
    nothing_is_left(&ensemble).await;
}

// G126
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_is_used_up_stops_grants_and_lets_releases_pass() {
    let options = Options {
        flags: vec!["-Dzookeeper.enforceQuota=true".to_owned()],
        ..Options::default()
    };
    let Some(program) = found(program()) else { return };
    let ensemble = Ensemble::start_of(program, 1, &options);
    let locks = replica(&ensemble).await;
    let held = take(&locks, "held", TTL).await;
    let mut operator = Connection::open(&ensemble.servers[0].address());
    // Nodes of quotas are at the path that they limit.
    let mut path = "/zookeeper/quota".to_owned();
    for part in ROOT.trim_start_matches('/').split('/') {
        path = format!("{path}/{part}");
        operator.create(&path, ("world", "anyone")).expect("it is not there");
    }
    for node in ["zookeeper_limits", "zookeeper_stats"] {
        let node = format!("{path}/{node}");
        operator.create(&node, ("world", "anyone")).expect("it is not there");
    }
    let limits = format!("{path}/zookeeper_limits");
    let limit = |count: i64| format!("count=-1,bytes=-1,byteHardLimit=-1,countHardLimit={count}");
    operator.write(&limits, limit(5).as_bytes()).expect("it is there");
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await;
    let Err(Error::Backend(failure)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(failure.to_string().contains("quota"), "{failure}");
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
    operator
        .write(&limits, limit(1_000_000).as_bytes())
        .expect("it is there");
    let next = take(&locks, "held", TTL).await;
    assert!(token(&next) > token(&held));
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&ensemble).await;
}
