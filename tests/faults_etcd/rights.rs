//! An account that may not do everything.

use std::time::Duration;

use etcd_client::{Permission, PermissionType, RoleRevokePermissionOptions};
use fencepost::backend::Health;
use fencepost::backend::etcd::settings::{Login, Settings};
use fencepost::error::Error;

use crate::bench::{acquire, cluster, etcd, health, take, unready};

const TTL: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_only_read_is_found_out_at_the_start() {
    let Some(cluster) = cluster(1, &[]) else { return };
    let mut admin = etcd(&cluster).await;
    let below = |kind| Permission::new(kind, "/fencepost/").with_prefix();
    for (user, role) in [("root", "root"), ("locks", "locks")] {
        admin.user_add(user, "secret", None).await.expect("etcd answers");
        admin.role_add(role).await.expect("etcd answers");
        admin.user_grant_role(user, role).await.expect("etcd answers");
    }
    let read = below(PermissionType::Read);
    admin.role_grant_permission("locks", read).await.expect("etcd answers");
    admin.auth_enable().await.expect("etcd answers");

    let mut settings = Settings::new(cluster.urls());
    settings.login = Some(Login {
        user: "locks".into(),
        password: "secret".into(),
    });
    let locks = unready(settings);
    let refused = |health: &Health| matches!(health, Health::Away { reason } if reason.contains("account"));
    health(&locks, Duration::from_secs(10), refused).await;
    let held = acquire(&locks, "a", TTL, Duration::ZERO).await;
    assert!(matches!(held, Err(Error::Backend(_))), "{held:?}");

    let options = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let mut admin = etcd_client::Client::connect(cluster.urls(), Some(options))
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
