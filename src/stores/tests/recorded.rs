//! A namespace whose store was another one before, on paused time.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use common::claims::numbered;
use futures::future;

use crate::backend::driver::StoreIdentity;
use crate::backend::embedded::Store;
use crate::backend::{AcquireOutcome, Backend, BackendError, Health, ReleaseTarget, RenewOutcome};
use crate::files;
use crate::name::{LeaseKey, LockKey, LockName, Namespace};
use crate::stores::last_served::{Before, LastServed, NamespaceStore};
use crate::stores::recorded::guard;

const HOUR: Duration = Duration::from_secs(3600);

/// A store with this name at these servers.
fn named(name: &str, servers: &[&str]) -> NamespaceStore {
    let servers: Vec<String> = servers.iter().map(|server| (*server).to_owned()).collect();
    NamespaceStore {
        namespace: jobs(),
        identity: StoreIdentity::new(name.to_owned(), &servers),
    }
}

fn jobs() -> Namespace {
    Namespace::new("jobs").unwrap()
}

fn lock() -> LockName {
    LockName::new("deploy").unwrap()
}

/// The namespace `jobs`, as a server that starts with this data directory serves it from a store.
fn served(data_dir: &Path, as_named: NamespaceStore, ttl_max: Duration, store: &Store) -> Arc<dyn Backend> {
    let last_served = LastServed::read(Some(data_dir)).unwrap();
    guard(&last_served, as_named, ttl_max, store.namespace(jobs()))
}

async fn take(backend: &dyn Backend, number: u8) -> Result<LeaseKey, BackendError> {
    match backend.acquire(&lock(), &numbered(number.into())).await? {
        AcquireOutcome::Held(grant) => Ok(LeaseKey {
            lock: LockKey {
                namespace: jobs(),
                name: lock(),
            },
            claim: grant.claim,
            kind: grant.kind,
            token: grant.token,
            secret: grant.secret,
        }),
        other => panic!("{other:?}"),
    }
}

