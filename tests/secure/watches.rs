//! What a caller began to watch it sees for as long as it may.

use std::time::Duration;

use fencepost::api::proto::election_service_client::ElectionServiceClient;
use fencepost::api::proto::watch_lock_response::Event;
use fencepost::api::proto::{ChangeKind, ObserveRequest, WatchLockRequest, WatchLockResponse};
use fencepost::auth::{JwtSettings, Policy, PolicySettings, Rules, Verb};
use fencepost::tls::ClientAuth;
use serde_json::json;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::asks::reason;
use super::fixture::{Caller, Fixture, PATIENCE, access, ask, bearer, detail, everything, rule};
use super::signer::{Signer, claims, seconds_from_now, trusting};
use super::tls::Secured;

fn settings() -> PolicySettings {
    PolicySettings {
        certificates: true,
        bearers: vec![bearer("ci"), bearer("ops")],
        rules: everything(),
        ..PolicySettings::default()
    }
}

async fn watch(caller: &Caller) -> Streaming<WatchLockResponse> {
    let ask = WatchLockRequest {
        namespace: "jobs".into(),
        name: "a".into(),
    };
    let answer = caller.locks().watch_lock(caller.request(ask)).await;
    let mut seen = answer.expect("it may look").into_inner();
    seen.message().await.expect("a state").expect("a state");
    seen
}

/// How a watch of a lock that nobody uses ends.
async fn end(mut seen: Streaming<WatchLockResponse>) -> Status {
    let next = timeout(PATIENCE, seen.message()).await.expect("it goes on and on");
    next.expect_err("an error ends it")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_the_rule_or_the_token_that_allowed_it() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let (first, second, mut kept) = (
        watch(&ci).await,
        watch(&ci.showing("secret-ops")).await,
        watch(&ci).await,
    );
    let replaced = |settings: &PolicySettings| {
        let policy = Policy::open(settings).expect("a policy");
        fixture.access.auth.replace(Some(policy));
    };
    // Without the token of one, and a rule for the other in another namespace.
    replaced(&PolicySettings {
        bearers: vec![bearer("ci")],
        rules: Rules::new(vec![rule(&["token:ci"], &["other"], &[""], &[Verb::Read])]),
        ..settings()
    });
    assert_eq!(reason(&end(first).await), "PERMISSION_DENIED");
    assert_eq!(reason(&end(second).await), "UNAUTHENTICATED");
    let _ = timeout(PATIENCE, kept.message()).await.expect("it ends");

    // Another policy that allows it lets it go on.
    replaced(&settings());
    let mut kept = watch(&ci).await;
    replaced(&PolicySettings {
        rules: Rules::new(vec![rule(&["token:ci"], &["jobs"], &[""], &[Verb::Read])]),
        ..settings()
    });
    let silent = timeout(Duration::from_secs(5), kept.message()).await;
    assert!(silent.is_err(), "it ended: {silent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_shows_who_made_the_claim() {
    let fixture = Fixture::open(access(&settings())).await;
    let (ci, ops) = (
        fixture.caller(Some("secret-ci")).await,
        fixture.caller(Some("secret-ops")).await,
    );
    let mut seen = watch(&ops).await;
    let lease = ci.acquire(ask("jobs", "a")).await.expect("it is free");
    ci.release(&lease).await.expect("it is held");
    for kind in [ChangeKind::Granted, ChangeKind::Released] {
        let next = timeout(PATIENCE, seen.message()).await.expect("a change in time");
        match next.expect("no error").and_then(|message| message.event) {
            Some(Event::Change(change)) => {
                assert_eq!((change.kind(), change.identity.as_str()), (kind, "token:ci"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_with_its_signed_token() {
    let (signer, folder) = (Signer::es256("one"), tempfile::tempdir().expect("a directory"));
    let jwt = JwtSettings {
        leeway: Duration::ZERO,
        ..trusting(&signer, folder.path())
    };
    let fixture = Fixture::open(access(&PolicySettings {
        jwt: Some(jwt),
        ..settings()
    }))
    .await;
    let mut short = claims("a");
    short["exp"] = json!(seconds_from_now(4));
    let caller = fixture.caller(Some(&signer.token(&short))).await;
    let ended = end(watch(&caller).await).await;
    assert_eq!(
        (reason(&ended).as_str(), detail(&ended, "cause").as_str()),
        ("UNAUTHENTICATED", "expired")
    );
}

// G152b
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_proves_nothing_after_its_end_on_an_open_connection_either() {
    let secured = Secured::start(access(&settings()), ClientAuth::Optional).await;
    let own = secured
        .authority
        .short_lived_client("spiffe://example.org/a", Duration::from_secs(4));
    let caller = secured.caller(Some(&own)).await.expect("a connection");
    let ended = end(watch(&caller).await).await;
    assert_eq!(
        (reason(&ended).as_str(), detail(&ended, "cause").as_str()),
        ("UNAUTHENTICATED", "expired")
    );
    let refused = caller.inspect("jobs", "a").await.expect_err("it has expired");
    assert_eq!(detail(&refused, "cause"), "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observation_ends_with_the_rule_that_allowed_it() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let ask = ObserveRequest {
        namespace: "jobs".into(),
        election: "a".into(),
    };
    let mut elections = ElectionServiceClient::new(ci.channel.clone());
    let answer = elections.observe(ci.request(ask.clone())).await;
    let mut seen = answer.expect("it may look").into_inner();
    seen.message().await.expect("a message").expect("a message");
    let policy = Policy::open(&PolicySettings {
        rules: Rules::new(vec![rule(&["token:ci"], &["other"], &[""], &[Verb::Read])]),
        ..settings()
    });
    fixture.access.auth.replace(Some(policy.expect("a policy")));
    let next = timeout(PATIENCE, seen.message()).await.expect("it goes on and on");
    assert_eq!(reason(&next.expect_err("an error ends it")), "PERMISSION_DENIED");
    let refused = elections.observe(ci.request(ask)).await;
    assert_eq!(reason(&refused.expect_err("it may not look")), "PERMISSION_DENIED");
}
