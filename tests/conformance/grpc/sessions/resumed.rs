//! Sessions that break off, and go on on another stream.

use common::forwarder::Forwarder;
use fencepost::api::proto::lock_service_client::LockServiceClient;
use fencepost::api::proto::session_command::{AcquireAll, Cancel, RequestToCancel};
use fencepost::api::proto::{AcquireAllRequest, LockToAcquire};
use tonic::transport::Endpoint;

use super::*;
use crate::grpc::service::named;

/// For how long places are kept: longer than anything takes that a case does meanwhile.
const GRACE: Duration = Duration::from_secs(8);
/// Shorter, for what ends with it.
const SHORT: Duration = Duration::from_secs(2);

fn opens(number: u64, grace: Duration) -> Command {
    Command::Open(Open {
        session_id: "session".into(),
        number,
        grace: Some(wire(grace)),
        ..Open::default()
    })
}

async fn resume(session: &mut SessionClient, number: u64, grace: Duration) {
    let id = session.one(opens(number, grace));
    let accepted = session.result(id).await.expect("accepted");
    assert_eq!(accepted, Outcome::Open(OpenAccepted {}));
}

/// A session whose connection can be cut.
async fn over_a_line(service: &Service, number: u64, grace: Duration) -> (SessionClient, Forwarder) {
    let line = Forwarder::before(service.port).await;
    let channel = Endpoint::from_shared(format!("http://{}", line.address())).expect("a URI");
    let channel = channel.connect().await.expect("the server accepts");
    let (commands, sent) = SessionClient::commands();
    let events = LockServiceClient::new(channel).session(sent).await.expect("a session");
    let opened = SessionClient::opened(commands, events.into_inner()).await;
    let mut session = opened.expect("it is open");
    resume(&mut session, number, grace).await;
    (session, line)
}

fn waits(owner: &str) -> AcquireRequest {
    named("request", waiting(60, acquire(owner)))
}

/// Two servers over a store: on one of its own, both over the same.
async fn servers(fixture: &Fixture) -> (Service, Service) {
    let here = Service::start(fixture).await;
    match fixture.capabilities().shared {
        true => (here, Service::start_there(fixture).await),
        false => (here, Service::start(fixture).await),
    }
}

// G221
pub async fn a_session_that_breaks_off_goes_on_in_its_place_at_another_server(fixture: &Fixture) {
    let (here, there) = servers(fixture).await;
    let a = here.acquire(acquire("a")).await;
    let (mut broken, line) = over_a_line(&here, 1, GRACE).await;
    broken.one(take(waits("b"), true));
    here.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    let c = here.wait_for(waiting(60, acquire("c")), 2).await;
    line.cut();
    assert!(broken.rest().await.1.is_some(), "it has ended");
    here.release(&a).await;
    tokio::time::sleep(GRACE / 16).await;
    let queue = here.inspect().await;
    assert_eq!((queue.holder_count, queue.waiter_count), (0, 2), "nobody overtakes it");
    let mut session = open(&there).await;
    resume(&mut session, 2, GRACE).await;
    let b = session.try_acquire(waits("b"), true).await.expect("it is the first");
    tokio::time::sleep(GRACE).await;
    assert!(
        session.keep_alive().await.not_renewed.is_empty(),
        "the undo of the first call leaves it"
    );
    there.release(&b).await;
    let c = c.await.expect("no panic").expect("granted");
    assert!(c.fencing_token > b.fencing_token);
}

// G221
pub async fn what_a_broken_session_does_not_ask_for_again_is_taken_out_after_the_grace(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let a = service.acquire(acquire("a")).await;
    let (mut broken, line) = over_a_line(&service, 1, SHORT).await;
    broken.one(take(waits("b"), true));
    service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    let c = service.wait_for(waiting(60, acquire("c")), 2).await;
    let began = Instant::now();
    line.cut();
    broken.rest().await;
    service.release(&a).await;
    c.await.expect("no panic").expect("granted");
    let waited = began.elapsed();
    assert!(waited >= SHORT && waited < SHORT + SOON, "{waited:?}");
}

// G222
pub async fn an_acquire_on_a_lower_number_is_superseded(fixture: &Fixture) {
    let (here, there) = servers(fixture).await;
    let a = here.acquire(acquire("a")).await;
    let mut later = open(&here).await;
    resume(&mut later, 2, GRACE).await;
    let id = later.one(take(waits("b"), true));
    here.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    let mut earlier = open(&there).await;
    resume(&mut earlier, 1, GRACE).await;
    refused(earlier.try_acquire(waits("b"), true).await, Aborted, "SUPERSEDED");
    here.release(&a).await;
    let b = later.lease(id).await.expect("its place is its own");
    refused(earlier.try_acquire(waits("b"), true).await, Aborted, "SUPERSEDED");
    assert!(is_held(&here, &b).await);
}

// G221
pub async fn a_session_that_its_client_ends_or_that_breaks_the_protocol_keeps_no_place(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    service.acquire(acquire("a")).await;
    for number in 1..=3 {
        let mut session = open(&service).await;
        resume(&mut session, number, GRACE).await;
        let wait = session.one(take(waits("b"), false));
        service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
        let began = Instant::now();
        match number {
            1 => session.end_commands(),
            2 => session.send_raw(vec![(wait, Some(take(waits("b"), false)))]),
            _ => {
                session.one(close(false));
            }
        }
        service.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 0).await;
        assert!(began.elapsed() < GRACE / 2, "{number}: {:?}", began.elapsed());
    }
}