/// How long the quarantine of a backend lasts; none if it grants.
async fn left(backend: &dyn Backend) -> Option<Duration> {
    match take(backend, 200).await {
        Err(BackendError::Quarantined { left, .. }) => Some(left),
        Ok(lease) => {
            backend
                .release(&lock(), ReleaseTarget::Hold(&lease), None)
                .await
                .unwrap();
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

// G181
#[tokio::test(start_paused = true)]
async fn the_quarantine_lasts_for_the_longest_ttl_of_both_stores_from_the_start() {
    for (old_ttl, new_ttl) in [(HOUR, 3 * HOUR), (3 * HOUR, HOUR)] {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
        let old = served(folder.path(), named("old", &[]), old_ttl, &store);
        assert_eq!(left(&*old).await, None);
        let new = served(folder.path(), named("new", &[]), new_ttl, &store);
        let health = new.health();
        assert!(matches!(&*health.borrow(), Health::Quarantined { .. }));
        tokio::time::sleep(3 * HOUR - Duration::from_secs(1)).await;
        let rest = left(&*new).await.expect("a quarantine");
        assert!(rest <= Duration::from_secs(1), "{rest:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(left(&*new).await, None);
        assert_eq!(*health.borrow(), Health::Serving);
        // The way back needs one too, with the TTL of the store that was served last.
        let back = served(folder.path(), named("old", &[]), Duration::from_secs(1), &store);
        assert!(
            left(&*back)
                .await
                .is_some_and(|left| left <= new_ttl && new_ttl - left < Duration::from_secs(1))
        );
    }
}

// G181
#[tokio::test(start_paused = true)]
async fn a_ttl_max_that_was_raised_while_the_server_ran_counts() {
    for records_first in [false, true] {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
        let last_served = LastServed::read(Some(folder.path())).unwrap();
        let old = guard(&last_served, named("old", &[]), HOUR, store.namespace(jobs()));
        if records_first {
            assert_eq!(left(&*old).await, None);
        }
        last_served.raise_ttl(&jobs(), 5 * HOUR).await;
        assert_eq!(left(&*old).await, None);
        let new = served(folder.path(), named("new", &[]), HOUR, &store);
        assert!(left(&*new).await.is_some_and(|left| left > 4 * HOUR), "{records_first}");
    }
}

// G181
#[tokio::test(start_paused = true)]
async fn a_ttl_max_that_was_lowered_still_counts() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    for ttl_max in [5 * HOUR, HOUR] {
        let old = served(folder.path(), named("old", &[]), ttl_max, &store);
        assert_eq!(left(&*old).await, None);
    }
    let new = served(folder.path(), named("new", &[]), HOUR, &store);
    assert!(left(&*new).await.is_some_and(|left| left > 4 * HOUR));
}

// G181
#[tokio::test(start_paused = true)]
async fn a_store_that_answered_nothing_is_not_taken_for_one_that_served() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    let _typo = served(folder.path(), named("typo", &[]), HOUR, &store);
    let right = served(folder.path(), named("right", &[]), HOUR, &store);
    assert_eq!(left(&*right).await, None);
    // Nor is one that was in quarantine all the time.
    let wrong = served(folder.path(), named("wrong", &[]), HOUR, &store);
    assert!(left(&*wrong).await.is_some());
    let right = served(folder.path(), named("right", &[]), HOUR, &store);
    assert_eq!(left(&*right).await, None);
}

// G181
#[tokio::test(start_paused = true)]
async fn a_store_whose_servers_are_replaced_one_by_one_is_the_same() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    for servers in [["a", "b"], ["b", "c"], ["c", "d"]] {
        let same = served(folder.path(), named("etcd", &servers), HOUR, &store);
        assert_eq!(left(&*same).await, None, "{servers:?}");
    }
    let other = served(folder.path(), named("etcd", &["a", "b"]), HOUR, &store);
    assert!(left(&*other).await.is_some());
}

// G181
#[tokio::test(start_paused = true)]
async fn nothing_is_granted_in_the_quarantine_and_an_operator_ends_it() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    let old = served(folder.path(), named("old", &[]), HOUR, &store);
    let held = take(&*old, 1).await.unwrap();
    let waiter = numbered(2);
    let queued = old.acquire(&lock(), &waiter).await;
    assert!(matches!(queued, Ok(AcquireOutcome::Waiting(_))), "{queued:?}");
    // The same state, as a store that another server has used.
    let new = served(folder.path(), named("new", &[]), HOUR, &store);
    let freed = new
        .release(&lock(), ReleaseTarget::Hold(&held), Some(&waiter))
        .await
        .unwrap();
    assert_eq!(freed.next, None);
    let promoted = new.promote(&lock(), &waiter).await;
    assert!(
        matches!(promoted, Err(BackendError::Quarantined { .. })),
        "{promoted:?}"
    );
    assert!(new.admit(Some("node")).await.is_err(), "it has no nodes");
    new.admit(None).await.unwrap();
    let back = served(folder.path(), named("old", &[]), HOUR, &store);
    assert!(left(&*back).await.is_some(), "the operator's word is recorded");
    assert!(matches!(
        new.promote(&lock(), &waiter).await,
        Ok(AcquireOutcome::Held(_))
    ));
    let mut health = new.health();
    health.wait_for(|health| *health == Health::Serving).await.unwrap();
    assert!(new.admit(None).await.is_err(), "it has no quarantine any more");
}

// G181
#[tokio::test(start_paused = true)]
async fn a_renewal_is_an_answer_of_the_store() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    // Another server has granted it.
    let lease = take(&*store.namespace(jobs()), 1).await.unwrap();
    let old = served(folder.path(), named("old", &[]), HOUR, &store);
    assert!(matches!(old.renew(&lease, None).await, Ok(RenewOutcome::Renewed(_))));
    let new = served(folder.path(), named("new", &[]), HOUR, &store);
    assert!(left(&*new).await.is_some());
}

// G181
#[tokio::test(start_paused = true)]
async fn a_renewal_in_the_quarantine_does_not_end_it_at_the_next_start() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    // Another server has granted it.
    let lease = take(&*store.namespace(jobs()), 1).await.unwrap();
    let old = served(folder.path(), named("old", &[]), HOUR, &store);
    assert!(matches!(old.renew(&lease, None).await, Ok(RenewOutcome::Renewed(_))));
    for _ in 0..2 {
        let new = served(folder.path(), named("new", &[]), HOUR, &store);
        assert!(left(&*new).await.is_some());
        assert!(matches!(new.renew(&lease, None).await, Ok(RenewOutcome::Renewed(_))));
    }
}

