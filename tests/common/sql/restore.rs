//! An old dump that is restored.

use std::time::Duration;

use fencepost::backend::Health;
use fencepost::error::Error;

use crate::clients::{acquire, health, take, token};
use crate::harness::{Server, Store, credentials, durable, settings};
use crate::record_steps::READY;
use crate::replicas::{locks_of, replica};
use crate::servers::{available, eventually, folder};

const TTL: Duration = Duration::from_secs(60);

// G88c, G109, G142
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_old_dump_later_grants_are_lost_and_tokens_rise_and_elsewhere_it_is_quarantined() {
    common::skip_unless!(available());
    let (server, elsewhere) = (durable(), Server::of_another_cluster());
    let locks = replica(settings(&server)).await;
    let kept = take(&locks, "kept", TTL).await;
    let first = take(&locks, "a", TTL).await;
    locks.release(&first.key).await.expect("it is held");
    let (folder, mut last) = (folder(), token(&first));
    let dump = folder.path().join("dump");
    server.dump(&dump);
    for _ in 0..20 {
        let lease = take(&locks, "a", TTL).await;
        locks.release(&lease.key).await.expect("it is held");
        last = token(&lease);
    }
    let (lost, other) = (take(&locks, "a", TTL).await, take(&locks, "other", TTL).await);
    assert!(token(&lost) > last);
    server.restore(&dump);
    // A dump brings one table after the other; what was noted in between is lost.
    eventually("it is noted", || {
        server.sql("SELECT count(*) FROM fencepost_store WHERE since > 0") == "1"
    });
    health(&locks, READY, |health| matches!(health, Health::Quarantined { .. })).await;
    locks.admit(None).await.expect("it is admitted");
    health(&locks, READY, |health| *health == Health::Serving).await;
    for (name, before) in [("a", &lost), ("other", &other)] {
        let next = acquire(&locks, name, TTL, READY).await.expect("it is free");
        assert!(token(&next) > token(before), "{name}");
        let renewed = locks.renew(&before.key, None).await;
        assert!(matches!(renewed, Err(Error::LeaseLost { .. })), "{renewed:?}");
    }
    locks.renew(&kept.key, None).await.expect("the dump has it");
    elsewhere.restore(&dump);
    let store = Store::open(settings(&elsewhere), credentials());
    let copy = locks_of(&store.expect("random numbers"));
    health(&copy, READY, |health| matches!(health, Health::Quarantined { .. })).await;
    copy.renew(&kept.key, None).await.expect("the dump has it");
    let refused = acquire(&copy, "a", TTL, Duration::ZERO).await;
    assert!(
        matches!(&refused, Err(Error::Backend(error)) if error.to_string().contains("restored")),
        "{refused:?}"
    );
}
