//! The order of calls, the places that are reserved, and which waiters are notified.

use std::cell::RefCell;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tokio::time::sleep;

use super::call_queue::{CallKind, MAX_CONCURRENT};
use super::*;
use crate::backend::etcd::cluster::Failure;
use crate::backend::etcd::cluster::settings::Settings;
use crate::backend::etcd::data::record::Claim;
use crate::name::Namespace;

fn table() -> Arc<LockTable> {
    let namespace = Namespace::new("n").unwrap();
    let link = ClusterClient::new(&Settings::new(vec!["http://127.0.0.1:1".into()]));
    LockTable::new(
        Keys::new("r", &namespace),
        Arc::new(link),
        Arc::default(),
        CancellationToken::new(),
    )
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn len(table: &LockTable) -> usize {
    table.locks.lock().len()
}

#[tokio::test(start_paused = true)]
async fn calls_on_one_lock_start_one_after_another_in_their_order() {
    let (table, name, seen) = (table(), lock("a"), RefCell::new(Vec::new()));
    let acquire = |n: u64| {
        let (table, name, seen) = (&table, &name, &seen);
        async move {
            let _position = table.join_queue(name, CallKind::Acquire, false).await.unwrap();
            seen.borrow_mut().push((n, true));
            sleep(Duration::from_millis(20 - n)).await;
            seen.borrow_mut().push((n, false));
        }
    };
    join_all((0..20).map(acquire)).await;
    let one_by_one: Vec<_> = (0..20).flat_map(|n| [(n, true), (n, false)]).collect();
    assert_eq!(*seen.borrow(), one_by_one);
    assert_eq!(len(&table), 0, "every queue is removed");
}

#[tokio::test]
async fn readers_run_concurrently_and_overtake_no_earlier_call() {
    let (table, name) = (table(), lock("a"));
    let acquire = |concurrent| Box::pin(table.join_queue(&name, CallKind::Acquire, concurrent));
    let (first, mut second) = (acquire(true).await.unwrap(), acquire(true).await.unwrap());
    let (mut writer, mut later) = (acquire(false), acquire(true));
    assert!(futures::poll!(&mut writer).is_pending());
    assert!(futures::poll!(&mut later).is_pending(), "a writer is before it");
    // It cannot be granted at once, and keeps its position.
    {
        let mut alone = Box::pin(second.wait_for_earlier_calls());
        assert!(futures::poll!(&mut alone).is_pending(), "one call is before it still");
        drop(first);
        assert!(alone.await.is_ok());
    }
    assert!(futures::poll!(&mut writer).is_pending());
    drop(second);
    let writer = writer.await.unwrap();
    assert!(futures::poll!(&mut later).is_pending());
    drop(writer);
    assert!(later.await.unwrap().concurrent);
    assert_eq!(len(&table), 0);
}

#[tokio::test]
async fn the_number_of_concurrent_readers_is_bounded() {
    let (table, name) = (table(), lock("a"));
    let mut all = join_all((0..MAX_CONCURRENT).map(|_| table.join_queue(&name, CallKind::Acquire, true))).await;
    let mut next = Box::pin(table.join_queue(&name, CallKind::Acquire, true));
    assert!(futures::poll!(&mut next).is_pending());
    all.pop();
    assert!(next.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn each_lock_has_a_queue_of_its_own() {
    let (table, names) = (table(), [lock("a"), lock("b")]);
    let first = table.join_queue(&names[0], CallKind::Acquire, false).await;
    let other = table.join_queue(&names[1], CallKind::Acquire, false).now_or_never();
    let other = other.expect("no call is before it");
    assert!(
        table
            .join_queue(&names[0], CallKind::Acquire, false)
            .now_or_never()
            .is_none()
    );
    drop((first, other));
    assert_eq!(len(&table), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_does_not_block_the_next_one() {
    let (table, name) = (table(), lock("a"));
    let first = table.join_queue(&name, CallKind::Acquire, false).await;
    let (mut leaves, mut stays) = (
        Box::pin(table.join_queue(&name, CallKind::Acquire, false)),
        Box::pin(table.join_queue(&name, CallKind::Acquire, false)),
    );
    assert!(futures::poll!(&mut leaves).is_pending());
    assert!(futures::poll!(&mut stays).is_pending());
    drop(first);
    // It was started, and is dropped before it notices that.
    drop(leaves);
    assert!(stays.await.is_ok());
    assert_eq!(len(&table), 0);
}

#[tokio::test]
async fn calls_behind_one_that_the_store_does_not_answer_fail_with_it() {
    let (table, name) = (table(), lock("a"));
    let first = table.join_queue(&name, CallKind::Acquire, false).await.unwrap();
    let mut behind = [
        Box::pin(table.join_queue(&name, CallKind::Acquire, false)),
        Box::pin(table.join_queue(&name, CallKind::Acquire, true)),
    ];
    for behind in &mut behind {
        assert!(futures::poll!(behind).is_pending());
    }
    first.fail_later_calls(&Failure::Unavailable("it is unavailable".into()));
    for behind in join_all(behind).await {
        assert!(matches!(behind, Err(Failure::NotSent(reason)) if reason.contains("unavailable")));
    }
    drop(first);
    assert!(
        table.join_queue(&name, CallKind::Acquire, false).await.is_ok(),
        "later calls start"
    );
    assert_eq!(len(&table), 0);
}

#[test]
fn a_place_is_reserved_for_a_claim_until_the_call_that_appends_it_is_answered() {
    let (table, name) = (table(), lock("a"));
    let suffix = |number| KeySuffix::from_bytes([number; 16]);
    let reserve = |number| table.reserve(&name, suffix(number), |state| state.in_flight() < 2);
    let (first, second) = (reserve(1).unwrap(), reserve(2).unwrap());
    assert!(reserve(3).is_none());
    drop(first);
    assert!(reserve(3).is_some());
    drop(second);
    assert_eq!(len(&table), 0);
}

/// A holder that was granted at this revision.
fn holder(mode: Mode, granted: i64) -> Entry {
    let new = NewClaim {
        mode,
        ..NewClaim::numbered(1)
    };
    Entry {
        suffix: KeySuffix::from_bytes([1; 16]),
        claim: Claim::of(&new),
        created: granted,
        modified: granted,
        lease: 1,
    }
}

#[tokio::test]
async fn a_lock_without_a_view_is_taken_from_a_grant_of_this_replica_until_its_end() {
    let (table, name) = (table(), lock("a"));
    let is_taken = || table.is_taken_unseen(&name, 100);
    let position = table.join_queue(&name, CallKind::Acquire, false).await.unwrap();
    assert!(!is_taken());
    table.granted(&name, &holder(Mode::Exclusive, 7), None);
    assert!(is_taken() && !table.has_waiters_unseen(&name));
    table.ended(&name, &holder(Mode::Exclusive, 6));
    assert!(is_taken(), "an earlier holder ended");
    table.ended(&name, &holder(Mode::Exclusive, 7));
    assert!(!is_taken());
    table.granted(&name, &holder(Mode::Exclusive, 8), None);
    table.granted(&name, &holder(Mode::Shared, 9), None);
    assert!(!is_taken(), "a reader holds now");
    let waiter = NewClaim::numbered(2);
    table.with(&name, |state| {
        state
            .own_waiters
            .insert(waiter.id, OwnWaiter::new(&waiter, KeySuffix::from_bytes([2; 16]), 9))
    });
    assert!(is_taken() && table.has_waiters_unseen(&name));
    table.with(&name, |state| state.view = Some(View::default()));
    assert!(!is_taken() && !table.has_waiters_unseen(&name), "the view says that");
    drop(position);
}

#[test]
fn a_lock_without_a_view_has_room_for_a_few_claims_and_never_for_more_than_its_limit() {
    let room = |limit| {
        let mut state = LockState::default();
        while state.has_room(None, limit) {
            let number = u8::try_from(state.in_flight()).unwrap();
            state.in_flight.insert(KeySuffix::from_bytes([number; 16]));
        }
        state.in_flight()
    };
    // With the holder.
    assert_eq!([2, 5, 1_000].map(room), [1, 4, UNSEEN - 1]);
}

#[test]
fn a_waiter_that_is_gone_is_reported_once_and_removed() {
    let waiter = NewClaim::numbered(1);
    let mut view = View::default();
    view.revision = 7;
    let mut state = LockState {
        view: Some(view),
        ..LockState::default()
    };
    let own = |since| OwnWaiter::new(&waiter, KeySuffix::from_bytes([1; 16]), since);
    state.own_waiters.insert(waiter.id, own(8));
    assert!(!state.is_lost(&waiter.id), "the view does not have it yet");
    state.own_waiters.insert(waiter.id, own(7));
    assert!(state.is_lost(&waiter.id));
    assert!(!state.is_lost(&waiter.id));
    assert!(state.own_waiters.is_empty(), "no call would remove it any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_registered_waiter_is_watched() {
    let (table, name) = (table(), lock("a"));
    let (others, removed) = (Arc::clone(&table), name.clone());
    let removing = tokio::task::spawn_blocking(move || {
        while !others.closed.is_cancelled() {
            others.unwatch_if_unused(&removed);
        }
    });
    let waiter = NewClaim::numbered(1);
    for round in 0..20_000 {
        table.register(
            &name,
            waiter.id,
            OwnWaiter::new(&waiter, KeySuffix::from_bytes([1; 16]), 1),
            None,
        );
        let watched = table.with(&name, |state| state.is_watched && !state.own_waiters.is_empty());
        if !watched {
            table.closed.cancel();
        }
        assert!(watched, "round {round}");
        table.remove_waiter(&name, &waiter.id, waiter.call);
    }
    table.closed.cancel();
    removing.await.unwrap();
    table.unwatch_if_unused(&name);
    assert_eq!(len(&table), 0);
}
