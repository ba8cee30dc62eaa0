//! What a signed token must say of itself beside its signature.

use std::time::Duration;

use fencepost::auth::{AuthenticationFailure, JwtSettings, Policy, PolicySettings, PresentedCredentials};
use serde_json::{Value, json};

use super::signer::{Signer, claims, seconds_from_now, trusting};

/// An issuer, and what a server takes of its tokens.
struct Issuer {
    signer: Signer,
    policy: Policy,
}

impl Issuer {
    fn new(change: impl FnOnce(JwtSettings) -> JwtSettings) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let signer = Signer::es256("one");
        let settings = change(trusting(&signer, folder.path()));
        let settings = PolicySettings {
            jwt: Some(settings),
            ..PolicySettings::default()
        };
        Self {
            signer,
            policy: Policy::open(&settings).expect("a policy"),
        }
    }

    fn proves(&self, header: &[(&str, Value)], change: &[(&str, Value)]) -> Result<String, AuthenticationFailure> {
        let mut head = json!({ "alg": "ES256", "kid": "one" });
        let mut body = claims("a");
        for (key, value) in header {
            head[key] = value.clone();
        }
        for (key, value) in change {
            body[key] = value.clone();
        }
        let token = self.signer.token_under(&head, &body);
        let proven = self.policy.identify(None, Some(token.as_bytes()))?;
        Ok(proven.identity.as_str().to_owned())
    }
}

const GOOD: Result<&str, AuthenticationFailure> = Ok("jwt:a");
const BAD: Result<&str, AuthenticationFailure> = Err(AuthenticationFailure::Invalid);

#[test]
fn what_must_be_understood_and_is_not_makes_a_token_invalid() {
    let issuer = Issuer::new(|settings| settings);
    for crit in [json!(["b64"]), json!(["exp"]), json!([]), json!("x"), Value::Null] {
        assert_eq!(
            issuer
                .proves(&[("crit", crit.clone())], &[])
                .as_deref()
                .map_err(|bad| *bad),
            BAD,
            "{crit}"
        );
    }
    assert_eq!(
        issuer
            .proves(&[("jku", json!("https://x"))], &[])
            .as_deref()
            .map_err(|bad| *bad),
        GOOD
    );
}

#[test]
fn several_issuers_are_none() {
    let issuer = Issuer::new(|settings| settings);
    for (named, expected) in [
        (json!("https://issuer.example"), GOOD),
        (json!(["https://issuer.example"]), BAD),
        (json!(["https://issuer.example", "https://other.example"]), BAD),
        (json!("https://issuer.example/"), BAD),
    ] {
        let proven = issuer.proves(&[], &[("iss", named.clone())]);
        assert_eq!(proven.as_deref().map_err(|bad| *bad), expected, "{named}");
    }
}

#[test]
fn a_token_is_of_the_type_that_the_issuer_gives() {
    let any = Issuer::new(|settings| settings);
    let typed = Issuer::new(|settings| JwtSettings {
        token_type: Some("at+jwt".into()),
        ..settings
    });
    for (shown, expected) in [
        (vec![("typ", json!("at+jwt"))], GOOD),
        (vec![("typ", json!("AT+JWT"))], GOOD),
        (vec![("typ", json!("application/at+jwt"))], GOOD),
        (vec![("typ", json!("JWT"))], BAD),
        (vec![("typ", json!(""))], BAD),
        (vec![], BAD),
    ] {
        assert_eq!(
            typed.proves(&shown, &[]).as_deref().map_err(|bad| *bad),
            expected,
            "{shown:?}"
        );
        assert_eq!(
            any.proves(&shown, &[]).as_deref().map_err(|bad| *bad),
            GOOD,
            "{shown:?}"
        );
    }
}

#[test]
fn a_token_counts_for_its_age_at_most() {
    let any = Issuer::new(|settings| settings);
    let aged = Issuer::new(|settings| JwtSettings {
        leeway: Duration::from_secs(5),
        max_age: Some(Duration::from_secs(60)),
        ..settings
    });
    let issued = |ago: i64| vec![("iat", json!(seconds_from_now(-ago)))];
    let expired = Err(AuthenticationFailure::Expired);
    for (claims, expected) in [
        (issued(30), GOOD),
        (issued(60), GOOD),
        (issued(70), expired),
        (issued(-3), GOOD),
        (issued(-60), BAD),
        (vec![], BAD),
        (vec![("iat", json!("now"))], BAD),
        (
            vec![
                ("iat", json!(seconds_from_now(-30))),
                ("exp", json!(seconds_from_now(-10))),
            ],
            expired,
        ),
    ] {
        assert_eq!(
            aged.proves(&[], &claims).as_deref().map_err(|bad| *bad),
            expected,
            "{claims:?}"
        );
    }
    assert_eq!(any.proves(&[], &issued(7000)).as_deref().map_err(|bad| *bad), GOOD);
}

#[test]
fn what_is_cheap_to_refuse_is_refused_before_a_signature_is_verified() {
    let issuer = Issuer::new(|settings| settings);
    let forger = Signer::es256("one");
    let shown = |header: Value, change: (&str, Value)| {
        let mut body = claims("a");
        body[change.0] = change.1;
        let token = forger.token_under(&header, &body);
        issuer.policy.presented(None, Some(token.as_bytes()))
    };
    let good = json!({ "alg": "ES256", "kid": "one" });
    let unchanged = || ("sub", json!("a"));
    assert!(
        matches!(
            shown(good.clone(), unchanged()),
            Ok(PresentedCredentials::Unverified(_))
        ),
        "only its signature is bad"
    );
    for bad in [
        shown(json!({ "alg": "ES256", "kid": "two" }), unchanged()),
        shown(json!({ "alg": "HS256", "kid": "one" }), unchanged()),
        shown(json!({ "alg": "none" }), unchanged()),
        shown(good.clone(), ("exp", json!(seconds_from_now(-1)))),
        shown(good.clone(), ("nbf", json!(seconds_from_now(60)))),
        shown(good.clone(), ("iss", json!("https://other.example"))),
        shown(good.clone(), ("aud", json!("other"))),
        shown(good.clone(), ("sub", json!(""))),
        shown(good.clone(), ("more", json!("x".repeat(16 << 10)))),
    ] {
        assert!(bad.is_err(), "{bad:?}");
    }
}
