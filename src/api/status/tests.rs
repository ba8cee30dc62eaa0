use std::time::SystemTime;

use http::HeaderMap;

use super::*;
use crate::auth::{AuthenticationFailure, Missing, Verb};
use crate::name::{ClaimId, FencingToken, Identity, Metadata, Owner};
use crate::quota::Scope;

fn holder(owner: &str) -> Box<Holder> {
    Box::new(Holder {
        claim: ClaimId::from_bytes([1; 16]),
        owner: Owner::new(owner).unwrap(),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        token: FencingToken::new(7).unwrap(),
        remaining: Duration::from_millis(1500),
        holds: 1,
        metadata: Metadata::default(),
        since: SystemTime::UNIX_EPOCH,
    })
}

fn lost(cause: Option<Cause>) -> Error {
    Error::LeaseLost { cause }
}

fn quota_exceeded() -> Error {
    Error::QuotaExceeded(QuotaExceeded {
        limit: "waiters",
        what: "waiters",
        scope: Scope::Namespace,
        most: 3,
        retry: Duration::from_secs(1),
    })
}

fn denied() -> Error {
    Error::PermissionDenied(Box::new(Denied {
        identity: Identity::authenticated("token:a"),
        verb: Some(Verb::Admin),
        namespace: Some("n".into()),
        missing: Missing::Lock,
    }))
}

