//! The tables of the configuration file, with their defaults and their documentation.
//!
//! The table of a store is defined in `src/backend/<store>/config.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::listen::Listen;
use super::store_tables::StoreTables;
use super::words::DeclaredGuarantee;
use crate::limits::Limits;
use crate::name::MAX_NAME_BYTES;
use crate::quota::{Quota, Rate};
use crate::schema::{Count, Period, Ratio, section};
use crate::telemetry::{LogFilter, LogFormat};

mod access;

pub use self::access::{AuthSection, JwtSection, QuotaSection, RuleSection, TlsSection};

const SECOND: u64 = 1000;
const YEAR: u64 = 31_557_600 * SECOND;
const KIB: u32 = 1024;
const MIB: u32 = 1024 * KIB;

/// A TTL: up to a year.
pub type TtlBound = Period<1, YEAR>;
/// A wait time: up to a year, or zero.
pub type WaitBound = Period<0, YEAR>;
/// The value of a quota.
pub type QuotaCount = Count<1, 1_000_000>;
/// A number of threads.
pub type WorkerCount = Count<1, 1024>;
/// How long a server waits for its stores before it is ready.
pub type ContactTimeout = Period<0, { 24 * 3600 * SECOND }>;
/// The maximum duration of a drain.
pub type DrainTimeout = Period<0, { 600 * SECOND }>;

section! {
    /// The configuration of a Fencepost server. Times are written like "30s" or "1h 5m". Most
    /// keys of the first table and the keys of the log can also be set with flags and
    /// FENCEPOST_ variables, which override the file: see `fencepost serve --help`.
    pub struct File {
        /// The addresses to listen on: TCP addresses and Unix sockets.
        listen: Vec<Listen> = vec![Listen::default()],
        /// Must be true to listen on an address that other machines can reach if there is no table
        /// tls. The connections are not encrypted.
        insecure: bool = false,
        /// The address (host and port) of the HTTP endpoints: /metrics for Prometheus, /healthz and
        /// /readyz for orchestrators. Absent: no such endpoints. Their clients are not
        /// authenticated, so everybody who can reach the address can read metrics and names of
        /// namespaces. Connections are encrypted if tls covers the address, with the same
        /// certificate, but clients need no certificate.
        metrics_listen: Option<Listen> = None,
        /// Whether to serve these endpoints in plain text even if tls covers their address, because
        /// kubelets and most scrapers within a cluster expect that. An address that other machines
        /// can reach requires this key, insecure or tls. Does not affect the encryption of calls.
        metrics_insecure: bool = false,
        /// The address (host and port) of the console, a page for browsers. Absent: no console. It is
        /// served to everybody who can reach the address, but shows and does only what the rules of
        /// the bearer token or client certificate allow. An address that other machines can reach
        /// requires tls or insecure. Without tls, browsers must address the console by an IP address,
        /// by localhost or by the host of this address.
        console_listen: Option<Listen> = None,
        /// The namespaces whose stores must be available for /readyz to report ready. If empty,
        /// /readyz reports whether this server accepts calls. An unavailable store is unavailable
        /// for all servers that share it, and the errors of calls are more specific than a server
        /// that is not ready.
        ready_namespaces: Vec<String> = Vec::new(),
        /// How long after its start the server is not ready, for /readyz and for the health over gRPC,
        /// until the store of each namespace has served, or was in quarantine, once. After this time it
        /// is ready all the same, so that servers which start during an outage of a store come up. On
        /// Kubernetes it must be longer than progressDeadlineSeconds of the Deployment, so that a rollout
        /// with a wrong name of a database is reported as failed, and can be undone, before the next
        /// server is replaced. "0s": it does not wait.
        first_contact_timeout: ContactTimeout = period_s(900),
        /// The directory of all data that this server stores. Absent: fencepost in $XDG_DATA_HOME,
        /// or else in ~/.local/share.
        data_dir: Option<PathBuf> = None,
        /// How many threads serve the calls. Absent: one for each processor that the server may use.
        /// With half as many each call takes less processor time: where clients or a store share the
        /// processors, more calls are served, and where they do not, fewer.
        worker_threads: Option<WorkerCount> = None,
        /// How long a shutdown waits for open calls before it aborts them.
        drain_timeout: DrainTimeout = period_s(20),
    }
    tables {
        /// The limits of the server.
        server: ServerSection,
        /// The log.
        log: LogSection,
        /// Encryption.
        tls: Option<TlsSection>,
        /// Authentication and authorization.
        auth: Option<AuthSection>,
        /// The traces.
        traces: TracesSection,
        /// The namespaces by name; without any, one named `default`.
        namespaces: BTreeMap<String, NamespaceSection>,
    }
}

