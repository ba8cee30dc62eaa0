use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::Extensions;
use tonic::metadata::MetadataMap;

use super::*;
use crate::api::capacity::Capacity;
use crate::api::concurrency_limit::Permits;
use crate::api::grant_delivery::Deliver;
use crate::api::proto;
use crate::api::settings::Settings;
use crate::api::several::AcquireAllCall;
use crate::auth::Pattern;
use crate::backend::embedded::Store;
use crate::limits::Limits;
use crate::locks::Acquire;
use crate::name::{Identity, LockName, Metadata, Mode, Owner};
use crate::quota::{Entry, Quota, QuotaSettings};

/// Longer than a store on disk takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits by which each identity may hold one lease.
fn one_lease_each() -> Quotas {
    let one = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    Quotas::new(QuotaSettings {
        namespaces: BTreeMap::new(),
        identities: vec![(vec![Pattern::new("*").unwrap()], one)],
    })
}

/// A try for a lock.
fn attempt(name: &LockName, identity: &Identity) -> Acquire {
    Acquire {
        lock: name.clone(),
        owner: Owner::new("me").unwrap(),
        identity: identity.clone(),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(3600)),
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    }
}

#[tokio::test]
async fn a_forced_lease_leaves_the_quota_even_if_the_call_was_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    // On disk, so that the release is not immediate.
    let store = Store::open(&folder.path().join("f.redb")).unwrap();
    let (namespace, name) = (Namespace::new("jobs").unwrap(), LockName::new("a").unwrap());
    let locks = Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace));
    let (quotas, identity) = (one_lease_each(), Identity::authenticated("token:ci"));
    let acquire_quota = || {
        let entry = Entry {
            waits: false,
            claim: None,
        };
        quotas.acquire(&identity, "jobs", entry, locks.ledger())
    };
    let quota = acquire_quota().unwrap();
    let granted = locks.acquire(attempt(&name, &identity)).await.unwrap();
    let token = granted.lease.key.token;
    Box::new(CountedGrant::new(granted, quota, locks.clone())).deliver();
    assert!(acquire_quota().is_err(), "one is held");

    {
        let mut force = pin!(locks.force_release(&name, token));
        assert!(futures::poll!(&mut force).is_pending());
    }
    let freed = async {
        while acquire_quota().is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, freed)
        .await
        .expect("the lease leaves the quota");
}

#[tokio::test]
async fn a_renewal_that_finds_its_lease_lost_takes_it_out_of_the_quota() {
    let namespace = Namespace::new("jobs").unwrap();
    let name = LockName::new("a").unwrap();
    let store = Store::memory();
    let server = || Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace.clone()));
    let (locks, elsewhere) = (server(), server());
    let (quotas, identity) = (one_lease_each(), Identity::authenticated("token:ci"));
    let entry = Entry {
        waits: false,
        claim: None,
    };
    let acquire_quota = || quotas.acquire(&identity, "jobs", entry, locks.ledger());
    let quota = acquire_quota().unwrap();
    let granted = locks.acquire(attempt(&name, &identity)).await.unwrap();
    let key = granted.lease.key.clone();
    Box::new(CountedGrant::new(granted, quota, locks.clone())).deliver();
    elsewhere.force_release(&name, key.token).await.unwrap();
    assert!(acquire_quota().is_err(), "this server has not heard of it");
    assert!(matches!(locks.renew(&key, None).await, Err(Error::LeaseLost { .. })));
    assert!(acquire_quota().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_asks_for_no_further_lock() {
    let namespace = Namespace::new("jobs").unwrap();
    let store = Store::memory().namespace(namespace.clone());
    let namespaces = Namespaces::new(vec![Locks::new(namespace, Limits::default(), store)]);
    let guarded = GuardedNamespaces::new(namespaces, Quotas::default());
    let settings = Settings::default();
    let capacity = Capacity::new(&settings, None);
    let permits = Arc::new(Permits::new(&settings, &capacity, CancellationToken::new()));
    let mut caller = Caller::of(&mut Extensions::new());
    caller.policy = None;
    let wait = Duration::from_secs(3);
    let lock = |name: &str| proto::LockToAcquire {
        name: name.into(),
        mode: None,
    };
    let message = proto::AcquireAllRequest {
        namespace: "jobs".into(),
        locks: ["a", "b"].map(lock).into(),
        owner: "me".into(),
        wait: Some(wait.try_into().unwrap()),
        ..proto::AcquireAllRequest::default()
    };
    let call = AcquireAllCall::new(&guarded, &permits, caller, &MetadataMap::new(), message).unwrap();
    tokio::time::advance(wait).await;
    let Err(Error::OfLock { name, error }) = call.run().await else {
        panic!("the wait is over")
    };
    assert_eq!((name.as_str(), *error), ("a", Error::WaitTimeout { waited: wait }));
}

mod revoked;
