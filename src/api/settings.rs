//! The settings of the server.

use std::time::Duration;

/// The limits and timeouts of the whole server; each namespace has its own
/// [`crate::limits::Limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of open Acquire calls, including waiting ones; default 50,000. Further
    /// calls get OVERLOADED.
    pub max_acquires: usize,
    /// The maximum number of open WatchLock, Observe, KeepAlive and Session streams; default 10,000. Streams of health and
    /// reflection, which may be open to anonymous callers, have a separate limit of the same size.
    pub max_streams: usize,
    /// The maximum number of leases that all KeepAlive and Session streams keep; default 50,000.
    pub max_kept_leases: usize,
    /// The maximum number of open calls of all other methods; default 10,000. Renew and Release
    /// together have a separate limit of the same size, so that neither waiting calls nor reads
    /// starve them, and so have health checks.
    pub max_calls: usize,
    /// The maximum number of open connections; default 10,000. Further connections are closed at
    /// once.
    pub max_connections: usize,
    /// The maximum number of open calls of one connection; default 100,000. It exceeds the limits
    /// per method, so that those apply first.
    pub max_streams_per_connection: u32,
    /// The share of the limits above that one identity may use, in percent; default 50.
    pub identity_share: u32,
    /// The share for one peer address, in percent; default 50.
    pub peer_share: u32,
    /// The maximum size of answers that their clients have not read yet, in bytes; default 128 MiB.
    /// The shares apply to it too.
    pub unsent_bytes: usize,
    /// The maximum size of unread answers on one connection, in bytes; default 32 MiB.
    pub connection_unsent_bytes: usize,
    /// The maximum size of a request message, in bytes; default 64 KiB.
    pub request_bytes: usize,
    /// The maximum size of an answer, in bytes; default 4 MiB, which clients accept by default.
    pub response_bytes: usize,
    /// The maximum size of the claims in one state of a lock, in bytes; default 256 KiB. A request
    /// of a few bytes could otherwise return many claims with all their metadata.
    pub state_bytes: usize,
    /// The number of locks on a page if the request does not set it; default 100.
    pub page_default: usize,
    /// The maximum number of locks on a page; default 1,000. Larger page sizes are reduced to it.
    pub page_limit: usize,
    /// How long a connection may be idle before it is pinged; default 10 s.
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered before the connection is closed with all its calls;
    /// default 5 s. The sum with the interval must be below 20 s.
    pub keepalive_timeout: Duration,
    /// The maximum age of a connection, 10 % more or less; none by default. The client is then told to open another one.
    /// Waits and streams that are still open after [`Self::drain_timeout`] end with DRAINING.
    pub connection_age: Option<Duration>,
    /// The origins of web pages that may call the service, such as `https://app.example`; none by default.
    pub cors_origins: Vec<String>,
    /// How long calls in flight may still take after the stop signal; default 20 s. Then their
    /// connections are cut.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_acquires: 50_000,
            max_streams: 10_000,
            max_kept_leases: 50_000,
            max_calls: 10_000,
            max_connections: 10_000,
            max_streams_per_connection: 100_000,
            identity_share: 50,
            peer_share: 50,
            unsent_bytes: 128 << 20,
            connection_unsent_bytes: 32 << 20,
            request_bytes: 64 << 10,
            response_bytes: 4 << 20,
            state_bytes: 256 << 10,
            page_default: 100,
            page_limit: 1000,
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            connection_age: None,
            cors_origins: Vec::new(),
            drain_timeout: Duration::from_secs(20),
        }
    }
}
