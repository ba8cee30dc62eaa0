//! Servers of the service in this process, and what they leave behind.

use fencepost::limits::Limits;
use fencepost::locks::Locks;
use fencepost::name::Namespace;

use crate::clients::until_empty;
use crate::harness::{Server, Settings, Store, credentials};
use crate::record_steps::READY;

/// The locks of one server's namespace, once the store serves.
pub async fn replica(settings: Settings) -> Locks {
    let store = Store::open(settings, credentials()).expect("random numbers");
    let locks = locks_of(&store);
    crate::clients::serves(&locks, READY).await;
    locks
}

/// The locks of a store's namespace.
pub fn locks_of(store: &Store) -> Locks {
    let namespace = Namespace::new("faults").expect("a good name");
    Locks::new(namespace.clone(), Limits::default(), store.namespace(&namespace))
}

/// Waits until no claim is left, of a lock that nobody uses any more, and no part without its root.
pub async fn nothing_is_left(locks: &Locks, server: &Server) {
    until_empty(locks).await;
    no_part_is_left(server);
}

/// Asserts that each part has its root.
pub fn no_part_is_left(server: &Server) {
    let parts = "SELECT count(*) FROM fencepost_part WHERE id NOT IN (SELECT id FROM fencepost_lock)";
    assert_eq!(server.sql(parts), "0");
}
