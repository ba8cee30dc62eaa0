//! The claim that tests begin with.

use std::time::Duration;

use fencepost_core::backend::{ClaimLimits, NewClaim, WaitPolicy};
use fencepost_core::name::{CallId, ClaimId, Identity, Metadata, Mode, Owner, Secret, Ttl};
use tokio::time::Instant;

/// Limits that no case reaches unless it wants to.
pub const ROOMY: ClaimLimits = ClaimLimits {
    queue: 10_000,
    finished: 1_000,
    holds: 100,
};

/// A patient exclusive claim, whose ids are all this number.
pub fn numbered(number: u128) -> NewClaim {
    let bytes = number.to_be_bytes();
    NewClaim {
        id: ClaimId::from_bytes(bytes),
        call: CallId::from_bytes(bytes),
        secret: Secret::from_bytes(bytes),
        retryable: false,
        stream: None,
        owner: Owner::new("tester").expect("a good owner"),
        identity: Identity::anonymous(),
        mode: Mode::Exclusive,
        reentrant: false,
        ttl: Ttl::new(Duration::from_secs(60)).expect("a positive TTL"),
        metadata: Metadata::default(),
        wait_policy: WaitPolicy::Wait,
        limits: ROOMY,
        arrived: Instant::now(),
    }
}
