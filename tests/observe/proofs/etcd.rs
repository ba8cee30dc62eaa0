//! An etcd whose accounts and certificates change.

use etcd_client::{Client, ConnectOptions, Permission, PermissionType};

use super::{APPLIED, FAILED, Kept, fails, file, replace, served, serves};
use crate::observe::certificates::Certificates;
use crate::observe::etcd_servers::{Cluster, available};
use crate::observe::fixture::eventually;

const TAKEN: &str = "etcd accepts the new credentials";

/// A cluster of its own, where this machine can have one.
fn cluster(scheme: &'static str, more: &[&str]) -> Option<Cluster> {
    available().then(|| Cluster::start_over(scheme, 1, more))
}

/// Lets only accounts in: `root`, and `locks` with this password.
async fn with_accounts(cluster: &Cluster, password: &str) {
    let mut admin = Client::connect(cluster.urls(), None).await.expect("etcd answers");
    for (user, role, password) in [("root", "root", "secret"), ("locks", "locks", password)] {
        admin.user_add(user, password, None).await.expect("etcd answers");
        admin.role_add(role).await.expect("etcd answers");
        admin.user_grant_role(user, role).await.expect("etcd answers");
    }
    let below = Permission::new(PermissionType::Readwrite, "/fencepost/").with_prefix();
    admin.role_grant_permission("locks", below).await.expect("etcd answers");
    admin.auth_enable().await.expect("etcd answers");
}

async fn change_password(cluster: &Cluster, password: &str) {
    let options = ConnectOptions::new().with_user("root", "secret");
    let admin = Client::connect(cluster.urls(), Some(options)).await;
    let mut admin = admin.expect("etcd answers");
    let changed = admin.user_change_password("locks", password).await;
    changed.expect("etcd answers");
}

// G64a
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_of_an_etcd_is_used_whichever_side_changes_first() {
    let Some(cluster) = cluster("http", &[]) else { return };
    with_accounts(&cluster, "first").await;
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first\n");
    let store = format!(
        "backend = 'etcd'\netcd.endpoints = ['{}']\netcd.user = 'locks'\netcd.password_file = {password:?}\n",
        cluster.urls()[0]
    );
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    replace(&password, "the-second\n");
    fixture.shows(APPLIED, &[], 1.0).await;
    let refused = "etcd does not accept the new credentials";
    eventually("it is told", || fixture.server.said(refused)).await;
    kept.goes_on().await;
    assert_eq!(kept.failed(), 0, "the one before is used while it can be");
    change_password(&cluster, "the-second").await;
    eventually("it is taken", || fixture.server.said(TAKEN)).await;
    kept.goes_on().await;

    let before = kept.failed();
    change_password(&cluster, "the-third").await;
    eventually("etcd refuses the one before", || kept.failed() > before).await;
    replace(&password, "the-third\n");
    fixture.shows(APPLIED, &[], 2.0).await;
    kept.goes_on().await;
    serves(&fixture).await;
    kept.end().await;
    assert!(!fixture.server.said("the-second"), "the log tells a password");
}

/// A member that asks for certificates, and a namespace in it.
fn encrypted(folder: &tempfile::TempDir) -> Option<(Cluster, Certificates, String)> {
    let files = Certificates::write(folder.path());
    let path = |path: &std::path::Path| path.display().to_string();
    let (ca, certificate, key) = (path(&files.ca), path(&files.certificate), path(&files.key));
    let own = tempfile::tempdir_in(folder.path()).expect("a directory").keep();
    // Its own, so that it goes on with them when those of the namespace change.
    let [certificate, key] = [certificate, key].map(|file| {
        let name = std::path::Path::new(&file).file_name().expect("a name");
        std::fs::copy(&file, own.join(name)).expect("a copy");
        path(&own.join(name))
    });
    let options = [
        "--trusted-ca-file",
        &ca,
        "--cert-file",
        &certificate,
        "--key-file",
        &key,
        "--client-cert-auth",
    ];
    let cluster = cluster("https", &options)?;
    let store = format!(
        "backend = 'etcd'\netcd.endpoints = ['{}']\netcd.ca_file = {:?}\netcd.cert_file = {:?}\n\
         etcd.key_file = {:?}\n",
        cluster.urls()[0],
        files.ca,
        files.certificate,
        files.key
    );
    Some((cluster, files, store))
}

// G64b
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_an_etcd_changes_under_load_and_no_call_fails() {
    let folder = tempfile::tempdir().expect("a directory");
    let Some((_cluster, files, store)) = encrypted(&folder) else {
        return;
    };
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;
    let (certificate, key) = files.renewed();
    replace(&files.certificate, certificate);
    fixture.shows(FAILED, &[], 1.0).await;
    let told = "namespace far: its etcd: ";
    assert!(fixture.server.said(told), "the log does not tell of the files");
    assert!(!fixture.server.said(TAKEN), "half of a pair");
    replace(&files.key, key);
    fixture.shows(FAILED, &[], 0.0).await;
    eventually("it is taken", || fixture.server.said(TAKEN)).await;
    kept.goes_on().await;
    assert_eq!(kept.failed(), 0);
    kept.end().await;
}

// G64b
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_comes_back_under_another_authority_is_reached_with_the_new_certificates() {
    let folder = tempfile::tempdir().expect("a directory");
    let Some((mut cluster, files, store)) = encrypted(&folder) else {
        return;
    };
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    // Half of a pair: what was read before is used for the connection after this one too.
    let (certificate, _) = files.renewed();
    replace(&files.certificate, certificate);
    fixture.shows(FAILED, &[], 1.0).await;
    cluster.servers[0].kill9();
    fails(&fixture).await;
    cluster.servers[0].start();
    serves(&fixture).await;
    kept.goes_on().await;

    cluster.servers[0].kill9();
    fails(&fixture).await;
    let next = Certificates::write(folder.path());
    std::fs::copy(&next.certificate, cluster.servers[0].argument("--cert-file")).expect("a copy");
    std::fs::copy(&next.key, cluster.servers[0].argument("--key-file")).expect("a copy");
    cluster.servers[0].start();
    serves(&fixture).await;
    kept.goes_on().await;
    fixture.shows(FAILED, &[], 0.0).await;
    kept.end().await;
}
