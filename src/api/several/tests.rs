use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;
use tonic::Extensions;

use super::*;
use crate::api::capacity::Capacity;
use crate::api::settings::Settings;
use crate::backend::embedded::Store;
use crate::limits::Limits;
use crate::locks::Locks;
use crate::name::Namespace;
use crate::namespaces::Namespaces;
use crate::quota::Quotas;

fn message(names: &[&str]) -> proto::AcquireAllRequest {
    let lock = |name: &&str| proto::LockToAcquire {
        name: (*name).to_owned(),
        mode: None,
    };
    proto::AcquireAllRequest {
        namespace: "jobs".into(),
        locks: names.iter().map(lock).collect(),
        owner: "me".into(),
        metadata: BTreeMap::from([("host".to_owned(), "h1".to_owned())]),
        ..proto::AcquireAllRequest::default()
    }
}

#[test]
fn the_requests_of_one_call_share_their_metadata() {
    let requests = requests_of(message(&["b", "c", "a"]), Identity::anonymous()).unwrap();
    let order: Vec<_> = requests.iter().map(|(at, one)| (*at, one.lock.as_str())).collect();
    assert_eq!(order, [(2, "a"), (0, "b"), (1, "c")]);
    let entries = |at: usize| requests[at].1.metadata.entries().as_ptr();
    assert!(entries(0) == entries(1) && entries(1) == entries(2));
}

#[test]
fn a_bad_lock_is_named() {
    let refused = |message| requests_of(message, Identity::anonymous()).unwrap_err();
    let Error::InvalidField(invalid) = refused(message(&["a", ""])) else {
        panic!("a bad name is an invalid field")
    };
    assert_eq!(invalid.field, "name");
    assert!(invalid.problem.starts_with("of locks[1]: "), "{}", invalid.problem);
    let mut with_bad_mode = message(&["a", "b"]);
    with_bad_mode.locks[1].mode = Some(proto::Mode { kind: None });
    let Error::OfLock { name, error } = refused(with_bad_mode) else {
        panic!("the name is valid")
    };
    assert_eq!(name.as_str(), "b");
    assert!(
        matches!(*error, Error::InvalidField(ref invalid) if invalid.field == "mode"),
        "{error}"
    );
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
    let message = proto::AcquireAllRequest {
        wait: Some(wait.try_into().unwrap()),
        ..message(&["a", "b"])
    };
    let call = AcquireAllCall::new(&guarded, &permits, caller, &MetadataMap::new(), message).unwrap();
    tokio::time::advance(wait).await;
    let Err(Error::OfLock { name, error }) = call.run().await else {
        panic!("the wait is over")
    };
    assert_eq!((name.as_str(), *error), ("a", Error::WaitTimeout { waited: wait }));
}
