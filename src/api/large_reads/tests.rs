use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::api::authenticate::Caller;

fn caller(identity: &str) -> Caller {
    let mut caller = Caller::of(&mut http::Extensions::new());
    caller.identity = Identity::authenticated(identity);
    caller
}

fn namespace(name: &str) -> Step {
    Step::Read(Namespace::new(name).unwrap())
}

/// The places that were given, among calls that wait.
fn given(calls: &mut Vec<(&'static str, BoxFuture<'static, Place>)>) -> Vec<(&'static str, Place)> {
    let mut given = Vec::new();
    let mut waiting = Vec::new();
    for (who, mut call) in calls.drain(..) {
        match (&mut call).now_or_never() {
            Some(place) => given.push((who, place)),
            None => waiting.push((who, call)),
        }
    }
    *calls = waiting;
    given
}

fn call(reads: &LargeReads, who: &'static str) -> (&'static str, BoxFuture<'static, Place>) {
    let reads = reads.clone();
    let enter = async move { reads.enter(Step::Convert, &caller(who)).await };
    let mut enter = enter.boxed();
    // It begins to wait.
    if let Some(place) = (&mut enter).now_or_never() {
        enter = std::future::ready(place).boxed();
    }
    (who, enter)
}

// G193
#[test]
fn as_many_large_reads_as_places_run_at_once_and_callers_take_turns() {
    const PLACES: usize = 2;
    let reads = LargeReads::new(PLACES);
    let mut calls: Vec<_> = (0..20).map(|_| call(&reads, "many")).collect();
    let mut running = given(&mut calls);
    assert_eq!(running.len(), PLACES);
    calls.extend(["few", "few", "other"].map(|who| call(&reads, who)));
    let mut order = Vec::new();
    while !running.is_empty() {
        running.remove(0);
        let next = given(&mut calls);
        assert!(next.len() <= 1, "one leaves, one enters");
        order.extend(next.iter().map(|(who, _)| *who));
        running.extend(next);
    }
    assert_eq!(order[..6], ["many", "few", "other", "many", "few", "many"]);
    assert_eq!(order.len(), 20 - PLACES + 3);
    assert!(reads.steps.lock().is_empty(), "nothing is left");
}

#[test]
fn a_call_that_has_ended_takes_no_place() {
    let reads = LargeReads::new(1);
    let mut calls: Vec<_> = ["a", "a", "b", "c"].map(|who| call(&reads, who)).into();
    let running = given(&mut calls);
    // One ends while it waits, and one after it was given its place.
    let (b, c) = (calls.remove(1), calls.remove(1));
    drop(b);
    drop(running);
    drop(calls);
    let (_, last) = c;
    assert!(last.now_or_never().is_some());
    assert!(reads.steps.lock().is_empty());
}

#[test]
fn a_store_that_does_not_answer_holds_up_no_other_namespace() {
    let reads = LargeReads::new(1);
    let hanging = reads.enter(namespace("a"), &caller("x")).now_or_never();
    assert!(hanging.is_some());
    assert!(reads.enter(namespace("a"), &caller("y")).now_or_never().is_none());
    assert!(reads.enter(namespace("b"), &caller("y")).now_or_never().is_some());
    assert!(reads.enter(Step::Convert, &caller("y")).now_or_never().is_some());
}