/// An error, its code, its reason and one entry of its metadata.
type Row = (Error, Code, &'static str, Option<(&'static str, &'static str)>);

/// Every error that a caller can receive.
fn table() -> Vec<Row> {
    use Code::{
        Aborted, FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Unauthenticated,
        Unavailable,
    };
    let reason = || "r".to_owned();
    let left = Duration::from_secs(9);
    let semaphore = Mode::semaphore(2, 5).unwrap();
    vec![
        (Error::LockHeld { holder: None }, Aborted, "LOCK_HELD", None),
        (
            Error::LockHeld {
                holder: Some(holder("o")),
            },
            Aborted,
            "LOCK_HELD",
            Some(("owner", "o")),
        ),
        (
            Error::LockHeld {
                holder: Some(holder("o")),
            },
            Aborted,
            "LOCK_HELD",
            Some(("remaining_ttl_ms", "1500")),
        ),
        (
            Error::WaitTimeout { waited: left },
            Aborted,
            "WAIT_TIMEOUT",
            Some(("waited_ms", "9000")),
        ),
        (Error::Superseded, Aborted, "SUPERSEDED", None),
        (
            lost(Some(Cause::Expired)),
            FailedPrecondition,
            "LEASE_LOST",
            Some(("cause", "expired")),
        ),
        (
            lost(Some(Cause::Released)),
            FailedPrecondition,
            "LEASE_LOST",
            Some(("cause", "released")),
        ),
        (
            lost(Some(Cause::Undone)),
            FailedPrecondition,
            "LEASE_LOST",
            Some(("cause", "released")),
        ),
        (
            lost(Some(Cause::Forced)),
            FailedPrecondition,
            "LEASE_LOST",
            Some(("cause", "forced")),
        ),
        (lost(None), FailedPrecondition, "LEASE_LOST", Some(("cause", "unknown"))),
        (
            Error::Unsupported { what: reason() },
            FailedPrecondition,
            "UNSUPPORTED",
            Some(("what", "r")),
        ),
        (
            BackendError::Unsupported { what: "w" }.into(),
            FailedPrecondition,
            "UNSUPPORTED",
            Some(("what", "w")),
        ),
        (
            quota_exceeded(),
            ResourceExhausted,
            "OVERLOADED",
            Some(("limit", "waiters")),
        ),
        (
            quota_exceeded(),
            ResourceExhausted,
            "OVERLOADED",
            Some(("scope", "namespace")),
        ),
        (
            Error::Unauthenticated {
                cause: AuthenticationFailure::Expired,
            },
            Unauthenticated,
            "UNAUTHENTICATED",
            Some(("cause", "expired")),
        ),
        (denied(), PermissionDenied, "PERMISSION_DENIED", Some(("verb", "admin"))),
        (
            denied(),
            PermissionDenied,
            "PERMISSION_DENIED",
            Some(("namespace", "n")),
        ),
        (
            denied(),
            PermissionDenied,
            "PERMISSION_DENIED",
            Some(("missing", "lock")),
        ),
        (Error::AlreadyReleased, FailedPrecondition, "ALREADY_RELEASED", None),
        (
            Error::LimitMismatch { existing: semaphore },
            FailedPrecondition,
            "LIMIT_MISMATCH",
            Some(("limit", "5")),
        ),
        (
            Error::LimitMismatch { existing: Mode::Shared },
            FailedPrecondition,
            "LIMIT_MISMATCH",
            Some(("mode", "shared")),
        ),
        (
            InvalidField::new("ttl", "p").into(),
            InvalidArgument,
            "INVALID_FIELD",
            Some(("field", "ttl")),
        ),
        (
            Error::NamespaceNotFound { namespace: "n".into() },
            NotFound,
            "NAMESPACE_NOT_FOUND",
            Some(("namespace", "n")),
        ),
        (
            Error::QueueFull { limit: 3 },
            ResourceExhausted,
            "QUEUE_FULL",
            Some(("limit", "3")),
        ),
        (
            Error::Overloaded { what: reason() },
            ResourceExhausted,
            "OVERLOADED",
            Some(("what", "r")),
        ),
        (
            BackendError::Unavailable { reason: reason() }.into(),
            Unavailable,
            "BACKEND_UNAVAILABLE",
            None,
        ),
        (
            BackendError::NoQuorum {
                reason: reason(),
                sent: true,
            }
            .into(),
            Unavailable,
            "NO_QUORUM",
            None,
        ),
        (
            BackendError::Quarantined { left, reason: reason() }.into(),
            Unavailable,
            "BACKEND_QUARANTINED",
            Some(("left_ms", "9000")),
        ),
        (Error::Draining, Unavailable, "DRAINING", None),
    ]
}

// G70
#[test]
fn every_error_has_its_code_reason_and_metadata() {
    for (error, code, reason, entry) in table() {
        let status = of(error.clone());
        let info = status.get_details_error_info().unwrap();
        assert_eq!(
            (status.code(), info.reason.as_str(), info.domain.as_str()),
            (code, reason, DOMAIN),
            "{error:?}"
        );
        if let Some((key, value)) = entry {
            assert_eq!(info.metadata.get(key).map(String::as_str), Some(value), "{error:?}");
        }
    }
}

#[test]
fn only_temporary_errors_have_a_retry_delay() {
    for (error, code, reason, _) in table() {
        let helps = matches!(code, Code::ResourceExhausted | Code::Unavailable);
        let retry = of(error).get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(retry.is_some(), helps, "{reason}");
        if reason == "BACKEND_QUARANTINED" {
            assert_eq!(retry, Some(Duration::from_secs(9)));
        }
    }
}

#[test]
fn an_invalid_field_is_named_with_its_bounds() {
    let status = of(InvalidField::new("wait", "must be at most 5s"));
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(
        (violations[0].field.as_str(), violations[0].description.as_str()),
        ("wait", "must be at most 5s")
    );
    assert_eq!(status.message(), "wait: must be at most 5s");
}

// G70
#[test]
fn an_internal_error_has_no_details_and_keeps_its_source() {
    use std::error::Error as _;
    let status = of(BackendError::Broken {
        reason: "secret".into(),
    });
    assert_eq!((status.code(), status.message()), (Code::Internal, "internal error"));
    let info = status.get_details_error_info().unwrap();
    assert_eq!(
        (info.reason.as_str(), info.metadata.len()),
        ("INTERNAL", 0),
        "it has no details"
    );
    assert!(status.source().unwrap().to_string().contains("secret"));
}

#[test]
fn the_longest_messages_fit_into_headers_that_clients_accept() {
    let owners = [
        "ü".repeat(128),
        "\u{200b}".repeat(85),
        "💥".repeat(64),
        "\"".repeat(256),
    ];
    let held = owners.map(|owner| Error::LockHeld {
        holder: Some(holder(&owner)),
    });
    let long = "ä%\n".repeat(100_000);
    let others = [
        InvalidField::new("name", long.clone()).into(),
        Error::NamespaceNotFound {
            namespace: long.clone(),
        },
    ];
    for error in held.into_iter().chain(others) {
        let status = of(error);
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum();
        assert!(bytes < 8192, "{bytes} bytes for {:.40}", status.message());
        let back = Status::from_header_map(&headers).unwrap();
        assert_eq!((back.code(), back.message()), (status.code(), status.message()));
        assert_eq!(reason(&back), reason(&status));
    }
}

#[test]
fn a_status_of_another_origin_has_no_reason() {
    assert_eq!(reason(&Status::aborted("x")), None);
}

#[test]
fn an_outage_is_a_store_that_does_not_answer() {
    let outages = ["BACKEND_UNAVAILABLE", "NO_QUORUM"];
    for (error, _, reason, _) in table() {
        assert_eq!(is_outage(&of(error)), outages.contains(&reason), "{reason}");
    }
    assert!(!is_outage(&Status::unavailable("of another origin")));
}
