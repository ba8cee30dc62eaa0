//! What is remembered, and for how long.

use super::*;
use crate::backend::etcd::cluster::settings::Settings;
use crate::backend::etcd::data::record::Claim;
use crate::name::{Kind, LockKey, Namespace};

fn unreachable_history() -> History {
    let link = Arc::new(ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()])));
    let leases = Arc::new(LeasePool::new(Arc::clone(&link)));
    History::new(Keys::new("r", &Namespace::new("n").unwrap()), link, leases)
}

#[tokio::test(start_paused = true)]
async fn records_over_the_limit_are_deleted_and_old_ones_are_left_to_expire() {
    let ends = unreachable_history();
    let note = || {
        let (key, request) = ("key".into(), None);
        ends.note_written(vec![WrittenEnd { key, request }]);
    };
    note();
    assert_eq!(ends.make_room(1, &[]).len(), 1);
    note();
    assert!(
        ends.make_room(1, &["key".into()]).is_empty(),
        "the step writes it itself"
    );
    note();
    tokio::time::advance(FINISHED_KEPT + Duration::from_millis(1)).await;
    assert!(ends.make_room(1, &[]).is_empty(), "it may be another claim's");
    assert!(ends.written.lock().is_empty());
}

#[tokio::test]
async fn the_record_of_a_request_is_deleted_only_as_it_was_written() {
    let ends = unreachable_history();
    let (key, request) = ("key".to_owned(), Some(vec![7]));
    ends.note_written(vec![WrittenEnd { key, request }]);
    let [deleted] = &ends.make_room(1, &[])[..] else {
        panic!("one is deleted")
    };
    let same = Compare::value("key", CompareOp::Equal, [7]);
    let nested = Txn::new().when([same]).and_then([TxnOp::delete("key", None)]);
    assert_eq!(format!("{deleted:?}"), format!("{:?}", TxnOp::txn(nested)));
}

#[tokio::test]
async fn a_late_note_of_an_earlier_claim_of_an_id_does_not_replace_the_later_one() {
    let namespace = Namespace::new("n").unwrap();
    let ends = unreachable_history();
    let name = LockName::new("a").unwrap();
    let new = NewClaim::numbered(1);
    let holder = |base, created| Entry {
        suffix: KeySuffix::of_lease(new.id),
        claim: Claim {
            base,
            ..Claim::of(&new)
        },
        created,
        modified: created,
        lease: 1,
    };
    let lease = |entry: &Entry| LeaseKey {
        lock: LockKey {
            namespace: namespace.clone(),
            name: name.clone(),
        },
        kind: Kind::Exclusive,
        claim: entry.suffix.to_claim(),
        token: entry.token().unwrap(),
        secret: new.secret,
    };
    let (earlier, later) = (holder(1_000, 7), holder(1_000, 9));
    ends.note(&name, &later, None);
    ends.note(&name, &earlier, None);
    assert!(ends.known(&lease(&later)).is_some());
    assert!(ends.known(&lease(&earlier)).is_none());
    // Revisions fall when an old snapshot is restored, and the token base rises.
    let restored = holder(2_000, 3);
    ends.note(&name, &restored, None);
    assert!(ends.known(&lease(&restored)).is_some());
}

#[test]
fn known_readers_are_counted_per_lock() {
    let (mut grants, name) = (Grants::default(), LockName::new("a").unwrap());
    let granted = |number, mode| {
        let new = NewClaim::numbered(number);
        let mut claim = Claim::of(&new);
        claim.terms.mode = mode;
        Granted {
            name: name.clone(),
            entry: Entry {
                suffix: KeySuffix::of_lease(new.id),
                claim,
                created: 1,
                modified: 1,
                lease: 1,
            },
            due: Instant::now(),
            seen: Instant::now(),
            alive: None,
        }
    };
    for number in [1, 2, 1] {
        grants.insert(granted(number, Mode::Shared));
    }
    grants.insert(granted(3, Mode::Exclusive));
    assert_eq!(
        [
            grants.readers(&name),
            grants.readers_after(&name, 0),
            grants.readers_after(&name, 1)
        ],
        [2, 2, 0]
    );
    for number in [1, 1, 2, 3] {
        grants.remove(KeySuffix::of_lease(NewClaim::numbered(number).id));
    }
    assert_eq!(
        (grants.readers(&name), grants.readers.len(), grants.by_suffix.len()),
        (0, 0, 0)
    );
}
