//! Requests and answers as they travel, for the tests that speak gRPC.

use std::time::Duration;

use fencepost::api::proto::AcquireRequest;
use tonic::Status;
use tonic_types::StatusExt;

/// The same request, with the patience to wait so long.
pub fn waiting(wait: Duration, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        wait: Some(wire(wait)),
        ..ask
    }
}

/// The same request, to live so long.
pub fn living(ttl: Duration, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        ttl: Some(wire(ttl)),
        ..ask
    }
}

/// The same request under a request id.
pub fn named(request_id: &str, ask: AcquireRequest) -> AcquireRequest {
    AcquireRequest {
        request_id: request_id.into(),
        ..ask
    }
}

/// A duration as it is sent.
pub fn wire(time: Duration) -> prost_types::Duration {
    time.try_into().expect("a short time")
}

/// A duration that must have come.
#[track_caller]
pub fn time(wire: Option<prost_types::Duration>) -> Duration {
    wire.expect("a duration").try_into().expect("not negative")
}

/// The reason that an error gives; empty for one that the server did not give.
pub fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map_or(String::new(), |info| info.reason)
}
