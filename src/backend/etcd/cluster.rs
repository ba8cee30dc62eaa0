//! The cluster: its members and connections, this server's credentials, and how requests fail.

use etcd_client::Error;

pub mod checks;
pub mod client;
pub mod credentials;
pub mod settings;

/// Why a request to the cluster failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A lease that the request named is dead; nothing was written.
    #[error("the lease is dead")]
    LeaseGone,
    /// The cluster refused the request; nothing was written.
    #[error("{0}")]
    Refused(String),
    /// The cluster's space is used up. Whether the request took effect is unknown, because etcd reports the first write
    /// beyond the limit as failed after executing it.
    #[error("{0}")]
    Full(String),
    /// No leader, or no quorum. Whether the request took effect is unknown.
    #[error("{0}")]
    NoQuorum(String),
    /// No answer. Whether the request took effect is unknown.
    #[error("{0}")]
    Unavailable(String),
}

impl Failure {
    /// The member at this URL did not answer in time.
    pub fn silent(url: &str) -> Self {
        Self::Unavailable(format!("{url} did not answer"))
    }
}

/// The gRPC status codes that [`meaning`] distinguishes.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const NOT_FOUND: i32 = 5;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const UNAUTHENTICATED: i32 = 16;
}

/// Classifies an error of the client.
pub fn failure(error: &Error) -> Failure {
    match error {
        Error::GRpcStatus(status) => meaning(status.code() as i32, status.message()),
        _ => Failure::Unavailable(error.to_string()),
    }
}

/// Classifies a status. Transports and proxies use the same codes as etcd, even for lost answers after the request took
/// effect. So only a status with etcd's own prefix counts as a refusal.
fn meaning(code: i32, message: &str) -> Failure {
    let refused = || Failure::Refused(message.to_owned());
    match code {
        _ if !message.starts_with("etcdserver: ") => Failure::Unavailable(message.to_owned()),
        code::RESOURCE_EXHAUSTED if message.contains("space exceeded") => Failure::Full(message.to_owned()),
        code::PERMISSION_DENIED => Failure::Refused(format!("this server's account may not do that: {message}")),
        code::NOT_FOUND if message.contains("lease not found") => Failure::LeaseGone,
        code::INVALID_ARGUMENT | code::UNAUTHENTICATED | code::RESOURCE_EXHAUSTED | code::OUT_OF_RANGE => refused(),
        _ if message.contains("no leader")
            || message.contains("request timed out")
            || message.contains("leader changed") =>
        {
            Failure::NoQuorum(message.to_owned())
        }
        _ => Failure::Unavailable(message.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::code::{INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED};
    use super::*;

    #[test]
    fn only_a_refusal_by_etcd_itself_is_known_to_have_written_nothing() {
        for (code, message) in [
            (RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
            (INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"),
            (UNAUTHENTICATED, "etcdserver: invalid auth token"),
            (PERMISSION_DENIED, "etcdserver: permission denied"),
        ] {
            assert!(matches!(meaning(code, message), Failure::Refused(_)), "{message}");
        }
        let full = meaning(RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Failure::Full(_)));
        let gone = meaning(NOT_FOUND, "etcdserver: requested lease not found");
        assert_eq!(gone, Failure::LeaseGone);
        for (code, message) in [
            (
                RESOURCE_EXHAUSTED,
                "grpc: trying to send message larger than max (5000000 vs. 4194304)",
            ),
            (RESOURCE_EXHAUSTED, "h2 protocol error: http2 error: ENHANCE_YOUR_CALM"),
            (RESOURCE_EXHAUSTED, "proxy: database space exceeded"),
            (INVALID_ARGUMENT, "transport: malformed header"),
            (
                UNAUTHENTICATED,
                "grpc-status header missing, mapped from HTTP status code 401",
            ),
            (
                PERMISSION_DENIED,
                "grpc-status header missing, mapped from HTTP status code 403",
            ),
            (NOT_FOUND, "proxy: lease not found"),
        ] {
            assert!(matches!(meaning(code, message), Failure::Unavailable(_)), "{message}");
        }
    }
}
