//! A new kind of store needs one line in the registry, and no other change outside of its own module.

use std::path::Path;

mod recorded;

use super::*;
use crate::backend::driver::{InvalidSetting, StoreSettings, StoreTable};
use crate::backend::embedded::Store;
use crate::config::Overrides;
use crate::locks::Acquire;
use crate::name::{Identity, LockName, Metadata, Mode, Owner};
use crate::schema::{Count, section};

section! {
    /// A toy store.
    pub struct ToySection {
        /// How many claims a namespace holds.
        claim_limit: Count<1, 9> = Count::nearest(9),
        /// The file with the password for the toy store.
        password_file: Option<std::path::PathBuf> = None,
    }
}

/// Settings with which the embedded store opens in memory.
#[derive(Debug, PartialEq, Eq)]
struct ToyConfig {
    claim_limit: u32,
}

impl StoreTable for ToySection {
    fn check(&self, _: Option<&Path>) -> Result<StoreConfig, InvalidSetting> {
        match self.claim_limit.get() {
            7 => Err(InvalidSetting::new("claim_limit", "must not be 7")),
            claim_limit => Ok(StoreConfig::new(ToyConfig { claim_limit })),
        }
    }
}

impl StoreSettings for ToyConfig {
    fn check_files(&self) -> Result<(), InvalidSetting> {
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Ap
    }

    fn claim_limit(&self) -> u32 {
        self.claim_limit
    }

    fn open(&self, _: Duration) -> Result<Arc<dyn OpenStore>, StoreError> {
        Ok(Arc::new(Store::memory()))
    }
}

/// The registry with one more line for the toy store.
fn with_toy() -> Vec<Entry> {
    let mut stores = ALL.to_vec();
    stores.push(Entry::of::<ToySection>("toy"));
    stores
}

/// Reads a configuration with the registry of [`with_toy`].
fn read(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("f.toml");
    std::fs::write(&file, text).expect("a file");
    let overrides = Overrides {
        config: Some(file.clone()),
        ..Overrides::default()
    };
    let path = file.display().to_string();
    Config::load(overrides, &with_toy()).map_err(|error| error.to_string().replace(&path, "f.toml"))
}

const TWO_TOYS: &str = "[namespaces.a]\nbackend = 'toy'\n[namespaces.a.toy]\nclaim_limit = 2\npassword_file = '/p'\n\
                        [namespaces.b]\nbackend = 'toy'\ntoy.claim_limit = 2\n";

fn ask(lock: &str) -> Acquire {
    Acquire {
        lock: LockName::new(lock).expect("a name"),
        owner: Owner::new("o").expect("a name"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        ttl: None,
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    }
}

#[tokio::test]
async fn a_lock_in_an_added_store_is_acquired() {
    let config = read(TWO_TOYS).expect("a configuration");
    let stores = open(&config, None).await.expect("stores");
    assert_eq!(stores.open.len(), 1, "namespaces with equal settings share a store");
    let namespaces = stores.namespaces().clone();
    let locks = namespaces.get("a").expect("served");
    locks.acquire(ask("x")).await.expect("free").delivered();
    locks.acquire(ask("x")).await.expect_err("held");
    locks.acquire(ask("y")).await.expect("free").delivered();
    locks.acquire(ask("z")).await.expect_err("it holds two claims");
    let other = namespaces.get("b").expect("served");
    other.acquire(ask("x")).await.expect("another namespace").delivered();
    namespaces.close().await;
}

#[test]
fn the_table_of_an_added_store_is_checked_shown_and_watched() {
    let config = read(TWO_TOYS).expect("a configuration");
    let shown = config.show();
    assert!(shown.contains("\n# A toy store.\n[namespaces.a.toy]\n"), "{shown}");
    assert!(shown.contains("\n# Default: 9\nclaim_limit = 2\n"), "{shown}");
    assert!(config.files().contains(&"/p".into()));
    for (more, refusal) in [
        (
            "toy.claim_limit = 7",
            "f.toml:3:5: namespaces.a.toy.claim_limit: must not be 7",
        ),
        (
            "toy.unknown = 7",
            "f.toml:3:5: namespaces.a.toy.unknown: unknown field `unknown`, expected `claim_limit` or `password_file`",
        ),
        (
            "guarantee = 'cp'",
            "f.toml:3:1: namespaces.a.guarantee: must be at most AP",
        ),
        (
            "embedded.path = 'x'",
            "f.toml:3:1: namespaces.a.embedded: must be absent where backend is \"toy\"",
        ),
    ] {
        let refused = read(&format!("[namespaces.a]\nbackend = 'toy'\n{more}\n")).expect_err(more);
        assert!(refused.starts_with(refusal), "{refused}");
    }
    let unknown = read("[namespaces.a]\nbackend = 'paper'\n").expect_err("no such store");
    assert!(unknown.ends_with(", toy), not \"paper\""), "{unknown}");
}
