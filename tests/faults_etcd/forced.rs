//! A forced release, and the record by which the other replicas learn of it.

use std::time::Duration;

use fencepost::backend::Released;
use fencepost::claim::Cause;
use tokio::time::timeout;

use crate::claims::claim;
use crate::fixture::Fixture;
use crate::proxy::Fate;

/// Shorter than the time limit of a transaction.
const SOON: Duration = Duration::from_millis(2500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_does_not_wait_until_the_other_replicas_are_told() {
    let Some(fixture) = Fixture::new().await else { return };
    let held = fixture.here().hold(claim("a")).await;
    let record = fixture.key(&format!("forced/{}", held.token()));
    let mut telling = fixture.proxy.catch(Fate::Held, &["KV/Txn", record.as_str()]);
    let here = fixture.here();
    let released = timeout(SOON, here.force(held.token())).await;
    assert_eq!(released, Ok(Released::Ended(Cause::Forced)));
    telling.is_here().await;
    telling.let_go().await;
    assert!(!fixture.text(&format!("forced/{}", held.token())).await.is_empty());
}
