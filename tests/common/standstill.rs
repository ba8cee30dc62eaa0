//! A server of several on one store that stands still with a commit in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencepost_client::Client;
use futures::future::join;

use crate::clients::until_empty;
use crate::faults::records::Records;
use crate::forwarder::Forwarder;
use crate::register::Register;
use crate::server::Server;

/// How long a server stands still: longer than a lease lives, and than others take to find it dead. In the long form also
/// longer than a commit may be late.
const STILL: Duration = Duration::from_secs(if cfg!(feature = "soak") { 65 } else { 8 });
/// How long it is left alone before and afterwards.
const CALM: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);
const STOPS: &str = "of the one that stops";
/// How long the lock may take to go on.
const READY: Duration = Duration::from_secs(60);

/// Writes to the register under a lock, over and over: whoever is sure to hold is never refused. Says how often the lock
/// was granted since `is_late`: at least once, unless it is never granted again.
async fn write(
    client: Client,
    owner: &'static str,
    register: Arc<Register>,
    [is_late, is_over]: [Arc<AtomicBool>; 2],
) -> u32 {
    let (mut late, end) = (0, Instant::now() + STILL + READY);
    while (late == 0 || !is_over.load(Ordering::Relaxed)) && Instant::now() < end {
        let Ok(guard) = client.acquire("faults", "hot", owner).ttl(TTL).wait(TTL).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        late += u32::from(is_late.load(Ordering::Relaxed));
        for _ in 0..3 {
            let taken = register.write(guard.fencing_token());
            // Sure after the write, it was sure at the write.
            assert!(taken || !guard.is_held(), "unsafe: a sure holder was refused");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        // It ends by its TTL if that fails.
        let _ = guard.release().await;
    }
    late
}

/// One of two servers stands still with a commit in flight, which reaches the store meanwhile or afterwards. Whoever is sure
/// to hold is never refused, and both are granted the lock again.
pub async fn nobody_holds_beside_another<S: Records>() {
    join(stands_still::<S>(false), stands_still::<S>(true)).await;
}

async fn stands_still<S: Records>(arrives_afterwards: bool) {
    let store = S::start();
    let way = Forwarder::before(store.port()).await;
    let ((_home, one), (_other_home, other)) = (
        Server::of_namespace(&S::namespace_at(&way.address())),
        Server::of_namespace(&store.namespace()),
    );
    let (register, flags) = (Arc::<Register>::default(), <[Arc<AtomicBool>; 2]>::default());
    let mut clients = Vec::new();
    for (server, owner) in [(&one, STOPS), (&other, "of the other")].repeat(3) {
        let client = Client::connect(&[server.address.parse().expect("an address")])
            .await
            .expect("it accepts");
        clients.push(tokio::spawn(write(client, owner, Arc::clone(&register), flags.clone())));
    }
    tokio::time::sleep(CALM).await;
    let owner = S::in_commit(STOPS);
    way.holds(move |part| part.windows(owner.len()).any(|bytes| bytes == owner));
    way.is_holding().await;
    one.signal("STOP");
    if !arrives_afterwards {
        way.go_on();
    }
    tokio::time::sleep(STILL).await;
    one.signal("CONT");
    way.go_on();
    tokio::time::sleep(CALM).await;
    flags[0].store(true, Ordering::Relaxed);
    tokio::time::sleep(CALM).await;
    flags[1].store(true, Ordering::Relaxed);
    for client in clients {
        let late = client.await.expect("no client failed");
        assert!(late > 0, "one is never granted again");
    }
    assert!(register.writes() > 30, "{}", register.writes());
    until_empty(&store.locks().await).await;
    store.assert_empty();
}
