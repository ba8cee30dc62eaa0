//! Who a caller is: by tokens and certificates, good ones and bad ones.

use fencepost::api::proto::AcquireRequest;
use fencepost::auth::{AnonymousAccess, AuthenticationFailure, JwtSettings, Policy, PolicySettings};
use fencepost::tls::ClientAuth;
use serde_json::{Value, json};
use std::time::Duration;
use tempfile::TempDir;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::asks::{living, named, reason};
use super::authority::file;
use super::fixture::{Caller, Fixture, access, ask, bearer, detail, everything};
use super::signer::{Signer, claims, encoded, jwks, seconds_from_now};
use super::tls::Secured;

fn settings() -> PolicySettings {
    PolicySettings {
        certificates: true,
        bearers: vec![bearer("ci"), bearer("ops")],
        rules: everything(),
        ..PolicySettings::default()
    }
}

/// The identity that the server gives a caller.
async fn identity(caller: &Caller) -> Result<String, Status> {
    let lease = caller.acquire(ask("jobs", "who")).await?;
    let state = caller.inspect("jobs", "who").await?;
    caller.release(&lease).await?;
    Ok(state.holders[0].identity.clone())
}

#[track_caller]
fn unauthenticated<T>(answer: Result<T, Status>, cause: AuthenticationFailure) {
    let status = answer.err().expect("an error");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert_eq!(reason(&status), "UNAUTHENTICATED");
    assert_eq!(detail(&status, "cause"), cause.as_str(), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_token_proves_its_name_and_no_other_does() {
    let fixture = Fixture::open(access(&settings())).await;
    let caller = fixture.caller(Some("secret-ci")).await;
    assert_eq!(identity(&caller).await.expect("let in"), "token:ci");
    unauthenticated(
        identity(&fixture.caller(None).await).await,
        AuthenticationFailure::Missing,
    );
    for bad in ["secret-c", "secret-cii", "ci", "a.b.c"] {
        unauthenticated(identity(&caller.showing(bad)).await, AuthenticationFailure::Invalid);
    }
    assert_eq!(
        identity(&caller.showing("secret-ops")).await.expect("let in"),
        "token:ops"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_policy_everybody_is_nobody_whatever_they_show() {
    let fixture = Fixture::open(fencepost::api::Access::default()).await;
    assert_eq!(
        identity(&fixture.caller(Some("anything")).await).await.expect("let in"),
        ""
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_in_a_file_count_from_when_the_policy_is_read_again() {
    let folder = tempfile::tempdir().expect("a directory");
    let line = |name: &str| {
        use sha2::{Digest, Sha256};
        let hash = Sha256::digest(format!("secret-{name}"));
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("# {name}\n\n{name}:{digits}\n")
    };
    let with_file = PolicySettings {
        bearers: Vec::new(),
        bearer_file: Some(file(folder.path(), "bearers", &line("one"))),
        ..settings()
    };
    let fixture = Fixture::open(access(&with_file)).await;
    let one = fixture.caller(Some("secret-one")).await;
    let two = one.showing("secret-two");
    assert_eq!(identity(&one).await.expect("let in"), "token:one");
    unauthenticated(identity(&two).await, AuthenticationFailure::Invalid);
    file(folder.path(), "bearers", &line("two"));
    let policy = Policy::open(&with_file).expect("a policy");
    fixture.access.auth.replace(Some(policy));
    unauthenticated(identity(&one).await, AuthenticationFailure::Invalid);
    assert_eq!(identity(&two).await.expect("let in"), "token:two");
    file(folder.path(), "bearers", "# a\nthe-token-itself\n");
    let refused = Policy::open(&with_file).expect_err("no hash").to_string();
    assert!(refused.contains("bearers:2: "), "{refused}");
    assert!(!refused.contains("the-token-itself"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_proves_its_uri_unless_a_token_is_shown() {
    let secured = Secured::start(access(&settings()), ClientAuth::Optional).await;
    let own = secured.authority.client("spiffe://example.org/a");
    let caller = secured.caller(Some(&own)).await.expect("a connection");
    assert_eq!(identity(&caller).await.expect("let in"), "uri:spiffe://example.org/a");
    assert_eq!(
        identity(&caller.showing("secret-ci")).await.expect("let in"),
        "token:ci"
    );
    unauthenticated(identity(&caller.showing("wrong")).await, AuthenticationFailure::Invalid);
    let nobody = secured.caller(None).await.expect("a connection");
    unauthenticated(identity(&nobody).await, AuthenticationFailure::Missing);
    let without = PolicySettings {
        certificates: false,
        ..settings()
    };
    let policy = Policy::open(&without).expect("a policy");
    secured.fixture.access.auth.replace(Some(policy));
    unauthenticated(identity(&caller).await, AuthenticationFailure::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_without_a_uri_proves_its_dns_name_or_its_common_name() {
    let secured = Secured::start(access(&settings()), ClientAuth::Required).await;
    for (dns, proven) in [
        (Some("worker.example.org"), "dns:worker.example.org"),
        (None, "cn:a client"),
    ] {
        let own = secured.authority.client_named(dns);
        let caller = secured.caller(Some(&own)).await.expect("a connection");
        assert_eq!(identity(&caller).await.expect("let in"), proven);
    }
}

/// A server that takes the tokens of three signers, each with a key of another kind.
struct Issued {
    fixture: Fixture,
    caller: Caller,
    one: Signer,
    two: Signer,
    three: Signer,
    settings: PolicySettings,
    folder: TempDir,
}

impl Issued {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let (one, two) = (Signer::es256("one"), Signer::ed25519("two"));
        let three = Signer::rs256("three");
        let settings = PolicySettings {
            jwt: Some(JwtSettings {
                jwks_file: jwks(folder.path(), &[&one, &two, &three]),
                issuer: "https://issuer.example".into(),
                audiences: vec!["fencepost".into(), "locks".into()],
                leeway: Duration::from_secs(5),
                ..JwtSettings::default()
            }),
            ..settings()
        };
        let fixture = Fixture::open(access(&settings)).await;
        let caller = fixture.caller(None).await;
        Self {
            fixture,
            caller,
            one,
            two,
            three,
            settings,
            folder,
        }
    }

    async fn identity(&self, token: &str) -> Result<String, Status> {
        identity(&self.caller.showing(token)).await
    }
}

/// Good claims, but for one.
fn but(key: &str, value: Value) -> Value {
    let mut all = claims("a");
    all[key] = value;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_proves_its_subject_with_each_kind_of_key() {
    let issued = Issued::start().await;
    for signer in [&issued.one, &issued.two, &issued.three] {
        let token = signer.token(&claims("system:job"));
        // The second time it is remembered.
        for _ in 0..2 {
            assert_eq!(issued.identity(&token).await.expect("let in"), "jwt:system:job");
        }
    }
    for (header, signer) in [
        (json!({ "alg": "ES256", "typ": "JWT" }), &issued.one),
        (json!({ "alg": "EdDSA" }), &issued.two),
        (json!({ "alg": "RS256" }), &issued.three),
    ] {
        let token = signer.token_under(&header, &claims("a"));
        assert_eq!(issued.identity(&token).await.expect("no key is named"), "jwt:a");
    }
    for good in [
        but("aud", json!(["x", "locks"])),
        but("exp", json!(seconds_from_now(-2))),
        but("nbf", json!(seconds_from_now(2))),
    ] {
        let token = issued.one.token(&good);
        assert_eq!(issued.identity(&token).await.expect("within the leeway"), "jwt:a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_must_name_its_key_where_there_are_many_of_its_kind() {
    let issued = Issued::start().await;
    let unnamed = issued.one.token_under(&json!({ "alg": "ES256" }), &claims("a"));
    let more: Vec<Signer> = (0..4).map(|number| Signer::es256(&number.to_string())).collect();
    // Those of another kind do not count.
    for (count, names_none) in [(3, Ok("jwt:a")), (4, Err(Code::Unauthenticated))] {
        let all: Vec<&Signer> = [&issued.one, &issued.two].into_iter().chain(&more[..count]).collect();
        jwks(issued.folder.path(), &all);
        let policy = Policy::open(&issued.settings).expect("a policy");
        issued.fixture.access.auth.replace(Some(policy));
        let answer = issued.identity(&unnamed).await;
        assert_eq!(answer.as_deref().map_err(Status::code), names_none, "{count}");
        for signer in all {
            let named = issued.identity(&signer.token(&claims("a"))).await;
            assert_eq!(named.expect("it names its key"), "jwt:a");
        }
    }
}

// G150
#[tokio::test(flavor = "multi_thread")]
async fn a_signed_token_that_is_not_for_here_or_not_now_is_refused() {
    let issued = Issued::start().await;
    unauthenticated(
        issued
            .identity(&issued.one.token(&but("exp", json!(seconds_from_now(-10)))))
            .await,
        AuthenticationFailure::Expired,
    );
    for bad in [
        but("nbf", json!(seconds_from_now(60))),
        but("aud", json!("another")),
        but("aud", json!([])),
        but("aud", Value::Null),
        but("iss", json!("https://other.example")),
        but("iss", Value::Null),
        but("exp", Value::Null),
        but("exp", json!("soon")),
        but("sub", Value::Null),
        but("sub", json!("")),
        but("sub", json!("a\nb")),
        but("sub", json!("x".repeat(300))),
    ] {
        unauthenticated(
            issued.identity(&issued.one.token(&bad)).await,
            AuthenticationFailure::Invalid,
        );
    }
    assert_eq!(
        issued
            .identity(&issued.one.token(&claims("a")))
            .await
            .expect("it serves on"),
        "jwt:a"
    );
}

// G150
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_token_is_refused() {
    let issued = Issued::start().await;
    let good = issued.one.token(&claims("a"));
    let [header, body, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts: {good}")
    };
    let admin = encoded(claims("admin").to_string());
    let nothing = encoded(json!({ "alg": "none" }).to_string());
    let shared = encoded(json!({ "alg": "HS256", "kid": "shared" }).to_string());
    let other_kind = encoded(json!({ "alg": "EdDSA", "kid": "one" }).to_string());
    let forged = Signer::es256("one");
    for bad in [
        forged.token(&claims("a")),
        issued
            .two
            .token_under(&json!({ "alg": "ES256", "kid": "one" }), &claims("a")),
        issued
            .one
            .token_under(&json!({ "alg": "ES256", "kid": "two" }), &claims("a")),
        issued
            .one
            .token_under(&json!({ "alg": "ES256", "kid": "fourth" }), &claims("a")),
        issued
            .one
            .token_under(&json!({ "alg": "RS256", "kid": "three" }), &claims("a")),
        issued
            .three
            .token_under(&json!({ "alg": "RS512", "kid": "three" }), &claims("a")),
        format!("{header}.{admin}.{signature}"),
        format!("{nothing}.{body}."),
        format!("{nothing}.{body}.{signature}"),
        format!("{shared}.{body}.{signature}"),
        format!("{other_kind}.{body}.{signature}"),
        format!("{header}.{body}."),
        format!("{header}.{body}"),
        format!("{good}.x"),
        "..".into(),
    ] {
        unauthenticated(issued.identity(&bad).await, AuthenticationFailure::Invalid);
    }
    assert_eq!(issued.identity(&good).await.expect("it serves on"), "jwt:a");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_away_proves_nobody_any_more() {
    let issued = Issued::start().await;
    let token = issued.one.token(&claims("a"));
    assert_eq!(issued.identity(&token).await.expect("let in"), "jwt:a");
    jwks(issued.folder.path(), &[&issued.two]);
    let policy = Policy::open(&issued.settings).expect("a policy");
    issued.fixture.access.auth.replace(Some(policy));
    unauthenticated(issued.identity(&token).await, AuthenticationFailure::Invalid);
    assert!(issued.identity(&issued.two.token(&claims("a"))).await.is_ok());
    file(issued.folder.path(), "jwks.json", r#"{"keys": []}"#);
    assert!(Policy::open(&issued.settings).is_err());
    file(issued.folder.path(), "jwks.json", "{");
    assert!(Policy::open(&issued.settings).is_err());
}

// G27
#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_belongs_to_its_identity() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let ops = ci.showing("secret-ops");
    let ask = || named("request", ask("jobs", "a"));
    let lease = ci.acquire(ask()).await.expect("it is free");
    let held = ops.acquire(ask()).await.expect_err("another's request");
    assert_eq!(reason(&held), "LOCK_HELD");
    let again = ci.acquire(ask()).await.expect("its own lease");
    assert_eq!(again.lease_id, lease.lease_id);
}

// G27
#[tokio::test(flavor = "multi_thread")]
async fn only_the_same_identity_reenters() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let ops = ci.showing("secret-ops");
    let ask = || AcquireRequest {
        reentrant: true,
        ..ask("jobs", "a")
    };
    let lease = ci.acquire(ask()).await.expect("it is free");
    let held = ops
        .acquire(ask())
        .await
        .expect_err("the same owner, and another identity");
    assert_eq!(reason(&held), "LOCK_HELD");
    let more = ci.acquire(ask()).await.expect("its own");
    assert_eq!((more.holds, more.fencing_token), (2, lease.fencing_token));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_id_is_proof_enough_for_whoever_may_use_the_lock() {
    let fixture = Fixture::open(access(&settings())).await;
    let ci = fixture.caller(Some("secret-ci")).await;
    let lease = ci.acquire(living(Duration::from_secs(60), ask("jobs", "a"))).await;
    let lease = lease.expect("it is free");
    let ops = ci.showing("secret-ops");
    ops.renew(&lease).await.expect("the secret is in the id");
    ops.release(&lease).await.expect("it is held");
}

async fn health(caller: &Caller) -> Result<(), Status> {
    let mut health = HealthClient::new(caller.channel.clone());
    let ask = HealthCheckRequest { service: String::new() };
    health.check(caller.request(ask)).await.map(drop)
}

async fn reflection(caller: &Caller) -> Result<(), Status> {
    let mut reflection = ServerReflectionClient::new(caller.channel.clone());
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let request: Request<_> = caller.request(futures::stream::iter([ask]));
    let mut answers = reflection.server_reflection_info(request).await?.into_inner();
    answers.message().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_reflection_are_open_or_closed_as_the_policy_says() {
    let folder = tempfile::tempdir().expect("a directory");
    let jwks_file = jwks(folder.path(), &[&Signer::es256("one")]);
    let forged = Signer::es256("one").token(&claims("a"));
    for (of_health, of_reflection) in [
        (AnonymousAccess::Open, AnonymousAccess::Closed),
        (AnonymousAccess::Closed, AnonymousAccess::Open),
    ] {
        let settings = PolicySettings {
            health: of_health,
            reflection: of_reflection,
            jwt: Some(JwtSettings {
                jwks_file: jwks_file.clone(),
                issuer: "https://issuer.example".into(),
                audiences: vec!["fencepost".into()],
                ..JwtSettings::default()
            }),
            ..settings()
        };
        let fixture = Fixture::open(access(&settings)).await;
        let nobody = fixture.caller(None).await;
        assert_eq!(health(&nobody).await.is_ok(), of_health == AnonymousAccess::Open);
        assert_eq!(
            reflection(&nobody).await.is_ok(),
            of_reflection == AnonymousAccess::Open
        );
        for wrong in ["wrong", &forged] {
            let wrong = nobody.showing(wrong);
            assert_eq!(health(&wrong).await.is_ok(), of_health == AnonymousAccess::Open);
            unauthenticated(wrong.acquire(ask("jobs", "a")).await, AuthenticationFailure::Invalid);
        }
        let ci = nobody.showing("secret-ci");
        health(&ci).await.expect("for somebody");
        reflection(&ci).await.expect("for somebody");
    }
}