// G181
#[tokio::test]
async fn servers_with_one_directory_keep_the_entries_of_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let of = |namespace: &str, store: &str| NamespaceStore {
        namespace: Namespace::new(namespace).unwrap(),
        ..named(store, &[])
    };
    let servers = ["a", "b"].map(|namespace| (namespace, LastServed::read(Some(folder.path())).unwrap()));
    for (namespace, last_served) in &servers {
        assert_eq!(last_served.open(&of(namespace, "old"), HOUR), Before::Unrecorded);
        last_served.record(&of(namespace, "old")).await.unwrap();
    }
    let later = LastServed::read(Some(folder.path())).unwrap();
    for (namespace, _) in &servers {
        let before = later.open(&of(namespace, "new"), HOUR);
        assert!(matches!(before, Before::Other { .. }), "{namespace}: {before:?}");
    }
}

// G181
#[tokio::test]
async fn the_record_is_not_written_while_another_server_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let last_served = LastServed::read(Some(folder.path())).unwrap();
    last_served.open(&named("old", &[]), HOUR);
    let other = files::lock(&folder.path().join("served-stores.lock")).unwrap();
    let error = last_served.record(&named("old", &[])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(other);
    last_served.record(&named("old", &[])).await.unwrap();
}

// G181
#[test]
fn a_longer_ttl_max_changes_no_store_that_is_being_recorded() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.max_blocking_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let last_served = LastServed::read(Some(folder.path())).unwrap();
        last_served.open(&named("old", &[]), HOUR);
        last_served.record(&named("old", &[])).await.unwrap();
        last_served.open(&named("new", &[]), HOUR);
        // The disk is busy until both calls have begun.
        let (done, busy) = std::sync::mpsc::channel::<()>();
        let disk = tokio::task::spawn_blocking(move || busy.recv());
        let (new, jobs) = (named("new", &[]), jobs());
        let mut both = pin!(future::join(
            last_served.record(&new),
            last_served.raise_ttl(&jobs, 5 * HOUR)
        ));
        assert!(futures::poll!(&mut both).is_pending());
        drop(done);
        both.await.0.unwrap();
        disk.await.unwrap().unwrap_err();
        let later = LastServed::read(Some(folder.path())).unwrap();
        let Before::Other { store, longest_ttl } = later.open(&named("other", &[]), HOUR) else {
            panic!("it was served from another store");
        };
        assert_eq!((store, longest_ttl), (named("new", &[]).identity, 5 * HOUR));
    });
}

// G181
#[tokio::test(start_paused = true)]
async fn a_ttl_max_that_is_raised_in_the_quarantine_does_not_shorten_the_next_one() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Store::memory());
    let old = served(folder.path(), named("old", &[]), 5 * HOUR, &store);
    assert_eq!(left(&*old).await, None);
    let last_served = LastServed::read(Some(folder.path())).unwrap();
    let _new = guard(&last_served, named("new", &[]), HOUR, store.namespace(jobs()));
    last_served.raise_ttl(&jobs(), 2 * HOUR).await;
    let again = served(folder.path(), named("new", &[]), HOUR, &store);
    assert!(left(&*again).await.is_some_and(|left| left > 4 * HOUR));
}

#[tokio::test]
async fn a_server_without_a_directory_serves() {
    let store = Store::memory();
    // Nothing can be written there, as in most containers.
    let nowhere = served(Path::new("/dev/null/data"), named("old", &[]), HOUR, &store);
    assert_eq!(left(&*nowhere).await, None);
    let none = LastServed::read(None).unwrap();
    assert_eq!(
        left(&*guard(&none, named("old", &[]), HOUR, store.namespace(jobs()))).await,
        None
    );
    // Within one process it is known all the same.
    assert!(
        left(&*guard(&none, named("new", &[]), HOUR, store.namespace(jobs())))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn a_damaged_record_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("served-stores.json"), "{\"jobs\":{}}").unwrap();
    let error = LastServed::read(Some(folder.path())).unwrap_err();
    assert!(error.to_string().contains("served-stores.json: "), "{error}");
}
