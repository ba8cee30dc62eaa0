use futures::FutureExt;
use futures::future::BoxFuture;

use super::*;
use crate::api::authenticate::Caller;
use crate::api::connection::Remote;
use crate::api::peer::Peer;

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
        // One that is given its place yields once.
        match (&mut call).now_or_never().or_else(|| (&mut call).now_or_never()) {
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
    // It begins to wait, or yields.
    assert!((&mut enter).now_or_never().is_none());
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
    let (_, mut last) = c;
    assert!((&mut last).now_or_never().or_else(|| last.now_or_never()).is_some());
    assert!(reads.steps.lock().is_empty());
}

#[test]
fn a_store_that_does_not_answer_holds_up_no_other_namespace() {
    let reads = LargeReads::new(1);
    let enters = |step, who| {
        let caller = caller(who);
        let mut enter = Box::pin(reads.enter(step, &caller));
        // It yields at least once.
        (&mut enter).now_or_never().or_else(|| enter.now_or_never())
    };
    let hanging = enters(namespace("a"), "x");
    assert!(hanging.is_some());
    assert!(enters(namespace("a"), "y").is_none());
    assert!(enters(namespace("b"), "y").is_some());
    assert!(enters(Step::Convert, "y").is_some());
}

// G193
#[test]
fn tasks_that_are_ready_run_before_a_read_that_was_given_its_place() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).build().unwrap();
    let order = runtime.block_on(async {
        let (reads, order) = (LargeReads::new(1), Arc::<Mutex<Vec<&str>>>::default());
        let place = reads.enter(Step::Convert, &caller("a")).await;
        let arrived = Arc::new(tokio::sync::Notify::new());
        let begins = |what, on: BoxFuture<'static, ()>| {
            let order = Arc::clone(&order);
            tokio::spawn(on.map(move |()| order.lock().push(what)))
        };
        let renewal = {
            let arrived = Arc::clone(&arrived);
            begins("renewal", async move { arrived.notified().await }.boxed())
        };
        let read = {
            let reads = reads.clone();
            begins(
                "read",
                async move { drop(reads.enter(Step::Convert, &caller("b")).await) }.boxed(),
            )
        };
        while reads.steps.lock()[&Step::Convert].turns.is_empty() {
            tokio::task::yield_now().await;
        }
        // In a task of the runtime, as a read ends there.
        let ends = tokio::spawn(async move {
            arrived.notify_one();
            drop(place);
        });
        for task in [renewal, read, ends] {
            task.await.unwrap();
        }
        order.lock().clone()
    });
    assert_eq!(order, ["renewal", "read"]);
}

#[test]
fn callers_without_an_identity_take_turns_by_their_address() {
    let nobody = Identity::anonymous();
    let at = |address: &str| {
        let mut caller = Caller::of(&mut http::Extensions::new());
        caller.identity = nobody.clone();
        caller.peer = Some(Remote::new(Peer::Tcp(address.parse().unwrap()), None));
        caller
    };
    let [one, other] = ["10.0.0.1:1", "10.0.0.2:1"].map(at);
    assert_ne!(Reader::of(&one), Reader::of(&other));
    assert_eq!(Reader::of(&one), Reader::of(&at("10.0.0.1:2")));
    assert_ne!(Reader::of(&one), Reader::of(&caller("a")));
}

#[test]
fn a_crowd_of_calls_that_have_ended_is_passed_over_without_recursion() {
    const CALLS: usize = 100_000;
    let reads = LargeReads::new(1);
    let running = given(&mut vec![call(&reads, "running")]);
    let ended: Vec<_> = (0..CALLS).map(|_| call(&reads, "ended")).collect();
    drop(ended);
    drop(running);
    assert!(reads.steps.lock().is_empty());
}

// G57, G206
#[tokio::test(start_paused = true)]
async fn reads_of_a_store_that_stands_silent_fail_within_ten_seconds() {
    let (reads, namespace) = (LargeReads::new(2), Namespace::new("a").unwrap());
    let (began, caller) = (Instant::now(), caller("x"));
    let calls = (0..20).map(|_| reads.read(&namespace, &caller, std::future::pending::<Result<(), Error>>()));
    for answer in futures::future::join_all(calls).await {
        let error = answer.expect_err("it is not answered");
        assert!(
            matches!(&error, Error::Backend(error) if error.is_transient()),
            "{error}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(reads.steps.lock().is_empty());
}