section! {
    /// The limits of this server for its clients, independent of the namespace.
    pub struct ServerSection {
        /// The maximum size of a request, in bytes.
        request_bytes_limit: Count<{ 16 * KIB }, { 4 * MIB }> = Count::nearest(64 * KIB),
        /// The maximum size of a response, in bytes.
        response_bytes_limit: Count<{ 64 * KIB }, { 64 * MIB }> = Count::nearest(4 * MIB),
        /// The maximum total size of the claims in one state of a lock (GetLock, WatchLock), in
        /// bytes. Further claims are only counted. At most three quarters of response_bytes_limit.
        state_bytes_limit: Count<{ 16 * KIB }, { 48 * MIB }> = Count::nearest(256 * KIB),
        /// How many Acquire calls may be open at once, waiting ones included. Further ones are
        /// refused with OVERLOADED.
        acquire_limit: Count<1, 1_000_000> = Count::nearest(50_000),
        /// How many other calls may be open at once. Renew and Release have a separate limit of the
        /// same size, so that other calls cannot block them, and so have health checks.
        call_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many WatchLock, Observe, KeepAlive and Session streams may be open at once. Streams of
        /// health and reflection have a separate limit of the same size.
        stream_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many leases all KeepAlive and Session streams together may keep, with the locks that
        /// AcquireAll calls hold or wait for. A KeepAlive stream or call with more is ended with
        /// OVERLOADED, and a command of a Session is refused with it. Sessions and AcquireAll calls
        /// that wait for leases use at most half.
        kept_lease_limit: Count<1000, 10_000_000> = Count::nearest(50_000),
        /// How many connections may be open at once. Further ones are closed immediately. On a
        /// server with authentication, at most a quarter of them may be unauthenticated; beyond
        /// that, the oldest unauthenticated connection is closed.
        connection_limit: Count<1, 1_000_000> = Count::nearest(10_000),
        /// How many calls may be open at once on one connection.
        connection_call_limit: Count<1, 1_000_000> = Count::nearest(100_000),
        /// The share of each limit above that one identity may use, in percent, so that other
        /// identities are served too. It includes Renew and Release. Unauthenticated calls are not
        /// counted.
        identity_share: Count<1, 100> = Count::nearest(50),
        /// The same for one peer address; for IPv6, for its /64 network. Set it to 100 if all
        /// callers connect through one proxy.
        peer_share: Count<1, 100> = Count::nearest(50),
        /// How many bytes of answers may be unsent because clients have not read them, and may lie
        /// in messages of more than 4 KiB that have not arrived completely. Beyond it, an answer or
        /// such a call is replaced by OVERLOADED, and the connection with the most bytes is closed.
        /// The two shares apply here too. A stream or a connection whose client reads nothing for 15
        /// seconds is closed.
        unsent_bytes_limit: Count<{ MIB }, { 1024 * MIB }> = Count::nearest(128 * MIB),
        /// The same for one connection.
        connection_unsent_bytes_limit: Count<{ 64 * KIB }, { 1024 * MIB }> = Count::nearest(32 * MIB),
        /// How many entries a page has if the request does not specify it.
        page_default: Count<1, 10_000> = Count::nearest(100),
        /// How many entries a page has at most. A larger request is not refused, but reduced to
        /// this number.
        page_limit: Count<1, 10_000> = Count::nearest(1_000),
        /// The interval at which a silent connection is pinged.
        keepalive_interval: Period<SECOND, { 10 * SECOND }> = period_s(10),
        /// How long the answer to a ping may take. After that, the connection counts as lost, and
        /// its waiters are removed from their queues.
        keepalive_timeout: Period<SECOND, { 9 * SECOND }> = period_s(5),
        /// The maximum age of a connection, 10 % more or less, so that a balancer of connections spreads
        /// its clients anew after a restart of a server. The client is told to open another
        /// connection (GOAWAY). Waits and streams that are still open after drain_timeout end with
        /// DRAINING, and held leases stay. Absent: no maximum.
        connection_age: Option<Period<SECOND, YEAR>> = None,
        /// The origins of web pages that may make calls over HTTP (CORS), each a scheme and a host
        /// with its port. Pages of all other origins are refused. The console's own page needs no
        /// entry.
        cors_origins: Vec<String> = Vec::new(),
    }
}

