//! When streams and waits learn that their caller may not continue.

use futures::FutureExt;
use futures::future::poll_immediate;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use http::Request;
use http::header::AUTHORIZATION;
use tonic::body::Body;

use super::*;
use crate::api::authenticate::{Authentication, CallerState};
use crate::auth::{BearerHash, Policy, PolicySettings, Rule, Rules};
use crate::locks::SessionStream;
use crate::name::RequestId;

/// What is left of 2 s after the second between two looks at the files.
const NOTICED: Duration = Duration::from_secs(1);

/// A policy that accepts the token of this name, which may do this.
fn policy(name: &str, verbs: &[Verb]) -> Policy {
    let hash = digest(&SHA256, b"secret");
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let all = || vec![Pattern::new("*").unwrap()];
    let rule = Rule {
        identities: all(),
        namespaces: all(),
        locks: vec![String::new()],
        verbs: verbs.to_vec(),
    };
    let settings = PolicySettings {
        bearers: vec![BearerHash::parse(&format!("{name}:{digits}")).unwrap()],
        rules: Rules::new(vec![rule]),
        ..PolicySettings::default()
    };
    Policy::open(&settings).unwrap()
}

/// A caller whose token is accepted, and the policy in force.
fn caller() -> (Caller, Auth) {
    caller_that_may(Verb::Read)
}

fn caller_that_may(verb: Verb) -> (Caller, Auth) {
    let auth = Auth::new(Some(policy("ci", &[verb])));
    let request = Request::builder().header(AUTHORIZATION, "Bearer secret");
    let request = request.body(Body::empty()).unwrap();
    match Authentication::new(auth.clone(), None).caller_state(&request) {
        Ok(CallerState::Known(caller)) => (caller, auth),
        _ => panic!("the token is not accepted"),
    }
}

// G47
#[tokio::test(start_paused = true)]
async fn a_stream_ends_within_a_second_of_the_change_that_revokes_its_token() {
    let (caller, auth) = caller();
    let mut ended = Box::pin(GuardedNamespaces::until_unauthenticated(caller.clone()));
    assert!(poll_immediate(&mut ended).await.is_none());
    auth.replace(Some(policy("ci", &[Verb::Acquire])));
    sleep(10 * NOTICED).await;
    assert!((&mut ended).now_or_never().is_none(), "its token is still accepted");
    auth.replace(Some(policy("other", &[Verb::Read])));
    let began = Instant::now();
    assert!(matches!(ended.await, Error::Unauthenticated { .. }));
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
    let began = Instant::now();
    GuardedNamespaces::until_unauthenticated(caller).await;
    assert!(began.elapsed() < NOTICED, "its token was revoked before it began");
}

// G221
#[tokio::test(start_paused = true)]
async fn a_wait_of_a_session_keeps_its_place_when_its_token_is_revoked_and_not_when_its_rule_is_taken() {
    for (name, verb, waiters) in [("other", Verb::Acquire, 1), ("ci", Verb::Read, 0)] {
        let (caller, auth) = caller_that_may(Verb::Acquire);
        let (namespace, lock) = (Namespace::new("jobs").unwrap(), LockName::new("a").unwrap());
        let store = Store::memory().namespace(namespace.clone());
        let locks = Locks::new(namespace, Limits::default(), store);
        let guarded = GuardedNamespaces::new(Namespaces::new(vec![locks.clone()]), Quotas::default());
        let held = attempt(&lock, &caller.identity);
        let wait = Acquire {
            wait: 60 * NOTICED,
            request_id: Some(RequestId::new("r").unwrap()),
            ..held.clone()
        };
        locks.acquire(held).await.unwrap().delivered();
        let stream = SessionStream::new("session", 1, 8 * NOTICED, caller.identity.clone());
        let allowed = guarded.to_acquire(caller, "jobs", "a").unwrap().on(Some(stream));
        let waiting = tokio::spawn(allowed.wait_for(wait).unwrap());
        sleep(NOTICED / 2).await;
        auth.replace(Some(policy(name, &[verb])));
        waiting.await.unwrap().unwrap_err();
        sleep(NOTICED / 2).await;
        assert_eq!(locks.inspect(&lock, 9).await.unwrap().waiter_count, waiters);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_within_a_second_of_the_change_that_takes_its_rule() {
    let (caller, auth) = caller();
    let namespace = Namespace::new("jobs").unwrap();
    let store = Store::memory().namespace(namespace.clone());
    let namespaces = Namespaces::new(vec![Locks::new(namespace, Limits::default(), store)]);
    let guarded = GuardedNamespaces::new(namespaces, Quotas::default());
    let (_, permission) = guarded.to_watch(caller, "jobs", "a").unwrap();
    let mut denied = Box::pin(permission.until_denied(LockName::new("a").unwrap()));
    assert!(poll_immediate(&mut denied).await.is_none());
    auth.replace(Some(policy("ci", &[Verb::Read, Verb::Acquire])));
    sleep(10 * NOTICED).await;
    assert!((&mut denied).now_or_never().is_none(), "it may still read");
    auth.replace(Some(policy("ci", &[Verb::Acquire])));
    let began = Instant::now();
    assert!(matches!(denied.await.0, Error::PermissionDenied(_)));
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
}
