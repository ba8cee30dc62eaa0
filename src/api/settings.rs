//! What the server can be told about itself.

use std::time::Duration;

/// The limits and times of the whole server; each namespace has [`crate::limits::Limits`] of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many Acquire calls may be open at once, waiting ones included; default 50,000. More are
    /// answered OVERLOADED.
    pub max_acquires: usize,
    /// How many watches of locks may be open at once; default 10,000. Streams of health and reflection, which
    /// may be open to everybody, are counted for themselves, as many again.
    pub max_streams: usize,
    /// How many calls of all other methods may be open at once; default 10,000. Renew and
    /// Release are counted for themselves, as many again, so that neither waiting nor looking starves
    /// them, and so are health checks.
    pub max_calls: usize,
    /// How many connections may be open at once; default 10,000. More are closed at once.
    pub max_connections: usize,
    /// How many calls one connection may have open at once; default 100,000. Above the limits per
    /// method, so that those decide.
    pub max_streams_per_connection: u32,
    /// How much of the limits above one identity may use, in percent; default 50.
    pub identity_share: u32,
    /// The same for one peer address; default 50.
    pub peer_share: u32,
    /// How many bytes of answers may be made and not taken by their clients yet; default 128 MiB. The shares hold
    /// for it too.
    pub unsent_bytes: usize,
    /// How many of them on one connection; default 32 MiB.
    pub connection_unsent_bytes: usize,
    /// How large a request message may be, in bytes; default 64 KiB.
    pub request_bytes: usize,
    /// How large an answer may be, in bytes; default 4 MiB, which clients accept by default.
    pub response_bytes: usize,
    /// How many bytes the claims may take that one state of a lock shows; default 256 KiB. A state of many
    /// claims with all their metadata costs a caller a few bytes to ask for.
    pub state_bytes: usize,
    /// How many locks a page has when the request does not say; default 100.
    pub page_default: usize,
    /// How many locks a page has at most; default 1,000. More are not refused, but cut to this.
    pub page_limit: usize,
    /// How long a connection may be silent before it is pinged; default 10 s.
    pub keepalive_interval: Duration,
    /// How long a ping may stay unanswered before the connection is closed, and with it all its
    /// calls; default 5 s. Together with the interval it must stay below 20 s.
    pub keepalive_timeout: Duration,
    /// How long calls in flight may still take after the stop signal; default 20 s. Then their
    /// connections are cut.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_acquires: 50_000,
            max_streams: 10_000,
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
            drain_timeout: Duration::from_secs(20),
        }
    }
}
