//! Versions that a `multi` checks: each test lets another replica come between a read and the step that it decides, and
//! fails if the step takes effect.

use std::sync::Arc;

use fencepost::backend::{
    Backend, ClaimLimits, Grant, Health, InspectLimit, NewClaim, ReleaseTarget, Released, RenewOutcome,
};

use crate::claims::{ROOMY, numbered};
use crate::forwarder::Forwarder;
use crate::harness::{
    Operator, READY, ROOT, Servers, addresses, backend, behind, deletes, grant, holds, lease_of, name, queue, sets,
    settings, store,
};

const LOCK: &str = "a";
/// Far more than the clock moves in a test.
const AHEAD: u64 = 1_000_000_000_000;

async fn release(backend: &dyn Backend, grant: &Grant) {
    let lease = lease_of(grant, LOCK);
    let released = backend.release(&name(LOCK), ReleaseTarget::Hold(&lease), None).await;
    let released = released.expect("it answers").released;
    assert!(matches!(released, Released::Ended(_)), "{released:?}");
}

/// Acquires and releases: the token of that grant.
async fn token(backend: &dyn Backend, number: u128) -> u64 {
    let grant = grant(backend, LOCK, &numbered(number)).await;
    release(backend, &grant).await;
    grant.token.get()
}

fn with_request(request: u128, call: u128) -> NewClaim {
    NewClaim {
        id: numbered(request).id,
        retryable: true,
        ..numbered(call)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_with_a_waiter_does_not_end_a_hold_that_another_replica_added() {
    let Some(store) = store(1) else { return };
    let here = backend(settings(addresses(&store))).await;
    let there = backend(settings(addresses(&store))).await;
    let reentrant = |number| NewClaim {
        reentrant: true,
        ..numbered(number)
    };
    let first = grant(&*here, LOCK, &reentrant(1)).await;
    let waiter = numbered(3);
    queue(&*here, LOCK, &waiter).await;
    let added = grant(&*there, LOCK, &reentrant(2)).await;
    assert_eq!(added.holds, 2);
    let first = lease_of(&first, LOCK);
    let released = here
        .release(&name(LOCK), ReleaseTarget::Hold(&first), Some(&waiter))
        .await;
    let released = released.expect("it answers");
    assert!(released.next.is_none(), "handed over beside a hold: {released:?}");
    let renewed = there.renew(&lease_of(&added, LOCK), None).await.expect("it answers");
    assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
    release(&*there, &added).await;
    let next = here.promote(&name(LOCK), &waiter).await.expect("it answers");
    assert!(holds(&next), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_request_that_replace_its_record_at_once_have_one_place() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let late = backend(settings(behind(&network))).await;
    let other = backend(settings(addresses(&store))).await;
    grant(&*other, LOCK, &numbered(1)).await;
    // It is undone while it waits, so the request has a record that says nothing.
    let undone = with_request(2, 2);
    queue(&*other, LOCK, &undone).await;
    let target = ReleaseTarget::Call(&undone.id, undone.call);
    other.release(&name(LOCK), target, None).await.expect("it answers");

    network.holds(|part| sets(part, "/r-"));
    let earlier = tokio::spawn({
        let late = Arc::clone(&late);
        async move { late.acquire(&name(LOCK), &with_request(2, 3)).await }
    });
    network.is_holding().await;
    queue(&*other, LOCK, &with_request(2, 4)).await;
    network.go_on();
    let waits = earlier.await.expect("no panic").expect("it answers");
    assert!(!holds(&waits), "{waits:?}");
    let queue = other.inspect(&name(LOCK), InspectLimit::of_each(9)).await;
    assert_eq!(queue.expect("it answers").waiter_count, 1, "one request has two places");
}

/// A record of an end that is too much to remember is deleted in the version that its replica wrote, so only if nobody uses
/// it again meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_used_again_while_it_is_deleted_stays() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let late = backend(settings(behind(&network))).await;
    let mut operator = Operator::open(&store).await;
    let remembering_one = |number| NewClaim {
        limits: ClaimLimits { finished: 1, ..ROOMY },
        ..with_request(number, number)
    };
    let first = grant(&*late, LOCK, &remembering_one(1)).await;
    let record = operator.records().await.pop().expect("it has a request id");
    let living = operator.read(&record).await;
    release(&*late, &first).await;

    let path = record.clone();
    network.holds(move |part| deletes(part, &path));
    let second = grant(&*late, LOCK, &remembering_one(2)).await;
    release(&*late, &second).await;
    network.is_holding().await;
    // As a call of the same request writes it.
    operator.write(&record, &living).await;
    network.go_on();
    // An answer to what was sent after the deletion.
    late.inspect(&name(LOCK), InspectLimit::of_each(1))
        .await
        .expect("it answers");
    assert!(
        operator.records().await.contains(&record),
        "a record in use was deleted"
    );
}

/// A version says which record it is only as long as nobody can have made another one: an old copy of the store that is put
/// back ends all connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_made_anew_before_a_new_connection_stays_although_its_version_is_the_same() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let here = backend(settings(behind(&network))).await;
    let mut operator = Operator::open(&store).await;
    let remembering_one = |number| NewClaim {
        limits: ClaimLimits { finished: 1, ..ROOMY },
        ..with_request(number, number)
    };
    let first = grant(&*here, LOCK, &remembering_one(1)).await;
    let record = operator.records().await.pop().expect("it has a request id");
    let living = operator.read(&record).await;
    release(&*here, &first).await;

    operator.delete(&record).await;
    operator.create(&record).await;
    operator.write(&record, &living).await;
    let mut health = here.health();
    network.ends_after(|_| false);
    network.cut();
    for is_serving in [false, true] {
        let changes = health.wait_for(|health| (*health == Health::Serving) == is_serving);
        let changed = tokio::time::timeout(READY, changes).await;
        changed.expect("in time").expect("it says how it is");
        network.go_on();
    }
    // It remembers one, so it forgets the first.
    for number in [2, 3] {
        let next = grant(&*here, LOCK, &remembering_one(number)).await;
        release(&*here, &next).await;
    }
    let forgotten = async {
        while operator.records().await.len() > 2 {
            tokio::time::sleep(READY / 1000).await;
        }
    };
    tokio::time::timeout(READY, forgotten)
        .await
        .expect("the second is forgotten");
    assert!(
        operator.records().await.contains(&record),
        "a record in use was deleted"
    );
}

/// As another replica does whose clock is ahead.
async fn raise_base(store: &Servers, to: u64) {
    let mut operator = Operator::open(store).await;
    operator.write(&format!("{ROOT}/base"), &to.to_be_bytes()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_is_raised_while_another_replica_raises_it_stays_as_high() {
    let Some(store) = store(1) else { return };
    let network = Forwarder::before(store.servers[0].port()).await;
    let first = backend(settings(addresses(&store))).await;
    let before = token(&*first, 1).await;
    // Its clock has moved on, so it raises the base a little.
    network.holds(|part| sets(part, "/base"));
    let second = tokio::spawn(backend(settings(behind(&network))));
    network.is_holding().await;
    raise_base(&store, before + AHEAD).await;
    let last = token(&*first, 2).await;
    assert!(last > before + AHEAD);
    network.go_on();
    let second = second.await.expect("no panic");
    let next = token(&*second, 3).await;
    assert!(next > last, "{next} after {last}");
}
