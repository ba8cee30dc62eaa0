//! Connections with TLS, and certificates and passwords that change while a replica serves.

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::clients::spawn_acquire;
use fencepost::backend::Health;
use fencepost::backend::zookeeper::Store;
use fencepost::backend::zookeeper::settings::{Credentials, Login, Settings, Tls};
use fencepost::limits::Limits;
use fencepost::locks::Locks;

use crate::certificates::Certificates;
use crate::clients::{acquire, health, take};
use crate::harness::{READY, namespace, nothing_is_left, serves, settings, store, waiters};
use crate::servers::{Ensemble, Options, current, found};
use common::ports::free_port;

const TTL: Duration = Duration::from_secs(60);

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("a file of the test's own")
}

/// A server that speaks TLS on this port with clients that have a certificate of the authority.
fn encrypted(certificates: &Certificates, folder: &Path, port: u16) -> Option<Ensemble> {
    let store = folder.join("server.pem");
    let both = [read(&certificates.key), read(&certificates.certificate)].concat();
    fs::write(&store, both).expect("a file of the test's own");
    let options = Options {
        lines: vec![format!("secureClientPort={port}")],
        flags: vec![
            "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
            format!("-Dzookeeper.ssl.keyStore.location={}", store.display()),
            "-Dzookeeper.ssl.keyStore.type=PEM".to_owned(),
            format!("-Dzookeeper.ssl.trustStore.location={}", certificates.ca.display()),
            "-Dzookeeper.ssl.trustStore.type=PEM".to_owned(),
        ],
    };
    // The packages' old one comes without what it needs for that.
    found(current()).map(|program| Ensemble::start_of(program, 1, &options))
}

/// A replica with credentials that the test changes.
fn open(settings: Settings, credentials: Credentials) -> (Store, Locks) {
    let store = Store::open(settings, credentials);
    let locks = Locks::new(namespace(), Limits::default(), store.namespace(&namespace()));
    (store, locks)
}

async fn is_away(locks: &Locks) {
    health(locks, READY, |health| *health != Health::Serving).await;
}

// G64b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_renewed_are_used_and_leases_and_waiters_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, strangers) = (folder.path().join("ours"), folder.path().join("strangers"));
    for folder in [&ours, &strangers] {
        fs::create_dir(folder).expect("a folder");
    }
    let (certificates, others) = (Certificates::write(&ours), Certificates::write(&strangers));
    let port = free_port();
    let Some(ensemble) = encrypted(&certificates, folder.path(), port) else {
        return;
    };
    let with = |authority: &Certificates, identity| Credentials {
        tls: Some(Tls {
            authority: read(&authority.ca),
            identity: Some(identity),
            server_name: None,
        }),
        ..Credentials::default()
    };
    let first = (read(&certificates.certificate), read(&certificates.key));
    let patient = Settings {
        session_timeout: READY,
        ..settings(vec![format!("127.0.0.1:{port}")])
    };
    let (store, locks) = open(patient, with(&certificates, first.clone()));
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    let waiting = spawn_acquire(&locks, "a", TTL, TTL);
    waiters(&locks, "a", 1).await;
    let (certificate, key) = certificates.renewed();
    store.set_credentials(with(&certificates, (certificate.into(), key.into())));
    is_away(&locks).await;
    serves(&locks).await;
    // The servers are not those of another authority, and a client of another one is not let in.
    store.set_credentials(with(&others, first.clone()));
    is_away(&locks).await;
    let stranger = (read(&others.certificate), read(&others.key));
    store.set_credentials(with(&certificates, stranger));
    let refused = acquire(&locks, "b", TTL, Duration::ZERO).await;
    assert!(refused.is_err(), "{refused:?}");
    store.set_credentials(with(&certificates, first));
    serves(&locks).await;
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
    let next = waiting.await.expect("no panic").expect("it is next");
    locks.release(&next.key).await.expect("it is held");
    nothing_is_left(&ensemble).await;
}

// G125
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_wrong_is_told_and_the_right_one_serves_again() {
    let Some(ensemble) = store(1) else { return };
    let with = |password: &str| Credentials {
        login: Some(Login {
            user: "locks".into(),
            password: password.into(),
        }),
        ..Credentials::default()
    };
    let (store, locks) = open(settings(ensemble.addresses()), with("right"));
    serves(&locks).await;
    let held = take(&locks, "a", TTL).await;
    store.set_credentials(with("wrong"));
    let told = |health: &Health| matches!(health, Health::Unavailable { reason } if reason.contains("account"));
    health(&locks, READY, told).await;
    store.set_credentials(with("right"));
    serves(&locks).await;
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
}
