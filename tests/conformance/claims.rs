//! Claims as the cases bring them: `claim("a").shared().trying()`.

use common::claims as numbered;

use std::time::Duration;

use fencepost::backend::{ClaimLimits, NewClaim, StreamNumber, WaitPolicy};
use fencepost::name::{CallId, ClaimId, Identity, Metadata, Mode, Owner, Secret, Ttl};
use tokio::time::Instant;

use crate::fixture::LONG;

#[allow(unused_imports, reason = "each test binary uses its share")]
pub use numbered::{ROOMY, numbered};

/// A patient exclusive claim with a long TTL, and with an id that a retry may look for.
pub fn claim(owner: &str) -> NewClaim {
    NewClaim {
        id: ClaimId::from_bytes(random()),
        call: CallId::from_bytes(random()),
        secret: Secret::from_bytes(random()),
        retryable: true,
        owner: Owner::new(owner).expect("a good owner"),
        ttl: ttl(LONG),
        ..numbered(0)
    }
}

/// What can be said about a claim before it is brought.
pub trait Asking: Sized {
    /// Shared with other readers.
    fn shared(self) -> Self;
    /// `permits` of `limit`.
    fn semaphore(self, permits: u32, limit: u32) -> Self;
    /// Tries once.
    fn trying(self) -> Self;
    /// Joins, and lets join, others of its owner.
    fn reentrant(self) -> Self;
    /// Lives so long.
    fn living(self, time: Duration) -> Self;
    /// Proven to be somebody.
    fn proven(self, identity: &str) -> Self;
    /// Says `note` about itself.
    fn noting(self, note: &str) -> Self;
    /// With an id that no retry looks for.
    fn unrepeated(self) -> Self;
    /// Under these limits.
    fn within(self, limits: ClaimLimits) -> Self;
    /// The same request in another call: a retry.
    fn again(&self) -> Self;
    /// On the stream of this number of a session.
    fn on(self, number: u64) -> Self;
}

impl Asking for NewClaim {
    fn shared(self) -> Self {
        Self {
            mode: Mode::Shared,
            ..self
        }
    }

    fn semaphore(self, permits: u32, limit: u32) -> Self {
        Self {
            mode: semaphore(permits, limit),
            ..self
        }
    }

    fn trying(self) -> Self {
        Self {
            wait_policy: WaitPolicy::NoWait,
            ..self
        }
    }

    fn reentrant(self) -> Self {
        Self {
            reentrant: true,
            ..self
        }
    }

    fn living(self, time: Duration) -> Self {
        Self { ttl: ttl(time), ..self }
    }

    fn proven(self, identity: &str) -> Self {
        Self {
            identity: Identity::authenticated(identity),
            ..self
        }
    }

    fn noting(self, note: &str) -> Self {
        Self {
            metadata: note_of(note),
            ..self
        }
    }

    fn unrepeated(self) -> Self {
        Self {
            retryable: false,
            ..self
        }
    }

    fn within(self, limits: ClaimLimits) -> Self {
        Self { limits, ..self }
    }

    fn again(&self) -> Self {
        Self {
            call: CallId::from_bytes(random()),
            secret: Secret::from_bytes(random()),
            arrived: Instant::now(),
            ..self.clone()
        }
    }

    fn on(self, number: u64) -> Self {
        let stream = Some(stream(number));
        Self { stream, ..self }
    }
}

/// The stream of this number of a session.
pub fn stream(number: u64) -> StreamNumber {
    StreamNumber::new(7, number)
}

/// What [`Asking::noting`] says.
pub fn note_of(note: &str) -> Metadata {
    Metadata::new([("note".into(), note.into())]).expect("a small note")
}

/// A semaphore's mode that is known to be good.
pub fn semaphore(permits: u32, limit: u32) -> Mode {
    Mode::semaphore(permits, limit).expect("a good semaphore")
}

/// A TTL that is known to be good.
pub fn ttl(time: Duration) -> Ttl {
    Ttl::new(time).expect("a positive TTL")
}

/// Sixteen random bytes.
pub fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system's random numbers");
    bytes
}
