//! Who a replica is to ZooKeeper: ACLs that forbid.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::backend::zookeeper::settings::{Credentials, Login, Settings};
use fencepost::error::Error;

use crate::clients::{acquire, health, take};
use crate::harness::{READY, ROOT, replica, serves, settings, store, unready, unready_as};
use crate::raw::Connection;

const TTL: Duration = Duration::from_secs(60);

/// A replica of the user `locks`.
fn as_locks() -> Credentials {
    Credentials {
        login: Some(Login {
            user: "locks".into(),
            password: "secret".into(),
        }),
        ..Credentials::default()
    }
}

// G125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_may_not_write_says_so_and_serves_once_it_may() {
    let Some(ensemble) = store(1) else { return };
    let mut admin = Connection::open(&ensemble.servers[0].address());
    admin.log_in("admin:secret");
    // Its own id, as the servers know it.
    admin.create("/fencepost", ("auth", "")).expect("it is not there");
    let locks = unready(settings(ensemble.addresses()));
    let refused = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("account"));
    health(&locks, READY, refused).await;
    let held = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(matches!(held, Err(Error::Backend(_))), "{held:?}");
    admin.set_acl("/fencepost", ("world", "anyone")).expect("it is its own");
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.expect("it is held");
}

// G125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_user_are_of_that_user_alone() {
    let Some(ensemble) = store(1) else { return };
    let locks = unready_as(settings(ensemble.addresses()), as_locks());
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    let mut stranger = Connection::open(&ensemble.servers[0].address());
    assert!(stranger.children(ROOT).is_err(), "anybody may read");
    assert!(
        stranger.write(&format!("{ROOT}/base"), b"x").is_err(),
        "anybody may write"
    );
    let other = unready(settings(ensemble.addresses()));
    let refused = acquire(&other, "b", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    locks.release(&held.key).await.expect("it is held");
}

/// As an operator gives each tenant a part of the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_below_what_a_replica_may_not_read_is_enough() {
    let Some(ensemble) = store(1) else { return };
    let mut admin = Connection::open(&ensemble.servers[0].address());
    admin.log_in("admin:secret");
    admin.create("/tenants", ("auth", "")).expect("it is not there");
    admin
        .create("/tenants/locks", ("world", "anyone"))
        .expect("it is not there");
    let below = Settings {
        root: "/tenants/locks".into(),
        ..settings(ensemble.addresses())
    };
    let locks = unready(below);
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.expect("it is held");
    assert_eq!(admin.children("/tenants/locks").expect("it is there"), ["faults"]);
    let mut all = admin.children("/").expect("it is there");
    all.sort();
    assert_eq!(all, ["tenants", "zookeeper"], "nothing else was written");
}

/// An ACL that is narrowed under a replica: nothing that it was told is undone, and it says why it does not serve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_that_are_taken_away_are_told_and_serve_again_when_they_are_given_back() {
    let Some(ensemble) = store(1) else { return };
    let locks = replica(&ensemble).await;
    let held = take(&locks, "a", TTL).await;
    let mut admin = Connection::open(&ensemble.servers[0].address());
    admin.log_in("admin:secret");
    let base = format!("{ROOT}/base");
    let mint = format!("{ROOT}/mint");
    for path in [&base, &mint] {
        admin.set_acl(path, ("auth", "")).expect("anybody may");
    }
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    for path in [&base, &mint] {
        admin.set_acl(path, ("world", "anyone")).expect("it is its own");
    }
    serves(&locks).await;
    locks.renew(&held.key, None).await.expect("it is held");
    let other = take(&locks, "b", TTL).await;
    for lease in [&held, &other] {
        locks.release(&lease.key).await.expect("it is held");
    }
}

// G125
/// The nodes are gone, and nobody may make them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_cannot_be_proven_again_is_told_and_serves_when_it_can() {
    let Some(ensemble) = store(1) else { return };
    let locks = replica(&ensemble).await;
    let mut admin = Connection::open(&ensemble.servers[0].address());
    admin.log_in("admin:secret");
    admin.delete_all(ROOT);
    admin.create(ROOT, ("auth", "")).expect("it is not there");
    let refused = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    let told = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("account"));
    health(&locks, READY, told).await;
    admin.set_acl(ROOT, ("world", "anyone")).expect("it is its own");
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.expect("it is held");
}