// G223
pub async fn a_wait_of_a_broken_session_is_cancelled_by_its_request(fixture: &Fixture) {
    let (here, there) = servers(fixture).await;
    here.acquire(acquire("a")).await;
    let (mut broken, line) = over_a_line(&here, 1, GRACE).await;
    broken.one(take(waits("b"), true));
    here.until(NAMESPACE, LOCK, |lock| lock.waiter_count == 1).await;
    line.cut();
    let mut session = open(&there).await;
    let cancels = |owner: &str| {
        Command::Cancel(Cancel {
            id: 0,
            request: Some(RequestToCancel {
                namespace: NAMESPACE.into(),
                name: LOCK.into(),
                owner: owner.into(),
                request_id: "request".into(),
            }),
        })
    };
    resume(&mut session, 2, GRACE).await;
    for owner in ["b", "b", "nobody"] {
        let id = session.one(cancels(owner));
        session.result(id).await.expect("what has nothing is no error");
        assert_eq!(there.inspect().await.waiter_count, 0);
    }
    let id = session.one(cancels(""));
    invalid(session.result(id).await, "owner");
    let mut without = open(&there).await;
    let id = without.one(cancels("b"));
    invalid(without.result(id).await, "request");
}

fn both(wait: Duration) -> Command {
    let lock = |name: &str| LockToAcquire {
        name: name.into(),
        mode: None,
    };
    let request = AcquireAllRequest {
        namespace: NAMESPACE.into(),
        locks: vec![lock("x"), lock("y")],
        owner: "b".into(),
        wait: Some(wire(wait)),
        request_id: "request".into(),
        ..AcquireAllRequest::default()
    };
    Command::AcquireAll(AcquireAll {
        request: Some(request),
        keep: true,
    })
}

// G221
pub async fn an_acquire_all_that_was_resumed_and_fails_gives_back_what_it_holds(fixture: &Fixture) {
    let (here, there) = servers(fixture).await;
    here.acquire(on("y", acquire("a"))).await;
    let (mut broken, line) = over_a_line(&here, 1, GRACE).await;
    broken.one(both(Duration::from_secs(60)));
    here.until(NAMESPACE, "y", |lock| lock.waiter_count == 1).await;
    let first = here.look_at(NAMESPACE, "x").await.holders[0].fencing_token;
    line.cut();
    let mut session = open(&there).await;
    resume(&mut session, 2, GRACE).await;
    let id = session.one(both(Duration::from_secs(1)));
    refused(session.result(id).await, Aborted, "WAIT_TIMEOUT");
    let x = there.look_at(NAMESPACE, "x").await;
    assert_eq!(x.holders.len(), 0, "{first}: {x:?}");
    assert_eq!(there.look_at(NAMESPACE, "y").await.waiter_count, 0);
}

// G221
pub async fn an_acquire_all_of_a_broken_session_keeps_what_it_holds(fixture: &Fixture) {
    let (here, there) = servers(fixture).await;
    let held = here.acquire(on("y", acquire("a"))).await;
    let both = || both(Duration::from_secs(60));
    let (mut broken, line) = over_a_line(&here, 1, GRACE).await;
    broken.one(both());
    here.until(NAMESPACE, "y", |lock| lock.waiter_count == 1).await;
    let first = here.look_at(NAMESPACE, "x").await.holders[0].fencing_token;
    line.cut();
    tokio::time::sleep(GRACE / 16).await;
    assert_eq!(here.look_at(NAMESPACE, "x").await.holders[0].fencing_token, first);
    let mut session = open(&there).await;
    resume(&mut session, 2, GRACE).await;
    let id = session.one(both());
    there.release(&held).await;
    match session.result(id).await.expect("granted") {
        Outcome::AcquireAll(all) => assert_eq!(all.leases[0].fencing_token, first),
        other => panic!("{other:?}"),
    }
}

// G221
pub async fn the_fields_of_an_open_are_bounded(fixture: &Fixture) {
    let service = Service::start(fixture).await;
    let good = Open {
        session_id: "s".repeat(128),
        number: u64::MAX,
        grace: Some(wire(Duration::from_secs(10))),
        ..Open::default()
    };
    let said = [
        (good.clone(), None),
        (
            Open {
                number: 0,
                ..good.clone()
            },
            Some("number"),
        ),
        (
            Open {
                session_id: "s".repeat(129),
                ..good.clone()
            },
            Some("session_id"),
        ),
        (
            Open {
                session_id: String::new(),
                ..good.clone()
            },
            Some("session_id"),
        ),
        (
            Open {
                grace: Some(wire(Duration::from_millis(10_001))),
                ..good.clone()
            },
            Some("grace"),
        ),
        (Open { grace: None, ..good }, None),
    ];
    for (open_it, field) in said {
        let mut session = open(&service).await;
        let id = session.one(Command::Open(open_it));
        let result = session.result(id).await;
        match field {
            Some(field) => invalid(result, field),
            None => assert_eq!(result.expect("accepted"), Outcome::Open(OpenAccepted {})),
        }
    }
}
