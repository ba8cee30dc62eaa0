use std::collections::BTreeMap;
use std::pin::pin;

use super::*;
use crate::auth::Pattern;
use crate::backend::embedded::Store;
use crate::name::{Identity, Metadata, Mode, Owner};
use crate::quota::{Quota, QuotaSettings};

/// Longer than a store on a disk takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn what_is_taken_by_force_counts_no_more_though_its_caller_left() {
    let folder = tempfile::tempdir().unwrap();
    // On a disk, so that its answer is not there at once.
    let store = Store::open(&folder.path().join("f.redb")).unwrap();
    let (namespace, name) = (Namespace::new("jobs").unwrap(), LockName::new("a").unwrap());
    let locks = Locks::new(namespace.clone(), Limits::default(), store.namespace(namespace));
    let one = Quota {
        leases: Some(1),
        ..Quota::default()
    };
    let quotas = Quotas::new(QuotaSettings {
        namespaces: BTreeMap::new(),
        identities: vec![(vec![Pattern::new("*").unwrap()], one)],
    });
    let identity = Identity::proven("token:ci");
    let enter = || {
        let entry = Entry {
            waits: false,
            claim: None,
        };
        quotas.acquire(&identity, "jobs", entry)
    };
    let place = enter().unwrap();
    let ask = Acquire {
        lock: name.clone(),
        owner: Owner::new("me").unwrap(),
        identity: identity.clone(),
        mode: Mode::Exclusive,
        ttl: Some(Duration::from_secs(3600)),
        wait: Duration::ZERO,
        request_id: None,
        reentrant: false,
        metadata: Metadata::default(),
    };
    let granted = locks.acquire(ask).await.unwrap();
    let token = granted.lease.key.token;
    CountedGrant { granted, place }.deliver();
    assert!(enter().is_err(), "one is held");

    let held = HeldLease {
        locks,
        quotas: quotas.clone(),
    };
    {
        let mut act = pin!(held.force(name, token));
        assert!(futures::poll!(&mut act).is_pending());
    }
    let freed = async {
        while enter().is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("it counts no more");
}
