//! Who waits for a lock and may not have it any more.

use std::time::{Duration, Instant};

use fencepost::api::proto::{AcquireRequest, Lease};
use fencepost::auth::{JwtSettings, Policy, PolicySettings, Rules, Verb};
use fencepost::tls::ClientAuth;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::Status;

use super::asks::{living, reason, waiting};
use super::fixture::{Caller, Fixture, PATIENCE, access, ask, bearer, detail, everything, rule, until};
use super::signer::{Signer, claims, seconds_from_now, trusting};
use super::tls::Secured;

const LONG: Duration = Duration::from_secs(60);
/// Within which time a waiter whose proof or rule is gone leaves its queue: it is looked at every 2 s.
const SOON: Duration = Duration::from_secs(6);

fn settings() -> PolicySettings {
    PolicySettings {
        bearers: ["ci", "ops", "next"].map(bearer).into(),
        rules: everything(),
        ..PolicySettings::default()
    }
}

/// A policy in which `token:ci` may only look.
fn reading() -> PolicySettings {
    let verbs = [Verb::Acquire, Verb::Read, Verb::Admin];
    PolicySettings {
        rules: Rules::new(vec![
            rule(&["token:ops", "token:next"], &["*"], &[""], &verbs),
            rule(&["token:ci"], &["*"], &[""], &[Verb::Read]),
        ]),
        ..settings()
    }
}

/// A policy that knows `token:ci` no more.
fn without() -> PolicySettings {
    PolicySettings {
        bearers: ["ops", "next"].map(bearer).into(),
        ..settings()
    }
}

fn goes_by(fixture: &Fixture, settings: &PolicySettings) {
    fixture
        .access
        .auth
        .replace(Some(Policy::open(settings).expect("a policy")));
}

type Waiting = JoinHandle<Result<Lease, Status>>;

/// Lets somebody wait for `jobs/NAME`, as the `place`th one.
async fn wait(caller: &Caller, name: &str, place: u32) -> Waiting {
    let (waiter, ask) = (caller.clone(), waiting(LONG, living(LONG, ask("jobs", name))));
    let waiting = tokio::spawn(async move { waiter.acquire(ask).await });
    until("it waits", async || waiters(caller, name).await == place).await;
    waiting
}

async fn waiters(caller: &Caller, name: &str) -> u32 {
    caller.inspect("jobs", name).await.map_or(0, |state| state.waiter_count)
}

async fn hold(caller: &Caller, name: &str) -> Lease {
    let ask: AcquireRequest = living(LONG, ask("jobs", name));
    caller.acquire(ask).await.expect("it is free")
}

async fn end(waiting: Waiting) -> Result<Lease, Status> {
    timeout(PATIENCE, waiting).await.expect("it ends").expect("no panic")
}

// G153a, G153c
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_token_or_rule_is_gone_is_not_granted_and_the_next_one_is() {
    let fixture = Fixture::open(access(&settings())).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let (ci, next) = (ops.showing("secret-ci"), ops.showing("secret-next"));
    for (name, after, why) in [
        ("token", without(), "UNAUTHENTICATED"),
        ("rule", reading(), "PERMISSION_DENIED"),
    ] {
        goes_by(&fixture, &settings());
        let held = hold(&ops, name).await;
        let revoked = wait(&ci, name, 1).await;
        let behind = wait(&next, name, 2).await;
        goes_by(&fixture, &after);
        ops.release(&held).await.expect("it is held");
        let refused = end(revoked).await.expect_err("it may not");
        assert_eq!(reason(&refused), why);
        let begun = Instant::now();
        let granted = end(behind).await.expect("it is next");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(granted.fencing_token > held.fencing_token);
    }
}

// G153a
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_token_or_rule_is_gone_leaves_its_queue_within_seconds() {
    let fixture = Fixture::open(access(&settings())).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    let ci = ops.showing("secret-ci");
    for (name, after, why) in [
        ("token", without(), "UNAUTHENTICATED"),
        ("rule", reading(), "PERMISSION_DENIED"),
    ] {
        goes_by(&fixture, &settings());
        hold(&ops, name).await;
        let revoked = wait(&ci, name, 1).await;
        let kept = wait(&ops.showing("secret-next"), name, 2).await;
        let begun = Instant::now();
        goes_by(&fixture, &after);
        let refused = end(revoked).await.expect_err("it may not");
        assert_eq!(reason(&refused), why);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        until("it has left", async || waiters(&ops, name).await == 1).await;
        assert!(!kept.is_finished(), "who still may waits on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_another_when_its_token_proves_another_name() {
    let fixture = Fixture::open(access(&settings())).await;
    let ops = fixture.caller(Some("secret-ops")).await;
    hold(&ops, "name").await;
    let waiting = wait(&ops.showing("secret-ci"), "name", 1).await;
    let hash = <sha2::Sha256 as sha2::Digest>::digest("secret-ci");
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let renamed = fencepost::auth::BearerHash::parse(&format!("other:{digits}")).expect("a static token");
    goes_by(
        &fixture,
        &PolicySettings {
            bearers: vec![bearer("ops"), renamed],
            ..settings()
        },
    );
    let refused = end(waiting).await.expect_err("its claim is of nobody");
    assert_eq!(reason(&refused), "UNAUTHENTICATED");
}

// G153b
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_its_signed_token() {
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
    let ops = fixture.caller(Some("secret-ops")).await;
    hold(&ops, "signed").await;
    let mut short = claims("a");
    short["exp"] = json!(seconds_from_now(3));
    let waiting = wait(&ops.showing(&signer.token(&short)), "signed", 1).await;
    let ended = end(waiting).await.expect_err("it has expired");
    assert_eq!(
        (reason(&ended).as_str(), detail(&ended, "cause").as_str()),
        ("UNAUTHENTICATED", "expired")
    );
}

// G153b, G153c
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_certificate_has_expired_is_not_granted_and_the_next_one_is() {
    let settings = PolicySettings {
        certificates: true,
        ..settings()
    };
    let secured = Secured::start(access(&settings), ClientAuth::Optional).await;
    let show = async |own| secured.caller(Some(&own)).await.expect("a connection");
    let ops = show(secured.authority.client("spiffe://example.org/ops")).await;
    let held = hold(&ops, "certificate").await;
    let left = Duration::from_secs(6);
    let short = show(secured.authority.short_lived_client("spiffe://example.org/short", left)).await;
    let expires = wait(&short, "certificate", 1).await;
    let behind = wait(&ops, "certificate", 2).await;
    until("it has expired", async || {
        short.inspect("jobs", "certificate").await.is_err()
    })
    .await;
    let begun = Instant::now();
    ops.release(&held).await.expect("it is held");
    let refused = end(expires).await.expect_err("it may not");
    assert_eq!(
        (reason(&refused).as_str(), detail(&refused, "cause").as_str()),
        ("UNAUTHENTICATED", "expired")
    );
    let granted = end(behind).await.expect("it is next");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(granted.fencing_token > held.fencing_token);
}
