//! A stream that keeps leases lives as long as its caller may open it, and keeps what its caller may keep.

use std::time::{Duration, Instant};

use fencepost::api::proto::keep_alive_response::Event;
use fencepost::api::proto::{KeepAliveRequest, KeepAliveResponse};
use fencepost::auth::{JwtSettings, Pattern, Policy, PolicySettings, Rules, Verb};
use fencepost::quota::{Quota, QuotaSettings};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::asks::reason;
use super::fixture::{Caller, Fixture, PATIENCE, access, ask, bearer, detail, everything, rule, until};
use super::signer::{Signer, claims, jwks};

/// The time that a revoked caller may keep a stream.
const REVOKED_WITHIN: Duration = Duration::from_secs(2);

type Keeper = (UnboundedSender<KeepAliveRequest>, Streaming<KeepAliveResponse>);

fn settings() -> PolicySettings {
    PolicySettings {
        bearers: vec![bearer("ci"), bearer("ops")],
        rules: everything(),
        ..PolicySettings::default()
    }
}

async fn try_open(caller: &Caller) -> Result<Keeper, Status> {
    let (beats, sent) = unbounded();
    let events = caller.locks().keep_alive(caller.request(sent)).await?;
    let mut events = events.into_inner();
    let first = next(&mut events).await?;
    assert!(matches!(first, Event::Ask(_)), "{first:?}");
    Ok((beats, events))
}

async fn open(caller: &Caller) -> Keeper {
    try_open(caller).await.expect("it may keep leases")
}

async fn next(events: &mut Streaming<KeepAliveResponse>) -> Result<Event, Status> {
    let message = timeout(PATIENCE, events.message()).await.expect("an event in time")?;
    Ok(message.expect("not the end").event.expect("an event"))
}

fn beat(keeper: &Keeper, lease_ids: Vec<String>) {
    let sent = keeper.0.unbounded_send(KeepAliveRequest { beat: 1, lease_ids });
    sent.expect("the stream is open");
}

fn replace(fixture: &Fixture, settings: &PolicySettings) {
    let policy = Policy::open(settings).expect("a policy");
    fixture.access.auth.replace(Some(policy));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_the_token_that_opened_it() {
    let fixture = Fixture::open(access(&settings())).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let mut revoked = open(&caller).await;
    let mut other = open(&caller.showing("secret-ops")).await;
    replace(
        &fixture,
        &PolicySettings {
            bearers: vec![bearer("ops")],
            ..settings()
        },
    );
    let began = Instant::now();
    let ended = next(&mut revoked.1).await.expect_err("it is revoked");
    assert_eq!(reason(&ended), "UNAUTHENTICATED");
    assert!(began.elapsed() < REVOKED_WITHIN, "{:?}", began.elapsed());
    beat(&other, vec![]);
    let kept = next(&mut other.1).await;
    assert!(matches!(kept, Ok(Event::Kept(_))), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_no_rule_allows_any_more_is_lost_to_its_stream_alone() {
    let fixture = Fixture::open(access(&settings())).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let mine = caller.acquire(ask("jobs", "mine")).await.expect("it is free");
    let theirs = caller.acquire(ask("jobs", "theirs")).await.expect("it is free");
    let ids = vec![mine.lease_id.clone(), theirs.lease_id.clone()];
    let mut keeper = open(&caller).await;
    beat(&keeper, ids.clone());
    assert!(matches!(next(&mut keeper.1).await, Ok(Event::Kept(_))));
    let narrower = Rules::new(vec![rule(
        &["token:ci"],
        &["jobs"],
        &["mine"],
        &[Verb::Acquire, Verb::Read],
    )]);
    replace(
        &fixture,
        &PolicySettings {
            rules: narrower,
            ..settings()
        },
    );
    beat(&keeper, ids);
    let lost = match next(&mut keeper.1).await {
        Ok(Event::Lost(lost)) => lost,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (lost.lease_id, lost.reason.as_str()),
        (theirs.lease_id, "PERMISSION_DENIED")
    );
    let kept = match next(&mut keeper.1).await {
        Ok(Event::Kept(kept)) => kept,
        other => panic!("{other:?}"),
    };
    let is_kept: Vec<bool> = kept.ttls.iter().map(|ttl| ttl.seconds > 0).collect();
    assert_eq!(is_kept, [true, false]);
}

/// Its server waits for the message of a call with a signed token before it verifies the token.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_with_a_signed_token_is_asked_at_once() {
    let folder = tempfile::tempdir().expect("a directory");
    let signer = Signer::es256("one");
    let jwt = JwtSettings {
        jwks_file: jwks(folder.path(), &[&signer]),
        issuer: "https://issuer.example".into(),
        audiences: vec!["fencepost".into()],
        ..JwtSettings::default()
    };
    let fixture = Fixture::open(access(&PolicySettings {
        jwt: Some(jwt),
        ..settings()
    }))
    .await;
    let caller = fixture.caller(Some(&signer.token(&claims("a")))).await;
    let began = Instant::now();
    let _keeper = open(&caller).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_has_so_many_streams() {
    let access = access(&settings());
    access.quotas.replace(QuotaSettings {
        identities: vec![(
            vec![Pattern::new("token:ci").expect("a pattern")],
            Quota {
                streams: Some(1),
                ..Quota::default()
            },
        )],
        ..QuotaSettings::default()
    });
    let fixture = Fixture::open(access).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    let first = open(&caller).await;
    let over = try_open(&caller).await.expect_err("one too many");
    assert_eq!(
        (reason(&over).as_str(), detail(&over, "limit").as_str()),
        ("OVERLOADED", "streams")
    );
    open(&caller.showing("secret-ops")).await;
    drop(first);
    until("there is room again", async || try_open(&caller).await.is_ok()).await;
}
