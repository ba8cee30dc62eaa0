//! How each store is opened for one case.

use std::time::Duration;

use fencepost::backend::embedded::Store;

use crate::fixture::{ELSEWHERE, Fixture, Missing, NAMESPACE, Pace, SIMULATED, namespace};

/// Real time, on a machine that is busy with other tests.
const REAL: Pace = Pace {
    short: Duration::from_millis(600),
    slack: Duration::from_millis(150),
    quiet: Duration::from_millis(150),
    virtual_time: false,
    ttl_shrinks: true,
    tells_changes: true,
};

/// The embedded store in memory, on tokio's paused clock.
pub async fn memory() -> Result<Fixture, Missing> {
    Ok(embedded(&Store::memory(), SIMULATED, ()))
}

/// The embedded store in memory, in real time: for cases with a network.
pub async fn memory_in_real_time() -> Result<Fixture, Missing> {
    Ok(embedded(&Store::memory(), REAL, ()))
}

/// The embedded store in a file of its own, in real time.
pub async fn file() -> Result<Fixture, Missing> {
    let directory = tempfile::tempdir().expect("a directory for the store");
    let store = Store::open(&directory.path().join("locks")).expect("a new store opens");
    Ok(embedded(&store, REAL, directory))
}

fn embedded(store: &Store, pace: Pace, keep: impl Send + Sync + 'static) -> Fixture {
    let first = store.namespace(namespace(NAMESPACE));
    Fixture {
        second: first.clone(),
        first,
        elsewhere: store.namespace(namespace(ELSEWHERE)),
        pace,
        _keep: Box::new((store.clone(), keep)),
    }
}
