//! Errors as a client reads them.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// An error of the service: its code and its details.
#[derive(Debug)]
pub struct Refused {
    /// What `ErrorInfo` says.
    pub metadata: HashMap<String, String>,
    /// When to call again, where it helps.
    pub retry: Option<Duration>,
    /// The fields of `BadRequest`.
    pub fields: Vec<String>,
}

impl Refused {
    /// One entry of the metadata, which must be there.
    #[track_caller]
    pub fn says(&self, key: &str) -> &str {
        self.metadata.get(key).unwrap_or_else(|| panic!("no {key}: {self:?}"))
    }
}

/// Asserts that an answer is this error, with the domain and the words that the API promises.
#[track_caller]
pub fn refused<T: Debug>(answer: Result<T, Status>, code: Code, reason: &str) -> Refused {
    let status = answer.expect_err("refused");
    let info = status.get_details_error_info();
    let info = info.unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!((status.code(), info.reason.as_str()), (code, reason), "{status:?}");
    assert_eq!(info.domain, "fencepost");
    let trailer = |name| status.metadata().get(name).map(|value| value.as_bytes());
    assert_eq!(trailer("fencepost-reason"), Some(reason.as_bytes()));
    assert_eq!(
        trailer("fencepost-cause"),
        info.metadata.get("cause").map(String::as_bytes)
    );
    let bad = status.get_details_bad_request().map(|bad| bad.field_violations);
    Refused {
        metadata: info.metadata,
        retry: status.get_details_retry_info().and_then(|retry| retry.retry_delay),
        fields: bad
            .unwrap_or_default()
            .into_iter()
            .map(|violation| violation.field)
            .collect(),
    }
}

/// Asserts that a lease is lost for this cause.
#[track_caller]
pub fn lost<T: Debug>(answer: Result<T, Status>, cause: &str) {
    let refused = refused(answer, Code::FailedPrecondition, "LEASE_LOST");
    assert_eq!(refused.says("cause"), cause);
}

/// Asserts that this field, or one within it, was refused, with its bounds.
#[track_caller]
pub fn invalid<T: Debug>(answer: Result<T, Status>, field: &str) {
    let refused = refused(answer, Code::InvalidArgument, "INVALID_FIELD");
    assert!(refused.says("field").starts_with(field), "{field}: {refused:?}");
    assert!(!refused.says("bounds").is_empty());
    assert_eq!(refused.fields, [refused.says("field")]);
}
