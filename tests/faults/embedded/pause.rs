//! A server that stands still for longer than a lease lives.

use std::time::{Duration, Instant};

use crate::client::{Ask, Caller, why};
use crate::server::Home;

const TTL: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lease_that_ended_while_the_server_stood_still_is_over_and_its_waiter_is_served() {
    let home = Home::new();
    let server = home.start();
    let caller = Caller::of(&server);
    let held = caller.take("lock", TTL).await;
    let next = {
        let caller = caller.clone();
        let ask = Ask::once(TTL).waiting(Duration::from_secs(10));
        tokio::spawn(async move { caller.acquire("lock", ask).await.map(|next| (next, Instant::now())) })
    };
    crate::client::until("it waits", async || {
        (caller.look("lock").await.waiter_count == 1).then_some(())
    })
    .await;
    server.signal("STOP");
    tokio::time::sleep(2 * TTL).await;
    server.signal("CONT");
    let (next, granted) = next.await.expect("no panic").expect("it is served");
    assert!(granted >= held.sure_until, "its holder was still sure of it");
    assert!(next.token > held.token, "{next:?} after {held:?}");
    let gone = caller.renew(&held, None).await.expect_err("it has ended");
    assert_eq!(why(&gone), "LEASE_LOST");
    caller.renew(&next, None).await.expect("the next one holds");
    assert_eq!(server.stop(), Some(0));
}
