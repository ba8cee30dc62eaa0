//! A PostgreSQL whose password changes.

use super::{APPLIED, Kept, fails, file, replace, served, serves};
use crate::observe::fixture::ask;
use crate::observe::postgres_servers::{NAME, Postgres, available, give};

/// A server that asks the service for this password.
fn asking(password: &str) -> Postgres {
    let mut server = Postgres::started(&[]);
    change(&server, password);
    let rules = server.folder().join("rules");
    let text = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(&rules, text).expect("a file");
    give(&rules, 0o600);
    server.stop();
    server.set("hba_file", rules.to_str().expect("text"));
    server.start();
    server
}

fn change(server: &Postgres, password: &str) {
    server.sql(&format!("ALTER ROLE {NAME} PASSWORD '{password}'"));
}

/// Ends all sessions of the service.
fn cut(server: &Postgres) {
    server.sql(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{NAME}'"
    ));
}

// G64a
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_of_a_postgres_is_used_for_each_new_connection_and_no_lease_is_lost() {
    common::skip_unless!(available());
    let server = asking("first");
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first\n");
    let store = format!(
        "backend = 'postgres'\npostgres.servers = ['{}']\npostgres.password_file = {password:?}\n",
        server.address()
    );
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    change(&server, "the-second");
    replace(&password, "the-second\n");
    fixture.shows(APPLIED, &[], 1.0).await;
    kept.goes_on().await;
    assert_eq!(kept.failed(), 0, "open connections go on");
    cut(&server);
    serves(&fixture).await;
    kept.goes_on().await;
    assert!(
        !server.log().contains("password authentication failed"),
        "the old password is not tried"
    );

    change(&server, "the-third");
    cut(&server);
    fails(&fixture).await;
    let refused = fixture
        .calls
        .try_acquire(ask("far", "a", "o"))
        .await
        .expect_err("it is away");
    let told = "password authentication failed for user";
    assert!(refused.message().contains(told), "{refused:?}");
    replace(&password, "the-third\n");
    serves(&fixture).await;
    kept.goes_on().await;
    kept.end().await;
    assert!(!fixture.server.said("the-second"), "the log tells a password");
}
