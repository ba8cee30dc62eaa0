//! Elections over a memory store whose reads can hang.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::timeout;

use super::*;
use crate::locks::tests::blocking_store::{BlockingStore, locks_over};
use crate::locks::{Acquire, Lease, UndeliveredGrant};
use crate::name::Metadata;

fn election() -> LockName {
    LockName::new("mailer").unwrap()
}

fn over_hanging_store() -> (Arc<BlockingStore>, Locks) {
    let store = Arc::new(BlockingStore::serving());
    let locks = locks_over(&store);
    (store, locks)
}

async fn hold(locks: &Locks, owner: &str, mode: Mode) -> Lease {
    let request = Acquire {
        lock: election(),
        owner: Owner::new(owner).unwrap(),
        identity: Identity::anonymous(),
        mode,
        ttl: None,
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    locks.acquire(request).await.map(UndeliveredGrant::delivered).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_observation_ends_soon_after_its_store_hangs() {
    let (store, locks) = over_hanging_store();
    let mut leaders = observe(locks.clone(), election());
    assert_eq!(leaders.next().await, Some(Ok(None)));
    hold(&locks, "a", Mode::Exclusive).await;
    store.hangs.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let ended = timeout(Duration::from_secs(60), leaders.next()).await;
    let error = ended.expect("it ends").expect("a message").unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(
        began.elapsed() <= OUTAGE_TOLERANCE + RETRY_DELAY,
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_leadership_is_shown_while_the_store_hangs() {
    let (store, locks) = over_hanging_store();
    let mut leaders = observe(locks.clone(), election());
    assert_eq!(leaders.next().await, Some(Ok(None)));
    let lease = hold(&locks, "a", Mode::Exclusive).await;
    let leader = leaders.next().await.unwrap().unwrap().expect("a leader");
    assert_eq!((leader.candidate.as_str(), leader.token), ("a", lease.key.token));
    store.hangs.store(true, Ordering::SeqCst);
    locks.release(&lease.key).await.unwrap();
    assert_eq!(leaders.next().await, Some(Ok(None)), "no read is needed");
}

#[tokio::test]
async fn a_holder_of_another_mode_leads_nothing() {
    let (_, locks) = over_hanging_store();
    hold(&locks, "a", Mode::Shared).await;
    assert_eq!(crate::elections::leader(&locks, &election()).await.unwrap(), None);
}
