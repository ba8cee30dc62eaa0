//! What the scripts make of claims, beyond what every store is asked.

use std::time::Duration;

use fencepost::backend::{
    AcquireOutcome, Backend, BackendError, NewClaim, Notification, Refusal, ReleaseTarget, Released, WaitPolicy,
};
use fencepost::claim::Cause;
use fencepost::name::{CallId, LockKey, LockName, Mode, Namespace, Owner};
use futures::{StreamExt, stream};

use crate::access::{RIGHTS, with_user};
use crate::long_queues::{claim, open, open_at};
use crate::servers::{RedisServer, available};

/// How long something that must come may take.
const SOON: Duration = Duration::from_secs(30);

fn lock() -> LockName {
    LockName::new("a").unwrap()
}

/// A claim that retries look for.
fn request(number: u128) -> NewClaim {
    NewClaim {
        retryable: true,
        ..claim(number)
    }
}

/// A reader that may acquire again.
fn reader(number: u128) -> NewClaim {
    NewClaim {
        mode: Mode::Shared,
        reentrant: true,
        owner: Owner::new("reader").unwrap(),
        ..request(number)
    }
}

/// The same request in another call.
fn again(of: &NewClaim, call: u128) -> NewClaim {
    NewClaim {
        call: CallId::from_bytes(call.to_be_bytes()),
        ..of.clone()
    }
}

