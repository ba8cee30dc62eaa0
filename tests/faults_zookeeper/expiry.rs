//! What the leases of other replicas cost a replica that watches over them.

use std::time::Duration;

use fencepost::locks::Locks;

use crate::clients::take;
use crate::harness::{name, replica, store};

const TTL: Duration = Duration::from_secs(4);
const LEASES: usize = 5;
const ROUNDS: usize = 9;

async fn all(locks: &Locks, leases: &[fencepost::locks::Lease]) {
    for lease in leases {
        locks.renew(&lease.key, None).await.expect("it is held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_sends_no_deletion_for_a_lease_that_another_renews() {
    let Some(ensemble) = store(1) else { return };
    let (renewing, watching) = (replica(&ensemble).await, replica(&ensemble).await);
    let mut leases = Vec::new();
    for n in 0..LEASES {
        leases.push(take(&renewing, &format!("l{n}"), TTL).await);
    }
    for n in 0..LEASES {
        let shown = watching.inspect(&name(&format!("l{n}")), 1).await.expect("it answers");
        assert_eq!(shown.holders.len(), 1);
    }
    let counted = || ensemble.servers[0].zxid().expect("it serves");
    let before = counted();
    // Longer than two TTLs: the second replica has seen each version that it read for its whole life.
    for _ in 0..ROUNDS {
        all(&renewing, &leases).await;
        tokio::time::sleep(TTL / 4).await;
    }
    // A refused multi is a transaction, too.
    let (sent, renewals) = (counted() - before, u64::try_from(LEASES * ROUNDS).expect("few"));
    assert!(sent <= renewals, "{sent} transactions for {renewals} renewals");
}