section! {
    /// The log, written to standard error.
    pub struct LogSection {
        /// The level of Fencepost: off, error, warn, info, debug or trace. The libraries below it log at
        /// info at most, unless a list with targets names them, such as "info,h2=debug". At info there
        /// is no line per request.
        level: LogFilter = LogFilter::default(),
        /// Whether each grant, each end of a lease and each wait that ran out is a line with the target
        /// fencepost::grants, at every level.
        grants: bool = false,
        /// The format: "text" for people, "json" for machines.
        format: LogFormat = LogFormat::default(),
    }
}

section! {
    /// Traces of calls, sent as OTLP over gRPC. A caller's W3C trace context (traceparent) is
    /// continued.
    pub struct TracesSection {
        /// The URL of the collector: http:// or https://. Absent: no call is traced.
        endpoint: Option<String> = None,
        /// The fraction of calls that is traced: 1 for all of them, which slows down a busy server
        /// (benches/README.md). If an authenticated caller sends a trace context, that decides
        /// instead.
        sample_ratio: Ratio = Ratio::HUNDREDTH,
    }
}

section! {
    /// A namespace: a set of locks with one backend, its guarantee and these limits.
    pub struct NamespaceSection {
        /// The store of the locks: "embedded" is a file of this server, "redis" a Redis that
        /// several servers share, "redlock" 3, 5 or 7 independent Redis servers of which a majority
        /// decides, "etcd" an etcd cluster, "zookeeper" a ZooKeeper ensemble, "postgres" a
        /// PostgreSQL database and "mysql" a MariaDB or MySQL database that several servers share.
        backend: String = "embedded".to_owned(),
        /// The guarantee that the backend must give, "ap" or "cp". The server does not start if the
        /// backend gives less. Absent: no requirement.
        guarantee: Option<DeclaredGuarantee> = None,
        /// The minimum TTL of a lease.
        ttl_min: TtlBound = TtlBound::nearest(Limits::default().ttl_min),
        /// The TTL of an Acquire that specifies none.
        ttl_default: TtlBound = TtlBound::nearest(Limits::default().ttl_default),
        /// The maximum TTL of a lease.
        ttl_max: TtlBound = TtlBound::nearest(Limits::default().ttl_max),
        /// The maximum time that an Acquire may wait.
        wait_max: WaitBound = WaitBound::nearest(Limits::default().wait_max),
        /// How many claims the queue of one lock may have, holders and waiters together. The default
        /// for "postgres", "mysql" and "redis", which accept no more, is 1000.
        queue_limit: Count<1, 1_000_000> = Count::nearest(Limits::default().queue),
        /// The maximum length of a lock's name, in bytes.
        name_limit: Count<1, { MAX_NAME_BYTES as u32 }> = Count::nearest(Limits::default().name_bytes),
        /// How many finished calls are remembered, so that their retries can be answered.
        finished_limit: Count<0, 10_000_000> = Count::nearest(Limits::default().finished),
        /// How many holds a holder may have through re-entry.
        hold_limit: Count<1, 1_000_000> = Count::nearest(Limits::default().holds),
        /// How many bytes the owners and the metadata of all Acquires that wait on this server may
        /// have. Further ones are refused with OVERLOADED, except Acquires with 512 bytes or less.
        /// One identity may use its identity_share of them.
        waiting_bytes_limit: Count<{ 16 * KIB }, { 1024 * MIB }> = Count::nearest(Limits::default().waiting_bytes),
        /// How many calls per second this server accepts for the namespace, not counting Renew,
        /// Release and calls of operators. AcquireAll counts as one call for each lock, and a page of
        /// ListLocks for each hundred. Further ones are refused with OVERLOADED. Absent: no limit.
        /// The same applies to the limits below.
        rate_limit: Option<QuotaCount> = None,
        /// How many calls may arrive at once after a pause. Absent: as many as rate_limit.
        rate_burst: Option<QuotaCount> = None,
        /// How many leases this server counts in the namespace at once. It counts the leases that
        /// it granted and Acquires in progress, until it observes their end or their time has
        /// passed.
        lease_limit: Option<QuotaCount> = None,
        /// How many Acquires may wait on this server for locks of the namespace.
        waiter_limit: Option<QuotaCount> = None,
        /// How many WatchLock and Observe streams of the namespace may be open on this server.
        stream_limit: Option<QuotaCount> = None,
    }
    tables {
        /// The settings of the store, in a table with the store's name.
        #[serde(skip)]
        stores: StoreTables,
    }
}