async fn hold(backend: &dyn Backend, claim: &NewClaim) -> fencepost::backend::Grant {
    match backend.acquire(&lock(), claim).await.unwrap() {
        AcquireOutcome::Held(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn wait(backend: &dyn Backend, claim: &NewClaim) {
    let place = backend.acquire(&lock(), claim).await.unwrap();
    assert!(matches!(place, AcquireOutcome::Waiting(_)), "{place:?}");
}

async fn release(backend: &dyn Backend, grant: &fencepost::backend::Grant, next: Option<&NewClaim>) {
    let lease = grant.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let left = backend
        .release(&lock(), ReleaseTarget::Hold(&lease), next)
        .await
        .unwrap();
    assert_eq!(left.released, Released::Ended(Cause::Released));
}

async fn undo(backend: &dyn Backend, claim: &NewClaim) {
    let left = backend
        .release(&lock(), ReleaseTarget::Call(&claim.id, claim.call), None)
        .await;
    assert_eq!(left.unwrap().released, Released::Ended(Cause::Undone));
}

async fn undo_waiting(backend: &dyn Backend, claim: &NewClaim) {
    let left = backend
        .release(&lock(), ReleaseTarget::Call(&claim.id, claim.call), None)
        .await;
    assert_eq!(left.unwrap().released, Released::Ended(Cause::Cancelled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_is_forgotten_hides_no_later_end() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let narrow = |number| {
        let mut claim = request(number);
        claim.limits.finished = 2;
        claim
    };
    let first = narrow(1);
    hold(&*backend, &first).await;
    undo(&*backend, &first).await;
    let second = hold(&*backend, &again(&first, 101)).await;
    release(&*backend, &second, None).await;
    let other = hold(&*backend, &narrow(2)).await;
    release(&*backend, &other, None).await;
    let third = backend.acquire(&lock(), &again(&first, 102)).await.unwrap();
    assert!(matches!(third, AcquireOutcome::Finished(Cause::Released)), "{third:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_claim_that_lives_on_without_its_first_hold_is_not_given_twice() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let first = reader(1);
    hold(&*backend, &first).await;
    let more = hold(&*backend, &reader(2)).await;
    undo(&*backend, &first).await;
    let mut retry = again(&first, 101);
    retry.reentrant = false;
    let place = backend.acquire(&lock(), &retry).await.unwrap();
    let refused = matches!(
        place,
        AcquireOutcome::Refused(Refusal::OtherParameters { field: "reentrant" })
    );
    assert!(refused, "{place:?}");
    // As it was before it comes again, and the lock is free when all have left.
    retry.reentrant = true;
    let joined = hold(&*backend, &again(&retry, 102)).await;
    assert_eq!((joined.token, joined.holds), (more.token, 2));
    release(&*backend, &joined, None).await;
    release(&*backend, &more, None).await;
    hold(&*backend, &claim(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_reenters_whichever_of_its_readers_is_left() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let writer = hold(&*backend, &claim(1)).await;
    let readers = [reader(2), reader(3)];
    for reader in &readers {
        wait(&*backend, reader).await;
    }
    release(&*backend, &writer, None).await;
    let mut held = Vec::new();
    for reader in &readers {
        match backend.promote(&lock(), reader).await.unwrap() {
            AcquireOutcome::Held(grant) => held.push(grant),
            other => panic!("{other:?}"),
        }
    }
    wait(&*backend, &claim(4)).await;
    release(&*backend, &held[0], None).await;
    let more = hold(&*backend, &reader(5)).await;
    assert_eq!((more.token, more.holds), (held[1].token, 2));
    release(&*backend, &held[1], None).await;
    release(&*backend, &more, None).await;
    let next = backend.promote(&lock(), &claim(4)).await.unwrap();
    assert!(matches!(next, AcquireOutcome::Held(_)), "{next:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_next_that_a_call_elsewhere_has_taken_over_is_told_there() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, there) = (open(&server).await, open(&server).await);
    let mut notifications = there.notifications();
    // Who has seen the state of any lock hears messages, the wakes too.
    let state = there.watch(&LockName::new("warm").unwrap()).next().await;
    assert!(matches!(state, Some(Ok(_))), "{state:?}");
    let held = hold(&*here, &claim(1)).await;
    let older = request(2);
    wait(&*here, &older).await;
    wait(&*there, &again(&older, 102)).await;
    // Named by who does not know yet that its call is superseded.
    release(&*here, &held, Some(&older)).await;
    let told = async {
        while let Some(wake) = notifications.next().await {
            if wake == Notification::Next(lock(), older.id) {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, told).await.expect("its turn is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_marks_of_a_lock_are_bounded() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let left = stream::iter(1..=12_000u128).map(|number| {
        let (backend, gone) = (&backend, claim(number));
        async move {
            let who = ReleaseTarget::Call(&gone.id, gone.call);
            backend.release(&lock(), who, None).await.unwrap().released
        }
    });
    let found: Vec<Released> = left.buffer_unordered(100).collect().await;
    assert!(found.iter().all(|found| *found == Released::Nothing));
    let fields: usize = server.cli(&["HLEN", "fencepost:long:l:a"]).parse().unwrap();
    // Two for each, and some that are on their way out.
    assert!((20_000..20_100).contains(&fields), "{fields}");
    // The latest ones keep their calls out.
    let late = backend.acquire(&lock(), &claim(12_000)).await.unwrap();
    assert!(matches!(late, AcquireOutcome::Cancelled), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_of_another_layout_is_left_alone() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    hold(&*backend, &claim(1)).await;
    let mut trying = claim(2);
    trying.wait_policy = WaitPolicy::NoWait;
    // Version 2 was an array; of a later version only the first value is known.
    for another in ["cmsgpack.pack({2, 1, 1})", "cmsgpack.pack(9, 1, 'new')"] {
        let another = format!("return redis.call('HSET', KEYS[1], 'm', {another})");
        assert_eq!(server.cli(&["EVAL", &another, "1", "fencepost:long:l:a"]), "0");
        let before = server.cli(&["DUMP", "fencepost:long:l:a"]);
        let refused = backend.acquire(&lock(), &trying).await.unwrap_err();
        assert!(
            matches!(&refused, BackendError::Unavailable { reason } if reason.contains("LAYOUT")),
            "{refused:?}"
        );
        assert_eq!(server.cli(&["DUMP", "fencepost:long:l:a"]), before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_next_is_gone_tells_it_and_whoever_stands_first() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, there) = (open(&server).await, open(&server).await);
    let mut notifications = here.notifications();
    let (held, gone) = (hold(&*here, &claim(1)).await, claim(2));
    wait(&*there, &claim(3)).await;
    release(&*here, &held, None).await;
    // The first waiter has been told, and might not have heard it.
    let published = || {
        let said = server.cli(&["INFO", "commandstats"]);
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_publish:calls="));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok())
            .unwrap_or_default()
    };
    let before = published();
    let lease = held.lease(LockKey {
        namespace: Namespace::new("long").unwrap(),
        name: lock(),
    });
    let left = here
        .release(&lock(), ReleaseTarget::Hold(&lease), Some(&gone))
        .await
        .unwrap();
    assert_eq!(left.released, Released::EndedBefore(Cause::Released));
    assert_eq!(published(), before + 1);
    let told = async {
        while let Some(wake) = notifications.next().await {
            if wake == Notification::Next(lock(), gone.id) {
                return;
            }
        }
    };
    tokio::time::timeout(SOON, told).await.expect("it is told to ask");
}

/// The kinds of fields that the record of the lock has, a letter for each field.
fn kinds(server: &RedisServer) -> String {
    let kinds = "local kinds = {} for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
                 kinds[#kinds + 1] = field:sub(1, 1) end table.sort(kinds) return table.concat(kinds)";
    server.cli(&["EVAL", kinds, "1", "fencepost:long:l:a"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_comes_back_into_its_own_claim_leaves_no_field_behind() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let backend = open(&server).await;
    let first = reader(1);
    hold(&*backend, &first).await;
    let more = hold(&*backend, &reader(2)).await;
    undo(&*backend, &first).await;
    let back = hold(&*backend, &again(&first, 101)).await;
    assert_eq!(back.holds, 2);
    release(&*backend, &back, None).await;
    release(&*backend, &more, None).await;
    let kinds = kinds(&server);
    assert!(kinds.chars().all(|kind| "mFfi".contains(kind)), "{kinds}");
}

/// Backends whose scripts can send no message from now on, and are not told so.
async fn mute<const N: usize>(server: &RedisServer) -> [std::sync::Arc<fencepost::backend::redis::Redis>; N] {
    with_user(server, "mute", "right", RIGHTS);
    let url = server.url().replace("redis://", "redis://mute:right@");
    let opened: Vec<_> = stream::iter(0..N).then(|_| open_at(&url)).collect().await;
    assert_eq!(server.cli(&["ACL", "SETUSER", "mute", "-publish"]), "OK");
    opened.try_into().expect("all are open")
}

/// Which claims are woken within so long.
async fn woken(
    notifications: &mut (impl futures::Stream<Item = Notification> + Unpin),
    within: Duration,
) -> Vec<fencepost::name::ClaimId> {
    let (mut woken, end) = (Vec::new(), tokio::time::Instant::now() + within);
    while let Ok(Some(wake)) = tokio::time::timeout_at(end, notifications.next()).await {
        if let Notification::Next(_, id) = wake {
            woken.push(id);
        }
    }
    woken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_claim_was_adopted_is_told_by_the_heartbeat_and_nobody_else_is() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, [there]) = (open(&server).await, mute(&server).await);
    let mut notifications = here.notifications();
    hold(&*here, &claim(1)).await;
    for number in 2..=200 {
        wait(&*here, &request(number)).await;
    }
    woken(&mut notifications, Duration::from_millis(100)).await;
    // Nobody tells the older call that a retry elsewhere has taken its claim over.
    wait(&*there, &again(&request(60), 1_060)).await;
    assert_eq!(
        woken(&mut notifications, Duration::from_secs(4)).await,
        [request(60).id]
    );
    // The record remembers nobody when all have left.
    for number in 2..=200 {
        let call = if number == 60 { 1_060 } else { number };
        undo_waiting(&*there, &again(&request(number), call)).await;
    }
    assert!(!kinds(&server).contains('L'), "{}", kinds(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_calls_of_many_adopted_claims_are_told_by_the_heartbeats_a_few_at_a_time() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, [there]) = (open(&server).await, mute(&server).await);
    let mut notifications = here.notifications();
    hold(&*here, &claim(1)).await;
    for number in 2..=200 {
        wait(&*here, &request(number)).await;
    }
    woken(&mut notifications, Duration::from_millis(100)).await;
    let (began, period) = (tokio::time::Instant::now(), Duration::from_millis(1_500));
    let adopted = stream::iter(2..=100).map(|number| {
        let there = &there;
        async move { wait(&**there, &again(&request(number), 1_000 + number)).await }
    });
    adopted.buffer_unordered(100).collect::<Vec<()>>().await;
    let remembered: usize = server.cli(&["HSTRLEN", "fencepost:long:l:a", "L"]).parse().unwrap();
    assert!(remembered <= 48 * 16, "{remembered}");
    // More than the record remembers: all are asked, in several heartbeats.
    let first = woken(
        &mut notifications,
        Duration::from_millis(1_400).saturating_sub(began.elapsed()),
    )
    .await;
    let heartbeats = 1 + (began.elapsed().as_millis() / period.as_millis()) as usize;
    let all = [first.clone(), woken(&mut notifications, period * 5).await].concat();
    assert!(
        first.len() <= 112 * heartbeats,
        "{} of {heartbeats} heartbeats",
        first.len()
    );
    for number in 2..=100 {
        assert!(all.contains(&request(number).id), "{number} was not told");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_far_behind_those_of_another_replica_is_told_by_the_heartbeat() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let [here, there] = mute(&server).await;
    let mut notifications = here.notifications();
    let held = hold(&*there, &claim(1)).await;
    let reading = |number| NewClaim {
        mode: Mode::Shared,
        ..claim(number)
    };
    for number in 2..=121 {
        wait(&*there, &reading(number)).await;
    }
    wait(&*here, &reading(122)).await;
    release(&*there, &held, None).await;
    let woken = woken(&mut notifications, Duration::from_secs(5)).await;
    assert!(woken.contains(&reading(122).id), "{woken:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_waiter_was_taken_out_is_told_by_the_heartbeat() {
    if !available() {
        return;
    }
    let server = RedisServer::start(&[]);
    let (here, []) = (open(&server).await, mute(&server).await);
    let mut notifications = here.notifications();
    hold(&*here, &claim(1)).await;
    for number in 2..=60 {
        wait(&*here, &claim(number)).await;
    }
    woken(&mut notifications, Duration::from_millis(100)).await;
    let mute = server.url().replace("redis://", "redis://mute:right@");
    crate::gone::take_out(&server, &mute, &claim(50)).await;
    assert_eq!(woken(&mut notifications, Duration::from_secs(3)).await, [claim(50).id]);
}
