//! What ties a step to its session and its connection.

use std::time::Duration;

use fencepost::backend::{BackendError, Health};

use crate::claims::{Asking, claim};
use crate::fixture::{BASE, Fixture, SESSION_TTL, serves, step};
use crate::proxy::Fate;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_a_session_that_has_ended_takes_no_effect_however_late_it_comes() {
    let Some(fixture) = Fixture::new().await else { return };
    let new = claim("late");
    let late = fixture.acquire_late(&new, "h/x/").await;
    fixture.here().undo(&new).await;
    // With the session its marks go.
    let marks = fixture.leases_under(&fixture.key("mark/")).await;
    assert_eq!(marks.len(), 1, "{marks:?}");
    fixture.revoke(marks[0]).await;
    assert!(fixture.leases_under(&fixture.key("mark/")).await.is_empty());
    late.let_go().await;
    assert!(fixture.there().is_free().await);
}

/// No waiter of a server that failed outlives it by more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_session_lives_for_the_time_of_the_configuration() {
    let Some(fixture) = Fixture::new().await else { return };
    let leases = fixture.leases_under(&fixture.key("session/")).await;
    assert_eq!(leases.len(), 2, "{leases:?}");
    for lease in leases {
        let answer = fixture.etcd.clone().lease_time_to_live(lease, None).await;
        let granted = answer.expect("etcd answers").granted_ttl();
        assert_eq!(Duration::from_secs(granted.unsigned_abs()), SESSION_TTL);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentry_of_a_session_that_has_ended_takes_no_effect_however_late_it_comes() {
    let Some(fixture) = Fixture::new().await else { return };
    let hold = fixture.there().hold(claim("owner").reentrant()).await;
    let again = claim("owner").reentrant();
    let late = fixture.reenter_late(&hold, &again).await;
    fixture.here().undo(&again).await;
    // With the session its marks go.
    let marks = fixture.leases_under(&fixture.key("mark/")).await;
    assert_eq!(marks.len(), 1, "{marks:?}");
    fixture.revoke(marks[0]).await;
    late.let_go().await;
    fixture.there().release(&hold).await;
    assert!(fixture.there().is_free().await, "nobody knows of the second hold");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_connection_broke_before_its_answer_came_fails() {
    let Some(fixture) = Fixture::new().await else { return };
    let (here, new) = (fixture.here(), claim("late"));
    let mut answer = fixture.proxy.catch(Fate::AnswerHeld, &step(&new, "h/x/"));
    let mut proof = fixture
        .proxy
        .catch(Fate::Held, &["KV/Range".to_owned(), fixture.key(BASE)]);
    let broken = async {
        answer.is_here().await;
        fixture.proxy.break_signs_of_life();
        // It is known to be broken when the base is proven anew.
        proof.is_here().await;
        answer.let_go().await;
    };
    let (acquired, ()) = tokio::join!(fixture.first.acquire(here.name(), &new), broken);
    assert!(
        matches!(acquired, Err(BackendError::Unavailable { .. })),
        "{acquired:?}"
    );
    proof.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_granted_over_a_new_connection_before_the_base_was_proven_over_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut proof = fixture
        .proxy
        .catch(Fate::Held, &["KV/Range".to_owned(), fixture.key(BASE)]);
    fixture.proxy.break_signs_of_life();
    proof.is_here().await;
    let (here, new) = (fixture.here(), claim("early").trying());
    let entering = here.acquire(&new);
    tokio::pin!(entering);
    let early = tokio::time::timeout(Duration::from_millis(500), &mut entering).await;
    assert!(early.is_err(), "{early:?}");
    proof.let_go().await;
    crate::replica::held(entering.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_that_was_read_before_the_connection_broke_is_read_anew_before_the_first_grant() {
    let Some(fixture) = Fixture::new().await else { return };
    let read = ["KV/Range".to_owned(), fixture.key(BASE)];
    let proxy = fixture.another_proxy().await;
    let mut first = proxy.catch(Fate::AnswerHeld, &read);
    let backend = fixture.begin_over(&[&proxy]);
    first.is_here().await;
    let mut again = proxy.catch(Fate::Held, &read);
    proxy.break_signs_of_life();
    first.let_go().await;
    again.is_here().await;
    let health = backend.health().borrow().clone();
    assert_ne!(health, Health::Serving);
    again.let_go().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_notices_when_the_connection_breaks_that_its_calls_moved_to_while_it_began() {
    let Some(fixture) = Fixture::new().await else { return };
    let read = ["KV/Range".to_owned(), fixture.key(BASE)];
    let (left, used) = (fixture.another_proxy().await, fixture.another_proxy().await);
    let _failed = left.catch(Fate::Late, &read);
    let backend = fixture.begin_over(&[&left, &used]);
    serves(&*backend).await;
    let mut again = used.catch(Fate::Held, &read);
    used.break_signs_of_life();
    again.is_here().await;
    again.let_go().await;
}
