//! Commands on several locks, elections and watches.

use fencepost::api::proto::session_command::{AcquireAll, Campaign, Observe, Proclaim};
use fencepost::api::proto::session_event::{Observed, Proclaimed, Watched};
use fencepost::api::proto::watch_lock_response;
use fencepost::api::proto::{
    AcquireAllRequest, ChangeKind, LockToAcquire, ReleaseAllRequest, UpdateMetadataRequest, UpdateMetadataResponse,
};
use std::collections::BTreeMap;

use super::*;
use crate::grpc::service::watch_lock;

fn acquire_all(names: &[&str], wait: Duration) -> Command {
    let locks = names.iter().map(|name| LockToAcquire {
        name: (*name).into(),
        mode: None,
    });
    let request = AcquireAllRequest {
        namespace: NAMESPACE.into(),
        owner: "a".into(),
        locks: locks.collect(),
        wait: Some(wire(wait)),
        ..AcquireAllRequest::default()
    };
    Command::AcquireAll(AcquireAll {
        request: Some(request),
        keep: true,
    })
}

async fn granted_all(session: &mut SessionClient, id: u64) -> Vec<Lease> {
    match session.result(id).await.expect("granted") {
        Outcome::AcquireAll(answer) => answer.leases,
        other => panic!("{other:?}"),
    }
}

fn release_all(leases: &[Lease]) -> Command {
    let lease_ids = leases.iter().map(|lease| lease.lease_id.clone()).collect();
    Command::ReleaseAll(ReleaseAllRequest { lease_ids })
}

// G216
pub async fn several_locks_are_taken_kept_and_released_in_the_order_of_the_commands(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let id = session.one(acquire_all(&["y", "x"], Duration::ZERO));
    let leases = granted_all(&mut session, id).await;
    assert_eq!([&leases[0].name, &leases[1].name], ["y", "x"]);
    assert_eq!(session.keep_alive().await.not_renewed, []);
    // Each command finds what those before it did.
    let ids = session.send(vec![
        take(on("x", acquire("b")), false),
        release_all(&leases),
        take(on("x", acquire("b")), false),
        acquire_all(&["x", "z"], Duration::ZERO),
    ]);
    refused(session.result(ids[0]).await, Aborted, "LOCK_HELD");
    match session.result(ids[1]).await.expect("released") {
        Outcome::ReleaseAll(answer) => assert!(answer.results.iter().all(|result| result.reason.is_empty())),
        other => panic!("{other:?}"),
    }
    let held = session.lease(ids[2]).await.expect("it is free");
    let held_back = refused(session.result(ids[3]).await, Aborted, "LOCK_HELD");
    assert_eq!(held_back.says("name"), "x");
    // One that waits lets a release behind it pass.
    let ids = session.send(vec![acquire_all(&["w", "x"], SOON), release(&held)]);
    session.result(ids[1]).await.expect("released");
    let leases = granted_all(&mut session, ids[0]).await;
    assert!(is_held(&service, &leases[1]).await);
    // A wait for several that is cancelled gives all back.
    let ids = session.send(vec![acquire_all(&["v", "w"], SOON)]);
    service.until(NAMESPACE, "w", |lock| lock.waiter_count == 1).await;
    session.one(cancel(ids[0]));
    refused_as_cancelled(session.result(ids[0]).await);
    service.until(NAMESPACE, "v", |lock| lock.holder_count == 0).await;
}

// G216
pub async fn an_election_is_led_proclaimed_and_observed(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let observe = session.one(Command::Observe(Observe {
        namespace: NAMESPACE.into(),
        election: LOCK.into(),
    }));
    let seen = async |session: &mut SessionClient| {
        session
            .find(|event| match event {
                Event::Observed(Observed { id, leader }) if *id == observe => Some(leader.clone()),
                _ => None,
            })
            .await
    };
    assert_eq!(seen(&mut session).await, None);
    let campaign = |wait: Duration| {
        Command::Campaign(Campaign {
            namespace: NAMESPACE.into(),
            election: LOCK.into(),
            candidate: "a".into(),
            value: "first".into(),
            wait: Some(wire(wait)),
            keep: true,
            ..Campaign::default()
        })
    };
    let id = session.one(campaign(Duration::ZERO));
    let lease = session.lease(id).await.expect("nobody leads");
    assert_eq!(seen(&mut session).await.expect("a leader").value, "first");
    let lease_id = lease.lease_id.clone();
    let value = "second".into();
    let id = session.one(Command::Proclaim(Proclaim { lease_id, value }));
    let proclaimed = session.result(id).await;
    if fixture.capabilities().updates_metadata {
        assert_eq!(proclaimed.expect("proclaimed"), Outcome::Proclaim(Proclaimed {}));
        assert_eq!(seen(&mut session).await.expect("a leader").value, "second");
        let update = UpdateMetadataRequest {
            lease_id: lease.lease_id.clone(),
            metadata: BTreeMap::from([("value".into(), "third".into())]).into_iter().collect(),
        };
        let id = session.one(Command::UpdateMetadata(update));
        let updated = session.result(id).await.expect("updated");
        assert_eq!(updated, Outcome::UpdateMetadata(UpdateMetadataResponse {}));
        assert_eq!(seen(&mut session).await.expect("a leader").value, "third");
    } else {
        refused(proclaimed, tonic::Code::FailedPrecondition, "UNSUPPORTED");
    }
    let waits = session.one(campaign(SOON));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    session.send(vec![cancel(waits), cancel(observe)]);
    refused_as_cancelled(session.result(waits).await);
    refused_as_cancelled(session.result(observe).await);
}

// G216
pub async fn a_watch_is_told_by_its_id_until_it_is_cancelled(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let mut session = open(&service).await;
    let watch = session.one(Command::WatchLock(watch_lock(NAMESPACE, LOCK)));
    let seen = async |session: &mut SessionClient| {
        let message = session.find(|event| match event {
            Event::Watched(Watched { id, message }) if *id == watch => message.clone(),
            _ => None,
        });
        message.await.event.expect("one of both")
    };
    assert!(matches!(seen(&mut session).await, watch_lock_response::Event::State(_)));
    let lease = session.try_acquire(acquire("a"), false).await.expect("it is free");
    match seen(&mut session).await {
        watch_lock_response::Event::Change(change) => {
            assert_eq!(
                (change.kind(), change.fencing_token),
                (ChangeKind::Granted, lease.fencing_token)
            );
        }
        watch_lock_response::Event::State(state) => assert_eq!(state.holder_count, 1),
    }
    session.one(cancel(watch));
    refused_as_cancelled(session.result(watch).await);
    let id = session.one(release(&lease));
    session.result(id).await.expect("released");
    // The id is free again, and a watch of a wrong place is refused.
    let again = session.one(Command::WatchLock(watch_lock(NAMESPACE, "")));
    invalid(session.result(again).await, "name");
    // Watches have a limit of their own.
    let watches = session.send(vec![Command::WatchLock(watch_lock(NAMESPACE, LOCK)); 101]);
    refused(session.result(watches[100]).await, ResourceExhausted, "OVERLOADED");
    let id = session.one(close(false));
    for watch in &watches[..100] {
        refused_as_cancelled(session.result(*watch).await);
    }
    session.result(id).await.expect("closed");
}
