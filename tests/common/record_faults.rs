//! Commits that reach a store late, answers that are lost, and a store that crashes: what is the same for each kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencepost::backend::record::store::{Commit, Committed, RecordStore, StoreTime, Version};
use fencepost::backend::{BackendError, Health};
use futures::future::join_all;

use crate::faults::records::Records;
use crate::forwarder::{Answers, Forwarder};
use crate::record_steps::{READY, applied, eventually_read, first, healthy, name, next, refused, serves, version_of};

fn held(commit: Commit) -> Commit {
    Commit {
        body: b"held".to_vec(),
        ..commit
    }
}

/// Sends a commit that is held, until its caller is told that nobody knows.
async fn is_unknown(records: &dyn RecordStore, commit: Commit) {
    let result = records.commit(held(commit)).await;
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
}

/// Waits until a root is at this version.
async fn comes(records: &dyn RecordStore, lock: &str, version: Version) {
    let end = Instant::now() + READY;
    while version_of(records, lock).await != Some(version) {
        assert!(Instant::now() < end, "the late commit never came");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A late commit takes effect unless a settling write came before it, or its latest time is over.
pub async fn late_commits_take_effect_until_settled<S: Records>() {
    let store = S::start();
    let forwarder = Forwarder::before(store.port()).await;
    let slow = S::records_at(forwarder.address()).await;
    let held = S::HELD;
    forwarder.holds(move |part| part.windows(held.len()).any(|bytes| bytes == held));
    let near = S::records_at(format!("127.0.0.1:{}", store.port())).await;
    let (free, settled) = (first("free"), first("settled"));
    for commit in [&free, &settled] {
        applied(near.commit(commit.clone()).await);
    }
    let now = near.read(&name("new"), None).await.expect("it reads").now.time;
    let bounded = Commit {
        latest: StoreTime(now.0 + 1_000_000),
        ..first("bounded")
    };
    let late = [next("free", free.version), next("settled", settled.version), bounded];
    for commit in &late {
        is_unknown(&*slow, commit.clone()).await;
    }
    let fence = next("settled", settled.version);
    applied(near.commit(fence.clone()).await);
    assert_eq!(version_of(&*near, "free").await, Some(free.version), "it is on its way");
    forwarder.go_on();
    comes(&*near, "free", late[0].version).await;
    assert_eq!(version_of(&*near, "settled").await, Some(fence.version));
    assert_eq!(version_of(&*near, "bounded").await, None, "its latest time is over");
}

/// The effect of a commit whose answer is lost is unknown, and the same commit again finds itself.
pub async fn a_commit_without_its_answer_is_unknown<S: Records>() {
    let store = S::start();
    let forwarder = Forwarder::before(store.port()).await;
    let far = S::records_at(forwarder.address()).await;
    let near = S::records_at(format!("127.0.0.1:{}", store.port())).await;
    let one = first("a");
    applied(far.commit(one.clone()).await);
    let two = next("a", one.version);
    forwarder.answers(Answers::Held);
    let sent = tokio::spawn({
        let (far, commit) = (Arc::clone(&far), two.clone());
        async move { far.commit(commit).await }
    });
    comes(&*near, "a", two.version).await;
    forwarder.answers(Answers::Lost);
    forwarder.cut();
    let result = sent.await.expect("it is answered");
    assert!(matches!(result, Err(BackendError::Unavailable { .. })), "{result:?}");
    // The same bytes again find themselves.
    eventually_read(&*far, "a").await;
    let found = refused(far.commit(two.clone()).await);
    assert_eq!(version_of(&*far, "a").await, Some(two.version), "{found:?}");
}

/// What was answered is there after a crash under load.
pub async fn what_was_answered_outlives_crashes<S: Records>() {
    let mut store = S::durable();
    let records = S::records_at(format!("127.0.0.1:{}", store.port())).await;
    for round in 0..3 {
        let counted = Arc::new(AtomicU32::new(0));
        // Each counts its lock up until the store is killed.
        let counting = (0..20).map(|lock| {
            let (records, counted) = (Arc::clone(&records), Arc::clone(&counted));
            tokio::spawn(async move {
                let lock = format!("{round} {lock}");
                let (mut done, mut commit) = (None, first(&lock));
                loop {
                    match records.commit(commit.clone()).await {
                        Ok(Committed::Applied(_)) => done = Some(commit.version),
                        Ok(refused) => panic!("nobody else writes: {refused:?}"),
                        Err(error) if error.is_transient() => return (lock, done, commit.version),
                        Err(other) => panic!("it is an outage: {other}"),
                    }
                    counted.fetch_add(1, Ordering::Relaxed);
                    commit = next(&lock, commit.version);
                }
            })
        });
        let counting: Vec<_> = counting.collect();
        let end = Instant::now() + READY;
        while counted.load(Ordering::Relaxed) < 100 {
            assert!(Instant::now() < end, "they do not count");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        store.crash();
        let counted = join_all(counting).await;
        healthy(&*records, |health| matches!(health, Health::Unavailable { .. })).await;
        store.restart();
        serves(&*records).await;
        for counted in counted {
            let (lock, done, last) = counted.expect("it counts");
            let found = version_of(&*records, &lock).await;
            assert!(
                found == done || found == Some(last),
                "{lock}: {found:?}, not {done:?} or {last:?}"
            );
        }
    }
}
