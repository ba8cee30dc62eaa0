//! Who a replica is to etcd: accounts, their tokens, certificates.

use std::time::Duration;

use common::clients::spawn_acquire;
use etcd_client::{Client, ConnectOptions, Permission, PermissionType, RoleRevokePermissionOptions};
use fencepost::backend::Health;
use fencepost::backend::etcd::settings::{Login, Settings, Tls};
use fencepost::error::Error;

use crate::certificates::Certificates;
use crate::harness::{acquire, cluster, cluster_over, etcd, health, take, token, unready, waiters};
use crate::servers::Cluster;

const TTL: Duration = Duration::from_secs(30);

fn below(kind: PermissionType) -> Permission {
    Permission::new(kind, "/fencepost/").with_prefix()
}

/// Lets only accounts in: `root`, and `locks` with this right.
async fn with_accounts(cluster: &Cluster, right: PermissionType) {
    let mut admin = etcd(cluster).await;
    for (user, role) in [("root", "root"), ("locks", "locks")] {
        admin.user_add(user, "secret", None).await.expect("etcd answers");
        admin.role_add(role).await.expect("etcd answers");
        admin.user_grant_role(user, role).await.expect("etcd answers");
    }
    let granted = admin.role_grant_permission("locks", below(right)).await;
    granted.expect("etcd answers");
    admin.auth_enable().await.expect("etcd answers");
}

/// The settings of a replica with the account `locks`.
fn as_locks(cluster: &Cluster) -> Settings {
    let mut settings = Settings::new(cluster.urls());
    settings.credentials.login = Some(Login {
        user: "locks".into(),
        password: "secret".into(),
    });
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_only_read_is_found_out_at_the_start() {
    let Some(cluster) = cluster(1, &[]) else { return };
    with_accounts(&cluster, PermissionType::Read).await;
    let locks = unready(as_locks(&cluster));
    let refused = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("account"));
    health(&locks, Duration::from_secs(10), refused).await;
    let held = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(matches!(held, Err(Error::Backend(_))), "{held:?}");

    let options = ConnectOptions::new().with_user("root", "secret");
    let mut admin = Client::connect(cluster.urls(), Some(options))
        .await
        .expect("etcd answers");
    let whole = RoleRevokePermissionOptions::new().with_prefix();
    let revoked = admin.role_revoke_permission("locks", "/fencepost/", Some(whole)).await;
    revoked.expect("etcd answers");
    let all = below(PermissionType::Readwrite);
    admin.role_grant_permission("locks", all).await.expect("etcd answers");
    health(&locks, Duration::from_secs(10), |health| *health == Health::Serving).await;
    let held = take(&locks, "a", TTL).await;
    locks.release(&held.key).await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_the_account_that_ends_is_renewed_and_no_call_fails() {
    let Some(cluster) = cluster(1, &["--auth-token-ttl", "1"]) else {
        return;
    };
    with_accounts(&cluster, PermissionType::Readwrite).await;
    let locks = unready(Settings {
        timeout: Duration::from_secs(15),
        // Its streams are used every 6 s, and a machine that stands still for a second or two does not break them.
        session_ttl: Duration::from_secs(24),
        ..as_locks(&cluster)
    });
    health(&locks, Duration::from_secs(20), |health| *health == Health::Serving).await;
    let held = take(&locks, "a", TTL).await;
    let waiting = spawn_acquire(&locks, "a", TTL, Duration::from_secs(60));
    waiters(&locks, "a", 1).await;
    let mut last = 0;
    for round in 0..3 {
        // The time is the matter: nobody uses the token for longer than it lives.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let other = take(&locks, &format!("b{round}"), TTL).await;
        assert!(token(&other) > last, "round {round}");
        last = token(&other);
        locks.renew(&held.key, None).await.expect("it is held");
        locks.release(&other.key).await.expect("it is held");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    locks.release(&held.key).await.expect("it is held");
    let next = waiting.await.expect("no panic").expect("it is next");
    assert!(token(&next) > token(&held));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_shows_a_certificate_of_the_authority_is_served_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = Certificates::write(folder.path());
    let path = |path: &std::path::Path| path.display().to_string();
    let (ca, certificate, key) = (path(&files.ca), path(&files.certificate), path(&files.key));
    let options = [
        "--trusted-ca-file",
        &ca,
        "--cert-file",
        &certificate,
        "--key-file",
        &key,
        "--client-cert-auth",
    ];
    let Some(cluster) = cluster_over("https", 1, &options) else {
        return;
    };
    let read = |path: &std::path::Path| std::fs::read(path).expect("it was written");
    let settings = |identity| {
        let mut settings = Settings::new(cluster.urls());
        settings.credentials.tls = Some(Tls {
            authority: read(&files.ca),
            identity,
            server_name: None,
        });
        settings
    };
    let known = unready(settings(Some((read(&files.certificate), read(&files.key)))));
    health(&known, Duration::from_secs(20), |health| *health == Health::Serving).await;
    let held = take(&known, "a", TTL).await;
    let nobody = unready(settings(None));
    let refused = acquire(&nobody, "b", TTL, Duration::ZERO).await;
    assert!(matches!(refused, Err(Error::Backend(_))), "{refused:?}");
    assert!(matches!(&*nobody.health().borrow(), Health::Unavailable { .. }));
    known.release(&held.key).await.expect("it is held");
}
