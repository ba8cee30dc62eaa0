use super::*;
use crate::auth::PolicySettings;

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
    let authentication = Authentication::new(Auth::new(Some(policy)), None);
    let request = Request::builder().uri("/grpc.health.v1.Health/Check");
    let request = request.header(AUTHORIZATION, "Bearer secret").body(Body::empty());
    let request = request.unwrap();
    let Ok(CallerState::Known(caller)) = authentication.caller_state(&request) else {
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
