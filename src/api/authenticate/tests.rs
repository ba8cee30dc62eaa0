use std::convert::Infallible;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::{FutureExt, poll_immediate};
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;
use crate::auth::{JwtSettings, PolicySettings};

fn headers(values: &[&str]) -> HeaderMap {
    let pairs = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap()));
    pairs.collect()
}

#[test]
fn an_unauthenticated_caller_has_no_permissions() {
    use crate::auth::Verb;
    use crate::auth::rules::LockScope;
    let caller = Caller::of(&mut Extensions::new());
    let policy = caller.policy.expect("a policy");
    assert!(
        policy
            .check(&caller.identity, Verb::Read, "a", LockScope::Names("b"))
            .is_err()
    );
}

#[test]
fn credentials_are_neither_logged_nor_passed_on() {
    let policy = Policy::open(&PolicySettings::default()).unwrap();
    let layer = Authenticate::new((), Auth::new(Some(policy)), None);
    let request = Request::builder().uri("/grpc.health.v1.Health/Check");
    let request = request.header(AUTHORIZATION, "Bearer secret").body(Body::empty());
    let request = request.unwrap();
    let Ok(CallerState::Known(caller)) = layer.caller_state(&request) else {
        panic!("health is open to everybody, also with a token that is not accepted")
    };
    assert!(!format!("{caller:?}").contains("secret"));
    let admitted = admitted(request, caller);
    assert_eq!(admitted.headers().get(AUTHORIZATION), None);
    assert!(admitted.extensions().get::<Caller>().is_some());
}

#[test]
fn exactly_one_bearer_token_is_accepted() {
    assert_eq!(bearer(&headers(&[])), Ok(None));
    for good in ["Bearer abc", "bearer abc", "BEARER   abc "] {
        assert_eq!(bearer(&headers(&[good])), Ok(Some(&b"abc"[..])), "{good:?}");
    }
    for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearerabc"] {
        assert_eq!(bearer(&headers(&[bad])), Err(AuthenticationFailure::Invalid), "{bad:?}");
    }
    assert_eq!(
        bearer(&headers(&["Bearer a", "Bearer a"])),
        Err(AuthenticationFailure::Invalid)
    );
}

/// Signs tokens.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn policy(&self) -> Policy {
        let folder = tempfile::tempdir().unwrap();
        let jwks_file = folder.path().join("keys");
        let x = URL_SAFE_NO_PAD.encode(self.0.public_key());
        let keys = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x }] });
        std::fs::write(&jwks_file, keys.to_string()).unwrap();
        let jwt = JwtSettings {
            jwks_file,
            issuer: "i".into(),
            audiences: vec!["a".into()],
            ..JwtSettings::default()
        };
        let settings = PolicySettings {
            jwt: Some(jwt),
            ..PolicySettings::default()
        };
        Policy::open(&settings).unwrap()
    }

    fn token(&self, id: u32) -> String {
        let claims = json!({ "iss": "i", "aud": "a", "sub": "s", "exp": u32::MAX, "jti": id });
        let [head, body] = [json!({ "alg": "EdDSA" }), claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(format!("{head}.{body}").as_bytes()));
        format!("{head}.{body}.{signature}")
    }
}

#[tokio::test]
async fn a_call_with_a_known_token_does_not_overtake_one_whose_token_is_verified() {
    let issuer = Issuer::new();
    let started = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&started);
    let inner = tower::service_fn(move |request: Request<Body>| {
        let noted = Arc::clone(&noted);
        Box::pin(async move {
            noted.lock().push(request.uri().path().to_owned());
            Ok::<_, Infallible>(Response::new(()))
        })
    });
    let auth = Auth::new(Some(issuer.policy()));
    let mut layer = Authenticate::new(inner, auth.clone(), None);
    let connection = Remote::new(Peer::Unix, None);
    let mut call = |path: &str, token: u32| {
        let request = Request::builder().uri(path).extension(connection.clone());
        let request = request.header(AUTHORIZATION, format!("Bearer {}", issuer.token(token)));
        layer.call(request.body(Body::empty()).unwrap())
    };
    call("/before", 1).await.unwrap();
    let another = PresentedCredentials::Verified(AuthenticatedIdentity {
        identity: Identity::authenticated("jwt:b"),
        until: Until::default(),
    });
    let verifications = Arc::clone(&connection.verifications);
    let (_, turn) = verifications
        .authenticate(auth, another, std::future::ready(()))
        .await
        .unwrap();
    let mut new = call("/new", 2).fuse();
    assert!(poll_immediate(&mut new).await.is_none(), "another call has its turn");
    let mut known = call("/known", 1).fuse();
    assert!(poll_immediate(&mut known).await.is_none(), "it waits for its turn");
    drop(turn);
    while started.lock().len() < 3 {
        let _ = poll_immediate(&mut new).await;
        for _ in 0..2 {
            let _ = poll_immediate(&mut known).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(*started.lock(), ["/before", "/new", "/known"]);
}
