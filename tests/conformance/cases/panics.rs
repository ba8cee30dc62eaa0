//! Panics in the background tasks of a store.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::supervisor::failpoint;
use tokio::time::timeout;

use crate::claims::claim;
use crate::fixture::Fixture;

/// How long the tasks may take to begin again, on a busy machine.
const AGAIN: Duration = Duration::from_secs(30);
/// Longer than the pause before a task begins again.
const PAUSE: Duration = Duration::from_millis(500);

// G188
pub async fn tasks_that_panic_begin_again_and_waiters_are_notified(fixture: &Fixture) {
    let mut notifications = fixture.notifications();
    let a = fixture.there().hold(claim("a")).await;
    let b = fixture.here().queue(claim("b")).await;
    notifications.all().await;
    failpoint::panic_all();
    fixture.sleep(PAUSE).await;
    for replica in [&fixture.first, &fixture.second] {
        let mut health = replica.health();
        let served = timeout(AGAIN, health.wait_for(|health| *health == Health::Serving)).await;
        served.expect("it serves in time").expect("it says how it is");
    }
    notifications.all().await;
    fixture.there().release(&a).await;
    notifications.until(fixture.here().name(), &b).await;
    fixture.here().take(&b).await;
}
