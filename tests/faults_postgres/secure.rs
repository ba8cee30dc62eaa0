//! TLS, certificates and passwords.

use std::path::Path;
use std::time::Duration;

use fencepost::backend::Health;
use fencepost::backend::postgres::Store;
use fencepost::backend::postgres::settings::{Credentials, Login, Tls};

use crate::certificates::Certificates;
use crate::clients::take;
use crate::clients::{health, serves};
use crate::harness::{READY, settings_of};
use crate::replicas::locks_of;
use crate::servers::{NAME, Postgres, available, give};

const TTL: Duration = Duration::from_secs(60);

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("a file of the test's own")
}

/// A server that lets the service in only over TLS, with a certificate of this authority and the password `right`.
fn strict(certificates: &Certificates) -> Postgres {
    let mut server = Postgres::started(&[]);
    server.sql(&format!("ALTER ROLE {NAME} PASSWORD 'right'"));
    server.stop();
    let folder = server.folder().to_owned();
    let rules = format!(
        "host all postgres 127.0.0.1/32 trust\nhostssl {NAME} {NAME} 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
    );
    let files = [
        ("hba_file", rules.into_bytes()),
        ("ssl_ca_file", read(&certificates.ca)),
        ("ssl_cert_file", read(&certificates.certificate)),
        ("ssl_key_file", read(&certificates.key)),
    ];
    for (setting, text) in files {
        let path = folder.join(setting);
        std::fs::write(&path, text).expect("a file");
        give(&path, 0o600);
        server.set(setting, path.to_str().expect("text"));
    }
    server.set("ssl", "on");
    server.start();
    server
}

fn with(password: &str, tls: Option<Tls>) -> Credentials {
    let login = Login {
        user: NAME.into(),
        password: password.into(),
    };
    Credentials {
        login: Some(login),
        tls,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_right_certificates_and_the_right_password_serve_and_each_other_is_told() {
    common::skip_unless!(available());
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [ours, others] = [0, 1].map(|at: usize| Certificates::write(folders[at].path()));
    let server = strict(&ours);
    let identity = |of: &Certificates| Some((read(&of.certificate), read(&of.key)));
    let tls = || Tls {
        authority: read(&ours.ca),
        identity: identity(&ours),
        server_name: None,
    };
    let named = |name: &str| Tls {
        server_name: Some(name.into()),
        ..tls()
    };
    let (address, by_name) = (server.address(), format!("localhost:{}", server.port()));
    let cases = [
        (&address, with("right", Some(tls())), ""),
        (
            &address,
            with("wrong", Some(tls())),
            "password authentication failed for user \"fencepost\"",
        ),
        (&address, with("right", None), "no encryption"),
        (
            &address,
            with(
                "right",
                Some(Tls {
                    authority: read(&others.ca),
                    ..tls()
                }),
            ),
            "certificate",
        ),
        (
            &address,
            with(
                "right",
                Some(Tls {
                    identity: None,
                    ..tls()
                }),
            ),
            "requires a valid client certificate",
        ),
        (
            &address,
            with(
                "right",
                Some(Tls {
                    identity: identity(&others),
                    ..tls()
                }),
            ),
            "received fatal alert",
        ),
        (
            &by_name,
            with("right", Some(tls())),
            "certificate not valid for name \"localhost\"",
        ),
        (&by_name, with("right", Some(named("127.0.0.1"))), ""),
        (
            &address,
            with("right", Some(named("example.org"))),
            "certificate not valid for name \"example.org\"",
        ),
    ];
    for (address, credentials, problem) in cases {
        let store = Store::open(settings_of(vec![address.clone()]), credentials).expect("random numbers");
        let locks = locks_of(&store);
        let says = |health: &Health| match health {
            Health::Serving => problem.is_empty(),
            Health::Unavailable { reason } => !problem.is_empty() && reason.contains(problem),
            Health::Quarantined { .. } => false,
        };
        health(&locks, READY, says).await;
        if problem.is_empty() {
            let lease = take(&locks, "a", TTL).await;
            locks.release(&lease.key).await.expect("it is held");
        }
    }
    let encrypted =
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'fencepost'";
    assert_ne!(server.sql(encrypted), "f");
}

// G64b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_renewed_are_used_for_new_connections_and_leases_stay() {
    common::skip_unless!(available());
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [ours, others] = [0, 1].map(|at: usize| Certificates::write(folders[at].path()));
    let server = strict(&ours);
    let with_pair = |pair| {
        let authority = read(&ours.ca);
        with(
            "right",
            Some(Tls {
                authority,
                identity: Some(pair),
                server_name: None,
            }),
        )
    };
    let first = (read(&ours.certificate), read(&ours.key));
    let store = Store::open(settings_of(vec![server.address()]), with_pair(first)).expect("random numbers");
    let locks = locks_of(&store);
    serves(&locks, READY).await;
    let held = take(&locks, "a", TTL).await;
    let reconnect = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'fencepost'";
    let away = |health: &Health| *health != Health::Serving;
    store.set_credentials(with_pair((read(&others.certificate), read(&others.key))));
    locks.renew(&held.key, None).await.expect("open connections go on");
    server.sql(reconnect);
    health(&locks, READY, away).await;
    let (certificate, key) = ours.renewed();
    store.set_credentials(with_pair((certificate.into(), key.into())));
    serves(&locks, READY).await;
    locks.renew(&held.key, None).await.expect("it is held");
    locks.release(&held.key).await.expect("it is held");
}
