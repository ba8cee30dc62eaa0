//! Namespaces that are gone and whose last calls do not end: here somebody keeps their locks.

use std::fs;
use std::time::Duration;

use fencepost::config::{Config, Overrides};
use fencepost::locks::Locks;
use fencepost::name::LockName;
use fencepost::namespaces::Namespaces;
use fencepost::reload::{FileSnapshots, Reload};
use fencepost::stores;
use futures::stream;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::observe::fixture::eventually;

const STAYS: &str = "[namespaces.stays]\nembedded.path = ':memory:'\n";
const OTHER: &str = "[namespaces.other]\nembedded.path = 'other.redb'\n";
/// Longer than a server that ends waits for them, and shorter than they may take otherwise.
const END: Duration = Duration::from_secs(9);

/// A configuration, and what takes its changes up.
struct Fixture {
    reload: Reload,
    namespaces: Namespaces,
    home: TempDir,
}

impl Fixture {
    async fn start(config: &str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        configure(&home, config);
        let overrides = Overrides {
            config: Some(home.path().join("f.toml")),
            ..Overrides::default()
        };
        let config = Config::load(overrides.clone(), stores::ALL).expect("a good file");
        let stores = stores::open(&config, None).await.expect("stores");
        Self {
            namespaces: stores.namespaces().clone(),
            reload: Reload::new((overrides, FileSnapshots::default()), config, stores, None),
            home,
        }
    }

    /// One from which a namespace has just gone, and what is kept of it.
    async fn without_other() -> (Self, Locks) {
        let mut fixture = Self::start(&format!("{STAYS}{OTHER}")).await;
        let kept = fixture.namespaces.get("other").expect("it is served");
        fixture.promote(STAYS).await;
        assert!(fixture.namespaces.get("other").is_err());
        (fixture, kept)
    }

    /// Takes another configuration up.
    async fn promote(&mut self, config: &str) {
        configure(&self.home, config);
        self.reload.reload_and_log().await;
    }

    /// Looks at the files from now on.
    fn run(self, stop: &CancellationToken) -> (JoinHandle<()>, Namespaces, TempDir) {
        let run = self.reload.run(stream::pending(), stop.clone());
        (tokio::spawn(run), self.namespaces, self.home)
    }
}

fn configure(home: &TempDir, config: &str) {
    let data = home.path().display();
    fs::write(home.path().join("f.toml"), format!("data_dir = '{data}'\n{config}")).expect("a file");
}

async fn is_open(locks: &Locks) -> bool {
    let name = LockName::new("x").expect("a name");
    locks.inspect(&name, 1).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_whose_calls_do_not_end_holds_no_other_change_up() {
    let (mut fixture, kept) = Fixture::without_other().await;
    fixture
        .promote(&format!("{STAYS}[namespaces.new]\nembedded.path = ':memory:'\n"))
        .await;
    assert!(fixture.namespaces.get("new").is_ok());
    assert!(is_open(&kept).await, "its last calls may still end");
}

/// A namespace on the file of one that is not over comes under this name.
async fn comes_later(name: &str) {
    let (mut fixture, kept) = Fixture::without_other().await;
    let comes = OTHER.replace("namespaces.other", &format!("namespaces.{name}"));
    fixture.promote(&format!("{STAYS}{comes}")).await;
    assert!(fixture.namespaces.get(name).is_err(), "it is put off");
    assert!(is_open(&kept).await, "the last calls may still end");
    let stop = CancellationToken::new();
    let (run, namespaces, _home) = fixture.run(&stop);
    drop(kept);
    eventually("it is served", || namespaces.get(name).is_ok()).await;
    assert!(is_open(&namespaces.get(name).expect("it is served")).await);
    stop.cancel();
    run.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_comes_back_when_its_last_calls_have_ended() {
    comes_later("other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_taken_over_when_the_last_calls_on_it_have_ended() {
    comes_later("third").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_in_time_though_a_namespace_that_is_gone_has_not() {
    let (fixture, kept) = Fixture::without_other().await;
    let stop = CancellationToken::new();
    let (run, _namespaces, _home) = fixture.run(&stop);
    stop.cancel();
    tokio::time::timeout(END, run).await.expect("in time").expect("it ends");
    drop(kept);
}
