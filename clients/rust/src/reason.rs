//! The reasons of errors, as an `ErrorInfo` carries them.

/// The domain of every `ErrorInfo` of the service.
pub const DOMAIN: &str = "fencepost";

/// Declares the reasons: each is a constant that holds its own name.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident,)+) => {
        $($(#[doc = $doc])+ pub const $reason: &str = stringify!($reason);)+

        /// All of them.
        pub const ALL: &[&str] = &[$($reason,)+];
    };
}

reasons! {
    /// A try found the lock held, or waited for.
    LOCK_HELD,
    /// The wait is over.
    WAIT_TIMEOUT,
    /// A later call with the same request id took the claim over.
    SUPERSEDED,
    /// The lease or the token is not held any more.
    LEASE_LOST,
    /// The store does not offer this.
    UNSUPPORTED,
    /// The request was answered and released before.
    ALREADY_RELEASED,
    /// The queue holds shared claims and this one is of a semaphore, or the reverse.
    LIMIT_MISMATCH,
    /// A field of the request is outside its bounds.
    INVALID_FIELD,
    /// There is no such namespace.
    NAMESPACE_NOT_FOUND,
    /// The queue of the lock is at its limit.
    QUEUE_FULL,
    /// The server or a quota is at its limit.
    OVERLOADED,
    /// The store does not answer.
    BACKEND_UNAVAILABLE,
    /// Too few nodes of the store answer.
    NO_QUORUM,
    /// The store may have lost leases and is not trusted with grants yet.
    BACKEND_QUARANTINED,
    /// The caller has not proven who it is.
    UNAUTHENTICATED,
    /// No rule allows the call.
    PERMISSION_DENIED,
    /// The server is about to end.
    DRAINING,
    /// A bug.
    INTERNAL,
}
