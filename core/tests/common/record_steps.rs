//! Steps on the records of a database, and what became of them.

use std::num::NonZeroU64;
use std::time::Duration;

use fencepost_core::backend::record::store::{
    Commit, Committed, Found, FoundRoot, LockTime, RecordStore, ServerId, Stamp, StoreTime, Version,
};
use fencepost_core::backend::{BackendError, Health};
use fencepost_core::name::LockName;

/// How long anything may take that nothing promises.
pub const READY: Duration = Duration::from_secs(60);

/// A number that no other has.
pub fn random() -> NonZeroU64 {
    let number = getrandom::u64().expect("the system has random numbers") >> 1;
    NonZeroU64::new(number).expect("it is hardly ever zero")
}

/// A lock's name.
pub fn name(lock: &str) -> LockName {
    LockName::new(lock).expect("a good name")
}

/// Waits until the store serves.
pub async fn serves(records: &dyn RecordStore) {
    healthy(records, |health| *health == Health::Serving).await;
}

/// Waits for a health.
pub async fn healthy(records: &dyn RecordStore, is_so: impl FnMut(&Health) -> bool) -> Health {
    // A store says nothing of itself before it is used.
    let _ = records.read(&name("health"), None).await;
    let mut health = records.health();
    let mut is_so = is_so;
    let waited = tokio::time::timeout(READY, health.wait_for(|health| is_so(health))).await;
    match waited {
        Ok(found) => found.expect("it says how it is").clone(),
        Err(_) => panic!("its health is {:?}", records.health().borrow()),
    }
}

/// A first write of a lock, without conditions.
pub fn first(lock: &str) -> Commit {
    Commit {
        lock: name(lock),
        expected: None,
        version: Version(random()),
        body: b"first".to_vec(),
        not_before: LockTime(0),
        not_after: LockTime(u64::MAX),
        latest: StoreTime(u64::MAX),
        put: Vec::new(),
        delete: 0..0,
        floor: u64::MAX,
        messages: Vec::new(),
        server: ServerId(random()),
        reserve: None,
        keep: Duration::ZERO,
        grants: true,
        extends: false,
        soft: false,
    }
}

/// A write of a lock that is at this version.
pub fn next(lock: &str, expected: Version) -> Commit {
    Commit {
        expected: Some(expected),
        body: b"next".to_vec(),
        ..first(lock)
    }
}

/// Commits, and returns the stamp.
#[track_caller]
pub fn applied(committed: Result<Committed, BackendError>) -> Stamp {
    match committed {
        Ok(Committed::Applied(stamp)) => stamp,
        other => panic!("not applied: {other:?}"),
    }
}

/// What a refused commit found.
#[track_caller]
pub fn refused(committed: Result<Committed, BackendError>) -> Found {
    match committed {
        Ok(Committed::Refused(found)) => found,
        other => panic!("not refused: {other:?}"),
    }
}

/// The version of a root.
pub async fn version_of(records: &dyn RecordStore, lock: &str) -> Option<Version> {
    match records.read(&name(lock), None).await.expect("it reads").root {
        FoundRoot::Root(root) => Some(root.version),
        FoundRoot::Absent => None,
        FoundRoot::Known => panic!("no version was given"),
    }
}

/// Reads a lock until that succeeds.
pub async fn eventually_read(records: &dyn RecordStore, lock: &str) -> Found {
    let end = std::time::Instant::now() + READY;
    loop {
        match records.read(&name(lock), None).await {
            Ok(found) => return found,
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