impl NamespaceSection {
    /// The limits of a namespace with these keys on this server.
    pub fn limits(&self, server: &ServerSection) -> Limits {
        Limits {
            ttl_min: self.ttl_min.get(),
            ttl_default: self.ttl_default.get(),
            ttl_max: self.ttl_max.get(),
            wait_max: self.wait_max.get(),
            queue: self.queue_limit.get(),
            name_bytes: self.name_limit.get(),
            finished: self.finished_limit.get(),
            holds: self.hold_limit.get(),
            waiting_bytes: self.waiting_bytes_limit.get(),
            identity_share: server.identity_share.get(),
        }
    }
}

impl NamespaceSection {
    /// The quota of a namespace with these keys.
    pub fn quota(&self) -> Quota {
        Quota {
            rate: rate(self.rate_limit, self.rate_burst),
            leases: self.lease_limit.map(Count::get),
            waiters: self.waiter_limit.map(Count::get),
            streams: self.stream_limit.map(Count::get),
        }
    }
}

fn rate(limit: Option<QuotaCount>, burst: Option<QuotaCount>) -> Option<Rate> {
    let limit = limit?;
    Some(Rate {
        per_second: limit.get(),
        burst: burst.unwrap_or(limit).get(),
    })
}

fn period_s<const MIN_MS: u64, const MAX_MS: u64>(seconds: u64) -> Period<MIN_MS, MAX_MS> {
    Period::nearest(std::time::Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_a_namespace_are_those_of_its_limits() {
        assert_eq!(
            NamespaceSection::default().limits(&ServerSection::default()),
            Limits::default()
        );
    }

    #[test]
    fn a_silent_connection_is_closed_within_twenty_seconds() {
        let slowest: ServerSection =
            toml::from_str("keepalive_interval = '10s'\nkeepalive_timeout = '9s'").expect("the bounds themselves");
        let closed = slowest.keepalive_interval.get() + slowest.keepalive_timeout.get();
        assert!(closed.as_secs() < 20, "{closed:?}");
        assert!(toml::from_str::<ServerSection>("keepalive_interval = '11s'").is_err());
        assert!(toml::from_str::<ServerSection>("keepalive_timeout = '10s'").is_err());
    }
}
