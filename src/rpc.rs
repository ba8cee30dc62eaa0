//! The methods of the service and the reasons of its errors, each in one table: metrics, limits and clients read them
//! here.

/// A method of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Its path, such as `/fencepost.v1.LockService/Acquire`.
    pub path: &'static str,
    /// Its name, such as `Acquire`.
    pub name: &'static str,
    /// Whether its answer is a stream.
    pub streams: bool,
    /// Whether its request is a stream.
    pub takes_stream: bool,
}

impl Method {
    /// The method at a path such as `/fencepost.v1.LockService/Acquire`.
    pub fn at(path: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.path == path)
    }
}

// The tables that `build.rs` makes of the descriptors of `proto/`: SERVICES, METHODS, and the paths by name.
include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// Declares the reasons: each is a constant that holds its own name.
macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident,)+) => {
        /// The reasons of errors, as an `ErrorInfo` carries them.
        pub mod reason {
            $($(#[doc = $doc])+ pub const $reason: &str = stringify!($reason);)+

            /// All of them.
            pub const ALL: &[&str] = &[$($reason,)+];
        }
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
