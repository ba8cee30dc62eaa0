//! The client of the library while the token in its file changes.

use fencepost::auth::{Policy, PolicySettings};
use fencepost_client::{Client, Credentials, Error};
use tempfile::TempDir;

use super::authority::file;
use super::fixture::{Fixture, access, bearer, everything};

fn knows(names: &[&str]) -> PolicySettings {
    PolicySettings {
        bearers: names.iter().map(|name| bearer(name)).collect(),
        rules: everything(),
        ..PolicySettings::default()
    }
}

/// From now on the server knows these alone.
fn replace(fixture: &Fixture, names: &[&str]) {
    let policy = Policy::open(&knows(names)).expect("a policy");
    fixture.access.auth.replace(Some(policy));
}

async fn client(fixture: &Fixture, folder: &TempDir) -> Client {
    let credentials = Credentials::default().bearer(folder.path().join("token"));
    let address = fixture.address.parse().expect("an address");
    Client::connect_as(&[address], credentials).await.expect("a server")
}

async fn looks(client: &Client) -> Result<(), Error> {
    client.get("jobs", "a").await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_accepted_any_more_is_read_again_at_once() {
    let fixture = Fixture::open(access(&knows(&["one"]))).await;
    let folder = tempfile::tempdir().expect("a directory");
    file(folder.path(), "token", "secret-one\n");
    let client = client(&fixture, &folder).await;
    looks(&client).await.expect("known");
    file(folder.path(), "token", "secret-two\n");
    replace(&fixture, &["two"]);
    looks(&client).await.expect("the new one is shown");
    file(folder.path(), "token", "secret-three\n");
    replace(&fixture, &["three"]);
    let guard = client.acquire("jobs", "a", "me").await.expect("granted");
    file(folder.path(), "token", "secret-four\n");
    replace(&fixture, &["four"]);
    let changes = client.watch("jobs", "a").await;
    assert!(changes.is_ok(), "watching reads it again too");
    guard.release().await.expect("it is held");
    replace(&fixture, &["five"]);
    looks(&client).await.expect_err("there is no other");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_is_no_token_and_the_last_one_goes_on() {
    let fixture = Fixture::open(access(&knows(&["one"]))).await;
    let folder = tempfile::tempdir().expect("a directory");
    file(folder.path(), "token", " \n");
    let empty = looks(&client(&fixture, &folder).await).await.expect_err("no token");
    assert!(matches!(empty, Error::BadCredentials { .. }), "{empty:?}");

    file(folder.path(), "token", "secret-one\n");
    let client = client(&fixture, &folder).await;
    looks(&client).await.expect("known");
    // As whoever writes it leaves it for a moment.
    file(folder.path(), "token", "");
    replace(&fixture, &["two"]);
    looks(&client).await.expect_err("not known for now");
    replace(&fixture, &["one"]);
    looks(&client).await.expect("the last good one is shown");
}
